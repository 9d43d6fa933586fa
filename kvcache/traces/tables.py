"""Trace formats that are CSV files with a header."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvitals.kvcache.traces.json_lines import IsoClock
from kvitals.kvcache.traces.request import TraceError, TraceRequest, TraceUnits


@dataclass(frozen=True)
class TableFormat:
    """A format by the names of its columns. iso: times are dates, else seconds."""

    units: TraceUnits
    time: str
    tokens: str
    output: str
    session: str | None
    iso: bool

    @property
    def marks(self) -> tuple[str, ...]:
        """Columns by which the format is recognised."""
        return self.time, self.tokens, self.output

    def read(self, header: list[str], lines: Iterable[tuple[str, bytes]]) -> Iterator[TraceRequest]:
        """Requests of the lines after the header. Raises TraceError."""
        time, tokens, output = (header.index(name) for name in self.marks)
        session = header.index(self.session) if self.session in header else None
        clock = IsoClock()
        for where, line in lines:
            cells = split_cells(line, where)
            try:
                when = clock.seconds(cells[time], where) if self.iso else float(cells[time])
                name = cells[session] if session is not None else None
                yield TraceRequest(when, int(cells[tokens]), int(cells[output]), (), name or None)
            except TraceError:
                raise
            except (ValueError, IndexError) as error:
                raise TraceError(f"{where}: not a request of a {self.units.format} trace: {error}") from error


def split_cells(line: bytes, where: str) -> list[str]:
    """The cells of a line. Raises TraceError."""
    try:
        return next(csv.reader([line.decode("utf-8-sig", "replace").strip()]), [])
    except csv.Error as error:
        raise TraceError(f"{where}: not a line of a CSV file; give a trace (docs/inputs.md)") from error


TABLE_FORMATS = (
    TableFormat(
        TraceUnits("Azure LLM inference", "s", None), "TIMESTAMP", "ContextTokens", "GeneratedTokens", None, iso=True
    ),
    TableFormat(
        TraceUnits("BurstGPT", "s", None), "Timestamp", "Request tokens", "Response tokens", "Session ID", iso=False
    ),
)
