"""The writer in its thread: what it says is written is there; a full disk, a damaged file, a set clock stop nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from kvitals.series.history import blocks, compact, event_log, retention, schema, wal
from kvitals.series.history import writer as store
from kvitals.series.history.event_log import Episode, EventBatch, HistoryEvent
from kvitals.series.history.new_rows import GroupRows, Tick
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import FILE, HistoryError
from kvitals.series.promql import PromQLError
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp
from tests.unit.history.history_stage import START, STEP, history, labels, ticks, until, written

EVERYTHING = (Matcher(METRIC_NAME, MatchOp.RE, ".+"),)


def one(t: float, value: float, name: str = "up", group: str = "g", **more: str) -> Tick:
    key = (name, tuple(more.items()))
    series = _LABELS.setdefault(key, [labels(name, **more)])
    return Tick(t, [GroupRows(group, np.array([t]), np.array([[value]]), series)])


_LABELS: dict[object, list[Labels]] = {}


def values(directory: Path, start: float = START - 1, end: float = START + 1e7) -> dict[float, float]:
    reader = HistoryReader(directory / FILE)
    return {
        t: float(v)
        for frame in reader.select(EVERYTHING, start, end)
        for t, v in zip(frame.times.tolist(), frame.values[:, 0], strict=True)
    }


def test_what_is_committed_is_there_for_another_process(tmp_path: Path) -> None:
    made = history(tmp_path)
    for tick in ticks(30):
        written(made, tick)
    code = (
        "import sys; from pathlib import Path; from kvitals.series.history.reader import HistoryReader as R;"
        "f = R(Path(sys.argv[1])).select([], 0, 4e9); print(len(f), sum(len(x.times) for x in f))"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path / FILE)], capture_output=True, check=True)
    frames, rows = map(int, told.stdout.split())
    assert frames == 3
    assert 85 <= rows <= 90
    made.close()
    assert made.status.state == "ok"
    assert not (tmp_path / f"{FILE}-wal").exists()


def test_commits_are_on_the_disk_when_they_return(tmp_path: Path) -> None:
    connection = schema.open_for_writing(tmp_path / FILE)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_directory_that_we_may_only_read(tmp_path: Path) -> None:
    made = history(tmp_path)
    written(made, one(START, 1.0))
    made.close()
    before = sorted(tmp_path.iterdir())
    tmp_path.chmod(0o555)
    (tmp_path / FILE).chmod(0o444)
    code = (
        "import os, sys; from pathlib import Path; from kvitals.series.history.reader import HistoryReader as R;"
        "os.setuid(65534) if os.getuid() == 0 else None;"
        "print(len(R(Path(sys.argv[1])).select([], 0, 4e9)))"
    )
    for parent in tmp_path.parents:  # pytest makes its folders, two or three levels of them, for their owner alone
        if Path(tempfile.gettempdir()) in parent.parents:
            parent.chmod(0o755)
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path / FILE)], capture_output=True, text=True)
    tmp_path.chmod(0o755)
    assert told.stdout.strip() == "1", told.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_stops_history_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_RETRY_SECONDS", 0.0)
    opened = schema.open_for_writing

    def small(path: Path) -> sqlite3.Connection:
        connection = opened(path)
        connection.execute(f"PRAGMA max_page_count = {25 if full else 1 << 30}")
        return connection

    full = True
    monkeypatch.setattr(schema, "open_for_writing", small)
    made = history(tmp_path)
    for tick in ticks(2000):
        assert made.offer(tick)
        until(lambda t=tick.t: made.status.committed == t or made.status.dropped.get("disk_full", 0) > 0, "no answer")
        if made.status.dropped:
            break
    committed = made.status.committed
    assert committed is not None
    assert committed > START + 3 * STEP
    until(lambda: made.status.reason == "disk_full", "it does not say so")
    assert "free space" in made.status.message
    full = False
    later = one(START + 1e5, 3.0)
    until(lambda: made.offer(later) and made.status.state == "ok", "it does not go on")
    until(lambda: made.status.committed == later.t, "it does not go on")
    made.close()
    frames = HistoryReader(tmp_path / FILE).select(EVERYTHING, committed - 2 * STEP, committed)
    assert max(frame.times[-1] for frame in frames) > committed - 1


def test_too_little_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 40]
    found = os.statvfs(tmp_path)

    def statvfs(_: Path) -> os.statvfs_result:
        return os.statvfs_result((*found[:2], *found[2:4], free[0] // found.f_frsize, *found[5:10]))

    monkeypatch.setattr(store.os, "statvfs", statvfs)
    made = history(tmp_path, least_free=1 << 30)
    written(made, one(START, 1.0))
    free[0] = 1 << 20
    assert made.offer(one(START + 5, 2.0))
    until(lambda: made.status.state == "paused", "it goes on")
    assert made.status.reason == "disk_low"
    free[0] = (1 << 30) + 1  # not enough to begin again
    made.offer(one(START + 10, 3.0))
    until(lambda: made.status.dropped.get("disk_low", 0) >= 2, "it begins again")
    free[0] = 2 << 30
    written(made, one(START + 15, 4.0))
    made.close()
    assert values(tmp_path) == {START: 1.0, START + 15: 4.0}


@pytest.mark.parametrize("damage", ["header", "all"])
def test_a_damaged_file_is_set_aside_and_a_new_one_is_begun(tmp_path: Path, damage: str) -> None:
    said: list[str] = []
    made = history(tmp_path)
    written(made, one(START, 1.0))
    made.close()
    file = tmp_path / FILE
    content = file.read_bytes()
    file.write_bytes(bytes(64) + content[64:] if damage == "header" else content[:100] + os.urandom(len(content) - 100))
    made = history(tmp_path)
    made._tell = said.append
    written(made, one(START + 5, 2.0))
    assert made.status.state == "ok"
    aside = list(tmp_path.glob(f"{FILE}.damaged-*Z"))
    assert [path.name for path in aside] == [made.status.set_aside]
    made.close()
    assert values(tmp_path) == {START + 5: 2.0}


def test_damage_that_a_reader_finds(tmp_path: Path) -> None:
    made = history(tmp_path)
    for tick in ticks(40):
        written(made, tick)
    file = tmp_path / FILE
    made._file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]
    size = file.stat().st_size
    with file.open("r+b") as stream:
        for page in range(1, size // 8192):
            stream.seek(page * 8192)
            stream.write(b"\xff" * 64)
    with pytest.raises(HistoryError, match="damaged"):
        HistoryReader(file, suspect=made.suspect).select(EVERYTHING, 0, 4e9)
    until(lambda: made.status.set_aside != "", "it is not set aside")
    written(made, one(START + 1e6, 1.0))
    made.close()


def test_a_file_that_somebody_removed(tmp_path: Path) -> None:
    made = history(tmp_path)
    written(made, one(START, 1.0))
    for path in tmp_path.glob(f"{FILE}*"):
        path.unlink()
    written(made, one(START + 5, 2.0))
    made.close()
    assert values(tmp_path) == {START + 5: 2.0}


def test_one_writer_a_directory(tmp_path: Path) -> None:
    first = history(tmp_path)
    written(first, one(START, 1.0))
    second = history(tmp_path)  # once the first has the lock: who asks first has it
    until(lambda: second.status.reason == "in_use", "two write")
    assert "another directory" in second.status.message
    first.close()
    second.offer(one(START + 5, 2.0))
    written(second, one(START + 10, 3.0))
    second.close()


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    connection = schema.open_for_writing(tmp_path / FILE)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    made = history(tmp_path)
    until(lambda: made.status.reason == "newer_version", "it is taken")
    made.close()
    with pytest.raises(HistoryError, match="newer"):
        HistoryReader(tmp_path / FILE).select(EVERYTHING, 0, 1)


def test_what_is_no_history_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("CREATE TABLE diary (text TEXT)")
    with pytest.raises(HistoryError, match="not a kvitals history"):
        schema.open_for_writing(tmp_path / FILE)


def test_an_older_file_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How it goes once there is another version: as a whole or not at all."""
    schema.open_for_writing(tmp_path / FILE).close()
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    monkeypatch.setattr(schema, "OLDEST", schema.VERSION)

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE more (id INTEGER)")
        raise sqlite3.OperationalError("half way")

    monkeypatch.setitem(schema.MIGRATIONS, schema.VERSION - 1, fails)
    with pytest.raises(sqlite3.OperationalError):
        schema.open_for_writing(tmp_path / FILE)
    with pytest.raises(HistoryError, match="to upgrade it to"):
        HistoryReader(tmp_path / FILE).select(EVERYTHING, 0, 1)
    added = "CREATE TABLE more (id INTEGER)"
    monkeypatch.setitem(schema.MIGRATIONS, schema.VERSION - 1, lambda c: c.execute(added) and None)
    connection = schema.open_for_writing(tmp_path / FILE)
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    connection.execute("SELECT id FROM more")


