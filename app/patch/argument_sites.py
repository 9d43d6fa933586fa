"""Where the arguments of an engine stand: words of a shell text, or items of a YAML list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import yaml

from kvitals.app.patch.lever_change import PatchError
from kvitals.app.patch.source_text import ShellWord, SourceText, TextEdit, shell_quote


class ArgumentSite(Protocol):
    """Arguments that stand together. Indices are of `values`."""

    @property
    def values(self) -> Sequence[str]: ...

    def replace(self, index: int, value: str) -> TextEdit: ...

    def remove(self, first: int, last: int) -> list[TextEdit]: ...

    def insert(self, groups: Sequence[Sequence[str]]) -> TextEdit:
        """After the last argument: groups of words, a flag and its value."""


@dataclass(frozen=True)
class ShellSite:
    """Words of one command. file: the whole file, for the blanks between words."""

    file: str
    source: SourceText
    words: Sequence[ShellWord]

    @property
    def values(self) -> Sequence[str]:
        return [word.value for word in self.words]

    def replace(self, index: int, value: str) -> TextEdit:
        word = self.words[index]
        return TextEdit(*self.source.span(word.start, word.end), self.source.escape(shell_quote(value)))

    def remove(self, first: int, last: int) -> list[TextEdit]:
        end = self._end(last)
        if first:
            return [TextEdit(self._end(first - 1), end, "")]
        start = self.source.span(self.words[0].start, self.words[0].end)[0]
        if last + 1 < len(self.words):
            end = self.source.span(self.words[last + 1].start, self.words[last + 1].end)[0]
        return [TextEdit(start, end, "")]

    def insert(self, groups: Sequence[Sequence[str]]) -> TextEdit:
        escape, separator = self.source.escape, self._separator()
        texts = [separator + " ".join(escape(shell_quote(word)) for word in group) for group in groups]
        end = self._end(len(self.words) - 1)
        return TextEdit(end, end, "".join(texts))

    def _end(self, index: int) -> int:
        word = self.words[index]
        return self.source.span(word.start, word.end)[1]

    def _separator(self) -> str:
        """What stands before the last flag, where that begins a line: each flag has a line of its own then."""
        for index in range(len(self.words) - 1, 0, -1):
            if self.words[index].value.startswith("-"):
                start = self.source.span(self.words[index].start, self.words[index].end)[0]
                between = self.file[self._end(index - 1) : start]
                return between if "\n" in between else " "
        return " "


@dataclass(frozen=True)
class ListSite:
    """Items of a YAML list of texts."""

    file: str
    node: yaml.SequenceNode
    items: Sequence[yaml.ScalarNode]

    @property
    def values(self) -> Sequence[str]:
        return [str(item.value) for item in self.items]

    def replace(self, index: int, value: str) -> TextEdit:
        item = self.items[index]
        return TextEdit(item.start_mark.index, item.end_mark.index, self._written(value, item.style))

    def remove(self, first: int, last: int) -> list[TextEdit]:
        if self.node.flow_style:
            return [self._removed_from_flow(first, last)]
        return [TextEdit(*self._lines(index), "") for index in range(first, last + 1)]

    def insert(self, groups: Sequence[Sequence[str]]) -> TextEdit:
        style = next((item.style for item in reversed(self.items) if item.value.startswith("-")), self.items[-1].style)
        joined = any(item.value.startswith("--") and "=" in item.value for item in self.items)
        values = ["=".join(group) for group in groups] if joined else [word for group in groups for word in group]
        texts = [self._written(value, style) for value in values]
        if self.node.flow_style:
            end = self.items[-1].end_mark.index
            return TextEdit(end, end, "".join(f", {text}" for text in texts))
        start, end = self._lines(len(self.items) - 1)
        lead = self.file[start : self.items[-1].start_mark.index]
        if self.file[end - 1 : end] == "\n":
            return TextEdit(end, end, "".join(f"{lead}{text}\n" for text in texts))
        return TextEdit(end, end, "".join(f"\n{lead}{text}" for text in texts))

    def _removed_from_flow(self, first: int, last: int) -> TextEdit:
        items = self.items
        if first:
            return TextEdit(items[first - 1].end_mark.index, items[last].end_mark.index, "")
        end = items[last + 1].start_mark.index if last + 1 < len(items) else items[last].end_mark.index
        return TextEdit(items[0].start_mark.index, end, "")

    def _lines(self, index: int) -> tuple[int, int]:
        """Where the lines of an item begin and end, with the line end. Raises PatchError for an item beside another."""
        item = self.items[index]
        start = self.file.rfind("\n", 0, item.start_mark.index) + 1
        if self.file[start : item.start_mark.index].strip() != "-":
            raise PatchError(f"line {item.start_mark.line + 1}: write each argument on its own line")
        end = item.end_mark.index
        if item.style not in ("|", ">"):
            found = self.file.find("\n", end)
            end = len(self.file) if found < 0 else found + 1
        return start, end

    def _written(self, value: str, style: str | None) -> str:
        """A text in the style of the list; in double quotes where it would be read as something else without."""
        if style is None and _is_plain_text(value, flow=bool(self.node.flow_style)):
            return value
        quotes = style or next((item.style for item in self.items if item.style in ("'", '"')), '"')
        if quotes == "'" or ('"' in value and "'" not in value):
            return "'" + value.replace("'", "''") + "'"
        return json.dumps(value, ensure_ascii=False)


def _is_plain_text(value: str, *, flow: bool) -> bool:
    """Whether YAML reads a text without quotes as this text."""
    if not value or value != value.strip() or (flow and any(character in ",[]{}" for character in value)):
        return False
    try:
        return bool(yaml.safe_load(f"- {value}\n") == [value])
    except yaml.YAMLError:
        return False
