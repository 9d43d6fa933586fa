"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

from rules.loader import PLACEHOLDER

_SUFFIX = {
    "tokens": " tokens",
    "requests": " requests",
    "blocks": " blocks",
    "per_second": "/s",
    "bytes": " bytes",
}


def render(value: float | None, unit: str) -> str:
    """A value with its unit, three significant digits at most: `1.83 s`, `41 %`, `12.5/s`."""
    if value is None or math.isnan(value):
        return "unknown"
    if unit == "bool":
        return "yes" if value else "no"
    if unit == "ratio":
        return f"{_number(100 * value)} %"
    if unit == "seconds":
        return _seconds(value)
    return _number(value) + _SUFFIX.get(unit, "")


def _seconds(value: float) -> str:
    if math.isinf(value):
        return "beyond every bucket"
    if abs(value) < 1:
        return f"{_number(1000 * value)} ms"
    if abs(value) < 120:
        return f"{_number(value)} s"
    return f"{_number(value / 60)} min"


def _number(value: float) -> str:
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def plain(name: str) -> str:
    """A signal's name as words."""
    return name.replace("_", " ")


def lowered(title: str) -> str:
    """A title as it stands within a sentence; one that begins with an abbreviation stays."""
    return title if title[1:2].isupper() else f"{title[:1].lower()}{title[1:]}"


def fill(template: str, value: Callable[[str], str]) -> str:
    """Fill `{signal}` and `{$param}` in a text with `value(name)`."""
    return PLACEHOLDER.sub(lambda match: value(match.group(1)), template)
