"""The one way to open a file that someone else names, and the one way to replace, lock and make durable what we own.

A configuration, a targets file, a secret or a recording can be a FIFO, a device or a directory. Opening a FIFO waits
for a writer and reading a device has no end, so only regular files are opened, without waiting, and never more is read
than the caller allows.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MAX_CERTIFICATES_BYTES = 4 << 20
_PIECE_BYTES = 1 << 16
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""What a file system answers that cannot sync directories, such as CIFS."""
_ATTEMPTS = 1000
"""Writers of one file that may finish while another one waits for its turn."""


class FileRefusedError(OSError):
    """The file cannot be used; `strerror` says why in a few words."""


class FileInUseError(OSError):
    """Another process or another part of this one holds the lock."""


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """Open a regular file for reading, in binary. Never waits for a writer.

    limit: the most bytes that the file may have. Raises OSError; FileRefusedError where it is not a regular file or is
    larger than `limit`.
    """
    _check_regular(path, _status(path))  # before it is opened: to open a device, such as a watchdog, can have an effect
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        _check_regular(path, status)
        if limit is not None and status.st_size > limit:
            raise too_large(path, limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def refuse_irregular(path: Path) -> None:
    """Before a library opens `path` by its name: a path where something else than a regular file is cannot be used.

    Raises OSError; FileRefusedError where it is a FIFO, a device or a socket. Where nothing is nothing is refused.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_regular(path, _status(path))


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError, as `open_regular` does.

    Files of /proc and /sys report size 0 and are read as well; a file that grows while it is read is refused, too. It
    takes memory for what the file has, not for the limit: to read N bytes allocates N.
    """
    with open_regular(path, limit) as file:
        size = os.fstat(file.fileno()).st_size
        content: bytes | None = file.read(min(size, limit) + 1)
        if content is None:  # some files of /proc and /sys wait for events
            raise FileRefusedError(errno.EAGAIN, "has no content yet, and kvitals does not wait for it", str(path))
        if len(content) > size:
            pieces = [content]
            while (left := limit + 1 - sum(map(len, pieces))) > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                pieces.append(piece)
            content = b"".join(pieces)
    if len(content) > limit:
        raise too_large(path, limit)
    return content


def too_large(path: Path, limit: int) -> FileRefusedError:
    """The error of a file that has more than `limit` bytes; it names the limit in the largest unit that
    divides it."""
    units = (("MB", 1 << 20), ("KB", 1 << 10))
    name, size = next(((n, s) for n, s in units if limit and limit % s == 0), ("bytes", 1))
    return FileRefusedError(errno.EFBIG, f"larger than {limit // size} {name}", str(path))


def read_certificates(path: Path) -> str:
    """The certificates of a PEM file, as `ssl.create_default_context(cadata=...)` takes them. Raises OSError."""
    text = read_regular(path, MAX_CERTIFICATES_BYTES).decode("ascii", "ignore")
    if "-----BEGIN" not in text:  # `ssl` takes an empty text for the certificates of the system
        raise FileRefusedError(errno.EINVAL, "contains no certificate (PEM)", str(path))
    return text


def load_cert_chain(context: ssl.SSLContext, cert: Path, key: Path | None = None) -> None:
    """Load a certificate with its chain and its key (None: in the same file) into a context. Raises OSError.

    OpenSSL opens the files by name and would wait for the writer of a FIFO, so they are checked first.
    """
    for file in (cert, key):
        if file is not None:
            open_regular(file, MAX_CERTIFICATES_BYTES).close()
    context.load_cert_chain(cert, key)


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace a file as a whole, as `replace_on_success` does. Raises OSError."""
    with replace_on_success(path, mode) as file:
        file.write(content)


@contextmanager
def replace_on_success(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file to write to, which replaces `path` when the block ends without an error.

    After a crash or a power cut `path` has the old content or the new, never a part: content and directory are synced
    before this returns. Writers of the same file take turns, in threads and in processes, and the last one wins. The
    new content is first in `.NAME.part` beside it.

    Raises OSError, and then the old file is there as it was. Where only the directory cannot be synced the new file is
    there, and a power cut can bring the old one back.
    """
    part = path.with_name(f".{path.name}.part")
    with _open_part(part, mode) as file:  # holds the lock until the file is in its place, or gone
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Append a line, which ends with a newline, to a file that may be missing; synced when this returns.

    A part of a line that a power cut left at the end is ended first. Raises OSError, and then nothing is appended.
    """
    is_new = not path.exists()
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o644), "r+b", buffering=0) as file:
        _check_regular(path, os.fstat(file.fileno()))
        size = file.seek(0, os.SEEK_END)
        ends = not size or os.pread(file.fileno(), 1, size - 1) == b"\n"
        try:
            rest = memoryview(line if ends else b"\n" + line)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise
    if is_new:
        sync_directory(path.parent)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory and its parents where they are missing, so that they outlive a power cut. Raises OSError.

    mode: of the directory itself; its parents get the default.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    path.mkdir(mode, exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and new files in a directory durable, where its file system can. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def make_file(path: Path) -> int:
    """A descriptor of a file to read and write at any place, made where there is none; a link is not followed. Raises
    OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def lock_file(path: Path) -> int:
    """Hold a lock until the returned descriptor is closed or the process ends, however it ends. Never waits.

    Raises FileInUseError where another one holds it, OSError where there is no such file and none can be made.
    """
    descriptor = make_file(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FileInUseError(errno.EWOULDBLOCK, "in use by another process", str(path)) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except ValueError as error:  # a null byte
        raise FileRefusedError(errno.EINVAL, f"not a file name: {error}", str(path)) from None


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise FileRefusedError(errno.EINVAL, "not a regular file", str(path))


def _open_part(part: Path, mode: int) -> BinaryIO:
    """An empty file that nobody else writes to. What a crash left there is written over."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    for _ in range(_ATTEMPTS):
        descriptor = os.open(part, flags, mode)
        try:
            _check_regular(part, os.fstat(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_same(part, descriptor):  # else the writer before has moved it to its place
                os.ftruncate(descriptor, 0)
                return os.fdopen(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise FileInUseError(errno.EAGAIN, f"other writers replaced it {_ATTEMPTS} times during the read", str(part))


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
