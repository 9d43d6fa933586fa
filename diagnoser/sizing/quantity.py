"""Sizes, rates and money as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(value: float) -> str:
    """Bytes in decimal units: `141 GB`."""
    for scale, unit in _BYTES:
        if abs(value) >= scale:
            return f"{number(value / scale)} {unit}"
    return f"{number(value)} bytes"


def number(value: float) -> str:
    """Three digits at least, no more than it takes: `48.3`, `1,204`, `0.126`."""
    if not math.isfinite(value):
        return "no limit" if value > 0 else "unknown"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def share(value: float) -> str:
    return f"{number(100 * value)} %"


def seconds(value: float) -> str:
    if not math.isfinite(value):
        return "none"
    return f"{number(value)} s" if value >= 1 else f"{number(value * 1e3)} ms"


def usd(value: float) -> str:
    return f"${value:,.2f}" if value < 1000 else f"${value:,.0f}"


def several(count: int, what: str) -> str:
    """`1 GPU`, `4 GPUs`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


FORMATS: dict[str, Callable[[float], str]] = {
    "bytes": size,
    "bytes/s": lambda value: f"{size(value)}/s",
    "ratio": share,
    "seconds": seconds,
    "usd": usd,
}


def format_quantity(value: float | None, unit: str) -> str:
    """A value with its unit."""
    if value is None:
        return "unknown"
    if unit in FORMATS:
        return FORMATS[unit](value)
    return f"{number(value)} {unit}".rstrip()
