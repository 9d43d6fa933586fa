"""The simulated disk itself: what is synced survives every cut, the rest can be lost, torn or reordered."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos.power_cuts.disk import Disk
from tests.chaos.power_cuts.trace import Operation, operations

ROOT = Path("/disk")
A = "/disk/a"


def seen(done: list[Operation], to: Path, cuts: int = 200) -> set[bytes | None]:
    """The contents that `a` has after cuts behind all of it; None where there is no such file."""
    disk = Disk(ROOT)
    for one in done:
        disk.do(one)
    found = set()
    for seed in range(cuts):
        folder = to / str(seed)
        folder.mkdir()
        disk.after_cut(folder, random.Random(seed))
        file = folder / "a"
        found.add(file.read_bytes() if file.exists() else None)
    return found


def test_what_is_synced_with_its_directory_is_there(tmp_path: Path) -> None:
    done = [
        Operation("create", A),
        Operation("write", A, data=b"one"),
        Operation("sync", A),
        Operation("sync", "/disk"),
    ]
    assert seen(done, tmp_path) == {b"one"}


def test_a_synced_file_without_its_directory_can_be_gone(tmp_path: Path) -> None:
    done = [Operation("create", A), Operation("write", A, data=b"one"), Operation("sync", A)]
    assert seen(done, tmp_path) == {None, b"one"}


def test_what_is_not_synced_is_torn_in_sectors(tmp_path: Path) -> None:
    done = [
        Operation("create", A), Operation("write", A, data=b"0" * 1024), Operation("sync", A),
        Operation("sync", "/disk"), Operation("write", A, data=b"1" * 1024),
    ]  # fmt: skip
    half = 512
    old, new = b"0" * half, b"1" * half
    assert seen(done, tmp_path) == {old + old, old + new, new + old, new + new}


def test_a_rename_without_a_synced_directory_can_be_undone_but_is_never_half(tmp_path: Path) -> None:
    part = "/disk/part"
    done = [
        Operation("create", A), Operation("write", A, data=b"old"), Operation("sync", A), Operation("create", part),
        Operation("write", part, data=b"new"), Operation("sync", part), Operation("sync", "/disk"),
        Operation("rename", part, A),
    ]  # fmt: skip
    assert seen(done, tmp_path) == {b"old", b"new"}
    (tmp_path / "more").mkdir()
    assert seen([*done, Operation("sync", "/disk")], tmp_path / "more") == {b"new"}


def hexed(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def test_reads_what_strace_writes(tmp_path: Path) -> None:
    name = hexed(A)
    (tmp_path / "trace").write_text(
        f'7 openat(AT_FDCWD<{hexed("/disk")}>, "{name}", O_WRONLY|O_CREAT, 0644) = 3<{name}>\n'
        f'7 write(3<{name}>, "{hexed("ab")}", 2 <unfinished ...>\n'
        f'8 writev(1<{hexed("pipe")}>, [{{iov_base="{hexed("kept a 1")}", iov_len=8}}], 1) = 8\n'
        "7 <... write resumed>) = 2\n"
        f'7 write(3<{name}>, "{hexed("cd")}", 2) = 1\n'
        f'7 pwrite64(3<{name}>, "{hexed("xy")}", 2, 512) = 2\n'
        f"7 fdatasync(3<{name}>) = -1 EIO (Input/output error) (INJECTED)\n"
        f"7 fsync(3<{name}>) = 0\n"
        f'7 unlink("{name}") = 0\n'
        "7 +++ exited with 0 +++\n"
    )
    assert operations(tmp_path / "trace", ROOT) == [
        Operation("create", A),
        Operation("report", data=b"kept a 1"),
        Operation("write", A, data=b"ab", offset=0),
        Operation("write", A, data=b"c", offset=2),
        Operation("write", A, data=b"xy", offset=512),
        Operation("sync", A),
        Operation("unlink", A),
    ]
