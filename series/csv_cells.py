"""Cells of CSV files that spreadsheets open."""

from __future__ import annotations

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def cell(text: str) -> str:
    """A text that a spreadsheet would take for a formula begins with an apostrophe: names come from outside.

    Numbers, such as the bound `+Inf` of a bucket, stay as they are.
    """
    if not text.lstrip().startswith(_FORMULA) and text[:1] not in ("\t", "\r", "\n"):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
