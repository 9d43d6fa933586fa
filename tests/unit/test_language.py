"""Public names are in the words of docs/glossary.md, and each stands for one thing."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.unit.test_floors import FILES, ROOT

BANNED = frozenset(
    re.search(r"```text banned\n(.*?)```", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.DOTALL)[1].split()  # type: ignore[index]
)
NAMED_AFTER = ("ui/cli", "ui/web", "ui/review", "dashboards/boards", "dashboards/reference")
"""Folders with one file for each command, page, board or reference, named after it."""

PARTICIPLE = re.compile(r"(?!(?:feed|need|speed|seed|embed|shed)$)[a-z]+ed")


@cache
def definitions(path: Path) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The public classes and functions at the top of a file."""
    return [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    ]


def test_each_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in definitions(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_public_name_is_a_pronoun_a_preposition_or_a_participle() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in FILES
        for node in definitions(path)
        if node.name.lower() in BANNED or PARTICIPLE.fullmatch(node.name[:1].lower() + node.name[1:])
    ]
    wrong += [str(path.relative_to(ROOT)) for path in FILES if path.stem in BANNED]
    assert wrong == []


def test_each_module_has_a_name_of_its_own() -> None:
    """But for those that are named after a command, a page, a board or a reference."""
    places: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        name = str(path.relative_to(ROOT))
        if path.stem != "__init__" and not name.startswith(NAMED_AFTER):
            places[path.stem].add(name)
    assert {name for name, files in places.items() if len(files) > 1} == set()


def test_the_list_of_banned_names_is_read() -> None:
    assert {"of", "told", "found", "feed"} <= BANNED
