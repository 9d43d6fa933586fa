"""README.md and the documents use the words of docs/style.md, and not the words that it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_floors import ROOT

STYLE = "docs/style.md"
TOP = ("README", "CONTRIBUTING", "SECURITY")
GENERATED = frozenset({"docs/rule-reference.md", "docs/metrics-reference.md", "docs/compatibility.md"})
"""Pages whose words come from other files."""

LISTS_THE_WORDS = frozenset({STYLE, "docs/glossary.md"})
"""Pages that name refused words with their replacements."""

NO_PROSE = re.compile(r"^```.*?^```$|`[^`]*`|<!--.*?-->|\]\([^)]*\)|^> [^\n]*$", re.MULTILINE | re.DOTALL)
"""Blocks and names of code, comments, the addresses of links, quotations of messages."""


def refused_words() -> list[str]:
    """The words and phrases of the list at the end of docs/style.md."""
    page = (ROOT / STYLE).read_text(encoding="utf-8")
    block = re.search(r"^```text refused\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block, f"{STYLE} has no list of refused words"
    return [word for word in re.split(r",\s*|\n", block[1]) if word]


REFUSED = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, refused_words()))})(?![\w-])", re.IGNORECASE)


def pages() -> dict[str, Path]:
    """The documents by their names. Not among them: the changelog and the decisions, which quote the past."""
    docs = ROOT / "docs"
    paths = [*(ROOT / f"{name}.md" for name in TOP), *docs.glob("*.md"), *(docs / "journeys").glob("*.md")]
    named = {str(path.relative_to(ROOT)): path for path in sorted(paths)}
    return {name: path for name, path in named.items() if name not in GENERATED | LISTS_THE_WORDS}


def refused_in(text: str) -> list[str]:
    """Each refused word of a document with its line, such as `12: told`."""
    prose = NO_PROSE.sub(lambda match: "\n" * match[0].count("\n"), text)
    return [
        f"{number}: {match[0]}" for number, line in enumerate(prose.splitlines(), 1) for match in REFUSED.finditer(line)
    ]


def test_documents_use_no_refused_word() -> None:
    wrong = {name: refused_in(path.read_text(encoding="utf-8")) for name, path in pages().items()}
    assert {name: words for name, words in wrong.items() if words} == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The metric lacks a unit.", ["1: lacks"]),
        ("one\n\n```\nit was told\n```\nIt can not\nbe told", ["6: can not", "7: told"]),
        ("`told` and [a page](told.md) and <!-- told -->", []),
        ("> a quoted message that says so", []),
        ("untold, re-sense, tell-tale", []),
    ],
)
def test_refused_words_are_found_in_prose_alone(text: str, words: list[str]) -> None:
    assert refused_in(text) == words
