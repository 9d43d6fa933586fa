"""What comes from outside stands on the terminal as it is: no name is taken for markup, and none ends the program."""

from __future__ import annotations

import pytest
from rich.table import Table

from ui.cli.common import answer_console, status_console

NAMES = ["http://[fd00::1]:8000", "a[/b]c", "[red]engine[/red]", "node :fire: 7"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_no_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table.grid()
    table.add_row(name)
    answer_console().print(name)
    answer_console().print(table)
    status_console().print(name)
    told = capsys.readouterr()
    assert (told.out.split("\n")[:2], told.err) == ([name, name], f"{name}\n")
