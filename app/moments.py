"""Times and durations as people write them: `90s`, `+75s`, `-2h`, RFC 3339, seconds since the epoch."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from kvitals.app.errors import UsageError
from kvitals.series.ascii_numbers import ascii_float

_LAST_MOMENT = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_EXAMPLE = "2026-01-31T04:05:06Z"
_AFTER_START = re.compile(r"[0-9.]+(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str, where: str) -> float:
    """`90`, `90s`, `80ms`, `5m`, `7d` as seconds, more than 0."""
    seconds = _offset(text, where)
    if seconds == 0.0:
        raise UsageError(f"{where}: `{text}` is too short; write a time above 0, such as 1.5s, 80ms or 5m")
    return seconds


def _offset(text: str, where: str) -> float:
    """The same, or 0."""
    unit = next((u for u in ("ms", "s", "m", "h", "d") if text.endswith(u)), "")
    try:
        seconds = ascii_float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e7:
        raise _not_a_time(text, where)
    return seconds


def _not_a_time(text: str, where: str) -> UsageError:
    return UsageError(f"{where}: `{text}` is not a time; write 1.5s, 80ms or 5m")


def parse_moment(text: str, start: float, where: str, end: float | None = None) -> float:
    """A moment in a recording: `+75s` or `75s` after its start, `-5s` before its end, RFC 3339, or seconds since the
    epoch. start, end: of the recording, seconds since the epoch."""
    if text.startswith("+") or _AFTER_START.fullmatch(text):
        return start + _offset(text.removeprefix("+"), where)
    if text.startswith("-") and end is not None:
        return end - _offset(text[1:], where)
    if (moment := _moment(text)) is None:
        before = "" if end is None else ", -5s before its end"
        raise UsageError(
            f"{where}: `{text}` is not a time; write +75s after the recording's start{before}, {_EXAMPLE} or a "
            f"unix time"
        )
    return moment


def parse_past(text: str, where: str) -> float:
    """A moment that is past: RFC 3339, seconds since the epoch, or `-2h`: so long ago."""
    if text.startswith("-"):
        return time.time() - parse_duration(text[1:], where)
    if (moment := _moment(text)) is None:
        raise UsageError(f"{where}: `{text}` is not a time; write {_EXAMPLE}, a unix time, or {where}=-2h")
    return moment


def _moment(text: str) -> float | None:
    """RFC 3339, as kvitals prints it with " UTC" too, or seconds since the epoch, as the latter; None for what is
    neither."""
    try:
        return seconds if 0 <= (seconds := ascii_float(text)) < _LAST_MOMENT else None
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
