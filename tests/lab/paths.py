"""Where the lab keeps what it installs and writes: one ignored folder, nothing outside it."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("KVITALS_LAB_HOME", REPO / ".lab"))
"""Set KVITALS_LAB_HOME to share one installation between checkouts."""

VENV = HOME / "venv"
PYTHON = VENV / "bin" / "python"
"""vLLM's; the other systems have environments of their own beside it."""
MODEL = HOME / "model"
RUN = HOME / "run"
WRONG = HOME / "wrong"
"""Triage documents of wrong verdicts."""
ENGINE_SIDE = Path(__file__).parent / "engine_side"


class LabError(Exception):
    """Something the lab cannot go on without; the message says what to do."""
