"""Plain text: no character that moves the cursor, turns the line around or hides what follows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

ODD = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Controls, bidirectional overrides, invisible characters, tags, and halves of surrogate pairs."""
_ODD_IN_LINES = re.compile(ODD.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_BREAK = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_MARK = "\ufffd"


def line(text: str) -> str:
    """Any text on one line."""
    return ODD.sub(_MARK, " ".join(text.split()))


def lines(text: str) -> str:
    """Any text with its line breaks and tabs."""
    return _ODD_IN_LINES.sub(_MARK, text)


def unbroken(text: str) -> str:
    """Any text with a blank in place of each character that begins a line; as many characters as before."""
    return _BREAK.sub(" ", text)


def clip(text: str, most: int) -> str:
    """At most `most` characters, with a mark where some are left out."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def each_text(value: Any, escape: Callable[[str], str] = lines) -> Any:
    """A document as built-in types, each of its texts escaped: with its line breaks and nothing else that a terminal
    obeys, or as `line` has it."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape(key) if isinstance(key, str) else key: each_text(item, escape) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(item, escape) for item in value]
    return value
