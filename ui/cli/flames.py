"""`kvitals trace --flame`: where the seconds before first tokens go, as a tree in the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from kvitals.agent.requests.first_token_flame import FirstTokenFlame, FlameDifference, FlameStack
from kvitals.ui.cli.narrow import bar_columns, print_hanging
from kvitals.ui.cli.render import moment
from kvitals.ui.formats import PHASE_STYLES, plain, seconds

LEAST = 0.01
"""Share of the whole that a line needs."""
FIGURES, BAR_WIDTH = 22, 30
"""Columns of the indentation, the time and the share; and of the widest bar."""


class _Line(NamedTuple):
    depth: int
    name: str
    seconds: float


def show(flame: FirstTokenFlame | FlameDifference, console: Console) -> None:
    """A flame, or what changed between two."""
    if isinstance(flame, FirstTokenFlame):
        print_hanging(Text(_head(flame), style="bold"), console, 2)
        _show_tree(flame.stacks, flame.seconds, "", console)
        return
    print_hanging(Text(f"Before: {_head(flame.before)}"), console, 2)
    print_hanging(Text(f"After: {_head(flame.after)}"), console, 2)
    for title, stacks, sign in (("Longer", flame.more, "+"), ("Shorter", flame.less, "-")):
        whole = sum(stack.seconds for stack in stacks)
        if whole > 0.0:
            console.print(Text(f"{title}, {sign}{seconds(whole)} a request:", style="bold"))
            _show_tree(stacks, whole, sign, console)


def _head(flame: FirstTokenFlame) -> str:
    each = seconds(flame.seconds / flame.requests) if flame.requests else "unknown"
    without = f", {flame.without} others had no first token" if flame.without else ""
    return (
        f"{flame.requests} requests waited {seconds(flame.seconds)} for their first tokens, {each} "
        f"each{without}; they ended from {moment(flame.start)} to {moment(flame.end)}"
    )


def _show_tree(stacks: Sequence[FlameStack], whole: float, sign: str, console: Console) -> None:
    lines = [line for line in _tree(stacks) if line.seconds >= LEAST * whole]
    width = max((2 * line.depth + len(line.name) for line in lines), default=0)
    columns = bar_columns(console, FIGURES + width, BAR_WIDTH)
    for line in lines:
        text = Text(f"  {'  ' * line.depth}{plain(line.name)}".ljust(width + 4))
        text.append(f"{sign}{seconds(line.seconds)}".rjust(9) + f"{line.seconds / whole:5.0%}  ")
        if line.depth == 0:
            text.append("█" * max(1, round(columns * line.seconds / whole)), style=PHASE_STYLES.get(line.name, ""))
        print_hanging(text, console, 4)


def _tree(stacks: Sequence[FlameStack], depth: int = 1) -> Iterator[_Line]:
    """The frames from a depth on with the sum of each, the longest first, each followed by those within it."""
    within: dict[str, list[FlameStack]] = defaultdict(list)
    for stack in stacks:
        if len(stack.frames) > depth:
            within[stack.frames[depth]].append(stack)
    for name, inner in sorted(within.items(), key=lambda item: -sum(stack.seconds for stack in item[1])):
        yield _Line(depth - 1, name, sum(stack.seconds for stack in inner))
        yield from _tree(inner, depth + 1)
