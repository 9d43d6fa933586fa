"""Trace files that a user names."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from kvitals.kvcache.traces.read import parse_trace
from kvitals.kvcache.traces.request import Trace, TraceError
from kvitals.series.files import open_regular

SHORT_SECONDS = 600.0
"""A trace of less has no peak of a day, and may be a longer one in another unit."""


def read_trace(path: Path, block_size: int | None = None) -> Trace:
    """The requests of a trace in any known format, in order of time; `.gz` is unpacked.

    block_size: tokens a block where the user states them; None to infer them from ids and lengths. Raises TraceError.
    """
    try:
        with open_regular(path) as raw:
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            return parse_trace(file, str(path), block_size)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def doubt_of_times(of: Trace) -> str:
    """Why the times of a trace may be in another unit than they are read in; empty where nothing suggests that."""
    lasted = float(of.accesses.time[-1] - of.accesses.time[0])
    if of.facts.time_unit == "none" or len(of.accesses) < 2 or lasted >= SHORT_SECONDS:
        return ""
    length = f"{lasted / 60:.1f} min" if lasted >= 60 else f"{lasted:.3g} s"
    unit = of.facts.time_unit
    return (
        f"the {len(of.accesses):,} requests of the trace cover only {length}, with its times read as {unit}: if the "
        f"file has another unit, the rates are wrong; write its times as {unit}"
    )
