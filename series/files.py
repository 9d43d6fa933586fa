"""The one way to open a file that someone else names, and the one way to replace a file.

A configuration, a targets file, a secret or a recording can be a FIFO, a device or a directory. Opening a FIFO waits
for a writer and reading a device has no end, so only regular files are opened, without waiting, and never more is read
than the caller allows.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


class FileRefusedError(OSError):
    """The file cannot be used; `strerror` says why in a few words."""


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """Open a regular file for reading, in binary. Never waits for a writer.

    limit: the most bytes that the file may have. Raises OSError; FileRefusedError where it is not a regular file or is
    larger than `limit`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, os.strerror(21), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise FileRefusedError(22, "not a regular file", str(path))
        if limit is not None and status.st_size > limit:
            raise FileRefusedError(27, f"larger than {limit} bytes", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError, as `open_regular` does.

    Files of /proc and /sys report size 0 and are read as well; a file that grows while it is read is refused, too.
    """
    with open_regular(path, limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise FileRefusedError(27, f"larger than {limit} bytes", str(path))
    return content


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace a file as a whole: after a crash or a power cut it has the old content or the new, never a part.

    Content and directory are synced before this returns. Two processes that write the same file do not mix their
    content: the last one wins. Raises OSError, and then the old file is there as it was.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and new files in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
