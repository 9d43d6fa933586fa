"""Where the agent keeps what outlives a restart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SYSTEM = Path("/var/lib/kvitals")


def state_directory(env: Mapping[str, str] = os.environ) -> Path:
    """`/var/lib/kvitals` where that can be written, else `kvitals` in the XDG state directory. It may not exist yet."""
    if os.access(SYSTEM, os.W_OK):
        return SYSTEM
    return Path(env.get("XDG_STATE_HOME") or Path(env.get("HOME", "/"), ".local", "state"), "kvitals")
