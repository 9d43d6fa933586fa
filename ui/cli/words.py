"""Texts of requests for the terminal."""

from __future__ import annotations

PHASE_STYLES = {
    "gateway": "blue",
    "queue": "yellow",
    "kv_wait": "magenta",
    "prefill": "cyan",
    "transfer": "magenta",
    "decode": "green",
    "unattributed": "dim",
}


def seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return "unknown"
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def plain(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)
