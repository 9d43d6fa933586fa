"""SQLite's write-ahead log damaged, cut, emptied or gone: at most a minute of rows is lost, and the loss is stated."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

import pytest

from kvitals.series.history import newest_row
from kvitals.series.history.damage import Loss
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import FILE, HistoryError
from kvitals.series.history.wal import BLOCK_TICKS
from kvitals.series.history.writer import History, HistorySettings
from tests.unit.history.history_stage import START, STEP, flip, history, kind_of, ticks, written
from tests.unit.history.test_history_damage import Cells, cells

COUNT = 31
SINCE = COUNT % BLOCK_TICKS
"""Ticks since the log was emptied."""
LATER = START + 5000


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The directory of a history whose agent was killed after COUNT ticks."""
    made = history(tmp_path / "live")
    for tick in ticks(COUNT):
        written(made, tick)
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    made.close()
    return tmp_path / "killed"


def copied(killed: Path) -> Path:
    """The log in a copy of the directory."""
    place = killed.with_name("copy")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(killed, place)
    return place / f"{FILE}-wal"


def read(directory: Path) -> tuple[Cells, list[Loss]]:
    reader = HistoryReader(directory / FILE)
    try:
        return cells(reader), list(reader.inspect(-math.inf, math.inf))
    except HistoryError as error:
        return {}, [Loss("file", "", 0, 0, 0, str(error))]
    finally:
        reader.close()


def restarted(directory: Path) -> tuple[Cells, History, list[str]]:
    """What a history has after an agent wrote a tick to it, the writer, and what it told."""
    said: list[str] = []
    made = History(HistorySettings(directory, least_free=0), kind_of, said.append)
    made.start()
    written(made, next(ticks(1, LATER)))
    made.close()
    return {key: cell for key, cell in read(directory)[0].items() if key[2] / 1000 < LATER - 1}, made, said


def test_whole(killed: Path) -> None:
    log = copied(killed)
    found, losses = read(log.parent)
    assert len({t for _, _, t in found}) > 2 * COUNT
    assert losses == []
    after, made, said = restarted(log.parent)
    assert (after, made.status.state, said) == (found, "ok", [])


@pytest.mark.parametrize("part", [None, 0.0, 20, 0.1, 0.5, 0.9])
def test_a_log_that_is_gone_empty_or_cut(killed: Path, part: float | None) -> None:
    """These took the newest rows without a word."""
    whole, _ = read(killed)
    log = copied(killed)
    if part is None:
        log.unlink()
    else:
        data = log.read_bytes()
        log.write_bytes(data[: part if isinstance(part, int) else int(part * len(data))])
    found, (loss,) = read(log.parent)
    assert found.items() < whole.items()
    assert (loss.table, 0 < loss.rows <= SINCE) == ("wal", True)
    last = max(t for _, _, t in found)
    assert (loss.start, loss.end) == (last + 1, round((START + (COUNT - 1) * STEP + 0.5) * 1000))
    for dropped in ({"damaged": loss.rows}, {}):  # it is counted once
        after, made, said = restarted(log.parent)
        assert (after, made.status.state, made.status.dropped) == (found, "damaged", dropped)
        assert len(said) == len(dropped)
    assert read(log.parent)[1] == [loss]


@pytest.mark.parametrize(("seed", "count"), [(3, 25), pytest.param(4, 200, marks=pytest.mark.system)])
def test_a_flipped_bit(killed: Path, seed: int, count: int) -> None:
    whole, _ = read(killed)
    drawn, wrong = random.Random(seed), []
    size, least = (killed / f"{FILE}-wal").stat().st_size, len({t for _, _, t in whole})
    for _ in range(count):
        bit = drawn.randrange(size * 8)
        log = copied(killed)
        flip(log, bit)
        found, losses = read(log.parent)
        if found.items() - whole.items() or (found != whole and not losses):
            wrong.append((bit, "read", len(found)))
        after, made, said = restarted(log.parent)
        if (
            after != found
            or (losses and made.status.dropped != {"damaged": losses[0].rows})
            or bool(said) != bool(losses)
        ):
            wrong.append((bit, "restarted", len(after)))
        least = min(least, len({t for _, _, t in after}))
    assert wrong == []
    assert least >= len({t for _, _, t in whole}) - 3 * SINCE  # of three groups


