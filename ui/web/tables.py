"""Tables of rows, as high as they need to be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from kvitals.app.escaping import plain
from kvitals.rules.finding import Measure

ROW, HEAD, MOST = 35, 38, 420

SHARE: dict[str, Any] = {"format": "percent", "min_value": 0, "max_value": 1}
"""Options of a column that shows a share as a bar."""


def share(text: str = "") -> Any:
    """A column of shares, drawn as bars."""
    return st.column_config.ProgressColumn(help=text or None, **SHARE)


def number(format_: str = "localized", text: str = "") -> Any:
    """A column of numbers; `compact` shortens them."""
    return st.column_config.NumberColumn(format=format_, help=text or None)


def show(
    rows: Sequence[Mapping[str, Any]], key: str, columns: Mapping[str, Any] | None = None, *, most: int = MOST
) -> None:
    """Rows of text, numbers and figures of a document: of those the text is shown, and rows are sorted by the value.
    Text is drawn as it is, on one line: nothing in it can act, turn the line around or be invisible."""
    rows = plain.each_text(rows, plain.line)
    figures = list(dict.fromkeys(name for row in rows for name, cell in row.items() if isinstance(cell, Measure)))
    data: Any = _with_texts(rows, figures) if figures else list(rows)
    height: Any = "content" if HEAD + ROW * len(rows) <= most else most
    st.dataframe(data, hide_index=True, width="stretch", height=height, key=key, column_config=dict(columns or {}))


def _with_texts(rows: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> Any:
    """A table that holds the values of figures and shows their texts."""
    table = pd.DataFrame([{name: _value(cell) for name, cell in row.items()} for row in rows])
    texts = {name: {_value(row[name]): plain.line(row[name].text) for row in rows if name in row} for name in figures}
    return table.style.format({name: of.__getitem__ for name, of in texts.items()}, na_rep="")


def _value(cell: Any) -> Any:
    """What a cell is sorted by: a figure without a value is beyond the last bucket of its histogram."""
    if not isinstance(cell, Measure):
        return cell
    return math.inf if cell.value is None else cell.value
