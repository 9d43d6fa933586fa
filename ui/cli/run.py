"""`kvitals run`: the agent, its API and the web page, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from kvitals.agent import loop_watch, stopping
from kvitals.agent.descriptors import raise_limit
from kvitals.agent.malloc import give_back
from kvitals.app import page_process
from kvitals.app.demo import DEMO
from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import directory
from kvitals.app.notify.intake import PATH
from kvitals.app.page_settings import PageSettings
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.runtime.api_server import serve
from kvitals.app.runtime.daemon import Daemon
from kvitals.app.since_change import of_recording, since_change
from kvitals.app.sources.recording import RecordingVerdict, judge_recording
from kvitals.config.hosts import is_loopback
from kvitals.rules.finding import DocumentSource, encode
from kvitals.ui.cli import screen
from kvitals.ui.cli.common import (
    add_judging_options,
    answer_console,
    configuration,
    parse_address,
    parse_slo,
    port_number,
    setup,
    status_console,
    url_of,
)
from kvitals.ui.cli.notify import notify_summary as told_of

WEB_PORT = 8501
SWITCH_SECONDS = 0.0005
"""After which a thread that computes gives others a turn. With Python's 5 ms, each of thousands of calls that give the
interpreter up, as numpy's do, waits 5 ms while a query, a page or KV events are worked on in another thread."""

END_SECONDS = 1.0
"""For the web page's server, when the agent stops."""


def add(commands: Any) -> None:
    parser = commands.add_parser("run")
    parser.add_argument(
        "source", nargs="*", metavar="URL", help="engines (default: the configured engines, else discovery)"
    )
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
        raise UsageError("--demo cannot be combined with URLs: it shows a recording")
    if args.listen:
        parse_address(args.listen, "--listen")  # wrong ones are told before engines are looked for
    give_back()
    raise_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    _check_port(args)
    # Before the loop, whose signal handlers would let Ctrl-C wait until all of it is judged.
    judged = judge_recording(Path(args.demo), setup(args)) if args.demo else None
    loop_watch.run(_run(args, judged))
    return 0


def _check_port(args: argparse.Namespace) -> None:
    """Raises UsageError where something listens on the API's port already: a demo is judged for seconds first."""
    host, port = parse_address(args.listen, "--listen") if args.listen else configuration(args).agent.address
    local = "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104 (asked, not bound to)
    with socket.socket(socket.AF_INET6 if ":" in local else socket.AF_INET) as probe:
        if probe.connect_ex((local, port)) == 0:
            raise UsageError(
                f"port {port} of {local} is in use, perhaps by another agent; choose another with --listen HOST:PORT"
            )


async def _run(args: argparse.Namespace, judged: RecordingVerdict | None) -> None:
    console = answer_console()
    stop = asyncio.Event()
    stopping.on_signals(stop)
    if judged is not None:
        await _run_demo(args, judged, stop, console)
        return
    pipeline = Pipeline(setup(args), DocumentSource("agent", ", ".join(args.source) or "this node"))
    daemon = Daemon(pipeline, partial(_setup_of, args), console, status_console())
    page = _page(args, pipeline, console, daemon.keeping is not None)
    async with daemon.open(args.source, _address(args, pipeline)), page:
        _where(args, pipeline, console)
        await daemon.run(stop)
    console.print("stopped")


async def _run_demo(args: argparse.Namespace, judged: RecordingVerdict, stop: asyncio.Event, console: Console) -> None:
    """Show a recorded incident at its end until `stop` is set."""
    pipeline, at = judged.pipeline, judged.document.window.end

    def latest_change() -> bytes:
        return encode(since_change(of_recording(Path(args.demo), pipeline.setup)).document)

    served = serve(pipeline, _address(args, pipeline), lambda: at, since_change=latest_change)
    async with served, _page(args, pipeline, console, False):
        screen.show(judged.document, console)
        _where(args, pipeline, console)
        await stop.wait()
    console.print("stopped")


def _setup_of(args: argparse.Namespace, file: Path | None) -> Setup:
    return setup(argparse.Namespace(**{**vars(args), "config": file}))


@contextlib.asynccontextmanager
async def _page(
    args: argparse.Namespace, pipeline: Pipeline, console: Console, has_history: bool
) -> AsyncIterator[None]:
    """The web page beside the API as a process of its own, unless it is switched off; it ends with this context."""
    if args.no_web:
        yield
        return
    page = await _start_page(args, pipeline, has_history)
    watching = asyncio.create_task(_watch_page(page, console))
    try:
        yield
    finally:
        watching.cancel()
        if page.returncode is None:
            await _end_page(page)


async def _end_page(page: asyncio.subprocess.Process) -> None:
    page.terminate()
    try:
        await asyncio.wait_for(page.wait(), END_SECONDS)
    except TimeoutError:
        page.kill()


def _address(args: argparse.Namespace, pipeline: Pipeline) -> tuple[str, int]:
    if not args.listen:
        return pipeline.setup.config.agent.address
    host, port = parse_address(args.listen, "--listen")
    return host or "127.0.0.1", port


async def _start_page(args: argparse.Namespace, pipeline: Pipeline, has_history: bool) -> asyncio.subprocess.Process:
    """The web page's server, silent unless it fails.

    It ends when the pipe to its standard input closes: with the agent, even if the agent is killed.
    """
    if missing := page_process.missing():
        raise UsageError(f"{missing}, or go without it: --no-web")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", args.web_port)) == 0:
            raise UsageError(f"port {args.web_port} is in use; choose another with --web-port, or use --no-web")
    settings = _page_settings(args, pipeline, has_history)
    command = page_process.command(args.web_port, settings)
    return await asyncio.create_subprocess_exec(
        *command,
        env=page_process.environment(settings),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


def _page_settings(args: argparse.Namespace, pipeline: Pipeline, has_history: bool) -> PageSettings:
    """What the page shows: a recording itself, so that any moment of it can be picked, else this agent."""
    return PageSettings(
        api=url_of(_address(args, pipeline)),
        recording=str(Path(args.demo).absolute()) if args.demo else "",
        history=str(directory(pipeline.setup.config)) if has_history else "",
        config=str(args.config.absolute()) if args.config else "",
        rules=tuple(str(one.absolute()) for one in args.rules),
        slo=parse_slo(args.slo),
        hosts=pipeline.setup.config.agent.hosts,
        ends_with_parent=True,
    )


async def _watch_page(page: asyncio.subprocess.Process, console: Console) -> None:
    """Say it when the web page's server ends by itself, with its last words; the agent goes on without it."""
    last: deque[str] = deque(maxlen=10)
    assert page.stderr is not None
    async for line in page.stderr:
        last.append(line.decode(errors="replace").rstrip())
    console.print(f"the web page's server ended ({await page.wait()}); the API continues", style="yellow")
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
        console.print(f"          {told_of(table)}", style="dim")
    if not args.demo and pipeline.setup.config.remote is not None:
        console.print(f"          https://{pipeline.setup.config.remote.listen}  for other machines")
    elif not is_loopback(address[0]):
        console.print(
            "          anyone who reaches this address can read it; [remote] requires a token", style="yellow"
        )
    console.print("Ctrl-C stops.", style="dim")
