"""The process' own memory limit: near it new data is refused and counted, before the kernel ends the process.

The soft limit, 80 % of the limit, is where the agent begins to refuse: new series, spans, parts, KV events
and large pages. What is watched goes on. Below 75 % it takes everything again. It is what the memory limiter of the
OpenTelemetry Collector does. From a fifth of the limit on, what the C library holds free is given back to the system
every half minute: after floods that is 10 MB and more.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kvitals.agent.collectors import procfs
from kvitals.agent.logger import Logger
from kvitals.series.types import METRIC_NAME, Labels

log = Logger()

DEFAULT_BYTES = 1 << 30
"""The limit where neither the configuration nor a cgroup sets one."""

CGROUP_SHARE = 0.8
"""Of the cgroup's limit: the kernel counts the page cache of our files, too."""

REFUSING_SHARE, RESUMING_SHARE = 0.8, 0.75
LARGE_PAGE_BYTES = 1 << 20
"""A page of this size or more is not read while data is refused."""

TRIMMING_SHARE = 0.2
"""Of the limit, from which on free memory is given back."""

TRIM_SECONDS = 30.0
"""Between two times: each takes 3 ms, and some more for what is given back."""

SERIES_BASE_BYTES, SERIES_TARGET_BYTES = 64 << 20, 2 << 20
"""What the series of all targets may take in the window, and more of it for each target. An engine has 700 series: at
5 s and half an hour, 2 MB of samples and 0.7 MB of label sets."""

PAGES_BASE_BYTES, PAGES_TARGET_BYTES = 48 << 20, 512 << 10
"""What is kept of the last page of all targets. An engine's takes 1 MB, that of 64 engines 40."""

BODIES_BASE_BYTES, BODIES_TARGET_BYTES = 20 << 20, 256 << 10
"""Pages of all targets that are being read or wait."""

SERIES_SHARE = 0.4
"""Of the limit, what the series of all targets may take where it was configured, and at most where it was not."""

_MAX_FILE = 4096


class MemoryLimit:
    """Whether there is room for new data. `check` is called once a cycle; everything else only looks."""

    def __init__(self, limit: int, resident: Callable[[], int] | None = None) -> None:
        """`limit` in bytes; `resident` measures the process."""
        self.limit = limit
        self.refusing = False
        self.refused: dict[str, int] = {}
        """Kind of data -> how many of it were refused."""
        self._resident = resident or resident_bytes
        self._trimmed = float("-inf")

    def check(self) -> None:
        """Measure, and decide whether new data is refused."""
        used = self._resident()
        before = self.refusing
        self.refusing = used > (RESUMING_SHARE if before else REFUSING_SHARE) * self.limit
        if self.refusing != before:
            log.warning(
                "new data is refused: the agent is near its memory limit"
                if self.refusing
                else "new data is accepted again",
                resident_mb=used >> 20,
                limit_mb=self.limit >> 20,
            )
        if used > TRIMMING_SHARE * self.limit and time.monotonic() - self._trimmed > TRIM_SECONDS:
            self._trimmed = time.monotonic()
            trim()

    def is_full_now(self) -> bool:
        """Whether the process is near its limit at this moment, for data that comes faster than `check` is called."""
        return self._resident() > (RESUMING_SHARE if self.refusing else REFUSING_SHARE) * self.limit

    def shares(self, targets: int, configured: bool) -> tuple[int, int, int]:
        """Bytes that all targets share: series in the window, what is kept of pages, pages that wait. configured: the
        limit was, so there may be more than the least."""
        least = SERIES_BASE_BYTES + SERIES_TARGET_BYTES * targets
        series = int(SERIES_SHARE * self.limit)
        series = series if configured else min(least, series)
        factor = series / least
        pages = int(factor * (PAGES_BASE_BYTES + PAGES_TARGET_BYTES * targets))
        return series, pages, int(max(factor, 0.5) * (BODIES_BASE_BYTES + BODIES_TARGET_BYTES * targets))

    def refuses(self, kind: str, count: int = 1) -> bool:
        """Whether data of this kind is refused now; what is refused is counted."""
        if self.refusing:
            self.refused[kind] = self.refused.get(kind, 0) + count
        return self.refusing

    def series(self, labels: Mapping[str, str]) -> dict[Labels, float]:
        """How it fares."""

        def named(name: str, **more: str) -> Labels:
            return Labels({**labels, **more, METRIC_NAME: f"kvitals_memory_{name}"})

        return {
            named("limit_bytes"): float(self.limit),
            named("resident_bytes"): float(self._resident()),
            named("refusing"): float(self.refusing),
            **{named("refused_total", kind=kind): float(count) for kind, count in self.refused.items()},
        }


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not report it."""
    fields = _text(Path("/proc/self/statm")).split()
    return int(fields[1]) * procfs.PAGE if len(fields) > 1 and fields[1].isdigit() else 0


def limit_of(configured_mb: int | None, system: Path = Path("/")) -> int:
    """The limit in bytes: the configured one, else that of the cgroup, else `DEFAULT_BYTES`."""
    if configured_mb is not None:
        return configured_mb << 20
    found = cgroup_limit(system)
    return found if found is not None else DEFAULT_BYTES


def cgroup_limit(system: Path = Path("/")) -> int | None:
    """A share of the lowest limit of this process' cgroup and those above it, in bytes, or what the kernel begins to
    throttle at (memory.high) where that is lower; None without a limit."""
    paths = procfs.cgroups(_text(system / "proc/self/cgroup").encode())
    places = (
        (paths.get(""), "sys/fs/cgroup", "memory.max", CGROUP_SHARE),
        (paths.get(""), "sys/fs/cgroup", "memory.high", 1.0),
        (paths.get("memory"), "sys/fs/cgroup/memory", "memory.limit_in_bytes", CGROUP_SHARE),
    )
    limits = [
        share * limit
        for path, root, name, share in places
        if path is not None
        for folder in procfs.ancestors(path)
        if (limit := procfs.limit(_text(system / root / folder.strip("/") / name).encode())) is not None
    ]
    return min((int(one) for one in limits if one != float("inf")), default=None)


def trim() -> None:
    """Give what the C library holds free back to the system, where it can."""
    give = getattr(ctypes.CDLL(None), "malloc_trim", None)  # others than glibc have ways of their own
    if give is not None:
        give(0)


def _text(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MAX_FILE).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
