"""What the agent frees goes back to the system, as far as the C library lets it.

The rows of a window are arrays of megabytes that are replaced now and then by larger ones. glibc maps what is larger
than 128 KB by itself, which goes back when it is freed; but with each such array that is freed it raises that size, up
to 32 MB, and from then on arrays of that size come from its heap, where what is freed between others stays.
"""

from __future__ import annotations

import ctypes

MAPPED_BYTES = 256 << 10
"""From this size on an array is mapped by itself, for ever."""

TRIMMED_BYTES = 1 << 20
"""As much may stay free at the end of a heap."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def give_back() -> bool:
    """Ask the C library for it, for this process; whether it can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # others than glibc have ways of their own
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIMMED_BYTES))
