"""Numbers as a review writes them."""

from __future__ import annotations

import time

from kvitals.diagnoser.text import render

_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def count(value: float) -> str:
    """`1.23 billion`, `45,600`, `8.2`."""
    for size, name in _LARGE:
        if abs(value) >= size:
            return f"{value / size:.3g} {name}" if abs(value) < 1000 * size else f"{value / size:,.0f} {name}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2g}"


def usd(value: float | None) -> str:
    """`$1,230`, `$4.56`, `unknown`."""
    if value is None:
        return "unknown"
    sign, size = "-" if value < 0 else "", abs(value)
    return f"{sign}${size:,.0f}" if size >= 100 else f"{sign}${size:,.2f}"


def share(value: float | None) -> str:
    """`41 %`, `0.4 %`. Some of a whole is never written as none or all of it."""
    if value is None:
        return "unknown"
    size = 100 * value
    if 0 < value < 0.001 or 0.99 < value < 1:
        return render(value, "ratio")
    return f"{size:.0f} %" if abs(size) >= 10 or size == 0 else f"{size:.1f} %"


def share_range(bounds: tuple[float, float] | None) -> str:
    """`between 85 % and 95 %`; empty where both are the same to so many digits."""
    low, high = (share(one) for one in bounds or (None, None))
    return f"between {low} and {high}" if low != high else ""


def hours(value: float) -> str:
    """GPU-hours or hours: `6,720`, `12`, `0.4`."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def lasting(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds / 86400:.3g} days"


def span(low: float, high: float) -> str:
    """From so many seconds to so many: `2 s`, `200 ms to 1.5 s`."""
    first, last = (f"{one:g} s" if one >= 1 else f"{1000 * one:g} ms" for one in (low, high))
    return first if first == last else f"{first} to {last}"


def moment(t: float) -> str:
    """`2026-01-31 04:05`, UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(t))


def moments(start: float, end: float) -> str:
    """Both, with seconds where they are within an hour."""
    form = "%Y-%m-%d %H:%M:%S" if end - start < 3600 else "%Y-%m-%d %H:%M"
    return " and ".join(time.strftime(form, time.gmtime(t)) for t in (start, end))


def day(t: float) -> str:
    """`Sat 31 Jan`, UTC."""
    return time.strftime("%a %d %b", time.gmtime(t)).replace(" 0", " ")


def signed_count(value: float) -> str:
    """`+1.2 million`, `-340`."""
    return ("+" if value > 0 else "") + count(value)
