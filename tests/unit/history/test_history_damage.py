"""One flipped bit anywhere in a history: what is read was written, but for a bounded part, and the loss is stated."""

from __future__ import annotations

import json
import math
import random
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvitals.series.history import blocks, compact, newest_row, schema, wal
from kvitals.series.history.codec import decompress
from kvitals.series.history.event_log import Episode, EventBatch, HistoryEvent
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import FILE, HistoryError
from kvitals.series.types import Labels, is_stale
from tests.support.command import answer
from tests.unit.history.history_stage import START, STEP, flip, flip_in, history, ticks, until, written

COUNT = 150
Cells = dict[tuple[str, Labels, int], bytes]


def kept(directory: Path, count: int = COUNT, *, seal: bool = True) -> Path:
    """A history with two generations that are over and one that is being written, and something in each table."""
    path = directory / FILE
    connection = schema.open_for_writing(path)
    log, sealer = wal.Log(connection), compact.Sealer(connection)
    for number, tick in enumerate(ticks(count)):
        log._is_over |= seal and number in (40, 80)
        log.write(replace(tick, notes=[
            HistoryEvent(tick.t, "config", f"taken over {number}", "agent", {"node": "n"}),
            Episode(f"k{number}", "KVC01", {"engine": "a"}, tick.t, tick.t + 5, False, b'{"a":1}' * 20),
            EventBatch("requests", tick.t, tick.t + 1, 2, 9, b"records" * 10),
        ]))  # fmt: skip
    while sealer.step(log.generation):
        pass
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path


def cells(reader: HistoryReader) -> Cells:
    """Every sample, as bytes."""
    found: Cells = {}
    for name, frame in reader.groups(0.0, 4e9):
        times = np.rint(frame.times * 1000).astype(int).tolist()
        there = ~is_stale(frame.values)
        for column, labels in enumerate(frame.labels):
            for row in np.flatnonzero(there[:, column]).tolist():
                found[name, labels, times[row]] = frame.values[row, column].tobytes()
    return found


@pytest.mark.parametrize(("seed", "count"), [(7, 60), pytest.param(8, 400, marks=pytest.mark.system)])
def test_a_flipped_bit_is_never_silent(tmp_path: Path, seed: int, count: int) -> None:
    (tmp_path / "base").mkdir()
    path = kept(tmp_path / "base")
    reader = HistoryReader(path)
    whole = cells(reader)
    assert not reader.inspect(-math.inf, math.inf)
    reader.close()
    drawn, size = random.Random(seed), path.stat().st_size
    copy, wrong = tmp_path / FILE, []
    for _ in range(count):
        bit = drawn.randrange(size * 8)
        shutil.copy(path, copy)
        flip(copy, bit)
        reader = HistoryReader(copy)
        try:
            found, losses = cells(reader), reader.inspect(-math.inf, math.inf)
        except HistoryError as error:
            if "damaged" not in str(error) and error.reason not in ("not_ours", "newer_version", "older_version"):
                wrong.append((bit, str(error)))
            continue
        finally:
            reader.close()
        if found.items() - whole.items():
            wrong.append((bit, "a sample is not what was written"))
        if len(found) < len(whole) and not losses:
            wrong.append((bit, "silent"))
        if len(whole) - len(found) > len(whole) / 3 + 10:  # one of three generations, of all groups
            wrong.append((bit, f"{len(whole) - len(found)} of {len(whole)} lost"))
    assert wrong == []


def test_damage_in_the_log_is_lost_until_the_next_block(tmp_path: Path) -> None:
    path = kept(tmp_path, 60, seal=False)
    whole = cells(HistoryReader(path))
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 3 << 10 | 4}")
    reader = HistoryReader(path)
    found = cells(reader)
    first, beyond = START + (24 + 4) * STEP, START + 36 * STEP
    expected = {key: cell for key, cell in whole.items() if not first - 1 < key[2] / 1000 < beyond - 1}
    assert found == expected
    (loss,) = reader.losses
    assert (loss.table, loss.rows) == ("ticks", wal.BLOCK_TICKS - 4)
    assert first - STEP < loss.start / 1000 < first + 1
    assert beyond - STEP < loss.end / 1000 < beyond + 0.1


