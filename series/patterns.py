"""Regular expressions that come from outside: from a query, a rule, a map of logs or spans, a recording.

This is the only place that compiles them. RE2 matches them, in time linear in the text, with the syntax that Prometheus
has. A pattern matches a whole value, and `.` matches every character, as in `^(?s:PATTERN)$`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import re2

MAX_CHARACTERS = 10_000
"""Of one pattern."""

MAX_PROGRAMS = 50_000
"""Instructions of all patterns of one query together; 5 ms of compilation for each 8,000 of them."""

_MEMORY = 1 << 19  # bytes of a compiled pattern and its automaton; limits a program to about 8,000 instructions
_KEPT = 64  # compiled patterns: 32 MB at most
_LITERAL = r"(?:[^\\.+*?()|\[\]{}^$\ud800-\udfff]|\\[\\.+*?()\[\]{}^$/:-])*+"  # without an escaped |: a | separates
_ALTERNATIVES = re.compile(rf"{_LITERAL}(?:\|{_LITERAL})*+")
_AROUND = re.compile(rf"(?P<before>\.[*+])?+(?P<text>{_LITERAL})(?P<after>\.[*+])?+")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(?P<escape>.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


class PatternError(ValueError):
    """A pattern that RE2 refuses or that is too large. The message says which, why, and what to do."""


class Pattern:
    """A compiled pattern. `program`: its instructions, 0 for one that needs no regular expression.

    No method raises: a lone surrogate in a value is read as U+FFFD, as Prometheus reads bytes that are not UTF-8.
    """

    __slots__ = ("_matches", "program")

    def __init__(self, text: str) -> None:
        simple = _simple(text)
        if simple is not None:
            self._matches, self.program = simple, 0
            return
        regex = _compiled(text, captures=False)
        self._matches = lambda value: regex.fullmatch(_utf8(value)) is not None
        self.program = int(regex.programsize)

    def matches(self, value: str) -> bool:
        """Whether the pattern matches the whole of a value."""
        return self._matches(value)


class PatternGroups:
    """A compiled pattern that gives the parts of a value that its groups match."""

    __slots__ = ("_names", "_regex")

    def __init__(self, text: str) -> None:
        self._regex = _compiled(text, captures=True)
        self._names = {name.decode(): number for name, number in self._regex.groupindex.items()}

    @property
    def names(self) -> frozenset[str]:
        """The groups that have a name."""
        return frozenset(self._names)

    def of(self, value: str) -> dict[str, str] | None:
        """The text of each group by its number and its name, empty for one that takes no part. None: no match."""
        match = self._regex.fullmatch(_utf8(value))
        if match is None:
            return None
        texts = [match[0], *match.groups(b"")]
        numbered = {str(number): text.decode(errors="replace") for number, text in enumerate(texts)}
        return numbered | {name: numbered[str(number)] for name, number in self._names.items()}


@lru_cache(maxsize=_KEPT)
def compile_pattern(text: str) -> Pattern:
    """The pattern, compiled once. Raises PatternError."""
    return Pattern(text)


@lru_cache(maxsize=_KEPT // 4)
def groups(text: str) -> PatternGroups:
    """The pattern with its groups, compiled once. Raises PatternError."""
    return PatternGroups(text)


def _simple(text: str) -> Callable[[str], bool] | None:
    """What most patterns are, tested without a regular expression at a tenth of the time: one of some texts, or a text
    with anything before or after it. None for any other pattern."""
    if len(text) > MAX_CHARACTERS:
        return None
    if _ALTERNATIVES.fullmatch(text):
        return frozenset(map(_unescaped, text.split("|"))).__contains__
    found = _AROUND.fullmatch(text)
    if found is None:
        return None
    inner, before, after = _unescaped(found["text"]), found["before"], found["after"]
    least = len(inner) + (before == ".+") + (after == ".+")
    if not inner:
        return lambda value: len(value) >= least
    if not before:
        return lambda value: len(value) >= least and value.startswith(inner)
    if not after:
        return lambda value: len(value) >= least and value.endswith(inner)
    start, end = int(before == ".+"), int(after == ".+")
    return lambda value: value.find(inner, start, len(value) - end) >= 0


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _compiled(text: str, *, captures: bool) -> Any:
    if len(text) > MAX_CHARACTERS:
        raise PatternError(
            f"a regular expression has {len(text)} characters, but only {MAX_CHARACTERS} are allowed: use "
            f"several matchers"
        )
    shown = ascii(text if len(text) <= 100 else text[:100] + "...")
    if _SURROGATE.search(text):
        raise PatternError(
            f"invalid regular expression {shown}: it has half of a surrogate pair: write whole characters"
        )
    if any(found["escape"] == "C" for found in _ESCAPES.finditer(text)):
        raise PatternError(rf"invalid regular expression {shown}: invalid escape sequence: \C; match characters")
    options = re2.Options()
    options.max_mem, options.dot_nl = _MEMORY, True
    options.log_errors, options.never_capture = False, not captures
    try:
        return re2.compile(text.encode(), options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace")[:200]  # it may repeat the whole pattern
    finally:
        re2.purge()  # it would keep 128 more, and the ones here have a bound of their own
    if why.startswith("pattern too large"):
        raise PatternError(f"the regular expression {shown} is too large when compiled: use fewer or shorter repeats")
    raise PatternError(f"invalid regular expression {shown}: {why}; use RE2 syntax, as for Prometheus")


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", value).encode()
