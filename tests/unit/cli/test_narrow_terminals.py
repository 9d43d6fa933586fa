"""What commands print at 60, 80 and 120 columns: golden texts, none wider than the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from kvitals.ui.cli.narrow import columns_that_fit, print_hanging
from tests.goldens.terminal import COLOURED, COMMANDS, ESCAPE, WIDTHS, coloured_path, path, printed, too_wide

pytestmark = pytest.mark.usefixtures("shared_verdicts")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_is_the_golden_one_and_fits(name: str) -> None:
    for columns in WIDTHS:
        text = printed(COMMANDS[name], columns)
        assert too_wide(text, columns) == [], columns
        golden = path(name, columns).read_text(encoding="utf-8")
        assert text == golden, "run: make goldens GOLDENS=terminal, and read the difference"


@pytest.mark.parametrize("name", COLOURED)
def test_the_coloured_text_is_the_golden_one_and_has_the_same_words(name: str) -> None:
    text = printed(COMMANDS[name], 80, colour=True)
    assert text == coloured_path(name).read_text(encoding="utf-8"), "run: make goldens GOLDENS=terminal"
    lines = [line.rstrip() for line in ESCAPE.sub("", text).splitlines()]
    assert lines == path(name, 80).read_text(encoding="utf-8").splitlines()


def _console(columns: int) -> Console:
    return Console(file=io.StringIO(), width=columns, color_system=None, highlight=False)


def _text(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_long_line_goes_on_below_its_text() -> None:
    console = _console(30)
    print_hanging("  label   one two three four five six", console, 10)
    assert _text(console) == ["  label   one two three four", "          five six"]
    console = _console(30)
    print_hanging("  short", console, 10)
    assert _text(console) == ["  short"]


def test_a_word_longer_than_the_line_is_not_lost() -> None:
    console = _console(24)
    print_hanging(f"  at  {'x' * 40}", console, 6)
    assert "".join(_text(console)).count("x") == 40


def test_columns_are_left_out_in_their_order_until_the_rest_fits() -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("name", "first", "second", "third"):
        table.add_column(title)
    table.add_row("n" * 8, "1" * 8, "2" * 8, "3" * 8)
    for columns, left_out, last in ((80, 0, "third"), (35, 1, "third"), (22, 2, "third"), (5, 2, "third")):
        shown, count = columns_that_fit(table, (1, 2), _console(columns))
        assert count == left_out
        assert shown.columns[-1].header == last
        assert shown.row_count == 1