def test_the_clock_is_set_back(tmp_path: Path) -> None:
    """What was said of the time that comes again gives way to what is said of it now; the rest stays."""
    made = history(tmp_path)
    for n in range(10):
        written(made, one(START + n * STEP, float(n)))
    for n in range(4):
        made.offer(one(START + 20 + n * STEP, 100.0 + n))
    until(lambda: made.status.committed == START + 35, "not written")
    made.close()
    found = values(tmp_path)
    assert [found[START + n * STEP] for n in range(10)] == [0, 1, 2, 3, 100, 101, 102, 103, 8, 9]


def test_the_clock_is_set_far_back_and_right_again(tmp_path: Path) -> None:
    made = history(tmp_path)
    for t in (START, START + 5, 100.0, 105.0, START + 20, START + 25):
        assert made.offer(one(t, t))
    until(lambda: made.status.committed == START + 25, "not written")
    made.close()
    assert values(tmp_path, 0.0) == {t: t for t in (100.0, 105.0, START, START + 5, START + 20, START + 25)}
    assert HistoryReader(tmp_path / FILE).span() == (100.0, START + 25)


def test_a_restart_with_an_earlier_clock_is_within_the_span(tmp_path: Path) -> None:
    """Whoever exports, or shows a history, asks for its span first."""
    for start in (START, START - 7200.0, START - 20.0):
        made = history(tmp_path)
        for n in range(3):
            written(made, one(start + n * STEP, 1.0))
        made.close()
        assert HistoryReader(tmp_path / FILE).span() == (
            min(start, START - 7200.0 if start < START else START),
            START + 10,
        )


