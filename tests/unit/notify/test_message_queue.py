"""The queue of messages and open incidents on disk: its bounds, its order, and files that are old or damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kvitals.app.notify import queue
from kvitals.app.notify.notice import Notice
from kvitals.app.notify.queue import FILE, MessageOutcome, Spool, SpoolError
from kvitals.rules.model import Severity
from tests.unit.notify.notify_stage import incident


def test_pages_have_room_where_tickets_have_none_and_are_sent_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_MESSAGES", 8)
    kept = Spool(tmp_path)
    kept.open()
    for _ in range(6):
        kept.put(b"{}", 1.0)
    with pytest.raises(SpoolError):
        kept.put(b"{}", 1.0)
    for _ in range(2):
        kept.put(b"{}", 1.0, page=True)
    with pytest.raises(SpoolError):
        kept.put(b"{}", 1.0, page=True)
    several: list[tuple[Severity, str]] = [("ticket", "a"), ("ticket", "b"), ("page", "c"), ("page", "a")]
    notices = [
        ("t", Notice(id=str(i), incident=name, status="firing", change="new", severity=severity, title="", where="",
                     entity={}, began=1.0, at=1.0, judged=""))
        for i, (severity, name) in enumerate(several)
    ]  # fmt: skip
    kept.done(None, MessageOutcome(notices=notices), 1.0)
    order = []
    while (delivery := kept.due("t", 2.0)) is not None:
        order.append(delivery.notice.id)
        kept.sent(delivery)
    assert order == ["2", "0", "3", "1"]
    kept.close()


def test_a_queue_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    kept = Spool(tmp_path)
    kept.open()
    kept.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as file:
        file.execute("ALTER TABLE delivery DROP COLUMN page")
        file.executescript("DROP INDEX of_entity; DROP INDEX of_code")
        for name in ("entity", "code"):
            file.execute(f"ALTER TABLE incident DROP COLUMN {name}")
        for one in (incident("a", "x"), incident("b", "y", code="KVC01")):
            file.execute("INSERT INTO incident VALUES (?, 1, ?)", (one.id, msgspec.json.encode(one)))
        file.commit()
    kept.open()
    assert kept.due("t", 1.0) is None
    assert [one.id for one in kept.incidents([(("engine", "y"),)])] == ["b"]
    assert kept.undiagnosed() == ["a"]
    kept.close()


def test_incidents_are_bounded_in_all_and_of_one_entity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were bounded once in seven hours, and each message read all of them, which held the loop for 0.13 s."""
    monkeypatch.setattr(queue, "MAX_OPEN", 6)
    monkeypatch.setattr(queue, "MAX_OF_ENTITY", 3)
    kept = Spool(tmp_path)
    kept.open()
    for at in range(5):
        kept.done(None, MessageOutcome([incident(f"x{at}", "x")]), float(at))
    kept.done(None, MessageOutcome([incident(f"y{at}", f"y{at}") for at in range(4)]), 5.0)
    known = {name: [one.id for one in kept.incidents([(("engine", name),)])] for name in ("x", "y0", "z")}
    assert known == {"x": ["x3", "x4"], "y0": ["y0"], "z": []}
    assert kept.counts()[1] == 6
    assert kept.incident("x2") is None
    kept.close()


def test_a_damaged_file_is_set_aside_and_a_new_one_is_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FILE).write_bytes(b"this is no database" * 1000)
    kept = Spool(tmp_path)
    kept.open()
    kept.put(b"{}", 1.0)
    kept.close()
    assert "set it aside" in capsys.readouterr().out
    assert (tmp_path / f"{FILE}.damaged").read_bytes().startswith(b"this is no")


def test_a_directory_has_one_process(tmp_path: Path) -> None:
    first, second = Spool(tmp_path), Spool(tmp_path)
    first.open()
    with pytest.raises(SpoolError, match="another process uses the message queue"):
        second.open()
    first.put(b"{}", 1.0)
    first.close()
    second.open()
    assert second.next() is not None
    second.close()
