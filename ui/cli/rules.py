"""`kvitals rules`: list, show, publish, test and start rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from dashboards import runbooks, runbooks_site
from rules.loader import Knowledge, load
from ui.cli.common import UsageError, add_rules_option

TEMPLATE = """\
code: {code}
name: {name}
title: What is wrong, in a few words
group: engine
stage: preview
kind: cause
severity: ticket
when: kvitals:waiting_avg > $waiting
params:
  waiting: {{default: 10, why: "why this number"}}
for: 1m
conclusion: "{{waiting_avg}} requests wait."
evidence:
  - {{title: "Requests waiting", query: "kvitals:waiting_avg", unit: requests}}
page:
  sees: What it looks at.
  why: Why it happens.
  wrong_when: When it is wrong.
  do: What to do.
  do_not: What not to do.
  references: []
"""


def add(commands: Any) -> None:
    parser = commands.add_parser("rules", help="list, show, publish, test and start rules")
    sub = parser.add_subparsers(dest="what", metavar="list|show|site|test|new", required=True)
    listed = sub.add_parser("list", help="every rule, a line each")
    add_rules_option(listed)
    listed.set_defaults(do=list_)
    shown = sub.add_parser("show", help="a rule's page")
    shown.add_argument("code", metavar="CODE")
    add_rules_option(shown)
    shown.set_defaults(do=show)
    sited = sub.add_parser("site", help="every rule's page as a small static site")
    sited.add_argument("--out", type=Path, default=Path("runbooks"), metavar="DIR", help="where to (runbooks)")
    add_rules_option(sited)
    sited.set_defaults(do=site)
    tested = sub.add_parser("test", help="check a directory of your own rules")
    tested.add_argument("directory", type=Path, metavar="DIR")
    tested.set_defaults(do=test)
    new = sub.add_parser("new", help="write a rule file to start from")
    new.add_argument("code", metavar="CODE")
    new.add_argument("name", metavar="NAME", help="words-with-dashes")
    new.add_argument("--dir", type=Path, default=Path("rules.d"), metavar="DIR")
    new.set_defaults(do=start)


def list_(args: argparse.Namespace) -> int:
    knowledge = load(args.rules)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("code", "kind", "severity", "what it means when it fires"):
        table.add_column(column, no_wrap=column != "what it means when it fires")
    for code in sorted(knowledge.rules):
        rule = knowledge.rules[code]
        table.add_row(code, rule.kind, rule.severity, rule.title)
    console = Console()
    console.print(table)
    return _problems(knowledge, console)


def show(args: argparse.Namespace) -> int:
    knowledge = load(args.rules)
    rule = knowledge.rules.get(args.code.upper())
    if rule is None:
        raise UsageError(f"no rule {args.code}; kvitals rules list shows them")
    Console().print(Markdown(runbooks.page(rule, knowledge)))
    return 0


def site(args: argparse.Namespace) -> int:
    knowledge = load(args.rules)
    try:
        pages = runbooks_site.write(knowledge, args.out)
    except OSError as error:
        raise UsageError(f"can not write to {args.out}: {error.strerror}; choose another --out") from error
    print(f"{pages} pages; open {args.out / runbooks_site.HOME}")
    return _problems(knowledge, Console())


def test(args: argparse.Namespace) -> int:
    knowledge = load([args.directory])
    console = Console()
    files = [f for f in knowledge.files.values() if f.is_relative_to(args.directory)]
    console.print(f"{args.directory}: {len(files)} files are good", highlight=False, soft_wrap=True)
    return _problems(knowledge, console)


def start(args: argparse.Namespace) -> int:
    code = args.code.upper()
    if code in load().rules:
        raise UsageError(f"{code} is taken; codes are never reused")
    folder = args.dir / "codes"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{code}-{args.name}.yaml"
    if path.exists():
        raise UsageError(f"{path} exists")
    path.write_text(TEMPLATE.format(code=code, name=args.name))
    problems = load([args.dir]).problems
    if problems:
        path.unlink()
        raise UsageError("\n".join(p.message for p in problems))
    print(f"{path}\ncheck it with: kvitals rules test {args.dir}\nuse it with:   kvitals triage --rules {args.dir}")
    return 0


def _problems(knowledge: Knowledge, console: Console) -> int:
    for problem in knowledge.problems:
        console.print(f"{problem}", style="red", highlight=False)
    return 1 if knowledge.problems else 0
