"""Every import runs down the floors (docs/decisions/0001)."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOOR = {
    "series": 0,
    "kvcache": 0,
    "rules": 1,
    "config": 2,
    "agent": 3,
    "diagnoser": 3,
    "dashboards": 4,
    "app": 5,
    "ui": 6,
}
INNER: dict[str, tuple[tuple[str, ...], ...]] = {
    "series": (("promql",), ("history",)),
    "agent": (("requests",), ("ledger", "history"), ("exports",), ("collectors", "tap")),
    "diagnoser": (("cases", "review", "sizing", "sources", "twin"),),
    "dashboards": (("boards", "lint", "reference"),),
    "app": (("demo", "derived_metrics", "escaping", "sources"), ("load", "notify", "patch", "prove"), ("runtime",)),
    "ui": (("mcp", "review"), ("cli", "web")),
}
"""The folders of a package, lowest floor first: a folder imports folders of lower floors only."""

FILES = [p for package in FLOOR for p in sorted((ROOT / package).rglob("*.py"))]
HEAVY = {"pandas", "streamlit", "altair"}


@cache
def imported(path: Path) -> tuple[str, ...]:
    """The modules that a file imports, at any depth of it."""
    return tuple(_imported(ast.parse(path.read_text(encoding="utf-8"))))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                sub = f"{node.module}.{alias.name}"  # `from kvitals.agent import tap` imports a module, too
                yield sub if is_module(sub) else node.module


def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split(".")[1:])
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def packages(path: Path) -> set[str]:
    """The packages of the house that a file imports."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("kvitals.")}


def test_every_package_has_a_floor() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {
        "kvitals",
        "tests",
        "benchmarks",
    } == FLOOR.keys()
    assert len(FILES) > 20


def test_imports_run_down() -> None:
    up = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for package in [path.relative_to(ROOT).parts[0]]
        for name in packages(path) - {package}
        if FLOOR[name] >= FLOOR[package]
    ]
    assert up == []


def test_imports_run_down_inside_packages() -> None:
    wrong = []
    for package, floors in INNER.items():
        level = {folder: n for n, folders in enumerate(floors) for folder in folders}
        inside = {path.relative_to(ROOT / package).parts[0] for path in (ROOT / package).glob("*/**/*.py")}
        assert inside == level.keys(), package
        for folder in level:
            for path in (ROOT / package / folder).rglob("*.py"):
                for name in imported(path):
                    parts = name.split(".")
                    if parts[:2] != ["kvitals", package] or parts[2] not in level or parts[2] == folder:
                        continue
                    if level[parts[2]] >= level[folder]:
                        wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_terminal_and_page_do_not_import_each_other() -> None:
    across = [
        f"{path.relative_to(ROOT)} imports {name}"
        for one, other in (("cli", "web"), ("web", "cli"))
        for path in (ROOT / "ui" / one).rglob("*.py")
        for name in imported(path)
        if f"{name}.".startswith(f"kvitals.ui.{other}.")
    ]
    assert across == []


def test_heavy_libraries_stay_in_the_web_app_and_the_notebooks() -> None:
    """The page, and what a notebook asks for, which loads pandas when it is asked."""
    may = {"ui/web", "ui/python_api.py"}
    outside = [path for path in FILES if "/".join(path.relative_to(ROOT).parts[:2]) not in may]
    heavy = [f"{p.relative_to(ROOT)}: {n}" for p in outside for n in imported(p) if n.split(".")[0] in HEAVY]
    assert heavy == []
