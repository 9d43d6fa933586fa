"""Trace files that a user names."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from kvitals.kvcache.traces.read import parse_trace
from kvitals.kvcache.traces.request import Trace, TraceError
from kvitals.series.files import open_regular


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
