"""`kvitals history`: what is kept on disk; list it, check it, export it, prune it."""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import existing_history
from kvitals.series.files import replace_on_success
from kvitals.series.history import event_log, schema
from kvitals.series.history.damage import TITLES, Losses
from kvitals.series.history.export import FORMATS, export
from kvitals.series.history.prune import PrunedHistory, prune_history
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.set_aside_files import set_aside_files, set_aside_text
from kvitals.series.promql import PromQLError, Selector, parse
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp
from kvitals.ui.cli.common import (
    EXIT_FINDINGS,
    EXIT_UNKNOWN,
    add_config_option,
    answer_console,
    configuration,
    parse_past,
    status_console,
)
from kvitals.ui.cli.narrow import print_hanging
from kvitals.ui.formats import moment

EVERYTHING = (Matcher(METRIC_NAME, MatchOp.RE, ".+"),)
MAX_EVENTS = 1000
FAMILIES = 20
"""That are listed, the largest first."""
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def add(commands: Any) -> None:
    parser = commands.add_parser("history")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    one = actions.add_parser("list", help="start of the history, its size and its families")
    one.add_argument("--events", action="store_true", help="list events and past findings instead")
    one.add_argument("--json", action="store_true", help="as JSON")
    _add_range(one)
    one.set_defaults(do=do_list)
    one = actions.add_parser("check", help="look for damaged rows; exit code 3 where there are some")
    one.add_argument("--json", action="store_true", help="as JSON")
    _add_range(one)
    one.set_defaults(do=do_check)
    one = actions.add_parser("export", help="samples in the format of other programs; exit code 1 if none matches")
    _add_range(one)
    one.add_argument("--match", metavar="SELECTOR", help="such as '{engine=\"chat-a\"}' or kvitals_kv_usage_ratio")
    one.add_argument("--format", choices=FORMATS, default="csv", help="csv, parquet, or openmetrics for promtool (csv)")
    one.add_argument("--out", type=Path, metavar="FILE", help="a new file (default: standard output)")
    one.set_defaults(do=do_export)
    one = actions.add_parser("prune", help="take old history out")
    one.add_argument("--before", metavar="T", help="delete data that ended before T (RFC 3339, or -7d: seven days ago)")
    one.add_argument("--max-size", metavar="SIZE", help="delete the oldest data down to SIZE (500MB, 2GB)")
    one.set_defaults(do=do_prune)
    for action in actions.choices.values():
        action.add_argument("--dir", type=Path, metavar="DIR", help="directory of the history (default: as configured)")
        add_config_option(action)


def _add_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="from_", metavar="T", help="RFC 3339, a unix time, or --from=-2h: two hours ago")
    parser.add_argument("--to", metavar="T", help="likewise")


@dataclass(frozen=True)
class _Family:
    """What there is of one name. bytes: of its chunks, as they are packed."""

    name: str
    series: int
    bytes: int


@dataclass(frozen=True)
class _Kept:
    """What there is. span: from when to when, seconds since the epoch; None: nothing. waiting: bytes that are not
    sealed yet. thinned: until then there is a row a minute; 0: every row."""

    bytes: int
    span: tuple[float, float] | None
    waiting: int
    thinned: float
    events: int
    findings: int
    requests: int
    families: list[_Family]
    losses: Losses


def do_list(args: argparse.Namespace) -> int:
    path = _path(args)
    reader = HistoryReader(path)
    if args.events:
        return _list_events(reader, *_range(args), as_json=args.json)
    kept = _kept(reader, path)
    if args.json:
        sys.stdout.write(json.dumps(_document(kept, path), indent=2) + "\n")
    else:
        _show(kept, path, answer_console())
    _report(kept.losses, path)
    return 0


