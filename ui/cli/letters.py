"""Letters for terminals and files whose encoding lacks ours: an arrow is `->` there and not `?`."""

from __future__ import annotations

import codecs

NAME = "kvitals.letters"
"""The error handler's name, for `errors=`."""

LETTERS = {
    "→": "->", "←": "<-", "·": "-", "…": "...", "–": "-", "—": "-", "×": "x", "±": "+-", "≤": "<=", "≥": ">=", "µ": "u",
    "✓": "+", "✗": "x", "“": '"', "”": '"', "‘": "'", "’": "'", "•": "*", " ": " ",
    "▁": "_", "▂": ".", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "█": "#",
    "▉": "#", "▊": "#", "▋": "+", "▌": "=", "▍": "-", "▎": ".", "▏": ".", "░": ".", "▒": "-", "▓": "=",
    "─": "-", "│": "|", "━": "-", "┃": "|", "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "┼": "+",
    "╭": "+", "╮": "+", "╯": "+", "╰": "+", "╸": "-", "╺": "-", "╶": "-", "╴": "-",
}  # fmt: skip


def register() -> None:
    """Make the handler known under `NAME`."""
    codecs.register_error(NAME, _replaced)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(LETTERS.get(letter, "?") for letter in text), error.end
