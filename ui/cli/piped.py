"""Standard output where no terminal reads it: nothing is padded, and lines are as wide as those who read want."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, TextIO

COLUMNS = 120
"""Of what goes to a pipe or a file; the environment's COLUMNS says otherwise."""
LEAST_COLUMNS = 40
_PADDING = re.compile(r"[ \t]+(?=\n)")


def columns() -> int:
    """How wide a text for a pipe or a file is."""
    said = os.environ.get("COLUMNS", "")
    return max(int(said), LEAST_COLUMNS) if said.isdecimal() and len(said) < 5 else COLUMNS


class TrimmedStream:
    """A text stream that keeps the blanks at the ends of lines to itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._held = ""

    def write(self, text: str) -> int:
        """As the stream does."""
        whole = _PADDING.sub("", self._held + text)
        kept = whole.rstrip(" \t")
        self._held = whole[len(kept) :]
        self._stream.write(kept)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def output() -> TextIO:
    """Standard output of now, without padding."""
    return TrimmedStream(sys.stdout)  # type: ignore[return-value]
