"""Every import runs down the floors (docs/decisions/0001)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOOR = {"series": 0, "kvcache": 0, "rules": 1, "agent": 2, "diagnoser": 2, "dashboards": 3, "ui": 4}
FILES = [p for package in FLOOR for p in sorted((ROOT / package).rglob("*.py"))]
HEAVY = {"pandas", "streamlit", "altair"}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_there_are_files_to_read() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_down(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for name in imported(path) & FLOOR.keys() - {package}:
        assert FLOOR[name] < FLOOR[package], f"{package} must not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_heavy_libraries_stay_in_the_web_app(path: Path) -> None:
    inside = path.relative_to(ROOT).parts[:2] == ("ui", "web")
    assert inside or not imported(path) & HEAVY
