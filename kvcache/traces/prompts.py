"""Prompts as chains of blocks: text and token ids are hashed while they are read, and nothing of them is kept."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

BYTES_PER_TOKEN = 4
"""Of UTF-8 text: an estimate, for traces without token counts."""

TEXT_BLOCK = 16
"""Tokens a block of text."""


class HashedPrompt:
    """The chain of a prompt that grows. Only whole blocks have an id, as in an engine's cache."""

    def __init__(self) -> None:
        self._rest = b""
        self._bytes = 0
        self._last = b""
        self.chain: list[int] = []

    @property
    def tokens(self) -> int:
        """Estimated from the bytes so far; a prompt has at least one."""
        return max(self._bytes // BYTES_PER_TOKEN, min(self._bytes, 1))

    def extend(self, text: str) -> None:
        """Append text."""
        data = text.encode("utf-8", "replace")
        self._bytes += len(data)
        self._take(self._rest + data, TEXT_BLOCK * BYTES_PER_TOKEN)

    def extend_ids(self, ids: Sequence[int]) -> None:
        """Append token ids, which are counted exactly. Raises OverflowError for ids of more than 64 bits."""
        data = array("q", ids).tobytes()
        self._bytes += BYTES_PER_TOKEN * len(ids)
        self._take(self._rest + data, 8 * TEXT_BLOCK)

    def _take(self, data: bytes, size: int) -> None:
        whole = len(data) - len(data) % size
        for at in range(0, whole, size):
            self._last = blake2b(data[at : at + size], digest_size=8, key=self._last).digest()
            self.chain.append(int.from_bytes(self._last, "little", signed=True))
        self._rest = data[whole:]
