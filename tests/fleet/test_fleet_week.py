"""The review of a simulated fleet in a real Prometheus, in small: its totals are those of the numbers written.

pytest tests/fleet      6 engines for a day
make fleet-week         40 engines for a week, with what it takes
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.review import Made, make, take, wrong
from kvitals.diagnoser.review.result import Review
from tests.fleet.week import backfill
from tests.oracle.oracle_server import prometheus


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Made, Review, Path]]:
    folder = tmp_path_factory.mktemp("week")
    (folder / "data").mkdir()
    made = make(6, 1.0)
    try:
        backfill(made.engines, made.times, folder / "data")
        with prometheus(folder) as server:
            review, _ = take(server.port, made, folder / "review")
            yield made, review, folder / "review"
    except RuntimeError as error:
        pytest.fail(str(error))


def test_its_totals_are_those_of_the_numbers(reviewed: tuple[Made, Review, Path]) -> None:
    made, review, _ = reviewed
    assert wrong(review, made) == []


def test_what_was_not_watched_is_said(reviewed: tuple[Made, Review, Path]) -> None:
    _, review, _ = reviewed
    assert [one.who for one in review.happened if one.text == "not seen any more"] == ["10.0.0.3:8000"]
    assert "no alerts from the generated rules" in review.incidents.missing


def test_each_document_is_there(reviewed: tuple[Made, Review, Path]) -> None:
    folder = reviewed[2]
    assert {path.name for path in folder.iterdir()} == {"review.html", "review.md", "review.json", "tables"}
    assert (folder / "tables" / "steps.parquet").read_bytes()[:4] == b"PAR1"
