"""`kvitals explain`: the page of a rule, a metric, a signal, a lever or a word of the glossary."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from kvitals.app.errors import UsageError
from kvitals.app.escaping.terminal import Lines
from kvitals.dashboards.reference.explain import UnknownWordError, explanation
from kvitals.ui.cli.common import add_rules_option, json_text, knowledge
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit

_LOCAL_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+://)[^)]*\)")
"""A link to a page beside this one, which a terminal cannot open."""

PAGE_HELP = "the page's title and Markdown"


def add(commands: Any) -> None:
    parser = commands.add_parser("explain", description=__doc__.partition(": ")[2].strip().capitalize())
    parser.add_argument(
        "word",
        nargs="+",
        metavar="WORD",
        help="a rule code (KVC01), a metric of kvitals or of an engine, a signal, a lever, a title, a flag "
        "(--max-num-seqs), or a word of the glossary",
    )
    parser.takes_flags = True
    add_output_options(parser, PAGE_HELP)
    add_rules_option(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    try:
        page = explanation(" ".join(args.word), knowledge(args.rules))
    except UnknownWordError as error:
        raise UsageError(str(error)) from None
    if args.output == "md":
        sys.stdout.write(page)
    else:
        title = page.partition("\n")[0].removeprefix("# ")
        document = PrintedDocument(
            title, lambda console: show(page, console), lambda: json_text({"title": title, "page": page})
        )
        emit(document, args.output)
    return 0


def show(page: str, console: Console) -> None:
    """Print a page of Markdown. Links to other pages become their words: `kvitals explain` prints those, too."""
    flush_left = re.sub(r"^# ", "## ", page, flags=re.MULTILINE)  # a heading of the first level is centred
    console.print(Lines(Markdown(_LOCAL_LINK.sub(r"\1", flush_left))))
