"""`kvitals record`: write down what the senses receive, for a later triage or a bug report."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agent.service import Node
from series.capture import CaptureWriter
from ui.cli.common import UsageError, add_config_option, configuration, parse_duration, status_console

MAX_SECONDS = 24 * 3600.0


def add(commands: Any) -> None:
    parser = commands.add_parser("record", help="record engines into a .kvcap file")
    parser.add_argument("source", nargs="*", metavar="URL", help="engines; none: discover the engines on this node")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.kvcap")
    parser.add_argument("--for", dest="seconds", default="60s", metavar="TIME", help="how long (60s)")
    parser.add_argument("--every", default="1s", metavar="TIME", help="between looks (1s)")
    add_config_option(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    seconds = parse_duration(args.seconds, "--for")
    every = parse_duration(args.every, "--every")
    if seconds > MAX_SECONDS or every < 0.2:
        raise UsageError("a recording lasts at most 24 hours and looks at most five times a second")
    if args.out.exists():
        raise UsageError(f"{args.out} exists; recordings are not overwritten")
    return asyncio.run(_record(args, seconds, every))


async def _record(args: argparse.Namespace, seconds: float, every: float) -> int:
    with tempfile.TemporaryDirectory() as places:  # of request logs: those of a running agent stay as they are
        return await _record_from(args, seconds, every, Path(places))


async def _record_from(args: argparse.Namespace, seconds: float, every: float, places: Path) -> int:
    console = status_console()
    node = Node(configuration(args))
    for line in await node.open(args.source, requests=places):
        console.print(line, style="dim")
    meta = {**node.meta, "every_seconds": every}
    try:
        with (
            CaptureWriter(args.out, version=version("kvitals"), meta=meta) as writer,
            console.status("") as status,
        ):
            begun = time.monotonic()
            while (done := time.monotonic() - begun) < seconds:
                for record in await node.read():
                    writer.write(record)
                status.update(f"recording {', '.join(node.targets)}: {done:.0f} of {seconds:.0f} s, Ctrl-C stops")
                await asyncio.sleep(max(0.0, every - (time.monotonic() - begun - done)))
    except asyncio.CancelledError:
        pass  # Ctrl-C: what was recorded is whole
    finally:
        await node.close()
    console.print(f"{args.out}: {args.out.stat().st_size / 1024:.0f} KB. Look at it: kvitals triage {args.out}")
    return 0