def test_a_clock_that_was_just_set_makes_nothing_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = history(tmp_path, thinned=3600.0)
    written(made, one(START, 1.0))  # years away from what the clock says
    monkeypatch.setattr(store, "_CHORES_SECONDS", 0.0)
    made.offer(one(START + 5, 1.0))
    until(lambda: made.status.committed == START + 5, "not written")
    made.close()
    assert len(values(tmp_path)) == 2


def test_old_goes_and_the_disk_is_shared(tmp_path: Path) -> None:
    connection = schema.open_for_writing(tmp_path / FILE)
    writer, sealer = wal.Log(connection), compact.Sealer(connection)
    for tick in ticks(300):
        writer.write(tick)
        if round(tick.t) % 100 == 0:
            writer._is_over = True
        while sealer.step(writer.generation):
            pass
    count = len(blocks.where(connection, "1", ()))
    assert retention.prune(connection, round((START + 500) * 1000)) > 10
    assert min(s.end for s in blocks.where(connection, "1", ())) >= (START + 500) * 1000
    assert 0 < len(blocks.where(connection, "1", ())) < count
    schema.open_for_writing(tmp_path / "empty.db").close()
    least = (tmp_path / "empty.db").stat().st_size
    most = (least + retention.used_bytes(connection)) // 2
    while retention.shrink(connection, most):
        pass
    assert least < retention.used_bytes(connection) <= most
    kept = HistoryReader(tmp_path / FILE).select(EVERYTHING, START, START + 1500)
    assert max(frame.times[-1] for frame in kept) > START + 1490  # the newest stay
    assert retention.forget_series(connection, 1 << 60, writer.in_use) == 0


def test_series_that_are_gone_are_forgotten_and_others_take_their_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "MAX_SERIES", 3)
    connection = schema.open_for_writing(tmp_path / FILE)
    writer = wal.Log(connection)
    for n in range(5):
        writer.write(one(START + n * STEP, 1.0, group=f"g{n}", engine=str(n)))
    assert writer.left_out == 2
    assert writer.known == 3
    assert len(HistoryReader(tmp_path / FILE).labels(EVERYTHING, START, START + 100)) == 3


