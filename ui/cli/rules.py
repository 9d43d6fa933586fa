"""`kvitals rules`: list and publish rules. Rules of one's own: `kvitals.ui.cli.rules_authoring`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvitals.app.errors import UsageError
from kvitals.config.checks import first_of
from kvitals.dashboards import runbooks_site
from kvitals.rules.loader import Knowledge, load
from kvitals.rules.model import Rule
from kvitals.rules.proof import proof_of
from kvitals.ui.cli import explain, rules_authoring
from kvitals.ui.cli.common import add_rules_option, answer_console, print_json, status_console
from kvitals.ui.cli.narrow import print_hanging, print_to_copy
from kvitals.ui.cli.output import add_output_options

TABLE_COLUMNS = 80
"""With fewer columns, `rules list` prints codes and titles."""


def add(commands: Any) -> None:
    parser = commands.add_parser("rules")
    sub = parser.add_subparsers(dest="what", metavar="list|site|new|test|lint", required=True)
    listed = sub.add_parser("list", help="every rule, one line each")
    listed.add_argument("--json", action="store_true", help="the list as JSON")
    add_rules_option(listed)
    listed.set_defaults(do=list_)
    shown = sub.add_parser("show")  # the old name of `kvitals explain`; it goes after 0.1
    shown.add_argument("word", nargs=1, metavar="CODE")
    add_output_options(shown, explain.PAGE_HELP)
    add_rules_option(shown)
    shown.set_defaults(do=explain.do)
    sited = sub.add_parser("site", help="every rule's page as a small static site")
    sited.add_argument("--out", type=Path, default=Path("runbooks"), metavar="DIR", help="where to (runbooks)")
    add_rules_option(sited)
    sited.set_defaults(do=site)
    rules_authoring.add(sub)


def list_(args: argparse.Namespace) -> int:
    knowledge = load(args.rules)
    if args.json:
        print_json([_listed(knowledge.rules[code]) for code in sorted(knowledge.rules)])
        return _problems(knowledge, status_console())
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("code", "kind", "severity", "proof", "its meaning when it fires"):
        table.add_column(column, no_wrap=column != "its meaning when it fires")
    for code in sorted(knowledge.rules):
        rule = knowledge.rules[code]
        table.add_row(code, rule.kind, rule.severity, _proof(code), rule.title)
    console = answer_console()
    if console.width >= TABLE_COLUMNS:
        console.print(table)
    else:
        for code in sorted(knowledge.rules):
            print_hanging(f"{code}  {knowledge.rules[code].title}", console, 7)
    return _problems(knowledge, console)


def _listed(rule: Rule) -> dict[str, str]:
    return {
        "code": rule.code, "name": rule.name, "kind": rule.kind, "severity": rule.severity, "scope": rule.scope,
        "stage": rule.stage, "proof": _proof(rule.code), "title": rule.title,
    }  # fmt: skip


def _proof(code: str) -> str:
    """On what a rule was seen to fire; empty for a rule of one's own."""
    known = proof_of(code)
    return known.proof if known is not None else ""


def site(args: argparse.Namespace) -> int:
    knowledge = load(args.rules)
    try:
        pages = runbooks_site.write(knowledge, args.out)
    except OSError as error:
        raise UsageError(f"cannot write to {args.out}: {error.strerror}; choose another --out") from error
    console = answer_console()
    print_hanging(f"{pages} pages; open {args.out / runbooks_site.HOME}", console, 2)
    return _problems(knowledge, console)


def _problems(knowledge: Knowledge, console: Console) -> int:
    for line in first_of([str(problem) for problem in knowledge.problems]):
        print_to_copy(line, console, "red")
    return 1 if knowledge.problems else 0
