from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.collectors.siphash import siphash

U64 = (1 << 64) - 1
KEY = bytes(range(16))


def plainly(number: int, key: bytes) -> int:
    """The algorithm on plain numbers, word by word, as its paper has it."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turned(x: int, by: int) -> int:
        return ((x << by) | (x >> (64 - by))) & U64

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & U64
            v[1] = turned(v[1], 13) ^ v[0]
            v[0] = turned(v[0], 32)
            v[2] = (v[2] + v[3]) & U64
            v[3] = turned(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & U64
            v[3] = turned(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & U64
            v[1] = turned(v[1], 17) ^ v[2]
            v[2] = turned(v[2], 32)

    for word in (number, 8 << 56):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def test_is_the_published_vector() -> None:
    """The authors' vector for the 8 bytes 00 to 07 under the key 00 to 0f."""
    number = int.from_bytes(bytes(range(8)), "little")
    assert int(siphash(np.array([number], np.uint64), KEY)[0]) == 0x93F5F5799A932462


@given(st.lists(st.integers(0, U64), max_size=20), st.binary(min_size=16, max_size=16))
def test_is_the_algorithm(numbers: list[int], key: bytes) -> None:
    assert siphash(np.array(numbers, np.uint64), key).tolist() == [plainly(one, key) for one in numbers]


def test_many_are_as_few_and_what_came_in_stays() -> None:
    numbers = np.arange(20_000, dtype=np.uint64)
    found = siphash(numbers, KEY)
    assert found[8191:8194].tolist() == siphash(numbers[8191:8194], KEY).tolist()
    assert numbers.tolist() == list(range(20_000))
    assert len(set(found.tolist())) == 20_000


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        siphash(np.zeros(1, np.uint64), b"short")
