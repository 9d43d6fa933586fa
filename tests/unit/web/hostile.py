"""Recordings that somebody made to do harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from kvitals.app.demo import incidents
from kvitals.series.recordings import CaptureReader, CaptureWriter, Record

NAME = "<script>alert(1)</script> [x](http://evil.example) :material/home: $x^2$ ![i](http://evil.example/i.png)"
SOURCE = next(path for path in incidents() if path.stem == "few_slots")


def written(path: Path, change: Callable[[Record], Record]) -> Path:
    """The recording of an incident that ships, each record changed."""
    meta = {"targets": [{"url": "http://127.0.0.1:8202", "name": "", "labels": {}}], "every_seconds": 1.0}
    with CaptureReader.open(SOURCE) as reader, CaptureWriter(path, version="x", meta=meta) as writer:
        for record in reader:
            writer.write(change(record))
    return path


def named(record: Record) -> Record:
    """The same page, of a model with another name, and with a gauge that is far too large."""
    told = msgspec.msgpack.decode(record.payload)
    if record.sense == "scrape":
        body = told["body"].replace(b'"tiny"', f'"{NAME}"'.encode())
        told["body"] = body.replace(b"vllm:num_requests_waiting{", b"vllm:num_requests_waiting{x=\"1\",", 1) + (
            f'vllm:num_requests_waiting{{engine="0",model_name="{NAME}"}} 1e308\n'.encode()
        )  # fmt: skip
    else:
        told["info"] = {"served_model_name": NAME}
    return Record(record.t, record.sense, record.target, msgspec.msgpack.encode(told))


def deep(record: Record) -> Record:
    """Thousands of lists within each other, where facts are expected."""
    return Record(record.t, record.sense, record.target, b"\x91" * 100_000 + b"\xc0")


def empty(record: Record) -> Record:
    return Record(record.t, record.sense, record.target, b"")
