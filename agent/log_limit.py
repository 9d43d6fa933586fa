"""One line of log a minute for what others can cause as often as they like.

_warning = LogLimit(log.warning)
_warning("too many connections", endpoint=endpoint)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LOG_SECONDS = 60.0


class LogLimit:
    """Calls a logger at most once in `LOG_SECONDS`; the line counts those that were left out before it."""

    def __init__(self, write: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._next = float("-inf")
        self._left_out = 0

    def __call__(self, event: str, **fields: object) -> None:
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        left_out, self._left_out, self._next = self._left_out, 0, now + LOG_SECONDS
        self._write(event, **fields, **({"similar_lines_omitted": left_out} if left_out else {}))
