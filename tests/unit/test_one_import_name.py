"""The packages of the house have one name, below `kvitals` (docs/decisions/0014)."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = {path.name: path for path in (ROOT / "kvitals").iterdir() if path.is_symlink()}
APART = {"tests", "benchmarks"}
COMMAND = re.compile(rf"python3? -m ({'|'.join(LINKS)})\.\w+")
DOCUMENTS = ("*.md", "docs/**/*.md", "Makefile", ".ci/run", "deploy/**/*", "tests/ship/*.sh")


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for folder in (*LINKS, *APART):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def is_module(dotted: str) -> bool:
    """Whether the text begins with the name of a module of the house, without `kvitals`."""
    first, *rest = dotted.split(".")
    if first not in LINKS or not rest:
        return False
    place = ROOT / first / rest[0]
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def bare(node: ast.AST) -> Iterator[str]:
    """Names of the house's modules without `kvitals`, in an import or in a string that is nothing but such a name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] in LINKS)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module and node.module.split(".")[0] in LINKS:
        yield node.module
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\w+(\.\w+)+", node.value):
        yield from (name for name in (node.value,) if is_module(name))


def test_every_package_has_a_link_and_every_link_a_package() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - APART - {"kvitals"}
    assert packages == LINKS.keys()
    assert {name: str(path.readlink()) for name, path in LINKS.items()} == {name: f"../{name}" for name in LINKS}


def test_no_module_is_named_without_kvitals() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}"
        for path, tree in sources()
        for node in ast.walk(tree)
        for name in bare(node)
    ]
    assert found == []


def test_no_command_names_a_module_without_kvitals() -> None:
    paths = [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8", errors="replace") for path in paths}
    assert [f"{path}: {match[0]}" for path, text in texts.items() for match in COMMAND.finditer(text)] == []


@pytest.mark.parametrize("name", sorted(LINKS))
def test_tests_cannot_import_a_package_by_its_folder(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"kvitals.{name} instead"):
        importlib.import_module(name)
    assert name not in sys.modules


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, kvitals; print(sorted(m for m in sys.modules if m.startswith('kvitals')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['kvitals']", done.stderr
