"""What the agent frees goes back to the system, as far as the C library lets it.

The rows of a window are arrays of megabytes that are replaced now and then by larger ones. glibc maps what is larger
than 128 KB by itself, which goes back when it is freed; but with each such array that is freed it raises that size, up
to 32 MB, and from then on arrays of that size come from its heap, where what is freed between others stays.

Each thread gets a heap of its own, up to eight per core, and what is freed in one does not serve the others. Python
runs one thread at a time, so two heaps do.
"""

from __future__ import annotations

import ctypes

MAPPED_BYTES = 256 << 10
"""From this size on an array is mapped by itself, for ever."""

TRIMMED_BYTES = 1 << 20
"""As much may stay free at the end of a heap."""

HEAPS = 2
"""That all threads share."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h


def give_back() -> bool:
    """Ask the C library for it, for this process; whether it can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # others than glibc have ways of their own
    if mallopt is None:
        return False
    wanted = {_M_MMAP_THRESHOLD: MAPPED_BYTES, _M_TRIM_THRESHOLD: TRIMMED_BYTES, _M_ARENA_MAX: HEAPS}
    return all(mallopt(option, value) for option, value in wanted.items())
