"""`kvitals run`: the agent, its API and the web page, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiohttp import web
from rich.console import Console

from kvitals.agent import loop_watch, stopping, systemd
from kvitals.agent.connections import GuardedSite
from kvitals.agent.descriptors import raise_limit
from kvitals.agent.exports.api import allowed_hosts, build_app
from kvitals.agent.exports.ledger import LedgerApi
from kvitals.agent.exports.requests import Requests
from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.health import Health
from kvitals.agent.inbound import server_tls
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.malloc import give_back
from kvitals.agent.paths import state_directory
from kvitals.agent.workers import Worker
from kvitals.app.alerting import groups
from kvitals.app.demo import DEMO
from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import Keeping, directory
from kvitals.app.notify.diagnosis import OfAgent
from kvitals.app.notify.families import add_families
from kvitals.app.notify.intake import PATH, add_notify
from kvitals.app.notify.service import Notifier
from kvitals.app.pipeline import FAST_SECONDS, SLOW_SECONDS, Pipeline, Setup
from kvitals.app.runtime.reload import LOOK_SECONDS, Reload
from kvitals.app.runtime.target_search import Search
from kvitals.app.sources.recording import judge_recording
from kvitals.app.state import StateKeeper, state_file
from kvitals.config import Remote
from kvitals.config.hosts import is_loopback
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.finding import DocumentSource, encode
from kvitals.series.promql import PromQLError
from kvitals.series.slices import in_slices
from kvitals.ui.cli.common import (
    add_judging_options,
    answer_console,
    parse_address,
    parse_slo,
    port_number,
    setup,
    status_console,
    url_of,
)
from kvitals.ui.cli.notify import notify_summary as told_of
from kvitals.ui.cli.notify import set_up
from kvitals.ui.cli.render import show
from kvitals.ui.web import serve as web_page
from kvitals.ui.web.settings import Settings

WEB_PORT = 8501
PATIENCE = 0.8
"""The share of the interval that a cycle waits for its collectors; what comes later is taken by the next one."""

SHUTDOWN_SECONDS = 1.0
"""For requests that are being answered, and for the web page's server, when the agent stops."""

CLOSE_SECONDS = 2.5
"""For listeners and history, when the agent stops."""


def add(commands: Any) -> None:
    parser = commands.add_parser("run", help="the agent, its API and the web page")
    parser.add_argument("source", nargs="*", metavar="URL", help="engines; none: configured ones, else discovered")
    parser.add_argument("--demo", nargs="?", const=str(DEMO), metavar="FILE", help="a recorded incident instead")
    parser.add_argument("--listen", metavar="HOST:PORT", help="the API's address (127.0.0.1:9477)")
    parser.add_argument(
        "--web-port", type=port_number, default=WEB_PORT, metavar="PORT", help=f"the web page ({WEB_PORT})"
    )
    parser.add_argument("--no-web", action="store_true", help="without the web page")
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if args.demo and args.source:
        raise UsageError("--demo shows a recording; leave the URLs away, or leave --demo away")
    if args.listen:
        parse_address(args.listen, "--listen")  # wrong ones are told before engines are looked for
    give_back()
    raise_limit()
    loop_watch.run(_run(args))
    return 0


async def _run(args: argparse.Namespace) -> None:
    console = answer_console()
    stop = asyncio.Event()
    stopping.on_signals(stop)
    if args.demo:
        judged = judge_recording(Path(args.demo), setup(args))
        at = judged.document.window.end
        async with _served(judged.pipeline, lambda: at, args, console):
            show(judged.document, console)
            _where(args, judged.pipeline, console)
            await stop.wait()
        return
    name = ", ".join(args.source) or "this node"
    pipeline = Pipeline(setup(args), DocumentSource("agent", name))
    reload = Reload(pipeline, partial(_setup_of, args), status_console())
    for line in await pipeline.node.open(args.source, patient=True, requests=state_directory()):
        console.print(line, style="dim")
    pipeline.node.send_traces(version("kvitals"))
    keeping = Keeping(pipeline, status_console().print) if pipeline.setup.config.history.enabled else None
    if keeping is not None:
        keeping.start(version("kvitals"))
    health = Health(lambda: pipeline.setup.config.agent.interval)
    try:
        async with _served(pipeline, time.time, args, console, lambda: reload.status, keeping, health):
            _where(args, pipeline, console)
            systemd.notify(systemd.READY)
            alive = asyncio.create_task(_keep_alive(health), name="systemd watchdog")
            try:
                await _cycles(pipeline, reload, stop, console, keeping, health)
            finally:
                health.ended()
                alive.cancel()
                systemd.notify(systemd.STOPPING)
    finally:
        await _closed(pipeline, keeping)


