"""`kvitals history prune`: what was to be deleted is gone, and what stays is stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import FILE
from tests.support.command import answer
from tests.unit.history.history_stage import START, STEP, flip_in, history, ticks, written

COUNT = 40


def made_in(directory: Path, count: int = COUNT) -> Path:
    """A history that no agent writes any more; none of its rows is sealed."""
    made = history(directory)
    for tick in ticks(count):
        written(made, tick)
    made.close()
    return directory / FILE


def prune(path: Path, *words: str) -> tuple[int, str]:
    told = answer(["history", "prune", "--dir", str(path.parent), *words])
    return told.code, " ".join(told.err.split())


def test_rows_that_are_not_sealed_are_deleted_too(tmp_path: Path) -> None:
    """They stayed: privacy.md promised that they go."""
    path = made_in(tmp_path)
    code, err = prune(path, f"--before={START + COUNT * STEP + 100}")
    assert (code, "stay" in err) == (0, False)
    assert HistoryReader(path).span() is None
    assert answer(["history", "check", "--dir", str(tmp_path)]).code == 0
    again = history(tmp_path)
    for tick in ticks(3):
        written(again, tick)
    again.close()
    assert again.status.state == "ok"
    assert answer(["history", "check", "--dir", str(tmp_path)]).code == 0


def test_rows_that_an_agent_is_writing_stay_and_that_is_stated(tmp_path: Path) -> None:
    made = history(tmp_path)
    for tick in ticks(COUNT):
        written(made, tick)
    code, err = prune(tmp_path / FILE, f"--before={START + COUNT * STEP + 100}")
    made.close()
    assert (code, f"{COUNT} rows before that time stay" in err) == (1, True)


def test_a_size_that_cannot_be_reached_is_stated(tmp_path: Path) -> None:
    code, err = prune(made_in(tmp_path), "--max-size=10k")
    assert (code, "more than --max-size stay" in err) == (1, True)


def test_damage_between_rows_that_stay_is_not_forgotten(tmp_path: Path) -> None:
    path = made_in(tmp_path)
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 1 << 10 | 6}")
    assert prune(path, "--max-size=1GB")[0] == 0  # seals: the damage is recorded
    assert prune(path, f"--before={START + (COUNT - 2) * STEP}")[0] == 0
    assert HistoryReader(path).span() is not None
    assert answer(["history", "check", "--dir", str(tmp_path)]).code == 3


def test_a_history_that_was_set_aside_is_mentioned_until_it_is_pruned(tmp_path: Path) -> None:
    """Nothing said that ten hours of history were in another file."""
    path = made_in(tmp_path)
    old = tmp_path / f"{FILE}.damaged-20260101T000000Z"
    new = tmp_path / f"{FILE}.damaged-20991231T000000Z"
    for file in (old, new):
        file.write_bytes(b"not a database")
    for command in ("list", "check"):
        told = answer(["history", command, "--dir", str(tmp_path)])
        assert (told.code, str(old.name) in "".join(told.err.split())) == (3 if command == "check" else 0, True)
        document = json.loads(answer(["history", command, "--json", "--dir", str(tmp_path)]).out)
        assert document["set_aside"] == [str(old), str(new)]
    code, err = prune(path, "--before=2026-06-01T00:00:00Z")
    assert (code, old.exists(), new.exists()) == (1, False, True)
    assert "may have older data" in err


@pytest.mark.parametrize("words", [("list",), ("check",), ("export",)])
def test_a_file_that_sqlite_refuses_is_exit_code_3(tmp_path: Path, words: tuple[str, ...]) -> None:
    """It was 2, as for an option that does not exist."""
    (tmp_path / FILE).write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    told = answer(["history", *words, "--dir", str(tmp_path)])
    assert (told.code, "is damaged" in " ".join(told.err.split())) == (3, True)
