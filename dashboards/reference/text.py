"""Markdown that several references are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_BARE_BRACKET = re.compile(r"<(?=[A-Za-z/])")


def generated_header(by: str) -> str:
    """The first line of a file that nobody edits by hand."""
    return f"<!-- Made by `python -m kvitals.dashboards.generate` from {by}. Do not edit. -->"


def one_line(text: str) -> str:
    """A text of several lines in one."""
    return " ".join(text.split())


def cell(text: str) -> str:
    """A text as it may stand in a table's cell: one line, no bar, nothing that is taken for HTML."""
    return _BARE_BRACKET.sub("&lt;", one_line(text).replace("|", "\\|"))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a table. The cells have Markdown in them; see `cell` for those that have not."""
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    yield from ("|" + "".join(f" {text} |" if text else " |" for text in row) for row in rows)
