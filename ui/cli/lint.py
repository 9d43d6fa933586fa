"""`kvitals lint`: what is wrong with boards and alerts on LLM engines, with the corrected query."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from kvitals.app.errors import UsageError
from kvitals.app.escaping.json import escape_unseen
from kvitals.config.checks import first_of
from kvitals.dashboards.lint.defect import Defect, Document, Report
from kvitals.dashboards.lint.grafana_server import GrafanaAccess, read_grafana
from kvitals.dashboards.lint.lint import lint
from kvitals.dashboards.lint.metrics import Metrics
from kvitals.dashboards.lint.pages import PageFacts, read_page
from kvitals.dashboards.lint.reading import ReadingError, UnreachableError, read_path
from kvitals.diagnoser.sizing.quantity import several
from kvitals.rules.engine_map import systems
from kvitals.series.json_text import encode_json
from kvitals.ui.cli.common import EXIT_UNKNOWN, add_rules_option, answer_console, knowledge, status_console
from kvitals.ui.cli.narrow import print_hanging, print_to_copy

EXIT_CLEAN, EXIT_DEFECTS, EXIT_NOT_ALL = 0, 1, 3

MOST_SHOWN = 200
"""Defects on the terminal; the report as JSON has all."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "lint",
        description="Checks Grafana boards and Prometheus rules that read LLM engines: names that the engine in use"
        " does not have, counters used as gauges and gauges as counters, averages since the start,"
        " quantiles that select nothing, limits that are never reached, and more.",
        epilog="exit codes: 0 no defect, 1 a defect, 2 bad use, 3 no defect found but not everything could be read",
    )
    parser.add_argument(
        "source",
        nargs="+",
        metavar="FILE|DIR|URL",
        help="boards as JSON, rules as YAML, a folder of them, or a Grafana",
    )
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="NAME=VERSION",
        help="the version in use, such as vllm=0.11.2 (default: the newest known)",
    )
    parser.add_argument(
        "--page",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a saved /metrics page, to read its bucket bounds from",
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="token of a Grafana account with read access")
    parser.add_argument("--ca-file", type=Path, metavar="FILE", help="CA certificate of the Grafana server (PEM)")
    parser.add_argument("--no-warnings", action="store_true", help="errors only: wrong or empty queries")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    add_rules_option(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    versions = _versions(args.engine)
    try:
        pages = [read_page(path) for path in args.page]
        documents, left_out = _documents(args)
    except ReadingError as error:
        raise UsageError(str(error)) from error
    except UnreachableError as error:
        status_console().print(f"kvitals: {error}")
        return EXIT_UNKNOWN
    report = lint(documents, _metrics(args, versions, pages), left_out)
    if args.no_warnings:
        report = msgspec.structs.replace(report, defects=[one for one in report.defects if one.weight == "error"])
    if args.json:
        sys.stdout.write(escape_unseen(encode_json(report).decode()) + "\n")
    else:
        show(report, answer_console())
    if report.defects:
        return EXIT_DEFECTS
    return EXIT_NOT_ALL if report.left_out or report.unread or not report.queries else EXIT_CLEAN


def show(report: Report, console: Console) -> None:
    """Print a report, document by document, place by place; of thousands of defects the first."""
    for document, defects in groupby(report.defects[:MOST_SHOWN], lambda one: one.document):
        console.print(Text(document, style="bold"))
        for place, found in groupby(defects, lambda one: (one.place, one.query)):
            console.print(_indent(Text(place[0], style="bold cyan"), 2))
            _show_query(_clipped(place[1]), "dim", 4, console)
            _show_defects(list(found), console)
        console.print()
    if (more := len(report.defects) - MOST_SHOWN) > 0:
        console.print(Text(f"and {several(more, 'defect')} more; --json lists all", style="bold"))
    unread = [f"{one.document}: {one.place}: {_brief(one.why)}" for one in report.unread]
    for line in first_of(unread, "unread place", MOST_SHOWN):
        print_hanging(line, console, 2, "dim")
    for line in first_of(report.left_out, "file", MOST_SHOWN):
        status_console().print(line, style="yellow")
    console.print(_summary(report))


def _show_defects(several: Sequence[Defect], console: Console) -> None:
    """Those of one query; a correction that is of several is shown once."""
    for defect, after in zip_longest(several, several[1:]):
        style = "bold red" if defect.weight == "error" else "bold yellow"
        mark = Text("✗ " if defect.weight == "error" else "! ", style=style).append(defect.code)
        console.print(_indent(mark.append(f"  {defect.why}", "not bold default"), 4))
        if defect.fix and (after is None or after.fix != defect.fix):
            _show_query(defect.fix, "green", 6, console)
        if defect.advice:
            console.print(_indent(Text(defect.advice), 6))


def _show_query(text: str, style: str, left: int, console: Console) -> None:
    """Without breaks of ours, so that it can be copied."""
    print_to_copy(" " * left + text.strip().replace("\n", "\n" + " " * left), console, style, breaks=True)


def _summary(report: Report) -> Text:
    weights = Counter(one.weight for one in report.defects)
    against = ", ".join(f"{system} {version}" for system, version in report.engines.items() if version != "0")
    if not report.queries:
        return Text("nothing was checked: the source contains no query of a board or rule", style="bold yellow")
    found = "nothing is wrong"
    if report.unread:
        found = f"no defect found, {several(len(report.unread), 'query')} not fully checked"
    if report.defects:
        found = f"{several(weights['error'], 'error')}, {several(weights['warning'], 'warning')}"
    queries = f"{report.queries:,} {'query' if report.queries == 1 else 'queries'}"
    names = f"; names held against {against}" if against else "; no engine metric was found"
    text = f"{queries} in {several(report.documents, 'document')}: {found}{names}"
    return Text(text, style="bold" if report.defects or report.unread else "bold green")


def _documents(args: argparse.Namespace) -> tuple[list[Document], list[str]]:
    documents: list[Document] = []
    left_out: list[str] = []
    for source in args.source:
        if "://" in source:
            found, missed = read_grafana(GrafanaAccess(source, args.token_file, args.ca_file))
        else:
            found, missed = read_path(Path(source))
        documents += found
        left_out += missed
    return documents, left_out


def _metrics(args: argparse.Namespace, versions: dict[str, str], pages: list[PageFacts]) -> Metrics:
    types = {name: kind for page in pages for name, kind in page.types.items()}
    bounds = {name: found for page in pages for name, found in page.bounds.items()}
    return Metrics(knowledge(args.rules), versions, types, bounds)


def _versions(options: list[str]) -> dict[str, str]:
    found = {}
    for option in options:
        system, _, version = option.partition("=")
        if system not in systems() or not version[:1].isdigit():
            raise UsageError(
                f"--engine {option}: write NAME=VERSION, as in vllm=0.11.2; known names: {', '.join(systems())}"
            )
        found[system] = version
    return found


def _indent(what: Text, left: int) -> Padding:
    return Padding(what, (0, 0, 0, left))


def _clipped(text: str, most: int = 600) -> str:
    whole = dedent(text.replace("\r", "")).strip()
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


def _brief(text: str, most: int = 400) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most - 1]}…"
