"""Trace files that a user names."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from kvitals.kvcache.accesses import Accesses
from kvitals.kvcache.mooncake import BLOCK_SIZE, TraceError, parse
from kvitals.series.files import open_regular


def read_trace(path: Path, block_size: int = BLOCK_SIZE) -> Accesses:
    """The requests of a Mooncake trace in order of time; `.gz` is unpacked. Raises TraceError."""
    try:
        with open_regular(path) as raw:
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            return parse(file, str(path), block_size)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
