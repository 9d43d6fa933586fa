"""`kvitals run`: the agent, its API and the web page, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import time
from collections import deque
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiohttp import web
from rich.console import Console

from agent.config import ConfigError
from agent.exports.api import allowed_hosts, build_app
from rules.finding import Source, encode
from ui.alerting import groups
from ui.cli.common import UsageError, add_judging_options, setup
from ui.cli.render import show
from ui.demo import DEMO
from ui.pipeline import Pipeline
from ui.recorded import judge_recording
from ui.state import load_state, save_state, state_file
from ui.web import serve as web_page

WEB_PORT = 8501
REFRESH_SECONDS = 30.0


def add(commands: Any) -> None:
    parser = commands.add_parser("run", help="the agent, its API and the web page")
    parser.add_argument("source", nargs="*", metavar="URL", help="engines; none: configured ones, else discovered")
    parser.add_argument("--demo", nargs="?", const=str(DEMO), metavar="FILE", help="a recorded incident instead")
    parser.add_argument("--listen", metavar="HOST:PORT", help="the API's address (127.0.0.1:9477)")
    parser.add_argument("--web-port", type=int, default=WEB_PORT, metavar="PORT", help=f"the web page ({WEB_PORT})")
    parser.add_argument("--no-web", action="store_true", help="without the web page")
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if args.demo and args.source:
        raise UsageError("--demo shows a recording; leave the URLs away, or leave --demo away")
    asyncio.run(_run(args))
    return 0


async def _run(args: argparse.Namespace) -> None:
    console = Console(highlight=False)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if args.demo:
        judged = judge_recording(Path(args.demo), setup(args))
        at = judged.document.window.end
        async with _served(judged.pipeline, lambda: at, args, console):
            show(judged.document, console)
            _where(args, console)
            await stop.wait()
        return
    name = ", ".join(args.source) or "this node"
    pipeline = Pipeline(setup(args), Source("agent", name))
    for line in await pipeline.node.open(args.source):
        console.print(line, style="dim")
    try:
        async with _served(pipeline, time.time, args, console):
            _where(args, console)
            await _cycles(pipeline, stop, console)
    finally:
        await pipeline.node.close()


async def _cycles(pipeline: Pipeline, stop: asyncio.Event, console: Console) -> None:
    """Scrape and judge at the configured interval; say when the verdict changes."""
    state = state_file()
    pipeline.judge.memory.update(load_state(state, time.time()))
    before = ""
    interval = pipeline.setup.config.agent.interval
    refreshed = time.monotonic()
    while not stop.is_set():
        begun = time.monotonic()
        if begun - refreshed > REFRESH_SECONDS:
            refreshed = begun
            await _refresh(pipeline, console)
        pipeline.feed(await pipeline.node.read())
        pipeline.observe(time.time())
        document = pipeline.triage()
        if document.verdict != before:
            console.print(f"{time.strftime('%H:%M:%S')}  {document.verdict}")
            before = document.verdict
        with contextlib.suppress(OSError):  # a full disk stops the memory over restarts, not the agent
            save_state(state, pipeline.judge.memory)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), max(0.0, interval - (time.monotonic() - begun)))


async def _refresh(pipeline: Pipeline, console: Console) -> None:
    """Look for targets again. A targets file that became unreadable is told, and the old targets are kept."""
    try:
        for line in await pipeline.node.refresh():
            console.print(line, style="dim")
    except ConfigError as error:
        console.print(f"targets kept as they were: {error}", style="yellow")


@contextlib.asynccontextmanager
async def _served(pipeline: Pipeline, clock: Any, args: argparse.Namespace, console: Console) -> AsyncIterator[None]:
    """The API, and the web page beside it as a process of its own; both end with this context."""
    host, port = _address(args, pipeline)
    app = build_app(
        pipeline.judge.signals.source,
        pipeline.setup.knowledge.families,
        findings=lambda: encode(pipeline.triage()) if pipeline.span else None,
        ready=lambda: pipeline.span is not None,
        rules=lambda: groups(pipeline),
        version=version("kvitals"),
        clock=clock,
        hosts=allowed_hosts(host, pipeline.setup.config.agent.hosts),
    )
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise UsageError(f"can not listen on {host}:{port} ({error.strerror}); choose another with --listen") from error
    page = None if args.no_web else await _start_page(args, f"http://{host}:{port}")
    watching = asyncio.create_task(_watch_page(page, console)) if page is not None else None
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()
        if page is not None and page.returncode is None:
            page.terminate()
            await page.wait()
        await runner.cleanup()
        console.print("stopped")


def _address(args: argparse.Namespace, pipeline: Pipeline) -> tuple[str, int]:
    if not args.listen:
        return pipeline.setup.config.agent.address
    host, _, port = args.listen.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"--listen {args.listen}: write HOST:PORT, as in 127.0.0.1:9477")
    return host or "127.0.0.1", int(port)


async def _start_page(args: argparse.Namespace, api: str) -> asyncio.subprocess.Process:
    """The web page's server, silent unless it fails."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", args.web_port)) == 0:
            raise UsageError(f"port {args.web_port} is taken; choose another with --web-port, or use --no-web")
    command = web_page.command(args.web_port, api)
    return await asyncio.create_subprocess_exec(
        *command,
        env=web_page.environment(api),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def _watch_page(page: asyncio.subprocess.Process, console: Console) -> None:
    """Say it when the web page's server ends by itself, with its last words; the agent goes on without it."""
    last: deque[str] = deque(maxlen=10)
    assert page.stderr is not None
    async for line in page.stderr:
        last.append(line.decode(errors="replace").rstrip())
    console.print(f"the web page's server ended ({await page.wait()}); the API goes on", style="yellow")
    for text in last:
        console.print(f"  {text}", style="dim", markup=False)


def _where(args: argparse.Namespace, console: Console) -> None:
    console.print()
    if not args.no_web:
        console.print(f"web page  http://127.0.0.1:{args.web_port}", style="bold")
    console.print(
        f"API       http://{args.listen or '127.0.0.1:9477'}  (Grafana data source; /metrics, /api/v1/findings)"
    )
    console.print("Ctrl-C stops.", style="dim")
