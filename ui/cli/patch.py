"""`kvitals patch`: the lever of a finding as a change that a team reviews."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec

from kvitals.app.errors import UsageError
from kvitals.app.escaping import plain
from kvitals.app.patch.file_forms import MAX_BYTES
from kvitals.app.patch.lever_change import PatchError
from kvitals.app.patch.proposal import PatchProposal, PatchRequest, propose
from kvitals.app.sources.live import Collector, agent_document
from kvitals.app.sources.prometheus_fleet import judge_server
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.config.checks import first_of
from kvitals.rules.finding import Triage
from kvitals.series.files import read_regular
from kvitals.series.undecodable import UNDECODABLE
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import (
    add_judging_options,
    parse_moment,
    parse_past,
    parse_url,
    recordings,
    say_notes,
    setup,
    status_console,
    write_whole,
)
from kvitals.ui.cli.help_layout import lay_out

LIVE_SECONDS = 12.0
MAX_WARNING = 400  # characters
MAX_DOCUMENT_BYTES = 16 << 20


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "patch",
        description="Writes a finding's lever as a unified diff of the files that start the engine, for git "
        "apply, and a description for the pull request. Changes nothing. Reads Kubernetes manifests "
        "and compose files"
        " (.yaml), values of the charts of vLLM's production stack and llm-d, systemd units (.service, .conf), and"
        " shell scripts.",
    )
    parser.add_argument(
        "source",
        nargs="?",
        metavar="URL|FILE",
        help="an agent, an engine, a recording, or a document of `kvitals triage --json` (.json)",
    )
    parser.add_argument(
        "finding", nargs="?", default="", metavar="CODE", help="a finding's code or id (default: the first cause)"
    )
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a file that starts the engine; repeatable. Without it: print only the description",
    )
    parser.add_argument("--lever", default="", metavar="NAME", help="a lever of the finding (default: the first)")
    parser.add_argument("--set", dest="value", metavar="VALUE", help="the value to use instead of the lever's own")
    parser.add_argument("--container", default="", metavar="NAME", help="container or service, if a file has several")
    parser.add_argument(
        "--description", type=Path, metavar="FILE", help="write the description to FILE (default: stderr)"
    )
    parser.add_argument("--at", default="", metavar="T", help="time to diagnose, written as for `kvitals triage`")
    add_judging_options(parser)
    prometheus.add_options(parser, "--at")
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    files = {_shown(path): _content(path) for path in args.file}
    document = _document(args)
    flags = _known_flags(args) if _is_foreign(args.source) else None
    request = PatchRequest(args.finding, args.lever, args.value, args.container, flags)
    try:
        proposal = propose(document, request, files)
    except PatchError as error:
        raise UsageError(str(error)) from error
    say_notes(document.coverage.warnings)
    _answer(proposal, args, bool(files))
    return 0


def _answer(proposal: PatchProposal, args: argparse.Namespace, has_files: bool) -> None:
    if args.description is not None:
        write_whole(args.description, proposal.description, "--description")
    elif has_files:
        print(_laid_out(proposal.description, sys.stderr), end="", file=sys.stderr)
    else:
        print(_laid_out(proposal.description, sys.stdout), end="")
    if has_files and not proposal.diff:
        status_console().print(f"The files already have this setting: {proposal.setting}", style="yellow")
    for warning in first_of(proposal.warnings, "warning"):
        print(f"warning: {plain.clip(warning, MAX_WARNING)}", file=sys.stderr)
    sys.stdout.write(proposal.diff)


def _laid_out(description: str, stream: TextIO) -> str:
    """The description at the width of the terminal. A file and a pipe get it as it is, and the diff is never
    broken."""
    if not stream.isatty() and "COLUMNS" not in os.environ:
        return description
    return f"{lay_out(description, shutil.get_terminal_size().columns)}\n"


def _document(args: argparse.Namespace) -> Triage:
    """The triage document of the source. Raises UsageError."""
    if args.prometheus:
        at = parse_past(args.at, "--at") if args.at else time.time()
        args.finding = args.finding or args.source or ""  # there is no source beside --prometheus
        return judge_server(prometheus.access(args), setup(args), at).document
    if not args.source:
        raise UsageError("name a source: an agent's or engine's URL, a recording, a .json document, or --prometheus")
    if args.source.endswith(".json"):
        return _stored(Path(args.source))
    if files := recordings([args.source]):
        first, last = span_of(files[0])
        moment = parse_moment(args.at, first, "--at", last) if args.at else None
        return judge_recording(files[0], setup(args), Moments(moment)).document
    if args.at:
        raise UsageError("--at works with recordings and a Prometheus; a live source shows only the present")
    return asyncio.run(_live(parse_url(args.source), args))


def _is_foreign(source: str | None) -> bool:
    """Whether the document may be somebody else's: from a file, or from an agent. Its settings are held against the
    levers here."""
    return source is not None and (source.endswith(".json") or "://" in source)


def _known_flags(args: argparse.Namespace) -> dict[str, frozenset[str]]:
    levers = setup(args).knowledge.levers
    return {name: frozenset(one.flag for one in lever.settings) for name, lever in levers.items()}


async def _live(url: str, args: argparse.Namespace) -> Triage:
    if (document := await agent_document(url)) is not None:
        return document
    async with Collector(setup(args), [url]) as collector:
        with status_console().status(f"observing {url}"):
            async for _ in collector.collect(LIVE_SECONDS):
                pass
        return collector.document()


def _stored(path: Path) -> Triage:
    try:
        return msgspec.json.decode(_read(path, MAX_DOCUMENT_BYTES), type=Triage)
    except UNDECODABLE as error:
        raise UsageError(f"{path} is not a document of `kvitals triage --json`: {error}") from error


def _content(path: Path) -> str:
    try:
        return _read(path, MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text; give the file that starts the engine") from error


def _read(path: Path, limit: int) -> bytes:
    try:
        return read_regular(path, limit)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _shown(path: Path) -> str:
    """The path as a diff names it, from the current directory where the file is below it."""
    whole = path.absolute()
    here = Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole).lstrip("/")
