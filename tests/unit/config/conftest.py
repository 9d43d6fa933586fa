"""A folder of its own for each test of configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a home of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
