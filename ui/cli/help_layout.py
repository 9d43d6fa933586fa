"""Plain text at the width of the terminal: help, descriptions, and whatever is printed without colours.

It imports the standard library alone, because `--help` answers at once. Coloured text is laid out in `narrow`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator

LEAST_TEXT = 18
"""Columns beside a label; with fewer the text stands below the label."""

BELOW = 4
"""Columns by which such a text is indented, and the next line of a command."""

FENCE = "```"
_LABEL = re.compile(r"\s*\S.*?\s{2,}(?=\S)")
_BULLET = re.compile(r"\s*[-*] ")
_NUMBER = re.compile(r"(?<=\d) (?=(?:%|ms|s|GB)(?:\W|$))")
_TIE = "\N{NO-BREAK SPACE}"
_COMMAND = re.compile(r"\s*kvitals \S")


def lay_out(text: str, columns: int) -> str:
    """A text whose lines have at most so many columns.

    A paragraph is broken anew. A row (a label, two blanks, its text) goes on below its text. A command goes on after a
    backslash, so that it can be copied. A block between fences stays as it is.
    """
    lines: list[str] = []
    fenced = False
    for line in _logical(text):
        fence = line.startswith(FENCE)
        lines += [line] if fenced or fence else _broken(line, columns)
        fenced ^= fence
    return "\n".join(lines)


def _logical(text: str) -> Iterator[str]:
    """The lines of a text, those of one paragraph or of one row in one."""
    held: str | None = None
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith(FENCE)
        joins = held is not None and held.strip() and not fenced and not _begins(line, held)
        if joins:
            held = f"{held} {line.strip()}"
            continue
        if held is not None:
            yield held
        held = line
    if held is not None:
        yield held


def _begins(line: str, before: str) -> bool:
    """Whether a line begins a paragraph, a row or a command, and does not continue the one before."""
    if not line.strip() or before.startswith(FENCE) or line.startswith(FENCE) or _COMMAND.match(line):
        return True
    return bool(_BULLET.match(line)) or len(_label(line)) != _indent(line) or _indent(line) != len(_label(before))


def _label(line: str) -> str:
    """What stands before the text of a line: its indentation, its bullet, or the label of a row."""
    found = _BULLET.match(line) or _LABEL.match(line)
    return found[0] if found else line[: _indent(line)]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _broken(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    label = _label(line)
    command = bool(_COMMAND.match(line))
    if command and len(label) == _indent(line):
        return list(_command(line, columns))
    below = " " * len(label)
    if label.strip() and len(label) > columns - LEAST_TEXT:
        below = " " * (_indent(line) + BELOW)
        first = list(_command(label.rstrip(), columns)) if command else _wrapped(label.rstrip(), columns, "", below)
        return [*first, *_wrapped(line[len(label) :], columns, below, below)]
    return _wrapped(line[len(label) :], columns, label, below)


def _wrapped(text: str, columns: int, first: str, rest: str) -> list[str]:
    """A word that is longer than a line, such as a URL, stays whole, and so does a number with its unit."""
    lines = textwrap.wrap(
        _NUMBER.sub(_TIE, text),
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TIE, " ") for line in lines]


def _command(line: str, columns: int) -> Iterator[str]:
    """A command line over several lines: each but the last ends with a backslash."""
    indent = " " * _indent(line)
    held = ""
    for word in _options(line.split()):
        if held and len(held) + 1 + len(word) + 2 > columns:
            yield f"{held} \\"
            held = f"{indent}{' ' * BELOW}{word}"
        else:
            held = f"{held} {word}" if held else f"{indent}{word}"
    yield held


def _options(words: Iterable[str]) -> Iterator[str]:
    """Words of a command, those between quotes in one, and an option with its value."""
    held: list[str] = []
    for word in words:
        open_quote = not _closed(" ".join(held))
        is_value = bool(held) and held[0].startswith("-") and len(held) == 1 and not word.startswith("-")
        if held and not open_quote and not is_value:
            yield " ".join(held)
            held = []
        held.append(word)
    if held:
        yield " ".join(held)


def _closed(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return False
    return True


class HelpLayout(argparse.HelpFormatter):
    """Help whose paragraphs, tables and examples fit the terminal. The usage names what must be given; the options are
    listed below it."""

    def _format_usage(self, usage, actions, groups, prefix):  # type: ignore[no-untyped-def]
        if prefix == "":  # argparse asks for the words before those of a subcommand
            return str(self._prog)
        required = {id(one) for group in groups if group.required for one in group._group_actions}
        optional = [a for a in actions if a.option_strings and not a.required and id(a) not in required]
        shown = [action for action in actions if action not in optional]
        kept = [group for group in groups if group.required]
        options = " [options]" if any(action.dest != "help" for action in optional) else ""
        named = " ".join(str(super()._format_usage(None, shown, kept, "")).split())
        words = f"{self._prog}{options}{named.removeprefix(self._prog)}"
        return lay_out(f"usage:  {words}", self._width).replace("usage:  ", "usage: ", 1) + "\n\n"

    def _fill_text(self, text, width, indent):  # type: ignore[no-untyped-def]
        return lay_out(textwrap.indent(text, indent), width)