def test_a_sealed_generation_has_what_its_log_had(tmp_path: Path) -> None:
    """A series that ended while rows were lost does not go on after them."""
    path = kept(tmp_path, 200, seal=False)
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 5 << 10 | 1}")
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 9 << 10}")
    before = cells(HistoryReader(path))
    connection = schema.open_for_writing(path)
    newest_row.NewestRowFile(path, connection).close()
    sealer = compact.Sealer(connection)
    while sealer.step(2):
        pass
    connection.close()
    reader = HistoryReader(path)
    assert cells(reader) == before
    assert [one.rows for one in sealer.losses] == [11, 12]
    assert [one.rows for one in reader.inspect(-math.inf, math.inf)] == [11, 12]


def test_a_restart_counts_and_keeps_what_is_damaged(tmp_path: Path) -> None:
    path = kept(tmp_path, 62, seal=False)
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 1 << 10 | 2}")
    connection = sqlite3.connect(path)
    there = connection.execute("SELECT seq, data FROM ticks ORDER BY seq LIMIT 10 OFFSET 2").fetchall()
    connection.close()
    before = cells(HistoryReader(path))
    said: list[str] = []
    made = history(tmp_path)
    made._tell = said.append
    tick = next(ticks(1, START + 1000))
    written(made, tick)
    until(lambda: made.status.state == "damaged", "it does not say so")
    assert made.status.reason == "damaged_rows"
    assert made.status.dropped == {"damaged": 10}
    assert "10 rows between 2027-" in made.status.message and "kvitals history check" in made.status.message
    made.close()
    assert len(said) == 1 and "10 rows" in said[0]
    after = cells(HistoryReader(path))
    assert before.items() <= after.items()
    connection = sqlite3.connect(path)
    (content,) = connection.execute("SELECT content FROM damaged").fetchone()
    connection.close()
    kept_rows = msgspec.msgpack.decode(decompress(content, 1 << 26))
    assert [(seq, data) for seq, _, data in kept_rows] == there
    again = history(tmp_path)
    written(again, next(ticks(1, START + 2000)))
    assert again.status.state == "damaged"  # it stays so until it is pruned
    again.close()
    assert again.status.dropped == {}


def test_damage_that_a_reader_meets_while_it_is_written(tmp_path: Path) -> None:
    """The state stayed `ok`: the writer's own connection knows pages as they were."""
    made = history(tmp_path)
    for tick in ticks(30):
        written(made, tick)
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    flip_in(tmp_path / FILE, "ticks", "data", f"seq = {1 << 20 | 2 << 10 | 5}")
    reader = HistoryReader(tmp_path / FILE, suspect=made.suspect)
    before = cells(reader)
    until(lambda: made.status.state == "damaged", "it does not say so")
    assert made.status.dropped == {"damaged": 7}
    written(made, next(ticks(1, START + 5000)))
    assert made.status.state == "damaged"
    made.close()
    reader.close()
    assert before.items() <= cells(HistoryReader(tmp_path / FILE)).items()


def test_what_was_damaged_and_is_pruned_is_forgotten(tmp_path: Path) -> None:
    path = kept(tmp_path)
    flip_in(path, "segments", "times", "id = 1", at=-1)
    connection = schema.open_for_writing(path)
    assert len(blocks.set_aside(connection, blocks.where(connection, "1", ()))) == 1
    connection.close()
    assert answer(["history", "check", "--dir", str(tmp_path)]).code == 3
    assert answer(["history", "prune", "--dir", str(tmp_path), "--before", str(START + 300)]).code == 0
    assert answer(["history", "check", "--dir", str(tmp_path)]).code == 0


