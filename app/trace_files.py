"""Trace files that a user names."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from kvitals.kvcache.traces.read import parse_trace
from kvitals.kvcache.traces.request import DAY_SECONDS, Trace, TraceError
from kvitals.series.files import open_regular

SHORT_SECONDS = 600.0
"""A trace of less has no peak of a day, and may be a longer one in another unit."""

WHOLE_DAYS = 0.01
"""By how many days the length of a trace of whole days differs from these at most."""


def read_trace(path: Path, block_size: int | None = None) -> Trace:
    """The requests of a trace in any known format, in order of time; `.gz` is unpacked.

    block_size: tokens a block where the user states them; None to infer them from ids and lengths. Raises TraceError.
    """
    try:
        with open_regular(path) as raw:
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            return parse_trace(file, str(path), block_size)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{path} cannot be read: {reason}; give a trace file (docs/inputs.md)") from error


def duration_text(seconds: float) -> str:
    """`8.5 min`, `3.6 s`."""
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.3g} s"


def doubt_of_times(of: Trace) -> str:
    """Why the times of a trace may be in another unit than they are read in; empty where nothing suggests that."""
    lasted = float(of.accesses.time[-1] - of.accesses.time[0])
    unit, count = of.facts.time_unit, len(of.accesses)
    if unit == "none" or count < 2:
        return ""
    read = f"the {count:,} requests of the trace cover only {duration_text(lasted)}, with its times read as {unit}"
    if lasted < SHORT_SECONDS:
        return f"{read}: if the file has another unit, the rates are wrong; write its times as {unit}"
    days = lasted * 1000 / DAY_SECONDS
    if unit == "ms" and abs(days - round(days)) < WHOLE_DAYS:
        return f"{read}, and {round(days)} days if they are seconds: check the rates, and write its times as {unit}"
    return ""
