"""Lines and bars at the width of the terminal: a narrow one loses the length of bars, and no number."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

LEAST_BAR = 8
_LEAST_TEXT = 20
_ANY_WIDTH = 1000


def bar_columns(console: Console, beside: int, most: int) -> int:
    """How long a bar is, with so many columns of text beside it."""
    return max(LEAST_BAR, min(most, console.width - beside))


def print_hanging(line: str | Text, console: Console, label: int, style: str = "") -> None:
    """Print a line; what does not fit goes on below, under the text after its label. label: columns of the label."""
    text = line if isinstance(line, Text) else Text(line, style=style)
    if text.cell_len <= console.width:
        console.print(text)
        return
    indent = min(label, max(console.width - _LEAST_TEXT, 0))
    wrapped = text[indent:].wrap(console, console.width - indent)
    for number, part in enumerate(wrapped):
        part.rstrip()
        console.print((text[:indent] if number == 0 else Text(" " * indent)) + part)


def columns_that_fit(table: Table, dispensable: Sequence[int], console: Console) -> tuple[Table, int]:
    """A table of as many of its columns as the terminal has room for, and how many are left out. dispensable: columns
    that may be left out, the first of them first."""
    shown, left_out = table, 0
    while console.measure(shown, options=console.options.update(width=_ANY_WIDTH)).maximum > console.width:
        if left_out == len(dispensable):
            break
        left_out += 1
        shown = _without(table, set(dispensable[:left_out]))
    return shown, left_out


def _without(table: Table, hidden: set[int]) -> Table:
    kept = Table(box=None, padding=(0, 2, 0, 0))
    numbers = [number for number in range(len(table.columns)) if number not in hidden]
    for number in numbers:
        column = table.columns[number]
        kept.add_column(column.header, justify=column.justify, no_wrap=True)
    for row in zip(*(table.columns[number].cells for number in numbers), strict=True):
        kept.add_row(*row)
    return kept
