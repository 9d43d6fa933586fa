"""`kvitals trace`: what single requests' time went into, as a waterfall in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from kvitals.agent.requests.assembly import BY_TOKENS
from kvitals.agent.requests.first_token_flame import FirstTokenFlame, FlameDifference, difference
from kvitals.agent.requests.record import RequestPhase, RequestRecord
from kvitals.app.errors import UsageError
from kvitals.app.escaping.json import escape_unseen
from kvitals.app.flame_files import folded_stacks, speedscope
from kvitals.app.request_sources import (
    NamedRequest,
    RequestQuery,
    flame_of_agent,
    flames_of_recording,
    of_agent,
    of_recording,
)
from kvitals.app.sources.recording_reader import span_of
from kvitals.series.json_text import encode_json
from kvitals.ui.cli import flames, tails
from kvitals.ui.cli.common import (
    EXIT_HEALTHY,
    EXIT_UNKNOWN,
    add_config_option,
    agent_of,
    configuration,
    is_recording,
    json_text,
    parse_moment,
    parse_url,
    say_beyond,
    say_notes,
)
from kvitals.ui.cli.narrow import bar_columns, print_hanging
from kvitals.ui.cli.output import FORMATS, PrintedDocument, emit
from kvitals.ui.cli.render import moment
from kvitals.ui.formats import PHASE_STYLES, plain, seconds

MOST = 100
FLAME_FORMATS = ("folded", "speedscope")
LISTED = 20
"""Requests to choose from, where no id is given."""
NAME_WIDTH = 13
BAR_WIDTH = 48
FIGURES = 34
"""Columns beside a bar: name, time, share."""
OUTCOMES = {
    "success": "green",
    "aborted": "yellow",
    "refused": "yellow",
    "too_long": "yellow",
    "invalid": "yellow",
    "error": "red",
}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "trace",
        description="Shows requests of a running agent, or of a recording, phase by phase.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="ID [URL|FILE]",
        help="a request id or trace id, unless --slowest or --newest is given; then the agent or recording "
        "(default: the agent on this node). With only an agent or recording: lists the ids",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--slowest", type=int, metavar="N", help="the slowest kept requests, and why they were slow")
    which.add_argument("--newest", type=int, metavar="N", help="the newest requests")
    parser.add_argument("--tenant", default="", metavar="T", help="show only the tenant with this pseudonym")
    which.add_argument(
        "--flame",
        action="store_true",
        help="show where the seconds before first tokens went, by phase, reason and tenant",
    )
    parser.add_argument(
        "-o",
        dest="format",
        choices=(*FORMATS, *FLAME_FORMATS),
        default="text",
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)} (text); with --flame also folded (flamegraph.pl) and speedscope",
    )
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="MOMENT",
        help="--flame of a recording: only requests that ended after this time",
    )
    parser.add_argument("--at", metavar="MOMENT", help="--flame of a recording: end of the window (default: its end)")
    parser.add_argument(
        "--minus", metavar="A..B", help="--flame of a recording: the change against the time range from A to B"
    )
    parser.add_argument("--json", action="store_true", help="the records as JSON, one per line")
    add_config_option(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if args.flame:
        return _flame(args)
    if args.from_ or args.at or args.minus or args.format in FLAME_FORMATS:
        raise UsageError("--from, --at, --minus and -o folded or speedscope require --flame")
    asked, source = _asked(args)
    found = (
        of_recording(Path(source), asked, configuration(args))
        if is_recording(source)
        else of_agent(parse_url(source), asked)
    )
    say_notes(found.notes)
    if args.json:
        for told in found.requests:
            sys.stdout.write(escape_unseen(encode_json(told.record).decode()) + "\n")
        return EXIT_HEALTHY if found.requests else EXIT_UNKNOWN
    lists = not asked.name and args.slowest is None and args.newest is None

    def show_found(console: Console) -> None:
        if not found.requests:
            _say_none(asked, source, console)
        elif lists:
            _list(found.requests, source, console)
        else:
            tails.show(found.tails, found.tenant_names, console)
            for told in found.requests:
                show(told, console)

    def encode() -> str:
        return json_text([msgspec.to_builtins(told.record) for told in found.requests])

    emit(PrintedDocument(f"Requests at {plain(source)}", show_found, encode), args.format)
    return EXIT_HEALTHY if found.requests else EXIT_UNKNOWN


def _flame(args: argparse.Namespace) -> int:
    if args.json or args.tenant or len(args.words) > 1:
        raise UsageError("--flame reads one agent or recording, without --json or --tenant")
    source = args.words[0] if args.words else agent_of(configuration(args))
    flame = _flame_of_recording(Path(source), args) if is_recording(source) else _flame_of_agent(source, args)
    whole = flame if isinstance(flame, FirstTokenFlame) else flame.after
    if not whole.requests:
        print(plain(f"{source} has no request with a time to first token: see docs/requests.md"), file=sys.stderr)
        return EXIT_UNKNOWN
    if args.format == "folded":
        sys.stdout.write(folded_stacks(flame))
    elif args.format == "speedscope":
        sys.stdout.write(escape_unseen(encode_json(speedscope(flame, f"kvitals {source}")).decode()) + "\n")
    else:
        document = PrintedDocument(
            f"Time to first token at {plain(source)}",
            lambda console: flames.show(flame, console),
            lambda: json_text(msgspec.to_builtins(flame)),
        )
        emit(document, args.format)
    return EXIT_HEALTHY


def _flame_of_agent(source: str, args: argparse.Namespace) -> FirstTokenFlame:
    if args.from_ or args.at or args.minus:
        raise UsageError("--from, --at and --minus work with recordings: record first (kvitals record)")
    return flame_of_agent(parse_url(source))


def _flame_of_recording(path: Path, args: argparse.Namespace) -> FirstTokenFlame | FlameDifference:
    first, last = span_of(path)
    start = parse_moment(args.from_, first, "--from", last) if args.from_ else first
    end = parse_moment(args.at, first, "--at", last) if args.at else last
    windows = [(start, end)]
    if args.minus:
        begin, _, until = args.minus.partition("..")
        windows.append((parse_moment(begin, first, "--minus", last), parse_moment(until, first, "--minus", last)))
    say_beyond(path.name, first, last, max(end for _, end in windows))
    windows = [(max(start, first), min(end, last)) for start, end in windows]
    if any(start >= end for start, end in windows):
        raise UsageError("a window must begin before it ends: --from +0s --at +30s, --minus +0s..+30s")
    (now, *before), notes = flames_of_recording(path, configuration(args), windows)
    say_notes(notes)
    if before and not before[0].requests:
        raise UsageError(f"--minus: no request ended from {plain(args.minus)}")
    return difference(before[0], now) if before else now


def show(told: NamedRequest, console: Console) -> None:
    """One request with its waterfall. What comes from outside is printed as text and nothing else."""
    record = told.record
    print_hanging(_head(record), console, 2)
    for line in _about(told):
        print_hanging(f"  {line}", console, 4, "dim")
    at = 0.0
    for phase in record.phases:
        _print_phase(phase, at, record.e2e or 0.0, console)
        at += phase.seconds or 0.0
    console.print()


def _asked(args: argparse.Namespace) -> tuple[RequestQuery, str]:
    words = list(args.words)
    many = args.slowest if args.slowest is not None else args.newest
    if many is not None and not 1 <= many <= MOST:
        raise UsageError(f"--slowest and --newest accept 1 to {MOST} requests")
    if many is None and not words:
        raise UsageError(
            "name a request: kvitals trace ID, --slowest N or --newest N; kvitals trace URL|FILE lists ids"
        )
    chooses = many is None and len(words) == 1 and (is_recording(words[0]) or "://" in words[0])
    name = words.pop(0) if many is None and not chooses else ""
    if len(words) > 1:
        raise UsageError(f"`{words[1]}` is one argument too many: give one agent or recording")
    source = words[0] if words else agent_of(configuration(args))
    return RequestQuery(name, args.slowest or 0, args.newest or (LISTED if chooses else 0), args.tenant), source


def _list(requests: Sequence[NamedRequest], source: str, console: Console) -> None:
    """The ids to choose from, a line each."""
    console.print(f"The newest {len(requests)} requests at {plain(source)}:")
    for told in requests:
        record = told.record
        tenant = record.tenant or "unknown"
        text = f"  {record.id}  {moment(record.end)}  {record.outcome}  {seconds(record.e2e)}  tenant {tenant}"
        print_hanging(plain(text), console, 4)
    console.print(f"Show one of them: kvitals trace ID {plain(source)}. The slowest ones: --slowest 5")


def _say_none(asked: RequestQuery, source: str, console: Console) -> None:
    what = f"no request {asked.name}" if asked.name else "no requests"
    console.print(
        Text(
            f"{plain(what)} at {source}. Spans, a request log or a tap report requests: docs/requests.md. The "
            f"newest requests appear some seconds after their end."
        ),
    )


def _head(record: RequestRecord) -> Text:
    line = Text(plain(record.id), style="bold")
    line.append(f"  {record.outcome}", style=OUTCOMES[record.outcome])
    if record.status is not None:
        line.append(f" {record.status}", style="dim")
    line.append(f"  {seconds(record.e2e)}", style="bold")
    line.append(f"  first token {seconds(record.ttft)}")
    if record.itl is not None:
        by_tokens = record.sources.get("itl", "").startswith(BY_TOKENS)
        parts = "tokens" if by_tokens else "chunks"  # a chunk may have several tokens
        line.append(f", then {seconds(record.itl)} between {parts}")
    if not record.complete:
        line.append("  incomplete", style="yellow")
    return line


def _about(told: NamedRequest) -> list[str]:
    record = told.record
    tenant = record.tenant or "unknown"
    who = f"{tenant} ({told.tenant_name})" if told.tenant_name and told.tenant_name != tenant else tenant
    engines = ", ".join(f"{role} {engine}" for role, engine in sorted(record.engines.items())) or "unknown"
    counts = (
        f"prompt {_count(record.prompt_tokens)}, {_count(record.cached_tokens)} of it cached,"
        f" output {_count(record.output_tokens)}"
    )
    if record.external_tokens is not None:
        counts += f", {record.external_tokens} supplied from elsewhere"
    how = ", ".join(text for text in (record.finish, record.error, record.model, record.lora) if text)
    lines = [
        f"{moment(record.start)}  trace {record.trace or 'unknown'}  tenant {who}",
        f"engine {engines}  tokens: {counts}" + (f"  {how}" if how else ""),
        f"seen by {', '.join(record.observers)}",
    ]
    return [plain(line) for line in lines]


def _print_phase(phase: RequestPhase, at: float, whole: float, console: Console) -> None:
    """A phase with its bar; why it is not measured goes below where it does not fit beside."""
    line = _line(phase, at, whole, bar_columns(console, FIGURES, BAR_WIDTH))
    why = Text(f"  {plain(phase.why)}", style="dim") if phase.why else Text()
    if line.cell_len + why.cell_len <= console.width:
        console.print(line + why)
        return
    console.print(line)
    print_hanging(Text(" " * (NAME_WIDTH + 2)) + why, console, NAME_WIDTH + 4)


def _line(phase: RequestPhase, at: float, whole: float, columns: int) -> Text:
    """A phase's name, seconds and bar of so many columns. `~`: derived and not measured."""
    mark = {"measured": " ", "derived": "~", "unknown": "?"}[phase.source]
    line = Text(f"  {phase.name:<{NAME_WIDTH}}{seconds(phase.seconds):>10} {mark} ")
    if phase.seconds is not None and whole > 0:
        left = round(min(at / whole, 1.0) * columns)
        width = max(1, round(min((at + phase.seconds) / whole, 1.0) * columns) - left)
        line.append(" " * min(left, columns - 1) + "█" * width, style=PHASE_STYLES.get(phase.name, ""))
        line.append(" " * (columns - left - width) + f" {phase.seconds / whole:4.0%}")
    return line


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else str(tokens)
