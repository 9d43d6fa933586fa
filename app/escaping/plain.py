"""Plain text: no character that moves the cursor, turns the line around or hides what follows."""

from __future__ import annotations

import re
from typing import Any

ODD = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Controls, bidirectional overrides, invisible characters, tags, and halves of surrogate pairs."""
_ODD_IN_LINES = re.compile(ODD.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_MARK = "\ufffd"


def line(text: str) -> str:
    """Any text on one line."""
    return ODD.sub(_MARK, " ".join(text.split()))


def lines(text: str) -> str:
    """Any text with its line breaks and tabs."""
    return _ODD_IN_LINES.sub(_MARK, text)


def clip(text: str, most: int) -> str:
    """At most `most` characters, with a mark where some are left out."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def each_text(value: Any) -> Any:
    """A document as built-in types, each of its texts with its line breaks and nothing else that a terminal obeys."""
    if isinstance(value, str):
        return lines(value)
    if isinstance(value, dict):
        return {lines(key) if isinstance(key, str) else key: each_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(item) for item in value]
    return value
