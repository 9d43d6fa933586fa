"""How many bytes the tap handles in one turn of the event loop.

Bytes cost CPU time: up to 0.3 ms for each KiB where chunks and events are as small as they can be. The selector serves
a few sockets in a turn, and they share the bytes of a turn equally, so that a turn takes some ten milliseconds at most
and no stream gets more of it than another. A connection that is alone reads `MAX_READ` bytes at once.
"""

from __future__ import annotations

import asyncio

MAX_READ = 16 * 1024
"""Bytes that are read from a connection at once."""
MIN_READ = 1024
"""So many may be read at least, however many connections have bytes to read."""
TURN_BYTES = 64 * 1024
"""Bytes that are read in a turn, and bytes of answers that are parsed in it."""


class LoopTurn:
    """The bytes of the current turn. To be used on a running event loop."""

    def __init__(self) -> None:
        self._reads_before = 0  # in the turn before this one
        self._reads = 0
        self._parsed = 0  # bytes
        self._began = False

    def read_share(self) -> int:
        """Bytes that a connection may read now."""
        self._begin()
        self._reads += 1
        return max(MIN_READ, min(MAX_READ, TURN_BYTES // max(self._reads, self._reads_before)))

    def may_parse(self, size: int) -> bool:
        """Whether so many bytes may be parsed in this turn. Where they may, they are counted."""
        self._begin()
        if self._parsed and self._parsed + size > TURN_BYTES:
            return False
        self._parsed += size
        return True

    def _begin(self) -> None:
        if not self._began:
            self._began = True
            asyncio.get_running_loop().call_soon(self._end)  # runs before the sockets of the next turn

    def _end(self) -> None:
        self._reads_before, self._reads, self._parsed, self._began = self._reads, 0, 0, False
