"""What commands print at 60, 80 and 120 columns: golden texts in tests/goldens/terminal/."""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path

from kvitals.ui.cli.main import main

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("terminal")
WIDTHS = (60, 80, 120)
THRASH = "tests/captures/ledger/thrash.kvcap"
COMMANDS = {
    "cache": ("cache", THRASH),
    "knee": ("knee", "app/demo/few_slots.kvcap"),
    "audit": ("knee", "--audit", "app/demo/few_slots.kvcap"),
    "curve": ("whatif", "--curve", "--capture", THRASH),
    "replay": ("record", "--replay", "app/demo/few_slots.kvcap"),
    "trace": ("trace", "--slowest", "1", THRASH),
    "check": ("check", "app/demo/few_slots.kvcap"),
    "explain": ("explain", "KVC01"),
    "triage": ("triage", "app/demo/heavy_tenant.kvcap"),
}
"""Name of a golden text -> words of the command, in the root of the tree."""


def printed(words: tuple[str, ...], columns: int) -> str:
    """What a command prints into a pipe of so many columns, in UTC."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "TZ")}
    os.environ.update(COLUMNS=str(columns), TZ="UTC")
    time.tzset()
    here, out = Path.cwd(), io.StringIO()
    os.chdir(ROOT)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.suppress(SystemExit),
        ):
            main(words)
    finally:
        os.chdir(here)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        time.tzset()
    return out.getvalue()


def path(name: str, columns: int) -> Path:
    return FOLDER / f"{name}-{columns}.txt"


def texts(name: str) -> dict[Path, str]:
    """The golden texts of a command by their files, as they are now."""
    return {path(name, columns): printed(COMMANDS[name], columns) for columns in WIDTHS}
