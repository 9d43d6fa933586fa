"""SQLite's write-ahead log beside the file (`-wal`): what of it SQLite leaves out because it is damaged.

SQLite reads frames up to the first one whose checksum is wrong, and takes that for the end: after one flipped bit all
later commits are gone in silence. But each checksum goes on from the one before, so each frame can be checked by
itself, and one changed bit can be found and set right. Where several bits may be the one, the frame stays as it is,
with new checksums: the damage is then that of a row. Where more is changed, the commits behind it are lost.

A power cut leaves the end of one commit that was never confirmed: that is no damage.
"""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvitals.series.files import read_regular

Words = npt.NDArray[np.uint32]
MAX_BYTES = 1 << 28
"""Of a log that is looked at. SQLite empties it after some megabytes."""

_HEADER, _FRAME = 32, 24
_MAGIC = 0x377F0682
_PAGES = tuple(1 << bits for bits in range(9, 17))
_TOGETHER = 256  # frames
_BITS: Words = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))


@dataclass(frozen=True)
class JournalDamage:
    """fixes: what was there, by its place in the file. lost: commits that SQLite leaves out although they were
    confirmed, before the fixes; `is_lost`: and after them."""

    fixes: tuple[tuple[int, bytes], ...]
    lost: int
    is_lost: bool


def log_of(path: Path) -> Path:
    """The write-ahead log of a history."""
    return path.with_name(f"{path.name}-wal")


def examine(path: Path) -> JournalDamage | None:
    """What of the write-ahead log of a history is damaged; None where nothing is. Nobody may be writing. Raises
    OSError."""
    try:
        data = read_regular(log_of(path), MAX_BYTES)
    except FileNotFoundError:
        return None
    return _examined(data) if len(data) > _HEADER else None


def is_being_written(lock: Path) -> bool:
    """Whether an agent holds the lock of a history: what it reads of the log is not what stands in the file."""
    try:
        with lock.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it may not be read
        return False
    return False


def restore(path: Path, damage: JournalDamage, aside: str) -> None:
    """Write what was there; where commits stay lost, keep a copy of the log under another name. Raises OSError."""
    log = log_of(path)
    if damage.is_lost:
        with path.with_name(aside).open("wb") as copy:
            copy.write(read_regular(log, MAX_BYTES))
            os.fsync(copy.fileno())
    with log.open("r+b") as stream:
        for place, content in damage.fixes:
            stream.seek(place)
            stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _examined(data: bytes) -> JournalDamage | None:
    header, fixes = _header(data)
    if header is None:
        return JournalDamage((), 1, is_lost=True)
    frames = _Frames(data, header)
    current = np.flatnonzero(frames.is_current | frames.has_flipped_salt)  # those behind are of the log before it
    if not len(current):
        return None
    last = int(current[-1])
    bad = np.flatnonzero(~(frames.is_current & frames.is_sound)[: last + 1]).tolist()
    first_bad = 0 if fixes else bad[0] if bad else last + 1
    lost = frames.commits(first_bad, last)
    for number in bad:
        found = frames.fix(number, last)
        if found is None:
            if frames.commits(number, last) <= 1 and frames.ends_with_one(number, last):
                break  # it was never confirmed
            return JournalDamage(tuple(fixes), lost, is_lost=True)
        fixes += found
    fixes += frames.new_sums(last)
    return JournalDamage(tuple(fixes), lost, is_lost=False) if fixes else None


