"""Numbers as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime

from kvitals.diagnoser.sizing.quantity import size
from kvitals.rules.loader import PLACEHOLDER

_SUFFIX = {
    "tokens": " tokens",
    "requests": " requests",
    "blocks": " blocks",
    "per_second": "/s",
}
_SINGULAR = {"tokens": "token", "requests": "request", "blocks": "block"}
_LASTING = ((172_800, 86_400, "days"), (7_200, 3_600, "h"), (120, 60, "min"))
"""From so many seconds on, in units of so many."""
UNKNOWN = "unknown"
_SECONDS = re.compile(r"_seconds\b")
_ACRONYM = re.compile(r"\b(?:ttft|itl|tpot|kv|gpu|cpu|sm|slo|http|rpc|rdma|oom|pcie|dram)\b")
_FIGURES = re.compile(r"[0-9][0-9.,]*")
_BRACKETS = re.compile(r" \([^()]*\)")
_SENTENCE_END = re.compile(r"(?<=[.;]) +(?=[A-Z{])")
MORE_DIGITS = 8
"""That a number is printed with at most, beyond the usual ones, to tell it from its limit."""

SHARE_DIGITS = 4
"""The same of a share that is neither nothing nor all."""


def without_figures(verdict: str) -> str:
    """A verdict without its numbers, which differ at each moment: for who prints its changes."""
    return _FIGURES.sub("", verdict)


def render(value: float | None, unit: str, more: int = 0) -> str:
    """A value with its unit, as short as it can be read: `1.83 s`, `3.5 h`, `41 %`, `12.5/s`, `400 MB`. `more`: digits
    beyond those."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if unit == "bool":
        return "yes" if value else "no"
    if unit == "ratio":
        return f"{_percent(value, more)} %"
    if unit == "seconds":
        return _seconds(value, more)
    if unit == "bytes" and math.isfinite(value):
        return size(value)
    number = _number(value, more)
    return f"1 {_SINGULAR[unit]}" if number == "1" and unit in _SINGULAR else number + _SUFFIX.get(unit, "")


def _percent(share: float, more: int) -> str:
    """In hundredths. Some of a whole is never printed as none or all of it."""
    least = SHARE_DIGITS if 0 < share < 1 else 0
    texts = (_number(100 * share, digits) for digits in range(more, more + least + 1))
    return next((text for text in texts if text not in ("0", "100")), _number(100 * share, more))


def points(difference: float) -> str:
    """A difference of two shares, which is in points and not in percent of either: `3.7 points`."""
    return f"{_number(100 * difference, 0)} points"


def render_difference(difference: float, unit: str) -> str:
    """A difference of two values with their unit."""
    return points(difference) if unit == "ratio" else render(difference, unit)


def render_apart(value: float | None, limit: float | None, unit: str) -> str:
    """The same with as many digits more as it takes to read otherwise than a limit that it is not equal to."""
    for more in range(MORE_DIGITS):
        text = render(value, unit, more)
        if value is None or limit is None or value == limit or text != render(limit, unit):
            break
    return text


def _seconds(value: float, more: int) -> str:
    if math.isinf(value):
        return "beyond every bucket"
    if abs(value) < 1:
        return f"{_number(1000 * value, more)} ms"
    _, each, word = next((one for one in _LASTING if abs(value) >= one[0]), (0, 1, "s"))
    return f"{_number(value / each, more)} {word}"


def _number(value: float, more: int = 0) -> str:
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if value == int(value) or (abs(value) >= 100 and not more):
        return f"{value:,.0f}"
    digits = more + (0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2)
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def last_true_text(at: float) -> str:
    """When something was true for the last time. at: seconds since the epoch."""
    return f"last true at {clock_text(at)}"


def clock_text(at: float) -> str:
    """The time of day. at: seconds since the epoch."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"


def plain(name: str) -> str:
    """A signal's name as words, or those of a formula. Its value has the unit."""
    words = _SECONDS.sub("", name).replace("_", " ")
    return _ACRONYM.sub(lambda match: match.group().upper(), words)


def lower_title(title: str) -> str:
    """A title as it stands within a sentence; one that begins with an abbreviation stays."""
    return title if title[1:2].isupper() else f"{title[:1].lower()}{title[1:]}"


def fill(template: str, value: Callable[[str], str]) -> str:
    """Fill `{signal}` and `{$param}` in a text with `value(name)`."""
    return PLACEHOLDER.sub(lambda match: value(match.group(1)), template)


def sentences(text: str) -> list[str]:
    """The sentences of a text."""
    return _SENTENCE_END.split(text)


def fill_known(template: str, value: Callable[[str], str]) -> str:
    """The same without the brackets, then without the sentences, that have an unknown number; all sentences where each
    has one."""

    def lacks(text: str) -> bool:
        return UNKNOWN in [value(name) for name in PLACEHOLDER.findall(text)]

    whole = _BRACKETS.sub(lambda found: "" if lacks(found[0]) else found[0], template.strip())
    several = sentences(whole)
    filled = [fill(sentence, value) for sentence in several]
    known = [text for sentence, text in zip(several, filled, strict=True) if not lacks(sentence)]
    return " ".join(known or filled)
