"""Files that someone else names, and files that are replaced: what is refused, and that nothing waits or mixes."""

from __future__ import annotations

import errno
import os
import stat
import threading
import tracemalloc
from multiprocessing import get_context
from pathlib import Path

import pytest

from kvitals.series import files
from kvitals.series.files import (
    FileInUseError,
    FileRefusedError,
    append_line,
    lock_file,
    make_directory,
    open_regular,
    read_regular,
    replace_file,
    replace_on_success,
)


def test_reads_a_regular_file_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    with pytest.raises(FileRefusedError, match="larger than 4 bytes"):
        read_regular(file, 4)


@pytest.mark.parametrize(
    ("limit", "words"), [(0, "0 bytes"), (1000, "1000 bytes"), (256 << 10, "256 KB"), (4 << 20, "4 MB")]
)
def test_the_limit_is_named_in_the_largest_unit_that_divides_it(tmp_path: Path, limit: int, words: str) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * (limit + 1))
    with pytest.raises(FileRefusedError, match=f"larger than {words}"):
        read_regular(file, limit)


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for opening in (lambda: open_regular(fifo), lambda: read_regular(fifo, 10)):
        with pytest.raises(FileRefusedError, match="not a regular file"):
            opening()


def test_a_fifo_with_a_writer_is_not_opened(tmp_path: Path) -> None:
    """Opening it would let the writer go on, whose next write then fails."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(FileRefusedError):
        open_regular(fifo)
    with pytest.raises(OSError, match="No such device") as refused:
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    assert refused.value.errno == errno.ENXIO  # nobody reads


def test_a_device_is_refused_before_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    original = os.open
    monkeypatch.setattr(os, "open", lambda *args, **named: opened.append(args) or original(*args, **named))
    with pytest.raises(FileRefusedError, match="not a regular file"):
        open_regular(Path("/dev/zero"))
    assert not opened


def test_what_is_no_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 10)
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(loop, 10)
    with pytest.raises(OSError, match="too long"):
        read_regular(tmp_path / ("x" * 5000), 10)
    with pytest.raises(FileRefusedError, match="not a file name"):
        read_regular(tmp_path / "a\0b", 10)


def test_files_of_proc_have_no_size_and_are_read() -> None:
    assert b"python" in read_regular(Path("/proc/self/cmdline"), 1 << 20)
    with pytest.raises(FileRefusedError, match="larger than 2 bytes"):
        read_regular(Path("/proc/self/status"), 2)


def test_a_file_that_has_no_content_yet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/kmsg and trace_pipe do, which are regular files for `stat`."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    monkeypatch.setattr(files, "open_regular", lambda *_: os.fdopen(reading, "rb"))
    with pytest.raises(FileRefusedError, match="no content yet"):
        read_regular(tmp_path / "kmsg", 10)
    os.close(writing)


def test_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    file = tmp_path / "a"
    replace_file(file, b"one", 0o600)
    replace_file(file, b"two", 0o600)
    assert file.read_bytes() == b"two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    replace_file(file, b"old")
    if call == "fsync":

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            replace_file(file, b"new")
    else:
        with pytest.raises(OSError, match="No space left"), replace_on_success(file) as out:
            os.dup2(os.open("/dev/full", os.O_WRONLY), out.fileno())
            out.write(b"new")
            out.flush()
    assert file.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_what_fails_within_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    replace_file(file, b"old")
    with pytest.raises(ValueError, match="no"), replace_on_success(file) as out:
        out.write(b"new")
        raise ValueError("no")
    assert file.read_bytes() == b"old"


def test_a_part_that_a_crash_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".a.part").write_bytes(b"longer than what comes")
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_fifo_in_place_of_the_part_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".a.part")
    with pytest.raises(OSError, match="No such device"):
        replace_file(tmp_path / "a", b"new")


def test_a_link_in_place_of_the_part_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"precious")
    (tmp_path / ".a.part").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "other").read_bytes() == b"precious"


def test_threads_that_replace_one_file_do_not_mix_their_content(tmp_path: Path) -> None:
    wrong = _write_at_once(tmp_path, [threading.Thread(target=_write, args=(tmp_path / "a", n)) for n in range(6)])
    assert not wrong


def test_processes_that_replace_one_file_do_not_mix_their_content(tmp_path: Path) -> None:
    made = [get_context("spawn").Process(target=_write, args=(tmp_path / "a", n)) for n in range(3)]
    assert not _write_at_once(tmp_path, made)
    assert [one.exitcode for one in made] == [0, 0, 0]


def _write(path: Path, number: int) -> None:
    for _ in range(20):
        replace_file(path, bytes([number]) * 50_000)


def _write_at_once(folder: Path, several: list) -> list[bytes]:  # type: ignore[type-arg]
    wrong = []
    for one in several:
        one.start()
    while any(one.is_alive() for one in several):
        if (folder / "a").exists():
            content = (folder / "a").read_bytes()
            if len(content) != 50_000 or len(set(content)) != 1:
                wrong.append(content[:10])
    for one in several:
        one.join()
    assert (folder / "a").exists()
    assert [one.name for one in folder.iterdir()] == ["a"]
    return wrong


def test_a_file_system_that_cannot_sync_directories_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.fsync

    def picky(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", picky)
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_made_directories_are_synced_in_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    make_directory(tmp_path / "a" / "b", 0o700)
    make_directory(tmp_path / "a" / "b", 0o700)
    assert synced == [tmp_path, tmp_path / "a"]
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        make_directory(tmp_path / "file" / "c")


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    held = lock_file(tmp_path / "lock")
    with pytest.raises(FileInUseError, match="in use by another process"):
        lock_file(tmp_path / "lock")
    os.close(held)
    os.close(lock_file(tmp_path / "lock"))


def test_appends_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    append_line(file, b"one\n")
    with file.open("ab") as out:
        out.write(b"half of a li")  # a power cut
    append_line(file, b"two\n")
    assert file.read_bytes() == b"one\nhalf of a li\ntwo\n"


def test_a_line_that_cannot_be_written_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines"
    append_line(file, b"one\n")

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output"):
        append_line(file, b"two\n")
    assert file.read_bytes() == b"one\n"


def test_reading_takes_memory_for_the_content_and_not_for_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "small"
    file.write_bytes(b"12345")
    tracemalloc.start()
    try:
        assert read_regular(file, 1 << 28) == b"12345"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_without_a_size_is_read_to_its_end() -> None:
    """Files of /proc report none; this one is longer than a piece."""
    assert read_regular(Path("/proc/self/environ"), 1 << 24) == Path("/proc/self/environ").read_bytes()
    whole = read_regular(Path("/proc/self/smaps"), 1 << 26)
    assert len(whole) > 1 << 17
    assert whole.endswith(b"\n")
    with pytest.raises(FileRefusedError, match="larger than"):
        read_regular(Path("/proc/self/smaps"), 1 << 17)
