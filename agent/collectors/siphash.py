"""SipHash-2-4 of 64-bit numbers, many at a time: a keyed hash that nobody without the key can compute or turn back.

J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012. A number is hashed as its 8 bytes, the
lowest first. One array operation stands for each of the algorithm's, so a thousand cost little more than one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

KEY_BYTES = 16

Words = npt.NDArray[np.uint64]

_CHUNK = 8192
"""Numbers at a time: so the state stays in the processor's cache."""

_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_LENGTH = np.uint64(8 << 56)


def siphash(numbers: Words, key: bytes) -> Words:
    """The hash of each number under a key of 16 bytes."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    if numbers.size <= _CHUNK:
        return _hashed(numbers, key)
    return np.concatenate([_hashed(numbers[i : i + _CHUNK], key) for i in range(0, numbers.size, _CHUNK)])


def _hashed(numbers: Words, key: bytes) -> Words:
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    starts = (start ^ k for start, k in zip(_START, (k0, k1, k0, k1), strict=True))
    a, b, c, d = (np.full(numbers.shape, start, np.uint64) for start in starts)
    for word in (numbers, _LENGTH):
        d ^= word
        a, b, c, d = _rounds(a, b, c, d, 2)
        a ^= word
    c ^= np.uint64(0xFF)
    a, b, c, d = _rounds(a, b, c, d, 4)
    return a ^ b ^ c ^ d


def _rounds(a: Words, b: Words, c: Words, d: Words, count: int) -> tuple[Words, Words, Words, Words]:
    for _ in range(count):
        a += b
        b = _rotated(b, 13)
        b ^= a
        a = _rotated(a, 32)
        c += d
        d = _rotated(d, 16)
        d ^= c
        a += d
        d = _rotated(d, 21)
        d ^= a
        c += b
        b = _rotated(b, 17)
        b ^= c
        c = _rotated(c, 32)
    return a, b, c, d


def _rotated(words: Words, by: int) -> Words:
    turned = words << np.uint64(by)
    turned |= words >> np.uint64(64 - by)
    return turned
