"""`kvitals gate`: an incident as a load that is played again."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kvitals.app.errors import UsageError
from kvitals.app.load.extracted_load import ExtractedLoad, NoLoadError, extract_load
from kvitals.app.load.load_formats import FORMATS, MAX_BYTES, load_lines, mean_rate
from kvitals.ui.cli.common import add_config_option, configuration, status_console


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "gate", description="Turns the requests of a recorded incident into a load without any text, to play it again."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    extract = actions.add_parser("extract", help="write the load of a recording: arrivals, lengths, prefixes, tenants")
    extract.add_argument("file", type=Path, metavar="FILE.kvcap")
    extract.add_argument(
        "--out", type=Path, metavar="FILE", help="the load, as lines of JSON (default: standard output)"
    )
    extract.add_argument(
        "--format",
        choices=FORMATS,
        default="kvitals",
        help="kvitals: all of it (default); mooncake, aiperf: timestamps, lengths, hash_ids; vllm: prompts of synthetic"
        " words for `vllm bench serve --dataset-name custom`, without arrivals",
    )
    add_config_option(extract)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    try:
        load = extract_load(args.file, configuration(args))
    except NoLoadError as error:
        raise UsageError(str(error)) from error
    lines = load_lines(load, args.format)
    if args.out is None:
        _write(sys.stdout.buffer, lines)
    else:
        _write_file(args.out, lines)
    console = status_console()
    for sentence in _summary(load, args.format):
        console.print(sentence, soft_wrap=True)
    return 0


def _write_file(path: Path, lines: Iterator[bytes]) -> None:
    """Write a new file; nothing is overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError as error:
        raise UsageError(f"{path} exists; choose another --out") from error
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}; choose another --out") from error
    with os.fdopen(descriptor, "wb") as file:
        _write(file, lines)


def _write(file: BinaryIO, lines: Iterator[bytes]) -> None:
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_BYTES:
            raise UsageError(f"the load is larger than {MAX_BYTES >> 30} GiB; record a shorter time")
        file.write(line + b"\n")
    file.flush()


def _summary(load: ExtractedLoad, form: str) -> Iterator[str]:
    tenants = {one.tenant for one in load.requests if one.tenant}
    aborted = sum(one.abort_after is not None for one in load.requests)
    yield (
        f"{load.source}: {len(load.requests)} requests in {load.seconds:.0f} s ({mean_rate(load):.2f}/s),"
        f" {len(tenants)} tenants, {aborted} aborted"
    )
    share = f"of {load.with_prefix:.0%} of the requests"
    yield f"prefixes from {load.prefixes}, {share}; blocks of {load.block_tokens} tokens"
    if estimated := sum(one.estimated for one in load.requests):
        yield f"{estimated} requests have estimated token counts: the medians of their tenant"
    if load.left_out:
        yield f"{load.left_out} requests are left out: the engine refused them, and their token counts are unknown"
    if load.truncated:
        yield "the recording has more requests than are kept; the earliest are missing"
    if form == "vllm":
        yield f"this format has no arrivals: play it with --request-rate {mean_rate(load):.2f} --disable-shuffle"
