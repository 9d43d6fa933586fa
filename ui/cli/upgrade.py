"""`kvitals upgrade`: what changes or breaks when an engine goes from one version to another.

It renders `kvitals.app.upgrade.Upgrade` and computes nothing. Exit code: 0 nothing changes for the installation, 1
something does, 2 bad use, 3 a version that the tables do not reach.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvitals.app.errors import UsageError
from kvitals.app.upgrade import (
    BREAKING,
    FlagChange,
    UnknownVersionError,
    Upgrade,
    UpgradeError,
    as_json,
    compare_versions,
)
from kvitals.config.checks import first_of
from kvitals.dashboards.lint.defect import Document
from kvitals.dashboards.lint.reading import ReadingError, read_path
from kvitals.rules.engine_flags import systems_with_flags
from kvitals.ui.cli.common import (
    EXIT_FINDINGS,
    EXIT_HEALTHY,
    EXIT_UNKNOWN,
    add_rules_option,
    knowledge,
    status_console,
)
from kvitals.ui.cli.narrow import print_hanging
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit

MAX_LINES = 6
"""Lines of a section; what is beyond is counted, so that the answer fits a screen."""

_WORDS = {
    "removed": "the flag is gone",
    "refused": "the engine refuses the flag and does not start",
    "choice": "the value is no longer a choice",
    "deprecated": "the flag is deprecated",
    "default": "the default changes",
    "choices": "choices go",
    "added": "new",
}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "upgrade",
        description="Lists which flags, defaults, metric names, levers, boards and alerts change or break "
        "between two engine versions.",
        epilog="exit codes: 0 nothing changes for the installation, 1 something changes, 2 bad use, 3 a version "
        "is newer or older than the flags that this kvitals knows",
    )
    parser.add_argument("system", metavar="ENGINE", help=" or ".join(systems_with_flags()))
    parser.add_argument("before", metavar="VERSION", help="the version in use")
    parser.add_argument("after", metavar="NEW", help="the target version")
    parser.add_argument("source", nargs="*", metavar="FILE|DIR", help="your boards (JSON) and alerts (YAML)")
    parser.add_argument(
        "--command-line",
        metavar="TEXT",
        help="the engine's command line, such as 'vllm serve MODEL --max-num-seqs 64': lists only its flags, "
        "and the defaults of flags that it omits",
    )
    add_output_options(parser, "all of it")
    add_rules_option(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    try:
        arguments = shlex.split(args.command_line or "")
        documents = [document for source in args.source for document in _read(Path(source))]
        upgrade = compare_versions(knowledge(args.rules), args.system, args.before, args.after, arguments, documents)
    except UnknownVersionError as error:
        status_console().print(str(error), style="yellow")
        return EXIT_UNKNOWN
    except UpgradeError as error:
        raise UsageError(str(error)) from error
    except ReadingError as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"--command-line: {error}: write it as in a shell, inside one pair of quotes") from error
    title = f"{upgrade.system} {upgrade.before} to {upgrade.after}"
    emit(PrintedDocument(title, lambda console: show(upgrade, console), lambda: as_json(upgrade).decode()), args.output)
    return EXIT_FINDINGS if upgrade.affects else EXIT_HEALTHY


def _read(path: Path) -> Sequence[Document]:
    found, missed = read_path(path)
    for line in first_of(missed, "file"):
        status_console().print(line, style="yellow")
    return found


def show(upgrade: Upgrade, console: Console) -> None:
    """Print an upgrade: what breaks first, then what changes, then what is new."""
    console.print(Text(f"{upgrade.system} {upgrade.before} to {upgrade.after}", style="bold"))
    breaking = [c for c in upgrade.flags if c.event in BREAKING and (c.given is not None or not upgrade.command_line)]
    broken = "Breaks" if upgrade.command_line else "Breaks if it is set"
    _section(console, broken, "red", map(_flag, breaking))
    for event, title in [("default", "Defaults"), ("deprecated", "Deprecated flags"), ("choices", "Choices")]:
        _section(console, title, "yellow", (_flag(c) for c in upgrade.flags if c.event == event))
    queries = (f"{q.document}: {q.place}: {q.why}" for q in upgrade.queries)
    _section(console, "Your boards and alerts", "red", queries)
    gone = [n for n in upgrade.names if n.event == "removed"]
    _section(console, "Metrics that go", "yellow", (f"{n.name}{_instead(n.instead)}" for n in gone))
    lost = [f for f in upgrade.families if f.event == "lost"]
    reads = (f"{f.family}: {_readers(f.rules, f.boards)}" for f in lost)
    _section(console, "kvitals rules and boards that lose data", "yellow", reads)
    changed = (f"{c.lever}: {c.before or 'no setting'} to {c.after or 'no setting'}" for c in upgrade.levers)
    _section(console, "Levers with another setting", "", changed)
    _show_new(upgrade, console)
    _section(console, "Check on the command line", "yellow", upgrade.doubts)
    for note in first_of(upgrade.notes, "note"):
        print_hanging(f"Note: {note}.", console, 6, "dim")
    console.print(_verdict(upgrade))


def _section(console: Console, title: str, style: str, lines: Iterable[str]) -> None:
    listed = list(lines)
    if not listed:
        return
    console.print(Text(title, style=f"bold {style}".strip()))
    for line in listed[:MAX_LINES]:
        print_hanging(f"  {line}", console, 4)
    if len(listed) > MAX_LINES:
        console.print(Text(f"  and {len(listed) - MAX_LINES} more: -o json", style="dim"))


def _flag(change: FlagChange) -> str:
    given = f" {change.given}" if change.given not in (None, "", "true") else ""
    if change.event == "default":
        before, after = ("unset" if default == "none" else default for default in (change.before, change.after))
        return f"{change.flag}: {before} to {after}"
    if change.event == "choices":
        return f"{change.flag}: {change.before}"
    return f"{change.flag}{given}: {_WORDS[change.event]}{_instead(change.instead)}"


def _instead(name: str) -> str:
    return f"; use {name}" if name else ""


def _readers(rules: Sequence[str], boards: Sequence[str]) -> str:
    parts = [", ".join(rules[:4]) + (f" and {len(rules) - 4} more" if len(rules) > 4 else "")] if rules else []
    parts += [f"board {', '.join(boards)}"] if boards else []
    return "; ".join(parts) or "no rule"


def _show_new(upgrade: Upgrade, console: Console) -> None:
    added = [c.flag for c in upgrade.flags if c.event == "added"]
    names = [n for n in upgrade.names if n.event == "added"]
    gained = [f for f in upgrade.families if f.event == "gained"]
    parts = list(_counts((len(added), "flag"), (len(names), "metric name")))
    if parts:
        console.print(Text("New: ", style="bold").append(", ".join(parts), style="not bold"))
    rules = sorted({code for family in gained for code in family.rules})
    if rules:
        print_hanging(f"  read by {_readers(rules, [])}", console, 4)


def _counts(*several: tuple[int, str]) -> Iterator[str]:
    for count, word in several:
        if count:
            yield f"{count} {word}{'s' if count != 1 else ''}"


def _verdict(upgrade: Upgrade) -> Text:
    if upgrade.breaks:
        return Text("The upgrade breaks the installation: change the flags and queries above first.", style="bold red")
    if upgrade.doubts:
        return Text("The engine may refuse this command line: check the lines above first.", style="bold yellow")
    if not upgrade.affects:
        return Text("Nothing changes for the installation.", style="bold green")
    if upgrade.command_line:
        return Text("The engine starts with these flags, and changes as listed above.", style="bold yellow")
    return Text("Give --command-line to see only the changes that affect your engine.", style="bold yellow")