async def _closed(pipeline: Pipeline, keeping: Keeping | None) -> None:
    """Close listeners and history side by side: what hangs in one keeps the other from nothing."""
    closing = [asyncio.ensure_future(pipeline.node.close())]
    if keeping is not None:
        closing.append(asyncio.ensure_future(Worker("history").run(keeping.close)))
    await asyncio.wait(closing, timeout=CLOSE_SECONDS)


async def _keep_alive(health: Health) -> None:
    """Tell systemd that the agent does its work, twice as often as it asks."""
    expected = systemd.watchdog_seconds()
    while expected is not None:
        if not health.problem:
            systemd.notify(systemd.WATCHDOG)
        await asyncio.sleep(expected / 2)


def _setup_of(args: argparse.Namespace, file: Path | None) -> Setup:
    return setup(argparse.Namespace(**{**vars(args), "config": file}))


async def _cycles(
    pipeline: Pipeline, reload: Reload, stop: asyncio.Event, console: Console, keeping: Keeping | None, health: Health
) -> None:
    """Scrape and judge at the configured interval; say when the verdict changes."""
    state = StateKeeper(state_file(), status_console().print)
    pipeline.judge.memory.update(await asyncio.to_thread(state.open, time.time()))
    hangup = _hangups(stop)
    search = Search(pipeline, console)
    cycle = _Cycle(pipeline, reload, console, keeping, state)
    due = time.monotonic()
    while not stop.is_set():
        begun = time.monotonic()
        await search.follow()
        await cycle.run()
        health.completed()
        loop_watch.begin()
        # By the clock, so that looks do not drift; one that is missed is not made up for.
        due = max(due + pipeline.setup.config.agent.interval, begun)
        await _pause(due, reload, search, stop, hangup, pipeline)
    search.stop()
    await asyncio.to_thread(state.close)


class _Cycle:
    """One cycle: collect, ingest, judge, write down. A step that raises is reported as a collector and ends nothing."""

    def __init__(
        self, pipeline: Pipeline, reload: Reload, console: Console, keeping: Keeping | None, state: StateKeeper
    ) -> None:
        self._pipeline = pipeline
        self._reload = reload
        self._console = console
        self._keeping = keeping
        self._verdict = ""
        self._state = state
        self._parsing = Worker("parsing")
        own = pipeline.setup.config.labels
        self._labels = {"cluster": own.cluster, "node": own.node}
        self._own_rows = GaugeRows(pipeline.node.window, "agent")

    async def run(self) -> None:
        pipeline, guard = self._pipeline, self._pipeline.node.collectors.guard
        pipeline.node.check_memory()
        records = await pipeline.node.collect(PATIENCE * pipeline.setup.config.agent.interval)
        async with pipeline.judging:
            for record in records:
                with guard("ingest"):
                    await in_slices(pipeline.node.ingest_steps(record), self._parsing.run)
                await asyncio.sleep(0)
            now = time.time()
            with guard("configuration"):
                self._reload.say(now)
            with guard("judging"):
                self._say(await _judged(pipeline, now))
            await asyncio.sleep(0)
            watch = loop_watch.current()
            own = pipeline.node.memory.series(self._labels) | (watch.series(self._labels) if watch is not None else {})
            self._own_rows.write(now, own)
            if self._keeping is not None:
                with guard("history"):
                    self._keeping.cycle(now, self._reload.status)
        with guard("state"):
            self._state.save(pipeline.judge.memory)

    def _say(self, verdict: str) -> None:
        if verdict != self._verdict:
            self._console.print(f"{time.strftime('%H:%M:%S')}  {verdict}")
            self._verdict = verdict


