"""Which format a trace file has, and its requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

import msgspec

from kvitals.kvcache.traces import documents, pickled
from kvitals.kvcache.traces.documents import DOCUMENT_FORMATS, DocumentFormat
from kvitals.kvcache.traces.json_lines import LINE_FORMATS, LineFormat
from kvitals.kvcache.traces.request import MAX_REQUESTS, Trace, TraceCollector, TraceError
from kvitals.kvcache.traces.tables import TABLE_FORMATS, split_cells

MAX_BYTES = 4 << 30
MAX_LINE = 16 << 20
MAX_LINES = MAX_REQUESTS
HEAD = 1 << 20
"""Bytes in which a format is recognised."""

_KEY = re.compile(rb'(?<!\\)"([A-Za-z_ ]{1,40})"\s*:')


def parse_trace(file: IO[bytes], name: str, block_size: int | None = None) -> Trace:
    """The requests of an open trace, in order of time.

    name: what errors call it. block_size: tokens a block where the user states them. Raises TraceError; OSError of the
    file.
    """
    head = file.read(HEAD)
    collector = TraceCollector(name)
    if head[:1] == b"\x80":
        data = head + file.read(pickled.MAX_BYTES)
        collector.add_all(pickled.read_pickled(data, name))
        return collector.trace(pickled.UNITS, block_size)
    first = next((line for line in head.split(b"\n") if line.strip()), b"").strip()
    if not first:
        raise TraceError(f"{name}: no requests in it; give a trace file (docs/inputs.md)")
    if first[:1] not in b"{[":
        return _table(first, head, file, name, collector, block_size)
    keys = {match.decode() for match in _KEY.findall(head)}
    document = _recognised(DOCUMENT_FORMATS, keys)
    line = _recognised(LINE_FORMATS, _line_keys(first, name, document is None))
    if line is not None:
        _check_size(head, file, name)
        return _lines(line, head, file, name, collector, block_size)
    if document is not None:
        return _document(document, head, file, name, collector, block_size)
    raise _unknown(keys, name)


def _recognised(formats: Sequence[Any], keys: set[str]) -> Any:
    return next((one for one in formats if keys.issuperset(one.marks)), None)


def _line_keys(first: bytes, name: str, needed: bool) -> set[str]:
    """The keys of the first line, where it is an object. Raises TraceError if it is not and no document is known."""
    try:
        decoded = msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        keys = {match.decode() for match in _KEY.findall(first)}
        if _recognised(LINE_FORMATS, keys) is not None:
            return keys  # the format's own reader names the fault
        if needed:
            raise _unknown(keys, name) from error
        return set()
    return set(decoded)


def _unknown(keys: set[str], name: str) -> TraceError:
    every: tuple[Any, ...] = (*LINE_FORMATS, *DOCUMENT_FORMATS, *TABLE_FORMATS)
    formats = [(str(one.units.format), set(one.marks)) for one in every]
    nearest, marks = max(formats, key=lambda one: len(one[1] & keys) / len(one[1]))
    if not marks & keys:
        known = ", ".join(dict.fromkeys(title for title, _ in formats))
        return TraceError(
            f"{name}: unknown trace format; kvitals reads {known} and SGLang request dumps (docs/inputs.md)"
        )
    absent = ", ".join(sorted(marks - keys)) or "data at its top level"
    return TraceError(f"{name}: unknown trace format; the nearest is {nearest}, missing: {absent} (docs/inputs.md)")


def _lines(
    form: LineFormat[Any], head: bytes, file: IO[bytes], name: str, collector: TraceCollector, block_size: int | None
) -> Trace:
    collector.add_all(form.read(_numbered(head, file, name), name))
    return collector.trace(form.units, block_size)


def _check_size(head: bytes, file: IO[bytes], name: str) -> None:
    """Raises TraceError for a file of more lines or bytes than are read: counting takes a hundredth of the time that
    decoding takes."""
    lines, size = head.count(b"\n"), len(head)
    while lines <= MAX_LINES and size <= MAX_BYTES and (piece := file.read(HEAD)):
        lines += piece.count(b"\n")
        size += len(piece)
    if lines > MAX_LINES or size > MAX_BYTES:
        raise TraceError(
            f"{name}: more than {MAX_LINES:,} lines or {MAX_BYTES >> 30} GB; split it, or give its beginning"
        )
    file.seek(len(head))


def _numbered(head: bytes, file: IO[bytes], name: str, skip: int = 0) -> Iterator[tuple[str, bytes]]:
    """Lines that are not blank, each with its place. Raises TraceError beyond the limit."""
    number = 0
    at = 0
    while True:
        end = head.find(b"\n", at)
        if end >= 0:
            line, at = head[at : end + 1], end + 1
        else:
            line, at = head[at:], len(head)
            line += file.readline(MAX_LINE + 1 - min(len(line), MAX_LINE))
        if not line:
            return
        number += 1
        where = f"{name}:{number}"
        if len(line) > MAX_LINE:
            raise TraceError(f"{where}: more than {MAX_LINE >> 20} MB on one line; split it")
        if line.strip() and number > skip:
            yield where, line


def _document(
    form: DocumentFormat[Any],
    head: bytes,
    file: IO[bytes],
    name: str,
    collector: TraceCollector,
    block_size: int | None,
) -> Trace:
    data = head + file.read(documents.MAX_BYTES + 1)
    if len(data) > documents.MAX_BYTES:
        raise TraceError(f"{name}: a {form.units.format} file of more than {documents.MAX_BYTES >> 20} MB; split it")
    records = form.decode(data, name)
    collector.add_all(form.requests(records, name))
    return collector.trace(form.units, block_size)


def _table(
    first: bytes, head: bytes, file: IO[bytes], name: str, collector: TraceCollector, block_size: int | None
) -> Trace:
    header = [cell.strip() for cell in split_cells(first, f"{name}:1")]
    form = _recognised(TABLE_FORMATS, set(header))
    if form is None:
        raise _unknown(set(header), name)
    _check_size(head, file, name)
    skip = head[: head.find(first) + len(first)].count(b"\n") + 1
    collector.add_all(form.read(header, _numbered(head, file, name, skip)))
    return collector.trace(form.units, block_size)
