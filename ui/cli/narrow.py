"""Lines, tables and bars at the width of the terminal: a narrow one loses the length of bars, and no number.

The only module whose lines may be wider than the terminal (`print_to_copy`). Plain text is laid out in `help_layout`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvitals.app.escaping.terminal import Lines, one_line

LEAST_BAR = 8
LEAST_LABEL = 14
"""Columns that the first column of a table needs, with the gap beside it."""

_LEAST_TEXT = 20
_ANY_WIDTH = 1000


def bar_columns(console: Console, beside: int, most: int) -> int:
    """How long a bar is, with so many columns of text beside it."""
    return max(LEAST_BAR, min(most, console.width - beside))


def print_hanging(line: str | Text, console: Console, label: int, style: str = "") -> None:
    """Print a line; what does not fit goes on below, under the text after its label. label: columns of the label."""
    text = one_line(line if isinstance(line, Text) else Text(line, style=style))
    if text.cell_len <= console.width:
        console.print(text)
        return
    indent = min(label, max(console.width - _LEAST_TEXT, 0))
    wrapped = text[indent:].wrap(console, console.width - indent)
    for number, part in enumerate(wrapped):
        part.rstrip()
        console.print((text[:indent] if number == 0 else Text(" " * indent)) + part)


def print_to_copy(text: str | Text, console: Console, style: str = "", *, breaks: bool = False) -> None:
    """Print what someone copies (a flag with its value, a query, a command, `FILE:LINE:` of a problem) without breaks
    of ours, however long it is. Everything else has lines of the terminal's width. breaks: show those of the text."""
    shown = Text(text, style=style) if isinstance(text, str) else text
    console.print(Lines(shown) if breaks else shown, soft_wrap=True)


def print_table(table: Table, console: Console, dispensable: Sequence[int] = ()) -> None:
    """Print a table whose figures stay whole. Where the terminal is narrow, columns are left out, then the first column
    breaks its words, then each row is a line of titles and figures. dispensable: as for `columns_that_fit`."""
    shown, left_out = columns_that_fit(table, dispensable, console)
    shown.columns[0].no_wrap = False
    beside = sum(
        console.measure(column, options=console.options.update(width=_ANY_WIDTH)).maximum
        for column in (_without(shown, {*range(len(shown.columns))} - {n}) for n in range(1, len(shown.columns)))
    )
    if beside + LEAST_LABEL > console.width:
        _print_stacked(shown, console)
    else:
        console.print(shown)
    if left_out:
        titles = ", ".join(f"“{table.columns[number].header}”" for number in sorted(dispensable[:left_out]))
        print_hanging(f"columns left out: {titles}. -o wide shows all columns.", console, 2, "dim")


def _print_stacked(table: Table, console: Console) -> None:
    """Each row as text: its first cell, then the other cells with their titles."""
    titles = [str(column.header) for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = (cell.plain if isinstance(cell, Text) else str(cell) for cell in row)
        figures = (f"{title} {cell}" for title, cell in zip(titles[1:], others, strict=True) if cell)
        print_hanging(f"{first}: {', '.join(figures)}", console, 2)


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