def _header(data: bytes) -> tuple[bytes | None, list[tuple[int, bytes]]]:
    """The log's header, and what was changed in it; None where it cannot be read."""
    for bit in range(-1, 8 * _HEADER):
        header = bytearray(data[:_HEADER])
        if bit >= 0:
            header[bit // 8] ^= 1 << bit % 8
        magic, _, page = struct.unpack_from(">III", header)
        if magic & ~1 == _MAGIC and page in _PAGES:
            weights = _Weights.of(6)
            words = np.frombuffer(bytes(header[:24]), _order(header)).astype(np.uint32)
            if np.array_equal(weights.sums(words[None])[0], np.frombuffer(bytes(header[24:]), ">u4").astype(np.uint32)):
                return bytes(header), [] if bit < 0 else [(bit // 8, bytes(header[bit // 8 : bit // 8 + 1]))]
    return None, []


def _order(header: bytes | bytearray) -> str:
    return ">u4" if header[3] & 1 else "<u4"


@dataclass(frozen=True)
class _Weights:
    """What each word adds to a checksum, and what the checksum before does: all modulo 2**32."""

    words: Words  # [words, 2]
    before: Words  # [2, 2]

    @staticmethod
    def of(count: int) -> _Weights:
        """For so many words, an even number."""
        words = np.zeros((count, 2), dtype=np.uint32)
        power = [[1, 0], [0, 1]]  # what a pair's effect becomes until the end
        for pair in range(count - 2, -1, -2):
            (a, b), (c, d) = power
            words[pair] = [(a + b) % 2**32, (c + d) % 2**32]
            words[pair + 1] = [b, d]
            power = [[(a + b) % 2**32, (a + 2 * b) % 2**32], [(c + d) % 2**32, (c + 2 * d) % 2**32]]
        return _Weights(words, np.array(power, dtype=np.uint32))

    def sums(self, words: Words, before: Words | None = None) -> Words:
        """The checksums [frames, 2] of words [frames, words], going on from others."""
        found = np.stack([(words * self.words[:, n]).sum(axis=1, dtype=np.uint32) for n in (0, 1)], axis=1)
        return found if before is None else found + self.onward(before)

    def onward(self, before: Words) -> Words:
        """What checksums [frames, 2] become over words that are 0."""
        return np.stack([(before * self.before[n]).sum(axis=1, dtype=np.uint32) for n in (0, 1)], axis=1)


class _Frames:
    """The frames behind a header."""

    def __init__(self, data: bytes, header: bytes) -> None:
        page = int.from_bytes(header[8:12], "big")
        self._size, self._order = _FRAME + page, _order(header)
        count = (len(data) - _HEADER) // self._size
        raw = np.frombuffer(data, np.uint8, count * self._size, _HEADER).reshape(count, self._size)
        heads = np.ascontiguousarray(raw[:, :_FRAME]).view(">u4").astype(np.uint32)
        self._raw, self._salts = raw, np.frombuffer(header[16:24], ">u4").astype(np.uint32)
        self._heads = heads[:, :2].astype(np.int64)
        self._of_commit = heads[:, 1] > 0
        self._stored = heads[:, 4:6]
        self._weights = _Weights.of(2 + page // 4)
        seed = np.frombuffer(header[24:32], ">u4").astype(np.uint32)[None]
        before = np.concatenate([seed, self._stored[:-1]])
        self._sums = np.concatenate(
            [
                self._weights.sums(self._words(slice(at, at + _TOGETHER)), before[at : at + _TOGETHER])
                for at in range(0, count, _TOGETHER)
            ]
            or [self._stored]
        )
        self.is_sound = (self._sums == self._stored).all(axis=1)
        self.is_current = (heads[:, 2:4] == self._salts).all(axis=1)
        flipped = np.unpackbits((heads[:, 2:4] ^ self._salts).view(np.uint8), axis=1).sum(axis=1)
        self.has_flipped_salt = self.is_sound & (flipped == 1)
        self._kept_from: int | None = None  # the first frame that stays as it is

    def commits(self, first: int, last: int) -> int:
        """How many commits end among some frames."""
        return int(np.count_nonzero(self._of_commit[first : last + 1]))

    def ends_with_one(self, first: int, last: int) -> bool:
        """Whether no commit ends among some frames but with the last one."""
        return not self.commits(first, last - 1)

    def fix(self, number: int, last: int) -> list[tuple[int, bytes]] | None:
        """What was there where a frame is damaged, by its place in the file; empty where the frame before is to blame.
        None where that cannot be found out."""
        place = _HEADER + number * self._size
        if self.is_sound[number]:
            return [(place + 8, self._salts.astype(">u4").tobytes())]
        wanted, found = self._stored[number], self._sums[number]
        if number < last and self._is_sound_after(number + 1, found):
            self.is_sound[number + 1] = True  # its checksum goes on from what it is here
            return [(place + 16, found.astype(">u4").tobytes())]
        if number == last and sum(int(word).bit_count() for word in (wanted ^ found).tolist()) == 1:
            return [(place + 16, found.astype(">u4").tobytes())]
        return self._set_right(number, self._flipped(number, wanted - found))

    def _set_right(self, number: int, flipped: list[tuple[int, int]]) -> list[tuple[int, bytes]] | None:
        """Of words and bits that may have been flipped the one, as `fix`."""
        words = self._words(slice(number, number + 1))[0]
        head = [(word, bit) for word, bit in flipped if word < 2 and self._is_odd(number, word, bit)]
        if len(flipped) > 1 and not head:
            self._kept_from = number if self._kept_from is None else self._kept_from
            return []
        for word, bit in head or flipped:
            at = 4 * word if word < 2 else _FRAME + 4 * (word - 2)
            was = np.array([int(words[word]) ^ (1 << bit)], self._order).tobytes()
            return [(_HEADER + number * self._size + at, was)]
        return None

    def _is_odd(self, number: int, word: int, bit: int) -> bool:
        """Whether the page number of a frame (word 0), or the size of the file after its commit (1), is right only
        without a bit: the pages of one commit come in order, and a file grows a little at a time."""
        now = int(self._heads[number, word])
        was = now ^ int(np.array([1 << bit], self._order).view(">u4")[0])
        if word == 0:
            return self._is_in_order(number, was) and not self._is_in_order(number, now)
        sizes = self._heads[:number, 1]
        before = int(sizes[np.flatnonzero(sizes)[-1]]) if sizes.any() else 1
        return min(was, abs(was - before)) < min(now, abs(now - before))

    def _is_in_order(self, number: int, page: int) -> bool:
        follows = not number or self._of_commit[number - 1] or self._heads[number - 1, 0] < page
        ends = number + 1 >= len(self._heads) or self._of_commit[number] or page < self._heads[number + 1, 0]
        return bool(follows and ends)

    def new_sums(self, last: int) -> list[tuple[int, bytes]]:
        """The checksums from the first frame on that stays as it is, as `fix`."""
        found: list[tuple[int, bytes]] = []
        if self._kept_from is None:
            return found
        now = self._sums[self._kept_from]
        for number in range(self._kept_from, last + 1):
            if number > self._kept_from:
                now = self._weights.sums(self._words(slice(number, number + 1)), now[None])[0]
            found.append((_HEADER + number * self._size + 16, now.astype(">u4").tobytes()))
        return found

    def _is_sound_after(self, number: int, before: Words) -> bool:
        here = self._weights.sums(self._words(slice(number, number + 1)), before[None])[0]
        return not self.is_sound[number] and bool((here == self._stored[number]).all())

    def _flipped(self, number: int, difference: Words) -> list[tuple[int, int]]:
        """The words and bits of which one, flipped, makes the checksum differ by so much."""
        found = []
        words = self._words(slice(number, number + 1))[0]
        for sign in (np.uint32(1), np.uint32(0xFFFFFFFF)):
            effects = self._weights.words[:, None, :] * (_BITS * sign)[None, :, None]
            for word, bit in np.argwhere((effects == difference).all(axis=2)).tolist():
                was = int(words[word]) ^ (1 << bit)
                if (was > int(words[word])) == (sign == 1):
                    found.append((word, bit))
        return found

    def _words(self, some: slice) -> Words:
        raw = self._raw[some]
        counted = np.ascontiguousarray(np.concatenate([raw[:, :8], raw[:, _FRAME:]], axis=1))
        return counted.view(self._order).astype(np.uint32)
