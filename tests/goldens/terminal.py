"""What commands print at 60, 80 and 120 columns: golden texts in tests/goldens/terminal/."""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from pathlib import Path

from rich.cells import cell_len

from kvitals.ui.cli.main import main

ESCAPE = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")
"""Colours and links of a terminal."""

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("terminal")
WIDTHS = (60, 80, 120)
THRASH = "tests/captures/ledger/thrash.kvcap"
HELPED = (
    "run",
    "web",
    "tap",
    "notify",
    "mcp",
    "config",
    "history",
    "review",
    "prove",
    "gate",
    "record",
    "rules",
    "export",
    "size",
    "whatif",
)
"""Commands that serve, write files or need a history, and those with tables in their help."""

COLOURED = ("triage", "check", "knee", "top", "lint")
"""Commands whose text is also kept in colour, at 80 columns: the width changes the lines and not the colours."""

SIZED = (
    "--model",
    "Llama 3.3 70B",
    "--weights",
    "fp8",
    "--peak",
    "20",
    "--prompt",
    "1000,3000,8000",
    "--answer",
    "200",
)

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
    "top": ("top", "--once", "app/demo/few_slots.kvcap"),
    "lint": ("lint", "dashboards/generated/boards/kv.json"),
    "compare": ("compare", "app/demo/healthy.kvcap", "app/demo/few_slots.kvcap"),
    "size": ("size", *SIZED, "--gpu", "H100 SXM"),
    "size-all": ("size", *SIZED),
    "patch": ("patch", "app/demo/few_slots.kvcap"),
    "whatif": ("whatif", "--capture", THRASH, "--capacity", "1x,2x", "--nodes", "2"),
    "help": ("--help",),
    "upgrade": ("upgrade", "vllm", "0.31.0", "0.32.0"),
    **{f"help-{name}": (name, "--help") for name in HELPED},
}
"""Name of a golden text -> words of the command, in the root of the tree."""


def printed(words: tuple[str, ...], columns: int, colour: bool = False) -> str:
    """What a command prints into a pipe of so many columns, in UTC."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "TZ", "FORCE_COLOR", "NO_COLOR")}
    os.environ.update(COLUMNS=str(columns), TZ="UTC")
    os.environ.pop("NO_COLOR", None)
    os.environ.pop("FORCE_COLOR", None)
    if colour:
        os.environ["FORCE_COLOR"] = "1"
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
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        time.tzset()
    return out.getvalue()


COPIED = ("--kv-events-config", "promtool ", "amtool ", "jsonnet ", "kvitals ", "http://", "https://", "github.com/")
"""Marks of what someone copies: a setting with its value, a command, a URL. It stays in one line."""

DIFF = re.compile(r"^(?:[-+@ ]|diff )")
FIX = re.compile(r"^ {4,6}\S*[({]")
"""A query of `kvitals lint`, and its correction."""


def too_wide(text: str, columns: int) -> list[str]:
    """The lines that do not fit, without colour. Diffs, queries, commands and URLs may be wider: they are copied."""
    lines = ESCAPE.sub("", text).splitlines()
    diff = next((number for number, line in enumerate(lines) if line.startswith(("--- ", "diff "))), len(lines))
    return [
        line
        for number, line in enumerate(lines)
        if cell_len(line) > columns
        and not any(mark in line for mark in COPIED)
        and not (number >= diff and DIFF.match(line))
        and not FIX.match(line)
    ]


def path(name: str, columns: int) -> Path:
    return FOLDER / f"{name}-{columns}.txt"


def coloured_path(name: str) -> Path:
    return FOLDER / f"{name}-80-colour.txt"


def texts(name: str) -> dict[Path, str]:
    """The golden texts of a command by their files, as they are now."""
    found = {path(name, columns): printed(COMMANDS[name], columns) for columns in WIDTHS}
    if name in COLOURED:
        found[coloured_path(name)] = printed(COMMANDS[name], 80, colour=True)
    return found
