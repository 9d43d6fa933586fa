"""What comes from outside stands on the terminal as it is: no name is taken for markup, and none ends the program."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rich.table import Table

from kvitals.app.demo import HEAVY_TENANT
from kvitals.rules.finding import Entity, Triage
from kvitals.ui.cli.common import answer_console, status_console
from kvitals.ui.cli.piped import COLUMNS, TrimmedStream
from kvitals.ui.cli.render import show
from tests.support.recordings import judge, setup

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


@pytest.fixture(scope="module")
def document() -> Triage:
    return judge(HEAVY_TENANT, setup()).document


@pytest.mark.parametrize(
    ("said", "columns"), [("", COLUMNS), ("60", 60), ("0", 40), ("99999", COLUMNS), ("x", COLUMNS)]
)
def test_a_pipe_gets_lines_of_a_sensible_width_without_padding(
    said: str, columns: int, document: Triage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", said)
    show(document, answer_console(), verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert columns - 15 < max(map(len, lines)) <= columns


def test_no_row_of_a_narrow_text_cuts_a_number(
    document: Triage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = re.compile(r"\d[\d,.]*")
    told = {}
    for columns in ("400", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        show(document, answer_console(), verbose=True)
        told[columns] = sorted(numbers.findall(capsys.readouterr().out))
    assert told["60"] == told["400"]


def test_a_log_has_each_message_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status_console().print("word " * 100)
    assert capsys.readouterr().err.count("\n") == 1


def test_blanks_within_a_line_stay_however_it_is_written() -> None:
    out = io.StringIO()
    trimmed = TrimmedStream(out)
    for part in ("a  b  ", " c  ", "\n  d \t\n", "e "):
        trimmed.write(part)
    assert out.getvalue() == "a  b   c\n  d\ne"


def test_what_can_not_be_told_is_told_once_for_a_reason_and_says_of_whom(
    document: Triage, capsys: pytest.CaptureFixture[str]
) -> None:
    one = next(f for f in document.unknown if f.entity.kind == "engine")
    others = [
        msgspec.structs.replace(one, id=name, entity=Entity("engine", {"engine": name}, name)) for name in ("b", "c")
    ]
    other = msgspec.structs.replace(others[0], id="else", reason="quite another reason")
    seen = msgspec.structs.replace(document.coverage, engines=[*document.coverage.engines, {"engine": "b"}])
    several = msgspec.structs.replace(document, unknown=[one, *others, other], coverage=seen)
    show(several, answer_console(400), verbose=True)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith(f"  {one.code}")]
    assert lines == [
        f"{one.code}  {one.title}: {one.reason} ({one.entity.title}, b, c)",
        f"{one.code}  {one.title}: quite another reason (b)",
    ]
    show(document, answer_console(400), verbose=True)
    assert f"{one.title}: {one.reason}\n" in capsys.readouterr().out  # one engine alone is not named at each rule