def test_a_damaged_chunk_is_set_aside_and_the_rest_is_thinned(tmp_path: Path) -> None:
    """One of them took out all rows of twelve hours."""
    path = kept(tmp_path)
    flip_in(path, "chunks", "data", "id = (SELECT min(id) FROM chunks)", at=-1)
    connection = schema.open_for_writing(path)
    due = blocks.where(connection, "grp = 1", ())
    chunks = connection.execute("SELECT count(*) FROM chunks").fetchone()[0]
    (loss,) = blocks.set_aside(connection, due)
    assert (loss.table, loss.rows) == ("chunks", due[0].rows)
    assert connection.execute("SELECT count(*) FROM chunks").fetchone()[0] == chunks - 1
    connection.close()
    assert [one.table for one in HistoryReader(path).inspect(-math.inf, math.inf)] == ["chunks"]


@pytest.mark.parametrize("table, column", [("names", "name"), ("series", "labels"), ("groups", "name")])
def test_what_the_file_has_twice_is_restored(tmp_path: Path, table: str, column: str) -> None:
    path = kept(tmp_path)
    whole = cells(HistoryReader(path))
    flip_in(path, table, column, "id = 2", at=-1)
    assert cells(HistoryReader(path)) == whole
    made = history(tmp_path)
    written(made, next(ticks(1, START + 2000)))
    made.close()
    assert made.status.state == "ok"
    after = HistoryReader(path)
    assert whole.items() <= cells(after).items()
    assert not after.inspect(-math.inf, math.inf)


def test_a_file_of_version_1_is_read_and_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no checksums of rows, and one block a generation: the rows before a damaged one are read."""
    monkeypatch.setattr(schema, "VERSION", 1)
    monkeypatch.setattr(wal, "BLOCK_TICKS", 1 << 9)
    path = kept(tmp_path, 50, seal=False)
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE ticks SET seq = seq - {1 << 10} + 1")
    connection.commit()
    connection.close()
    monkeypatch.undo()
    whole = cells(HistoryReader(path))
    assert whole
    shutil.copy(path, tmp_path / "damaged.db")
    made = history(tmp_path)
    written(made, next(ticks(1, START + 2000)))
    made.close()
    reader = HistoryReader(path)
    assert whole.items() <= cells(reader).items()
    assert not reader.inspect(-math.inf, math.inf)
    flip_in(tmp_path / "damaged.db", "ticks", "data", f"seq = {1 << 20 | 20}")
    reader = HistoryReader(tmp_path / "damaged.db")
    assert cells(reader) == {key: cell for key, cell in whole.items() if key[2] / 1000 < START + 19 * STEP - 1}
    assert [one.rows for one in reader.losses] == [31]


def test_the_commands_state_the_damage(tmp_path: Path) -> None:
    path = kept(tmp_path, 60, seal=False)
    place = str(tmp_path)
    for words in (("export",), ("list",), ("check",)):
        assert answer(["history", *words, "--dir", place]).code == 0
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 3 << 10 | 4}")
    for words, code in (
        (("export",), 3),
        (("list",), 0),
        (("check",), 3),
        (("list", "--json"), 0),
        (("check", "--json"), 3),
    ):
        said = answer(["history", *words, "--dir", place])
        assert said.code == code, words
        assert "8 rows between" in said.err.replace("\n", " "), words
        if "--json" in words:
            (loss,) = json.loads(said.out)["damaged"]
            assert (loss["part"], loss["rows"]) == ("ticks", 8)
    assert answer(["history", "export", "--dir", place, "--to", str(START + 60)]).code == 0  # it is not of that time


def test_a_loss_is_counted_once(tmp_path: Path) -> None:
    path = kept(tmp_path, 60, seal=False)
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 2 << 10}")
    told: list[int] = []
    reader = HistoryReader(path, suspect=lambda: told.append(1))
    for _ in range(3):
        cells(reader)
    assert len(reader.losses) == len(told) == 1


def test_reading_an_empty_file_keeps_the_log_beside_it(tmp_path: Path) -> None:
    """SQLite deleted it, with all that was left of the history."""
    (tmp_path / FILE).write_bytes(b"")
    log = tmp_path / f"{FILE}-wal"
    log.write_bytes(b"rows")
    with pytest.raises(schema.HistoryError, match="is empty, so it is not a kvitals history"):
        HistoryReader(tmp_path / FILE).span()
    assert log.read_bytes() == b"rows"
