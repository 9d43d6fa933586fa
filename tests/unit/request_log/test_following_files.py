"""Following files: rotation, truncation, restarts, and lines that are none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.collectors import file_tail as module
from kvitals.agent.collectors.file_tail import ROTATED_SECONDS, Tail, TailBudget, TailPosition

Follow = Callable[..., Tail]


@pytest.fixture
def follow() -> Iterator[Follow]:
    made: list[Tail] = []

    def make(path: Path, places: list[TailPosition] | None = None) -> Tail:
        made.append(Tail(path, places))
        return made[-1]

    yield make
    for one in made:
        one.close()


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def came(tail: Tail, t: float = 0.0, octets: int = 1 << 30) -> list[str]:
    """The lines of one look; too long ones as <long>."""
    tail.look(t)
    return ["<long>" if line is None else line.decode() for line in tail.lines(TailBudget(octets))]


def kept(tail: Tail) -> list[TailPosition]:
    """Its places as they come back from the state file."""
    return msgspec.json.decode(msgspec.json.encode(tail.places), type=list[TailPosition])


def test_only_what_comes_is_read_and_half_lines_wait(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    append(path, "old 1\nold 2\nhalf of an o")
    tail = follow(path)
    assert came(tail) == []
    append(path, "ld line\nnew 1\nne")
    assert came(tail) == ["new 1"]
    assert came(tail) == []
    append(path, "w 2\n")
    assert came(tail) == ["new 2"]


def test_a_file_that_appears_later_is_read_from_its_start(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "later" / "log"
    tail = follow(path)
    assert came(tail) == []
    assert "this file does not exist yet" in tail.problems[0]
    path.parent.mkdir()
    append(path, "first\n")
    assert came(tail) == ["first"]
    assert not tail.problems


def test_renamed_and_created_anew(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    path.touch()
    tail = follow(path)
    came(tail)
    append(path, "1\n")
    path.rename(tmp_path / "log.1")
    append(tmp_path / "log.1", "2\n")
    append(path, "3\n")
    assert came(tail, 5) == ["1", "2", "3"]
    append(tmp_path / "log.1", "late, its writer still has it open\n")
    assert came(tail, 20) == ["late, its writer still has it open"]
    assert len(tail.places) == 2
    assert came(tail, 30) == []
    assert came(tail, 30 + ROTATED_SECONDS) == []
    assert len(tail.places) == 1


def test_several_rotations_between_two_looks_lose_only_what_nobody_can_find(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    append(path, "")
    tail = follow(tmp_path / "log*")
    came(tail)
    append(path, "1\n")
    path.rename(tmp_path / "log.2")
    append(path, "2\n")
    path.rename(tmp_path / "log.1")
    append(path, "3\n")
    assert sorted(came(tail)) == ["1", "2", "3"]
    assert came(tail) == []


def test_truncated_as_by_copytruncate(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    path.touch()
    tail = follow(path)
    came(tail)
    append(path, "1\n2\n")
    assert came(tail) == ["1", "2"]
    os.truncate(path, 0)
    append(path, "3\n")
    assert came(tail) == ["3"]
    os.truncate(path, 0)
    append(path, "more than there was before\n5\n")
    assert came(tail) == ["more than there was before", "5"]


def test_an_inode_used_again_is_another_file(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    append(path, "a\nb\n")
    inode = path.stat().st_ino
    tail = follow(path, [TailPosition(inode, 2, head="0011223344556677", head_bytes=2)])
    assert came(tail) == ["a", "b"]


def test_a_restart_goes_on_where_it_was(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    append(path, "old\n")
    before = follow(path)
    came(before)
    append(path, "1\n2\nhalf")
    assert came(before) == ["1", "2"]
    places = kept(before)
    before.close()
    append(path, " and whole\n")
    assert came(follow(path, places)) == ["half and whole"]


def test_a_restart_finds_what_was_rotated_meanwhile(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    append(path, "old\n")
    before = follow(path)
    came(before)
    append(path, "1\n")
    assert came(before) == ["1"]
    places = kept(before)
    before.close()
    append(path, "2\n")
    path.rename(tmp_path / "log.1")
    append(path, "3\n")
    append(tmp_path / "log.0", "another log\n")
    assert came(follow(path, places)) == ["2", "3"]


def test_a_log_that_was_empty_before_the_restart_is_read_from_its_start(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    before = follow(path)
    came(before)
    assert kept(before) == []
    append(path, "1\n")
    assert came(follow(path, [])) == ["1"]


def test_lines_that_are_taken_count_as_read(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    path.touch()
    tail = follow(path)
    came(tail)
    append(path, "1\n2\n3\n")
    tail.look(0)
    lines = tail.lines(TailBudget(1 << 20))
    assert [next(lines), next(lines)] == [b"1", b"2"]
    del lines
    assert (tail.behind, came(tail)) == (2, ["3"])


def test_a_gotthat_is_too_long_is_skipped_over_restarts(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 64)
    monkeypatch.setattr(module, "MAX_LINE", 100)
    path = tmp_path / "log"
    path.touch()
    before = follow(path)
    came(before)
    append(path, "1\n" + "x" * 1000)
    assert came(before) == ["1", "<long>"]
    assert before.behind == 0
    places = kept(before)
    append(path, "y" * 1000 + "\n2\n" + "z" * 101 + "\n" + "z" * 100 + "\n")
    assert came(follow(path, places)) == ["2", "<long>", "z" * 100]


def test_no_look_reads_more_than_its_budget(tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 1000)
    path = tmp_path / "log"
    path.touch()
    tail = follow(path)
    came(tail)
    append(path, "".join(f"{n:09}\n" for n in range(1000)))
    found: list[str] = []
    looks = 0
    while more := came(tail, octets=2000):
        assert len(more) <= 200
        found += more
        looks += 1
    assert found == [f"{n:09}" for n in range(1000)] and looks == 5


def test_a_pattern_follows_the_files_written_last(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    tail = follow(tmp_path / "*.log")
    assert came(tail) == []
    assert "no file matches yet" in tail.problems[0]
    for n, name in enumerate(("a.log", "b.log", "c.log", "d.txt")):
        append(tmp_path / name, f"{name}\n")
        os.utime(tmp_path / name, (n, n))
    assert came(tail) == ["b.log", "c.log"]
    assert "3 files match; only the 2 most recently written are read" in tail.problems[0]


def test_a_folder_with_very_many_entries(tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    for n in range(5):
        append(tmp_path / f"{n}.log", "")
    tail = follow(tmp_path / "*.log")
    came(tail)
    assert "more than 3 entries" in tail.problems[0]


@pytest.mark.parametrize("kind", ["folder", "pipe", "gzip"])
def test_what_is_no_log(kind: str, tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"\x1f\x8b\x08\x00 and so on\n")
    tail = follow(path)
    assert came(tail) == []
    assert "cannot be read" in tail.problems[0]


def test_links_that_lead_nowhere_do_no_harm(tmp_path: Path, follow: Follow) -> None:
    (tmp_path / "x.log").symlink_to(tmp_path / "gone")
    (tmp_path / "loop.log").symlink_to(tmp_path / "loop.log")
    tail = follow(tmp_path / "*.log")
    came(tail)
    append(tmp_path / "real", "1\n")
    (tmp_path / "y.log").symlink_to(tmp_path / "real")
    assert came(tail) == ["1"]


@given(
    st.lists(
        st.one_of(
            st.text("ab", max_size=30).map(lambda text: ("write", text)),
            st.just(("newline", "")),
            st.just(("rename", "")),
            st.just(("restart", "")),
            st.integers(0, 40).map(lambda n: ("look", str(n))),
        ),
        max_size=40,
    )
)
def test_whatever_happens_nothing_is_lost_or_repeated(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    """A log with rotations by renaming and restarts, read in pieces, gives all its lines once."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.touch()
    tail, written, found, line, rotations = Tail(path, []), [], [], "", 0
    came(tail)
    for step, text in [*steps, ("newline", "")]:
        if step == "write":
            append(path, text)
            line += text
        elif step == "newline":
            append(path, f"#{len(written)}\n")
            written.append(f"{line}#{len(written)}")
            line = ""
        elif step == "rename" and not line:  # loggers rotate between lines
            rotations += 1
            found += came(tail, 0)
            path.rename(path.with_name(f"log.{rotations}"))
            path.touch()
        elif step == "restart":
            places = kept(tail)
            tail.close()
            tail = Tail(path, places)
        elif step == "look":
            tail.look(0)
            lines = tail.lines(TailBudget(1 << 20))
            found += [got.decode() for got in islice(lines, int(text)) if got is not None]
    found += came(tail, 0)
    tail.close()
    assert found == written
