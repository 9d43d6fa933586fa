"""What the judge remembers, kept over a restart of the agent: since when each finding has been open."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.places import state_directory
from diagnoser.judge import Memory

MAX_BYTES = 16 << 20
MAX_GAP_SECONDS = 300.0


def state_file() -> Path:
    """Where it is kept."""
    return state_directory() / "state.json"


def load_state(path: Path, now: float) -> dict[str, Memory]:
    """What was saved of troubles that were seen within `MAX_GAP_SECONDS` before `now`: nobody knows whether an
    older one went on. Nothing where there is no usable file, since the state can be seen anew."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        saved = msgspec.json.decode(path.read_bytes(), type=dict[str, Memory])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {key: m for key, m in saved.items() if m.last_true is not None and 0 <= now - m.last_true < MAX_GAP_SECONDS}


def save_state(path: Path, memory: dict[str, Memory]) -> None:
    """Replace the file as a whole, so that a crash leaves the old one. Raises OSError."""
    open_ = {key: m for key, m in memory.items() if m.true_since is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(open_))
    part.replace(path)
