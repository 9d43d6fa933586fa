"""Every table of a review is read again, as CSV and as Parquet, and holds what the review holds."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet

from kvitals.diagnoser.review.result import IncidentLever, LeverRow, Review, ReviewIncident
from kvitals.rules.loader import Knowledge
from kvitals.ui.review.tables import tables, write_tables
from tests.support.fortnight import BEGIN, DAY, HOSTILE, reviewed

LEVER = LeverRow(
    lever="raise-max-num-seqs", title="Allow more at once", why="", setting="--max-num-seqs 64", gpu_hours=2.0,
    usd=None, at_most=True, confidence="low", method="", does_not_fix="", codes=["SCH01", "LAT05"],
)  # fmt: skip
INCIDENT = ReviewIncident(
    code="SCH01", title="Requests wait for a slot", kind="cause", severity="ticket", entity=HOSTILE,
    labels={"engine": "a"}, times=2, spans=[(BEGIN, BEGIN + 60.0), (BEGIN + DAY, BEGIN + DAY + 60.0)], seconds=120.0,
    detected=None, at_least=False, open=True, conclusion="=SUM(A1)", explains=["LAT01"], explained_by=[],
    lost_gpu_hours=0.5, late_gpu_hours=None, ttft_within=0.9,
    levers=[IncidentLever("raise-max-num-seqs", "Allow more", "--max-num-seqs 64")],
)  # fmt: skip


@pytest.fixture(scope="module")
def full() -> Review:
    """A review in which no table is empty."""
    made = reviewed(Knowledge())
    incidents = msgspec.structs.replace(made.incidents, rows=[INCIDENT])
    return msgspec.structs.replace(made, incidents=incidents, levers=[LEVER])


@pytest.fixture(scope="module")
def folder(full: Review, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(full, folder)
    return folder


def as_read(text: str, value: Any) -> Any:
    """A cell of a CSV file as the type of the value that it was made of; an apostrophe keeps a text from being run."""
    if value is None:
        return None if text == "" else text
    if isinstance(value, bool):
        return {"True": True, "False": False}[text]
    if isinstance(value, str):
        return text.removeprefix("'") if value[:1] != "'" else text
    return type(value)(text)


def test_every_table_is_written_once_in_each_format(full: Review, folder: Path) -> None:
    made = tables(full)
    assert all(made.values()), "a table is empty, and its reader proves nothing"
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{form}" for name in made for form in ("csv", "parquet")
    }


def test_csv_holds_the_rows_of_the_review(full: Review, folder: Path) -> None:
    for name, rows in tables(full).items():
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            read = list(csv.DictReader(file))
        assert [list(row) for row in read] == [list(row) for row in rows], name
        for mine, theirs in zip(rows, read, strict=True):
            assert {key: as_read(theirs[key], value) for key, value in mine.items()} == dict(mine), name


def test_no_text_of_a_table_is_a_formula(folder: Path) -> None:
    with (folder / "incidents.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["conclusion"] == "'=SUM(A1)"


def test_parquet_holds_the_rows_of_the_review(full: Review, folder: Path) -> None:
    for name, rows in tables(full).items():
        assert parquet.read_table(folder / f"{name}.parquet").to_pylist() == [dict(row) for row in rows], name
