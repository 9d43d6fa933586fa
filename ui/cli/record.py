"""`kvitals record`: write down what the senses receive, for a later triage or a bug report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.text import Text

from kvitals.agent.connections import GuardedRunner, GuardedSite
from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.host_names import allowed_hosts
from kvitals.agent.exports.requests_api import Requests
from kvitals.agent.ledger.event import KvEventsRecord
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.node import Node
from kvitals.agent.records import ProbeRecord, Record, ScrapeRecord, encode
from kvitals.agent.requests.observation import PartsRecord
from kvitals.app.errors import UsageError
from kvitals.rules.loader import load as load_knowledge
from kvitals.series.recordings import CaptureWriter
from kvitals.series.slices import in_slices
from kvitals.ui.cli import replay
from kvitals.ui.cli.common import (
    EXIT_UNKNOWN,
    add_judging_options,
    configuration,
    parse_address,
    parse_duration,
    status_console,
)

MAX_SECONDS = 24 * 3600.0
EXIT_STOPPED = 130


def add(commands: Any) -> None:
    parser = commands.add_parser("record")
    parser.add_argument(
        "source",
        nargs="*",
        metavar="URL|FILE",
        help="engines; default: discover the engines on this node; with --replay: a recording",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.kvcap", help="file to write; required unless --replay is given"
    )
    parser.add_argument("--for", dest="seconds", metavar="TIME", help="how long (60s)")
    parser.add_argument("--every", metavar="TIME", help="between looks (1s)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address that receives a tap's records and answers queries while it records",
    )
    replay.add_replay_options(parser)
    add_judging_options(parser)
    parser.set_defaults(do=do)


def _refuse_ignored(options: Mapping[str, object], why: str) -> None:
    """Raises UsageError for an option that was given and would have no effect."""
    if given := next((name for name, value in options.items() if value), None):
        raise UsageError(f"{given} {why}")


def do(args: argparse.Namespace) -> int:
    if args.replay:
        recording = {"--out": args.out, "--for": args.seconds, "--every": args.every, "--listen": args.listen}
        judging = {"--slo": args.slo, "--rules": args.rules, "--config": args.config}
        _refuse_ignored(recording, "is for a new recording; leave it out with --replay")
        _refuse_ignored(judging if args.serve else {}, "is for verdicts; leave it out with --serve")
        _refuse_ignored({} if args.serve else {"--port": args.port}, "needs --serve")
        return replay.run(args)
    _refuse_ignored({"--serve": args.serve, "--port": args.port}, "needs --replay FILE.kvcap")
    if args.out is None:
        raise UsageError("--out FILE.kvcap names the new recording; record --replay FILE.kvcap replays one")
    seconds = parse_duration(args.seconds or "60s", "--for")
    every = parse_duration(args.every or "1s", "--every")
    if seconds > MAX_SECONDS or every < 0.2:
        raise UsageError("a recording lasts at most 24 hours and scrapes at most five times a second")
    if args.out.exists():
        raise UsageError(f"{args.out} exists, and kvitals does not overwrite recordings; choose another --out")
    return asyncio.run(_record(args, seconds, every))


async def _record(args: argparse.Namespace, seconds: float, every: float) -> int:
    with tempfile.TemporaryDirectory() as places:  # of request logs: those of a running agent stay as they are
        return await _record_from(args, seconds, every, Path(places))


async def _record_from(args: argparse.Namespace, seconds: float, every: float, places: Path) -> int:
    console = status_console()
    last: Sequence[Record] = ()
    holds = False  # whether anything came from a target or an observer
    node = Node(configuration(args))
    current = asyncio.current_task()
    assert current is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, current.cancel)  # as Ctrl-C
    try:
        for line in await node.open(args.source, requests=places):
            console.print(line, style="dim")
        meta = {**node.watched.meta, "every_seconds": every}
        async with _served(node, args.listen):  # first, so that nothing is left where that fails
            with (
                CaptureWriter(args.out, version=version("kvitals"), meta=meta) as writer,
                console.status("") as status,
            ):
                begun = time.monotonic()
                while (done := time.monotonic() - begun) < seconds:
                    last = await node.collect()
                    holds = holds or any(_is_of_target(record) for record in last)
                    for record in last:
                        writer.write(encode(record))
                        await in_slices(node.ingest_steps(record), asyncio.to_thread)  # so that restarts are seen
                    progress = f"recording {', '.join(node.targets)}: {done:.0f} of {seconds:.0f} s; Ctrl-C stops"
                    status.update(Text(progress))
                    await asyncio.sleep(max(0.0, every - (time.monotonic() - begun - done)))
    except asyncio.CancelledError:
        if not args.out.exists():
            return EXIT_STOPPED
    finally:
        await node.close()
    for told in last:
        if isinstance(told, ScrapeRecord) and not told.ok:
            console.print(f"{told.target}, at the end: {told.message}", style="yellow")
    if not holds:
        args.out.unlink()
        console.print(f"Nothing was recorded, because no target answered. {args.out} is deleted.", style="yellow")
        return EXIT_UNKNOWN
    console.print(f"{args.out}: {args.out.stat().st_size / 1024:.0f} KB. Diagnose it: kvitals triage {args.out}")
    return 0


def _is_of_target(record: Record) -> bool:
    """Whether a record holds a page, parts of requests or KV events; the host and the GPUs are recorded in any
    case."""
    if isinstance(record, ScrapeRecord):
        return record.ok
    return bool(record.parts) if isinstance(record, PartsRecord) else isinstance(record, KvEventsRecord | ProbeRecord)


@contextlib.asynccontextmanager
async def _served(node: Node, listen: str | None) -> AsyncIterator[None]:
    """Parts are taken, and series and requests answered for, where that is wanted."""
    if not listen:
        yield
        return
    host, port = parse_address(listen, "--listen")
    requests = Requests(
        store=lambda: node.requests.store,
        exemplars=lambda: node.requests.exemplars(),
        resolve=node.parts.tenant_name,
        take=node.parts.offer,
        token_file=node.config.agent.parts_token_file,
    )
    app = build_app(
        ApiParts(
            node.window,
            load_knowledge().families,
            findings=lambda: None,
            ready=lambda: True,
            requests=requests,
            version=version("kvitals"),
            hosts=allowed_hosts(host, node.config.agent.hosts),
        )
    )
    runner = GuardedRunner(app)
    await runner.setup()
    try:
        try:
            await GuardedSite(runner, LISTENERS["record"], host, port).start()
        except OSError as error:
            raise UsageError(f"cannot listen on {listen} ({error.strerror}); choose another with --listen") from error
        yield
    finally:
        await runner.cleanup()
