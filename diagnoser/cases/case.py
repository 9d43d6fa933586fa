"""The shape of a case file, `cases/CODE.yaml`, and how it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from kvitals.rules.finding import Outcome
from kvitals.rules.loader import KnowledgeProblem, convert, read_yaml
from kvitals.rules.model import Code, Text

Series = Annotated[dict[str, Text], Meta(min_length=1, max_length=200)]


class Case(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Series, and the outcome that the rule must have on the engine `e` at the last of their samples."""

    title: Text
    expect: Outcome
    series: Series  # name{label="value"} -> values in promtool's notation (diagnoser/cases/notation.py)
    interval: Annotated[str, Meta(pattern=r"^[1-9]\d{0,5}[smhd]$")] = "5s"  # between two samples
    at: Annotated[str, Meta(pattern=r"^(\d+[smhd])?$")] = ""  # since the first sample; empty: the last sample
    cold: bool = False  # a cold triage: one look over everything that was seen
    says: str = ""  # text of the conclusion or, where the rule did not fire, of the reason
    setting: str = ""  # "flag now -> to" of the first lever that has one


class _Content(Struct, frozen=True, forbid_unknown_fields=True):
    code: Code
    cases: Annotated[list[Case], Meta(min_length=1, max_length=500)]


@dataclass(frozen=True)
class CaseFile:
    """The cases of one rule, and at which lines of their file they begin."""

    path: Path
    code: str
    cases: tuple[Case, ...]
    lines: tuple[int, ...]

    def __iter__(self) -> Iterator[tuple[Case, int]]:
        return iter(zip(self.cases, self.lines, strict=True))


def read(path: Path) -> CaseFile | KnowledgeProblem:
    """A case file, or what is wrong with it and where."""
    try:
        file = read_yaml(path)
    except OSError as error:
        return KnowledgeProblem(path, 0, f"cannot be read: {error.strerror}")
    if isinstance(file, KnowledgeProblem):
        return file
    content = convert(file, file.data, _Content)
    if isinstance(content, KnowledgeProblem):
        return content
    if path.stem != content.code:
        return KnowledgeProblem(
            path, file.line("code"), f"it has cases of {content.code}, so its name must be {content.code}.yaml"
        )
    titles = [case.title for case in content.cases]
    for i, title in enumerate(titles):
        if title in titles[:i]:
            return KnowledgeProblem(
                path, file.line("cases", i), f"a second case has the title {title!r}: give each its own title"
            )
    lines = tuple(file.line("cases", i) for i in range(len(titles)))
    return CaseFile(path, content.code, tuple(content.cases), lines)


def read_all(folder: Path) -> tuple[list[CaseFile], list[KnowledgeProblem]]:
    """Every case file of a folder, and what is wrong with those that could not be read."""
    found = [read(path) for path in sorted(folder.glob("*.yaml"))]
    return [f for f in found if isinstance(f, CaseFile)], [p for p in found if isinstance(p, KnowledgeProblem)]
