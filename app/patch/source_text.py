"""Text within text: the words of a command line and where each of their characters stands in the file.

A command line can stand in a shell script, in a YAML scalar of any style, or in an argument of `sh -c` within these. An
edit replaces the characters of a word and leaves all others as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import yaml

from kvitals.app.patch.lever_change import PatchError

Escape = Callable[[str], str]

_OPERATORS = frozenset(";&|<>()")
_DOUBLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/", " ": " "}
_HEX = {"x": 2, "u": 4, "U": 8}
_UNSAFE_PLAIN = re.compile(r": |:$| #|^[\s&*!|>'\"%@`?#{\[,\]}-]\s?$|^[&*!|>'\"%@`{\[#]")


@dataclass(frozen=True)
class TextEdit:
    """Characters of a file that are replaced; start = end inserts."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class SourceText:
    """A decoded text. starts, ends: where each character begins and ends in the file. escape: how text is written
    there. lines: whether a line end separates commands."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]
    escape: Escape
    lines: bool

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where decoded characters stand in the file."""
        return self.starts[start], self.ends[end - 1]


@dataclass(frozen=True)
class ShellWord:
    """One word of a command. indices: of the decoded text, for each character of the value; quote: that it is written
    in, empty for none."""

    value: str
    start: int
    end: int
    indices: Sequence[int]
    quote: str


def apply_edits(source: str, edits: Sequence[TextEdit]) -> str:
    """The file after the edits, which do not overlap."""
    for edit in sorted(edits, key=lambda one: (one.start, one.end), reverse=True):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source


def raw_text(source: str, start: int, end: int, *, lines: bool, escape: Escape = str) -> SourceText:
    """Characters that stand in the file as they are."""
    return SourceText(source[start:end], range(start, end), range(start + 1, end + 1), escape, lines)


def doubled_text(source: str, start: int, end: int, character: str) -> SourceText:
    """Characters that stand in the file as they are, but for one that is written twice."""
    text: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = start
    while at < end:
        width = 2 if source[at : at + 2] == 2 * character else 1
        text.append(source[at])
        starts.append(at)
        ends.append(at + width)
        at += width
    return SourceText("".join(text), starts, ends, lambda new: new.replace(character, 2 * character), False)


def scalar_text(source: str, node: yaml.ScalarNode, *, flow: bool = False) -> SourceText:
    """The content of a YAML scalar. flow: whether it stands in a flow collection, whose plain scalars take less."""
    start, end = node.start_mark.index, node.end_mark.index
    if node.style == "'":
        return doubled_text(source, start + 1, end - 1, "'")
    if node.style == '"':
        return _double_quoted(source, start + 1, end - 1)
    if node.style in ("|", ">"):
        first = source.index("\n", start) + 1
        return raw_text(source, first, end, lines=node.style == "|")
    return raw_text(source, start, end, lines=False, escape=_plain_escape(flow))


def shell_commands(source: SourceText, *, script: bool = True) -> Iterator[list[ShellWord]]:
    """The commands of a shell text, each as its words without redirections. script: whether operators, comments and
    line ends have their meaning, as they have not in a systemd unit."""
    lexer, words, redirected = _Lexer(source, script), list[ShellWord](), False
    for word in lexer.words():
        if word is None or isinstance(word, str):
            redirected = redirected or word in ("<", ">")
            if word is None or word not in ("<", ">"):
                if words:
                    yield words
                words, redirected = [], False
        elif not redirected:
            words.append(word)
    if words:
        yield words


def word_text(source: SourceText, word: ShellWord) -> SourceText:
    """The content of a word that is a command line of its own, as after `sh -c`."""
    starts, ends = [source.starts[i] for i in word.indices], [source.ends[i] for i in word.indices]
    if word.quote == "'":
        return SourceText(word.value, starts, ends, lambda text: source.escape(text.replace("'", "'\\''")), True)
    if word.quote == '"':
        return SourceText(word.value, starts, ends, lambda text: source.escape(_in_double_quotes(text)), True)
    raise PatchError("the command after `sh -c` is not quoted; write it in quotes")


def shell_quote(value: str) -> str:
    """A word as a shell takes it."""
    return shlex.quote(value)


class _Lexer:
    """Splits a shell text as sh does, and keeps where each character came from."""

    def __init__(self, source: SourceText, script: bool) -> None:
        self._source, self._script, self._at = source, script, 0

    def words(self) -> Iterator[ShellWord | str | None]:
        """Words; operators as text; None for a line end that separates commands."""
        text = self._source.text
        while self._at < len(text):
            character = text[self._at]
            if character == "\\" and text[self._at + 1 : self._at + 2] == "\n":
                self._at += 2
            elif character == "\n" and self._script and self._source.lines:
                self._at += 1
                yield None
            elif character.isspace():
                self._at += 1
            elif self._script and character == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif self._script and character in _OPERATORS:
                self._at += 1
                yield character
            else:
                word = self._word()
                following = text[self._at : self._at + 1]
                if not (self._script and word.value.isdecimal() and following in ("<", ">") and following):
                    yield word

    def _word(self) -> ShellWord:
        text, start = self._source.text, self._at
        value: list[str] = []
        indices: list[int] = []
        while self._at < len(text) and not text[self._at].isspace():
            character = text[self._at]
            if self._script and character in _OPERATORS:
                break
            if character in "'\"":
                self._quoted(character, value, indices)
            elif character == "$" and text[self._at + 1 : self._at + 2] == "(":
                self._substitution(value, indices)
            elif character == "\\" and self._at + 1 < len(text):
                if text[self._at + 1] == "\n":
                    break
                value.append(text[self._at + 1])
                indices.append(self._at + 1)
                self._at += 2
            else:
                value.append(character)
                indices.append(self._at)
                self._at += 1
        quote = text[start] if text[start] in "'\"" and text[self._at - 1] == text[start] else ""
        return ShellWord("".join(value), start, self._at, indices, quote)

    def _quoted(self, quote: str, value: list[str], indices: list[int]) -> None:
        text, self._at = self._source.text, self._at + 1
        while self._at < len(text) and text[self._at] != quote:
            if quote == '"' and text[self._at] == "\\" and text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`"):
                self._at += 1
            value.append(text[self._at])
            indices.append(self._at)
            self._at += 1
        if self._at >= len(text):
            raise PatchError(f"the command line has a quote {quote} that is not closed")
        self._at += 1

    def _substitution(self, value: list[str], indices: list[int]) -> None:
        text, depth = self._source.text, 0
        while self._at < len(text):
            character = text[self._at]
            value.append(character)
            indices.append(self._at)
            self._at += 1
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == ")" and depth == 0:
                return


def _double_quoted(source: str, start: int, end: int) -> SourceText:
    text: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = start
    while at < end:
        character, width = source[at], 1
        if character == "\\":
            code = source[at + 1]
            if code in _HEX:
                width = 2 + _HEX[code]
                character = chr(int(source[at + 2 : at + width], 16))
            elif code == "\n":
                width, character = 2, " "
            else:
                width, character = 2, _DOUBLE_ESCAPES.get(code, code)
        text.append(character)
        starts.append(at)
        ends.append(at + width)
        at += width
    return SourceText("".join(text), starts, ends, _double_escape, False)


def _double_escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _in_double_quotes(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _plain_escape(flow: bool) -> Escape:
    def escape(text: str) -> str:
        if _UNSAFE_PLAIN.search(text) or (flow and any(character in ",[]{}" for character in text)):
            raise PatchError(f"`{text.strip()}` needs quotes in YAML; quote the command first")
        return text

    return escape