async def _judged(pipeline: Pipeline, now: float) -> str:
    """The verdict of this moment. A query that can not be answered, such as one during which the machine stood still,
    leaves the moment out and ends nothing."""
    try:
        await in_slices(pipeline.observe_steps(EvaluationSpan(now, FAST_SECONDS, SLOW_SECONDS)), asyncio.to_thread)
        return pipeline.verdict()
    except PromQLError as error:
        return f"Not judged this time: {error}."


def _hangups(stop: asyncio.Event) -> asyncio.Event:
    """Set by SIGHUP, which asks to load the configuration. Where the terminal went away it means to stop."""
    hangup = asyncio.Event()
    had_terminal = sys.stdin is not None and sys.stdin.isatty()

    def hang_up() -> None:
        if had_terminal and not sys.stdin.isatty():
            stop.set()
        hangup.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)
    return hangup


async def _pause(
    until: float, reload: Reload, search: Search, stop: asyncio.Event, hangup: asyncio.Event, pipeline: Pipeline
) -> None:
    """Wait for the next cycle, with an eye on the configuration."""
    while not stop.is_set():
        asked = hangup.is_set()
        hangup.clear()
        with pipeline.node.collectors.guard("configuration"):
            if await reload.look(at_once=asked):
                search.begin(at_once=asked)
        left = until - time.monotonic()
        if left <= 0:
            return
        waiting = [asyncio.ensure_future(event.wait()) for event in (stop, hangup)]
        await asyncio.wait(waiting, timeout=min(left, LOOK_SECONDS), return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()


@contextlib.asynccontextmanager
async def _served(
    pipeline: Pipeline,
    clock: Callable[[], float],
    args: argparse.Namespace,
    console: Console,
    runtime: Callable[[], dict[str, Any]] = dict,
    keeping: Keeping | None = None,
    health: Health | None = None,
) -> AsyncIterator[None]:
    """The API, and the web page beside it as a process of its own; both end with this context."""
    host, port = _address(args, pipeline)
    remote = pipeline.setup.config.remote
    app = build_app(
        pipeline,
        pipeline.setup.knowledge.families,
        findings=lambda: pipeline.settled(lambda: encode(pipeline.triage()) if pipeline.span else None),
        ready=lambda: pipeline.span is not None,
        problem=lambda: health.problem if health is not None else "",
        rules=lambda: pipeline.settled(lambda: groups(pipeline)),
        runtime=runtime,
        requests=_requests(args, pipeline),
        ledger=LedgerApi(lambda: pipeline.node.ledger, pipeline.node.tenant_name),
        version=version("kvitals"),
        clock=clock,
        hosts=allowed_hosts(host, pipeline.setup.config.agent.hosts),
        token_file=remote.token_file if remote is not None else None,
        past=keeping.past if keeping is not None else None,
        whole_since=pipeline.whole_since,
        notes=keeping.past if keeping is not None else None,
        since_change=keeping.since_change if keeping is not None else None,
    )
    if (table := pipeline.setup.config.notify) is not None:
        of_agent = OfAgent(pipeline, clock, keeping is not None)
        notifier = Notifier(table, of_agent, mutes=lambda: pipeline.setup.config.mutes)
        own = pipeline.setup.config.labels
        add_notify(app, notifier, table.token_file, guarded=True)
        add_families(app, notifier, pipeline.node.window, {"cluster": own.cluster, "node": own.node}, clock)
    runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_SECONDS)
    await set_up(runner)
    try:
        await GuardedSite(runner, LISTENERS["api"], host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise UsageError(f"can not listen on {host}:{port} ({error.strerror}); choose another with --listen") from error
    if not args.demo and remote is not None:
        await _open_door(runner, remote)
    page = None if args.no_web else await _start_page(args, url_of((host, port)), pipeline, keeping)
    watching = asyncio.create_task(_watch_page(page, console)) if page is not None else None
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()
        if page is not None and page.returncode is None:
            await _end_page(page)
        await runner.cleanup()
        console.print("stopped")


async def _end_page(page: asyncio.subprocess.Process) -> None:
    page.terminate()
    try:
        await asyncio.wait_for(page.wait(), SHUTDOWN_SECONDS)
    except TimeoutError:
        page.kill()


async def _open_door(runner: web.AppRunner, remote: Remote) -> None:
    """The same API for other machines, over TLS. Raises UsageError."""
    host, port = remote.address
    try:
        tls = server_tls(remote.cert_file, remote.key_file, remote.client_ca_file)
        await GuardedSite(runner, LISTENERS["remote"], host or None, port, tls=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise UsageError(f"[remote] can not listen on {remote.listen}: {error}") from error


def _requests(args: argparse.Namespace, pipeline: Pipeline) -> Requests:
    """The request side for the API; a recorded incident takes no parts."""
    node = pipeline.node
    return Requests(
        store=lambda: node.requests.store,
        exemplars=lambda: node.requests.exemplars(),
        tails=lambda: node.requests.tails.reports,
        resolve=node.tenant_name,
        take=None if args.demo else node.take_parts,
        token_file=pipeline.setup.config.agent.parts_token_file,
    )


def _address(args: argparse.Namespace, pipeline: Pipeline) -> tuple[str, int]:
    if not args.listen:
        return pipeline.setup.config.agent.address
    host, port = parse_address(args.listen, "--listen")
    return host or "127.0.0.1", port


async def _start_page(
    args: argparse.Namespace, api: str, pipeline: Pipeline, keeping: Keeping | None
) -> asyncio.subprocess.Process:
    """The web page's server, silent unless it fails."""
    if missing := web_page.missing():
        raise UsageError(f"{missing}, or go without it: --no-web")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", args.web_port)) == 0:
            raise UsageError(f"port {args.web_port} is taken; choose another with --web-port, or use --no-web")
    settings = _page_settings(args, api, pipeline, keeping)
    command = web_page.command(args.web_port, settings)
    return await asyncio.create_subprocess_exec(
        *command,
        env=web_page.environment(settings),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


def _page_settings(args: argparse.Namespace, api: str, pipeline: Pipeline, keeping: Keeping | None) -> Settings:
    """What the page shows: a recording itself, so that any moment of it can be picked, else this agent."""
    return Settings(
        api=api,
        recording=str(Path(args.demo).absolute()) if args.demo else "",
        history=str(directory(pipeline.setup.config)) if keeping is not None else "",
        config=str(args.config.absolute()) if args.config else "",
        rules=tuple(str(one.absolute()) for one in args.rules),
        slo=parse_slo(args.slo),
    )


async def _watch_page(page: asyncio.subprocess.Process, console: Console) -> None:
    """Say it when the web page's server ends by itself, with its last words; the agent goes on without it."""
    last: deque[str] = deque(maxlen=10)
    assert page.stderr is not None
    async for line in page.stderr:
        last.append(line.decode(errors="replace").rstrip())
    console.print(f"the web page's server ended ({await page.wait()}); the API goes on", style="yellow")
    for text in last:
        console.print(f"  {text}", style="dim")


def _where(args: argparse.Namespace, pipeline: Pipeline, console: Console) -> None:
    address = _address(args, pipeline)
    console.print()
    if not args.no_web:
        console.print(f"web page  http://127.0.0.1:{args.web_port}", style="bold")
    console.print(f"API       {url_of(address)}  (Grafana data source; /metrics, /api/v1/findings)")
    if (table := pipeline.setup.config.notify) is not None:
        console.print(f"alerts    {PATH} there  (webhook_configs of an Alertmanager)")
        console.print(f"          {told_of(table)}", style="dim", soft_wrap=True)
    if not args.demo and pipeline.setup.config.remote is not None:
        console.print(f"          https://{pipeline.setup.config.remote.listen}  for other machines")
    elif not is_loopback(address[0]):
        console.print(
            "          anybody who reaches this address can read it; [remote] asks for a token", style="yellow"
        )
    console.print("Ctrl-C stops.", style="dim")
