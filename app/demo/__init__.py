"""Recorded incidents of a real engine, each with the truth of what was done to it beside it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
DEMO = FOLDER / "heavy_tenant.kvcap"
"""The incident that `kvitals run --demo` shows."""


def incidents() -> list[Path]:
    """All recordings that ship."""
    return sorted(FOLDER.glob("*.kvcap"))
