"""`kvitals config`: write a first kvitals.toml for this machine, and check one against what runs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvitals.agent.target_sources import TargetFiles
from kvitals.app.errors import NoEngineError, UsageError
from kvitals.app.first_configuration import configuration_text, survey_machine
from kvitals.app.history_recorder import history_file
from kvitals.app.pipeline import Setup
from kvitals.app.sources.live import Collector, TargetIdentity
from kvitals.config import Config, ConfigError, check_codes, find, load
from kvitals.config.checks import first_of
from kvitals.config.named_files import same_addresses, unusable_files
from kvitals.diagnoser.text import render
from kvitals.rules.loader import load as load_knowledge
from kvitals.rules.log_map import load_log_map
from kvitals.ui.cli.common import (
    EXIT_FINDINGS,
    EXIT_HEALTHY,
    EXIT_UNKNOWN,
    answer_console,
    file_problem,
    parse_duration,
    status_console,
    url_of,
    write_whole,
)
from kvitals.ui.cli.narrow import print_hanging, print_to_copy

FILE = Path("kvitals.toml")
MOST_URLS = 5
"""Targets that are named with a reason why they cannot be read."""
PAST_FIRST_SCRAPE = "2s"
"""How long targets are observed: two scrapes, so that a page is read and recognised."""


def add(commands: Any) -> None:
    parser = commands.add_parser("config")
    sub = parser.add_subparsers(dest="what", metavar="init|check", required=True)
    first = sub.add_parser("init", help="a commented kvitals.toml from the engines and GPUs of this machine")
    first.add_argument(
        "--out", default=str(FILE), metavar="FILE", help="file to write; - is standard output (kvitals.toml)"
    )
    first.add_argument("--force", action="store_true", help="replace a file that exists")
    first.set_defaults(do=init)
    checked = sub.add_parser(
        "check", help="check whether a file is valid, what each target is, and which targets are unreachable"
    )
    checked.add_argument("file", nargs="?", type=Path, metavar="FILE", help="kvitals.toml (default: the usual places)")
    checked.add_argument(
        "--for",
        dest="seconds",
        default=PAST_FIRST_SCRAPE,
        metavar="TIME",
        help=f"time to observe the targets ({PAST_FIRST_SCRAPE})",
    )
    checked.add_argument("--offline", action="store_true", help="check only the file: connect to no target")
    checked.set_defaults(do=check)


def init(args: argparse.Namespace) -> int:
    text = configuration_text(survey_machine())
    if args.out == "-":
        sys.stdout.write(text)
        return EXIT_HEALTHY
    path = Path(args.out)
    if path.exists() and not args.force:
        raise UsageError(f"{path} exists; choose another --out, or replace it with --force")
    write_whole(path, text, "--out")
    targets = text.count("\n[[target]]")
    found = f"{targets} engine{'' if targets == 1 else 's'} found" if targets else "no engine found on this machine"
    console = answer_console()
    print_hanging(f"{path} is written: {found}.", console, 2)
    for command in ("config check", "run --config"):
        print_to_copy(f"  kvitals {command} {path}", console)
    return EXIT_HEALTHY


def check(args: argparse.Namespace) -> int:
    seconds = parse_duration(args.seconds, "--for")
    path = args.file or find()
    if path is None:
        raise UsageError("no kvitals.toml in the usual places; give its path, or write one with `kvitals init`")
    if problem := file_problem(path):
        raise UsageError(f"{path}: {problem}; `kvitals init --out FILE` writes one")
    try:
        config = load(path)
    except ConfigError as error:
        raise UsageError(f"{path} is not valid\n{error}") from error
    known = load_knowledge(config.agent.rules)
    problems = [*_file_problems(config)] if args.offline else []  # the targets below show these problems otherwise
    problems += [f"{path}: {problem}" for problem in (*unusable_files(config), *same_addresses(config))]
    problems += [*map(str, known.problems), *check_codes(config, known.parameters_by_rule())]
    chosen = Setup(known, config, {}, config.agent.rules)
    console = answer_console()
    console.print(Text(f"{path}: valid" if not problems else f"{path}: valid, with problems", style="bold"))
    console.print(_grid(_settings(chosen)))
    for problem in first_of(problems):
        console.print(Padding(Text(f"✗ {problem}", style="red"), (0, 0, 0, 2)))
    if args.offline:
        return EXIT_FINDINGS if problems else EXIT_HEALTHY
    missing = asyncio.run(_targets(chosen, seconds, console))
    return EXIT_FINDINGS if problems else EXIT_UNKNOWN if missing else EXIT_HEALTHY


def _file_problems(config: Config) -> Iterator[str]:
    """What is wrong with the targets files and the maps of logs that a configuration names."""
    files = TargetFiles(config.agent.targets_file)
    files.look(at_once=True)
    yield from files.problems
    for log in config.request_logs:
        try:
            if log.mapping is not None:
                load_log_map(log.mapping)
        except ValueError as error:
            yield f"[[request_log]] {log.name}: {error}"


def _settings(chosen: Setup) -> Iterator[tuple[str, str]]:
    config = chosen.config
    yield "agent", f"{url_of(config.agent.address)}, scrapes every {render(config.agent.interval, 'seconds')}"
    slo = config.slo
    both = f"TTFT p99 {render(slo.ttft_p99_seconds, 'seconds')}, ITL p99 {render(slo.itl_p99_seconds, 'seconds')}"
    yield "objectives", both + (f", and {len(config.objectives)} of [[objective]]" if config.objectives else "")
    yield "history", str(history_file(None, config).parent) if config.history.enabled else "off"
    if config.agent.rules:
        own = len(chosen.knowledge.rules) - len(load_knowledge().rules)
        yield "own rules", f"{own} in {', '.join(map(str, config.agent.rules))}"


async def _targets(chosen: Setup, seconds: float, console: Console) -> bool:
    """Print what each target is. Returns whether any is missing."""
    try:
        async with Collector(chosen, []) as collector:
            with status_console().status(f"scraping {len(collector.targets):,} targets") as shown:
                try:
                    async for done in collector.collect(seconds):
                        failed = len(collector.failures())
                        shown.update(
                            f"scraping {len(collector.targets):,} targets, {done:.0f} s: {failed:,} not readable"
                        )
                except NoEngineError:  # each has its line below
                    pass
            return _print_targets(collector, console)
    except ConfigError as error:
        console.print(Padding(Text(f"✗ {error}", style="yellow"), (0, 0, 0, 2)))
        return True


def _print_targets(collector: Collector, console: Console) -> bool:
    up, failures = collector.identities(), collector.failures()
    console.print(Text("targets", style="bold"))
    console.print(_grid((f"✓ {target.engine}", _what(target)) for target in up))
    for complaint in first_of(list(_grouped(failures)), "reason"):
        console.print(Padding(Text(f"✗ {complaint}", style="red"), (0, 0, 0, 2)))
    notes = [note for note in collector.said if not any(note.startswith(f"{url}: ") for url in failures)]
    for note in first_of(notes, "note"):
        console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))
    if failures:
        console.print(
            Text(f"{len(failures)} of {len(failures) + len(up)} targets are unreachable or not readable.", "bold red")
        )
    else:
        console.print(Text("Every target answers.", style="bold green"))
    return bool(failures)


def _grouped(failures: Mapping[str, str]) -> Iterator[str]:
    """A line for each reason, with the first targets that have it."""
    by_reason: dict[str, list[str]] = {}
    for url, why in failures.items():
        by_reason.setdefault(why, []).append(url)
    for why, urls in by_reason.items():
        more = len(urls) - MOST_URLS
        named = ", ".join(urls[:MOST_URLS]) + (f" and {more:,} more targets" if more > 0 else "")
        yield f"{named}: {why}"


def _what(target: TargetIdentity) -> str:
    if not target.system:
        return "not recognised: its page has no metric that kvitals knows; `kvitals check` shows more"
    version = f"{target.system} {target.version}".strip()
    model = f"model {target.model}" if target.model else ""
    return ", ".join(
        part for part in (version, "" if target.kind == "engine" else target.kind, target.role, model) if part
    )


def _grid(rows: Any) -> Padding:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return Padding(table, (0, 0, 0, 2))
