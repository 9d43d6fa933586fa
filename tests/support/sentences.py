"""Every sentence that a user reads, by the kind of its source, and a fair draw of them.

`python -m tests.support.sentences --seed 7` prints a draw of 100.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache

import yaml

from kvitals.rules.loader import ROOT as RULES
from kvitals.rules.shipped import YAML_LOADER
from kvitals.ui.cli.main import COMMANDS
from kvitals.ui.cli.main import parser as parser_of
from tests.unit.test_floors import FLOOR, ROOT

DRAWN = 100
MIN_WORDS = 5
"""Shorter texts are labels."""

KINDS = ("rule", "lever", "metric", "help", "message", "board", "document")
BOARDS = "dashboards"
NO_DOCUMENTS = frozenset({"rule-reference", "metrics-reference", "compatibility", "style", "glossary"})
"""Generated pages, whose words are counted at their source, and the two that quote refused words."""

READING = "## The reading of sentences"
"""The section of docs/measured.md that lists a draw. It is not drawn from."""

NOT_PROSE = frozenset({"references", "expr", "query", "flag", "lever", "name", "when", "metric", "value", "pattern"})
"""Keys of rule files whose values are titles of papers, expressions and options."""

WORD = re.compile(r"(?<![\w$`{.:/-])[A-Za-z][a-z'-]*(?![\w}`/=({])")
"""A word of prose, not a part of a name."""

END = re.compile(r"(?<=[.!?])[\"')]?\s+(?=[A-Z`\"$\d])|\n\n")
CODE = re.compile(r"^```.*?^```$|<!--.*?-->|^> [^\n]*$|^#[^\n]*$|^\|[^\n]*$", re.MULTILINE | re.DOTALL)
"""Blocks of code, comments, quotations of messages, headings and tables."""

LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"^\s*(?:[*-]|\d+\.)\s+", re.MULTILINE)
MACHINE = re.compile(
    r"\$to\b|\[\{|_over_time|^kvitals [a-z]+ [-{]|\$window|[<>{}]=|=~|\bby \(|\bon\(|group_left|\}\[\d"
    r"|\bSELECT\b|\bINSERT\b|\bCREATE\b|\bPRAGMA\b|\\[dswb]|\(\?|;\s*$|^[<.#@]|^\{[\"\s%]|</"
)
"""Expressions, SQL, patterns, HTML and style sheets among the strings of the code."""


@cache
def sentences() -> dict[str, dict[str, str]]:
    """Each sentence with where it stands, under each kind."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for kind, place, text in _texts():
        for part in END.split(text):
            sentence = " ".join(part.split())
            if len(WORD.findall(sentence)) >= MIN_WORDS and not any(sentence in known for known in found.values()):
                found[kind][sentence] = place
    return found


def draw(seed: int, count: int = DRAWN) -> list[tuple[str, str, str]]:
    """`count` sentences as (kind, place, sentence): of each kind those with the smallest hash, in equal parts."""
    parts: list[tuple[str, str, str]] = []
    for number, (kind, known) in enumerate(sentences().items()):
        share = count // len(KINDS) + (number < count % len(KINDS))
        ordered = sorted(known, key=lambda sentence: hashlib.sha256(f"{seed}\n{sentence}".encode()).digest())
        parts += [(kind, known[sentence], sentence) for sentence in ordered[:share]]
    return parts


def _texts() -> Iterator[tuple[str, str, str]]:
    yield from _rule_texts()
    yield from (("help", name, text) for name, text in help_texts())
    yield from _literals()
    yield from _document_texts()


def _rule_texts() -> Iterator[tuple[str, str, str]]:
    kinds = {"codes": "rule", "levers": "lever"}
    for path in sorted(RULES.rglob("*.yaml")):
        if "template" not in path.parts and path.is_file():
            root = yaml.compose(path.read_text(encoding="utf-8"), YAML_LOADER)
            for line, text in _scalars(root):
                yield kinds.get(path.parent.name, "metric"), f"{path.relative_to(RULES)}:{line}", text


def _scalars(node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value not in NOT_PROSE:
                yield from _scalars(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item)
    elif isinstance(node, yaml.ScalarNode) and not MACHINE.search(node.value):
        yield node.start_mark.line + 1, node.value


def help_texts() -> Iterator[tuple[str, str]]:
    """The help of each command and option, with the name of the option."""
    waiting = [("kvitals", parser_of(command)) for command in COMMANDS]
    while waiting:
        name, parser = waiting.pop()
        yield from ((name, text) for text in (parser.description, parser.epilog) if text)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [(f"{name} {word}", sub) for word, sub in action.choices.items()]
            elif action.help and action.help != argparse.SUPPRESS:
                yield f"{name} {(action.option_strings or [action.dest])[-1]}", action.help


def _literals() -> Iterator[tuple[str, str, str]]:
    """The strings of the code that read as prose. A value that is put in stands as its expression in braces."""
    for package in FLOOR:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            kind = "board" if package == BOARDS else "message"
            for line, text in _strings(tree):
                if not MACHINE.search(text):
                    yield kind, f"{path.relative_to(ROOT)}:{line}", text


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(_part(value) for value in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _document_texts() -> Iterator[tuple[str, str, str]]:
    docs = ROOT / "docs"
    for path in [ROOT / "README.md", *sorted(docs.glob("*.md")), *sorted((docs / "journeys").glob("*.md"))]:
        if path.stem not in NO_DOCUMENTS:
            for paragraph in paragraphs(path.read_text(encoding="utf-8")):
                yield "document", str(path.relative_to(ROOT)), paragraph


def paragraphs(page: str) -> list[str]:
    """The prose of a document, each paragraph and each item of a list by itself."""
    before, _, rest = page.partition(READING)
    _, heading, after = rest.partition("\n## ")
    prose = CODE.sub("\n\n", before + heading + after)
    return re.split(r"\n\s*\n", ITEM.sub("\n\n", LINK.sub(r"\1", prose)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Print a draw of the sentences that users read.")
    parser.add_argument("--seed", type=int, required=True)
    for kind, place, sentence in draw(parser.parse_args().seed):
        print(f"{kind}\t{place}\t{sentence}")


if __name__ == "__main__":
    main()
