"""Garbage collections that stay short, however much the process remembers.

    garbage.keep_short()      # once the program has started

A full collection of CPython walks every container that the process holds, on the thread that happens to allocate, while
everything else waits: about a microsecond each, so 0.1 s for an agent with 100,000 of them. Nearly all of them are
telemetry that stays for minutes. So what survived a full collection is set aside (`gc.freeze`), and the next one walks
only what is newer. Reference counts still free what is set aside; only cycles in it stay, until a collection of
everything, which runs once what is set aside has doubled.
"""

from __future__ import annotations

import gc
from typing import Any

GROWTH = 2.0
"""Everything is collected once this many times as many containers are set aside as after the last such collection."""

LEAST = 500_000
"""And at least this many are, about 100 MB."""

THRESHOLDS = 700, 10, 2
"""Containers, and collections of the younger generation, until the next one. A full one walks about 20,000: 20 ms, and
60 ms on a busy machine."""

_FULL = 2


class ShortCollections:
    """What the collector calls before and after each collection. `least`: containers, see `LEAST`."""

    def __init__(self, least: int = LEAST) -> None:
        self.whole = 0
        """Collections of everything since the start."""
        self._least = least
        self._limit = least
        self._thresholds = gc.get_threshold()
        self._is_whole = False

    def start(self) -> None:
        """Set aside what there is, and from now on what survives a full collection."""
        gc.collect()
        gc.freeze()
        gc.collect()  # of nothing: CPython waits for a quarter more than what survived the last full collection
        gc.set_threshold(*THRESHOLDS)
        self._limit = max(self._least, int(GROWTH * gc.get_freeze_count()))
        gc.callbacks.append(self)

    def stop(self) -> None:
        """Collect as CPython does by default."""
        gc.callbacks.remove(self)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._is_whole = gc.get_freeze_count() > self._limit
            if self._is_whole:
                gc.unfreeze()
            return
        gc.freeze()
        if self._is_whole:
            self.whole += 1
            self._limit = max(self._least, int(GROWTH * gc.get_freeze_count()))


def keep_short() -> None:
    """Keep the full collections of this process short."""
    ShortCollections().start()
