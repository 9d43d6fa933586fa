"""A recording played again: its records must be those that the agent told while it was live."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kvitals.agent.node import Node
from kvitals.agent.requests.record import RequestRecord
from kvitals.config import Config
from kvitals.series.recordings import CaptureReader

from .checks import Check


def records_of(capture: Path) -> dict[str, RequestRecord]:
    """The requests of a recording, by id."""
    node = Node(Config())
    with CaptureReader.open(capture) as reader:
        node.expect(reader.header.meta)
        for record in reader:
            node.ingest_recorded(record)
    node.requests.flush()
    return {record.id: record for record in node.requests.store}


def told(record: RequestRecord) -> dict[str, Any]:
    """A record as the API tells it, without the names that only a live agent knows."""
    answer: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return answer | {"outcome": record.outcome}


def same_as_live(capture: Path, live: Iterable[dict[str, Any]]) -> Check:
    """Every record that the live agent told is the same in the replay, in every field."""
    again = {name: told(record) for name, record in records_of(capture).items()}
    count, off = 0, []
    for one in live:
        count += 1
        said = {key: value for key, value in one.items() if key != "tenant_name"}
        other = again.get(one["id"])
        if other != said:
            off.append(f"{one['id']}: {_difference(said, other)}")
    size = capture.stat().st_size // 1024
    words = "; ".join(off[:3]) if off else f"{count} records are the same, {size} KB"
    return Check("replay", count > 0 and not off, words, {"records": count, "different": len(off)})


def _difference(one: dict[str, Any], other: dict[str, Any] | None) -> str:
    if other is None:
        return "not there"
    return ", ".join(
        f"{k} {one.get(k)} and {other.get(k)}" for k in one.keys() | other.keys() if one.get(k) != other.get(k)
    )