def do_check(args: argparse.Namespace) -> int:
    path = _path(args)
    losses = HistoryReader(path).inspect(*_range(args))
    if args.json:
        document = {"path": str(path), "damaged": losses.document(), "set_aside": _set_aside(path)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif not losses:
        answer_console().print(f"{path}: no damage found")
    for loss in () if args.json else losses:
        when = f"{moment(loss.start / 1000)} to {moment(loss.end / 1000)}" if loss.has_time else "time unknown"
        rows = f", {loss.rows:,} rows" if loss.rows else ""
        where = f"{loss.table} {loss.key}".strip()
        print_hanging(f"{when}{rows}: {TITLES[loss.table]} ({where}): {loss.why}", answer_console(), 4)
    _report(losses, path)
    return EXIT_UNKNOWN if losses or set_aside_files(path) else 0


def _set_aside(path: Path) -> list[str]:
    return [str(one.path) for one in set_aside_files(path)]


def _report(losses: Losses, path: Path | None = None) -> None:
    """State on stderr what is damaged; with a path, also the histories beside it that are set aside."""
    texts = [losses.message] if losses else []
    if path is not None:
        texts += [set_aside_text(set_aside_files(path))]
    for text in filter(None, texts):
        print_hanging(Text(text, style="yellow"), status_console(), 2)


def _kept(reader: HistoryReader, path: Path) -> _Kept:
    losses = reader.inspect(float("-inf"), float("inf"))
    span = reader.span()
    with reader.reading() as connection:

        def number(query: str) -> int:
            return int(connection.execute(query).fetchone()[0])

        return _Kept(
            bytes=schema.size_of(path),
            span=span,
            waiting=number("SELECT coalesce(sum(length(data)), 0) FROM ticks"),
            thinned=number("SELECT coalesce(max(end_ms), 0) FROM segments WHERE step_ms > 0") / 1000,
            events=number("SELECT count(*) FROM events"),
            findings=number("SELECT count(*) FROM episodes"),
            requests=number("SELECT coalesce(sum(count), 0) FROM batches"),
            families=list(_families(connection)),
            losses=losses,
        )


def _document(kept: _Kept, path: Path) -> dict[str, Any]:
    start, end = kept.span or (None, None)
    return {
        "path": str(path), "bytes": kept.bytes, "log_bytes": kept.waiting, "from": start, "to": end,
        "thinned_until": kept.thinned or None, "events": kept.events, "findings": kept.findings,
        "requests": kept.requests, "families": [asdict(family) for family in kept.families],
        "damaged": kept.losses.document(), "set_aside": _set_aside(path),
    }  # fmt: skip


def _show(kept: _Kept, path: Path, console: Console) -> None:
    console.print(f"{path}: {_size(kept.bytes)}")
    if kept.span is None:
        console.print("nothing that can be read" if kept.losses else "nothing yet")
        return
    console.print(f"from {moment(kept.span[0])} to {moment(kept.span[1])}")
    if kept.thinned:
        console.print(f"one row per minute until {moment(kept.thinned)}, every row after it")
    console.print(f"{kept.events} events, {kept.findings} findings, {kept.requests} requests")
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("family", no_wrap=True)
    for title in ("series", "size"):
        table.add_column(title, justify="right")
    sealed = [family for family in kept.families if family.bytes]
    for family in sealed[:FAMILIES]:
        table.add_row(family.name, str(family.series), _size(family.bytes))
    console.print()
    if not sealed:  # of a young history: no family has a size
        console.print(f"no chunk is sealed yet; {len(kept.families)} families: --json lists them")
    else:
        console.print(table)
    if sealed and (rest := len(kept.families) - len(sealed[:FAMILIES])):
        size = sum(family.bytes for family in sealed[FAMILIES:])
        console.print(f"and {rest} more families with {_size(size)}: --json lists them", style="dim")
    console.print()
    console.print(f"{_size(kept.waiting)} more are not sealed yet", style="dim")


def _families(connection: sqlite3.Connection) -> Iterator[_Family]:
    """The largest first."""
    sizes = dict(connection.execute("SELECT name, sum(length(data) + length(series)) FROM chunks GROUP BY name"))
    rows = connection.execute("SELECT n.id, n.name, count(*) FROM series s JOIN names n ON n.id = s.name GROUP BY n.id")
    found = [_Family(name, count, sizes.get(number, 0)) for number, name, count in rows]
    yield from sorted(found, key=lambda family: (-family.bytes, family.name))


def _list_events(reader: HistoryReader, start: float, end: float, *, as_json: bool) -> int:
    with reader.reading() as connection:
        happened = [(e.t, e.kind, e.text, dict(e.entity)) for e in event_log.events(connection, start, end)]
        for one in event_log.episodes(connection, start, end):
            until = "still open" if one.open else f"until {moment(one.end)}"
            happened.append((one.start, "finding", f"{one.code} {until}", dict(one.entity)))
    happened = sorted(happened, key=lambda item: item[0])[-MAX_EVENTS:]
    _report(reader.inspect(start, end, thorough=False))
    if as_json:
        answer = [{"time": t, "kind": kind, "text": text, "entity": entity} for t, kind, text, entity in happened]
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return 0
    console = answer_console()
    for t, kind, text, entity in happened:
        who = entity.get("engine") or entity.get("pool") or entity.get("node") or entity.get("cluster", "")
        print_hanging(f"{moment(t)}  {kind:8} {who:24} {text}", console, 4)
    return 0


def do_export(args: argparse.Namespace) -> int:
    start, end = _range(args)
    matchers = _matchers(args.match)
    reader = HistoryReader(_path(args))
    if args.out is None:
        if args.format == "parquet":
            raise UsageError("parquet is a binary format: name a file with --out")
        count = export(reader, matchers, start, end, args.format, sys.stdout.buffer)
    else:
        with _new_file(args.out) as out:
            count = export(reader, matchers, start, end, args.format, out)
        status_console().print(f"{count} samples in {args.out}")
    losses = reader.inspect(start, end)
    _report(losses)
    if not count:
        status_console().print(
            "no sample matches: `kvitals history list` shows the families and the time", style="yellow"
        )
    return EXIT_UNKNOWN if losses else EXIT_FINDINGS if not count else 0


def do_prune(args: argparse.Namespace) -> int:
    if not args.before and not args.max_size:
        raise UsageError("choose what to delete: --before T, --max-size SIZE, or both")
    before = round(parse_past(args.before, "--before") * 1000) if args.before else None
    most = _bytes(args.max_size) if args.max_size else None
    path = _path(args)
    HistoryReader(path).span()  # says it where there is none
    size = schema.size_of(path)
    stays = prune_history(path, before, most)
    status_console().print(f"{_size(size)} before, {_size(schema.size_of(path))} now")
    for line in _staying(stays):
        print_hanging(Text(line, style="yellow"), status_console(), 2)
    return EXIT_FINDINGS if any(_staying(stays)) else 0


def _staying(stays: PrunedHistory) -> Iterator[str]:
    if stays.rows:
        yield (
            f"{stays.rows:,} rows before that time stay: the agent is writing this hour. Run the command again in an "
            f"hour, or stop the agent first"
        )
    if stays.bytes:
        yield (
            f"{_size(stays.bytes)} more than --max-size stay: the hour that the agent is writing, and the names of all "
            f"series"
        )
    for file in stays.files:
        yield f"{file.path} stays, because it was set aside after that time: it may have older data. Delete it yourself"


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is there when it is whole."""
    if path.exists():
        raise UsageError(f"{path} exists already: choose another name, or remove it first")
    try:
        with replace_on_success(path) as out:
            yield out
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another place with --out") from error


def _path(args: argparse.Namespace) -> Path:
    return existing_history(args.dir, configuration(args), "name the directory of an agent's history with --dir")


def _matchers(text: str | None) -> tuple[Matcher, ...]:
    if text is None:
        return EVERYTHING
    try:
        expr = parse(text)
    except PromQLError as error:
        raise UsageError(f"--match {text}: {error}") from error
    if not isinstance(expr, Selector) or expr.offset:
        raise UsageError(f"--match {text}: write a selector, such as kvitals_target_up or '{{engine=\"chat-a\"}}'")
    return expr.all_matchers()


def _range(args: argparse.Namespace) -> tuple[float, float]:
    start = parse_past(args.from_, "--from") if args.from_ else float("-inf")
    end = parse_past(args.to, "--to") if args.to else float("inf")
    if start >= end:
        raise UsageError("--from must lie before --to")
    return start, end


def _bytes(text: str) -> int:
    number = text.strip().lower().removesuffix("b")
    unit = number[-1:] if number[-1:].isalpha() else ""
    try:
        size = round(float(number.removesuffix(unit)) * _SIZES[unit])
    except (ValueError, KeyError, OverflowError):
        size = -1
    if size < 0:
        raise UsageError(f"--max-size {text}: write a size, such as 500MB or 2GB")
    return size


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