def test_a_commit_that_a_power_cut_tore_is_no_damage(killed: Path, tmp_path: Path) -> None:
    log = copied(killed)
    file = newest_row.file_of(log.with_name(FILE))
    seq = newest_row.read(killed / FILE)
    assert isinstance(seq, newest_row.NewestRow)
    file.write_text(newest_row.text_of(newest_row.NewestRow(seq.seq - 1, seq.t - 5000)))
    data = log.read_bytes()
    log.write_bytes(data[:-3000] + bytes(2000) + data[-1000:])
    assert read(log.parent)[1] == []
    _, made, said = restarted(log.parent)
    assert (made.status.state, said) == ("ok", [])


def test_a_history_that_somebody_removed(killed: Path) -> None:
    """It is begun anew, which is said once; the new one is not damaged."""
    log = copied(killed)
    log.with_name(FILE).unlink()
    (missing,) = read(log.parent)[1]
    assert missing.why.startswith("history.db was deleted, with all rows up to 2027-")
    after, made, said = restarted(log.parent)
    assert (after, made.status.state) == ({}, "ok")
    assert [text.partition(" UTC")[2] for text in said] == ["; a new one is started"]
    assert read(log.parent)[1] == []
    assert restarted(log.parent)[2] == []


def test_an_empty_file_in_its_place_has_a_loss_of_unknown_length(killed: Path) -> None:
    log = copied(killed)
    made = history(log.parent)  # a second generation
    written(made, next(ticks(1, LATER)))
    committed = newest_row.read(log.with_name(FILE))
    newest = newest_row.file_of(log.with_name(FILE)).read_bytes()
    made.close()
    log.with_name(FILE).write_bytes(b"")
    newest_row.file_of(log.with_name(FILE)).write_bytes(newest)
    assert isinstance(committed, newest_row.NewestRow)
    _, _, said = restarted(log.parent)
    (loss,) = read(log.parent)[1]
    assert (loss.rows, loss.has_time, loss.end) == (0, False, committed.t)
    assert [text.partition(":")[2].partition(":")[0] for text in said] == [" 1 part is damaged"]


def test_an_older_copy_in_its_place(killed: Path, tmp_path: Path) -> None:
    log = copied(killed)
    made = history(tmp_path / "older")
    for tick in ticks(3):
        written(made, tick)
    made.close()
    log.unlink()
    shutil.copy(tmp_path / "older" / FILE, log.with_name(FILE))
    (loss,) = read(log.parent)[1]
    assert (loss.table, loss.rows) == ("wal", COUNT - 3)


@pytest.mark.parametrize("content", [None, b"", b"0 0 0\n", b"\xff" * 47, b"9" * 5000])
def test_a_file_of_the_newest_row_that_is_missing_or_cannot_be_read(killed: Path, content: bytes | None) -> None:
    """Whether rows are lost is then unknown, which is stated for the time after the last row, once."""
    log = copied(killed)
    file = newest_row.file_of(log.with_name(FILE))
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    found, (loss,) = read(log.parent)
    assert (loss.start, loss.rows) == (max(t for _, _, t in found) + 1, 0)
    assert "it is unknown whether newer rows were committed" in loss.why
    after, made, said = restarted(log.parent)
    assert (after, made.status.state, len(said)) == (found, "damaged", 1)
    row = newest_row.read(log.with_name(FILE))
    assert isinstance(row, newest_row.NewestRow)
    assert row.t == round((LATER + 0.5) * 1000)
    assert read(log.parent)[1] == [loss]


def test_a_copy_of_the_file_alone_after_it_was_closed_is_whole(tmp_path: Path) -> None:
    made = history(tmp_path / "made")
    for tick in ticks(3):
        written(made, tick)
    made.close()
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "made" / FILE, tmp_path / "copy" / FILE)
    assert read(tmp_path / "copy")[1] == []


def test_the_log_is_emptied_each_minute_unless_somebody_reads(tmp_path: Path) -> None:
    made = history(tmp_path)
    log = tmp_path / f"{FILE}-wal"
    some = ticks(3 * BLOCK_TICKS)
    for tick in (next(some) for _ in range(BLOCK_TICKS)):
        written(made, tick)
    assert log.stat().st_size == 0
    reader = HistoryReader(tmp_path / FILE)
    with reader.reading() as connection:
        connection.execute("SELECT count(*) FROM ticks").fetchall()
        for tick in (next(some) for _ in range(BLOCK_TICKS)):
            assert written(made, tick).state == "ok"
        assert log.stat().st_size > 0
    for tick in some:
        written(made, tick)
    assert log.stat().st_size == 0
    reader.close()
    made.close()
