"""Configurations of tests, from text."""

from __future__ import annotations

import tomllib
from pathlib import Path

from kvitals.config import Config, build


def made(text: str) -> Config:
    """The configuration of a text, as of the file /etc/kvitals/kvitals.toml."""
    return build(tomllib.loads(text), Path("/etc/kvitals/kvitals.toml"))


def write(path: Path, text: str) -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