def test_what_happened(tmp_path: Path) -> None:
    made = history(tmp_path)
    episode = Episode("k", "KVC01", {"engine": "a"}, START, START + 5, True, b"{}" * 100)
    said = [
        HistoryEvent(START + 1, "config", "taken over", "agent"),
        episode,
        EventBatch("requests", START, START + 2, 2, 9, b"records"),
    ]
    assert made.offer(Tick(START + 2, [], said))
    ended = Episode("k", "KVC01", {"engine": "a"}, START, START + 9, False, b"later")
    assert made.offer(Tick(START + 9, [], [ended]))
    until(lambda: made.status.committed == START + 9, "not written")
    with HistoryReader(tmp_path / FILE).reading() as connection:
        assert list(event_log.events(connection, START, START + 1)) == [said[0]]
        assert list(event_log.events(connection, START, START + 9, "restart")) == []
        assert list(event_log.episodes(connection, START + 8, START + 20)) == [ended]
        assert list(event_log.batches(connection, "requests", START, START + 9)) == [said[2]]
    assert made.offer(Tick(START + 10, [], [episode]))
    until(lambda: made.status.committed == START + 10, "not written")
    with HistoryReader(tmp_path / FILE).reading() as connection:  # it lasts, and is written again only once a minute
        assert list(event_log.episodes(connection, START + 40, START + 60)) == [episode]
        assert list(event_log.episodes(connection, START + 4000, START + 4060)) == []
    made.close()
    made = history(tmp_path)  # who comes after does not know how it went on
    written(made, one(START + 20, 1.0))
    with HistoryReader(tmp_path / FILE).reading() as connection:
        assert [e.open for e in event_log.episodes(connection, START, START + 20)] == [False]
    made.close()


def test_too_many_that_wait_are_dropped_and_counted(tmp_path: Path) -> None:
    made = store.History(store.HistorySettings(tmp_path, least_free=0), lambda _: "other")  # its thread has not begun
    results = [made.offer(tick) for tick in islice(ticks(store.MAX_WAITING + 3), store.MAX_WAITING + 3)]
    assert results.count(False) == 3
    assert made.status.dropped == {"slow_disk": 3}
    made.start()
    made.close()
    assert len(values(tmp_path)) > 0


def test_a_query_that_reads_too_much_is_refused(tmp_path: Path) -> None:
    made = history(tmp_path)
    for tick in ticks(50):
        written(made, tick)
    made.close()
    with pytest.raises(PromQLError, match="too many samples of history"):
        HistoryReader(tmp_path / FILE, max_samples=1000).select(EVERYTHING, START, START + 250)
    name = [Matcher(METRIC_NAME, MatchOp.EQ, "running")]
    assert HistoryReader(tmp_path / FILE, max_samples=1000).select(name, START, START + 250)


def test_there_is_no_history_yet(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="kvitals run"):
        HistoryReader(tmp_path / FILE).select(EVERYTHING, 0, 1)


def test_a_series_with_damaged_labels_is_left_out_and_counted(tmp_path: Path) -> None:
    """One flipped byte in the labels of one series stopped every question about the whole history."""
    made = history(tmp_path)
    for n in range(3):
        written(made, one(START + n * STEP, float(n)))
    made.close()
    connection = schema.open_for_writing(tmp_path / FILE)
    (labels,) = connection.execute("SELECT labels FROM series").fetchone()
    for number, damaged in enumerate((labels.encode()[:-3] + b'\xfa"}', b"{", b"[1]", b'{"a": 1}')):
        connection.execute(
            "INSERT INTO series (name, labels, last_ms) VALUES (1, CAST(? AS TEXT), ?)", (damaged, number)
        )
    connection.execute("UPDATE series SET labels = CAST(? AS TEXT) WHERE id = 2", (b'{"node":"v\xfa"}',))
    connection.close()
    reader = HistoryReader(tmp_path / FILE)
    (frame,) = reader.select(EVERYTHING, 0.0, 1e10)
    assert len(frame.labels) == 1 and len(reader.losses) == 4
    connection = schema.open_for_writing(tmp_path / FILE)
    log, sealer = wal.Log(connection), compact.Sealer(connection)
    while sealer.step(log.generation + 1):
        pass
    connection.close()
    (frame,) = HistoryReader(tmp_path / FILE).select(EVERYTHING, 0.0, 1e10)
    assert len(frame.times) == 3


def test_a_file_on_which_chores_fail_again_and_again_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: compact.Sealer, writing: int) -> bool:
        raise ValueError("no such thing")

    step = compact.Sealer.step
    monkeypatch.setattr(compact.Sealer, "step", fails)
    monkeypatch.setattr(store, "_RETRY_SECONDS", 0.1)
    said: list[str] = []
    made = history(tmp_path)
    monkeypatch.setattr(made, "_tell", said.append)
    for n in range(store.ODD_FAILURES):
        made.offer(one(START + n * STEP, float(n)))
        until(lambda n=n: made.status.state == "failed" or made.status.set_aside, f"{n} did not fail")
    until(lambda: made.status.set_aside, "not set aside")
    monkeypatch.setattr(compact.Sealer, "step", step)
    written(made, one(START + 100.0, 1.0))
    made.close()
    assert values(tmp_path) == {START + 100.0: 1.0}
    assert [line for line in said if "no such thing" in line and line.endswith("a new one is started")], said
