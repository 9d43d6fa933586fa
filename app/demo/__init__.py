"""Recorded incidents of a real engine, each with the truth of what was done to it beside it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
DEMO = FOLDER / "with_kv_events" / "eviction_cascade.kvcap"
"""The incident that `kvitals run --demo` shows: it has engine pages, KV events and requests, so every view has data."""

HEAVY_TENANT = FOLDER / "heavy_tenant.kvcap"
"""The incident of the README and the tutorial: engine pages alone."""


def incidents() -> list[Path]:
    """All recordings that ship with their truth."""
    return sorted(FOLDER.glob("*.kvcap"))


def incidents_with_kv_events() -> list[Path]:
    """The recordings that ship with KV events and requests beside the engine's pages."""
    return sorted(DEMO.parent.glob("*.kvcap"))
