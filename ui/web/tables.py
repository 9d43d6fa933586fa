"""Tables of rows, as high as they need to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

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
    """Rows of text and numbers. Text is drawn as it is: nothing in it can act."""
    data: Any = list(rows)
    height: Any = "content" if HEAD + ROW * len(rows) <= most else most
    st.dataframe(data, hide_index=True, width="stretch", height=height, key=key, column_config=dict(columns or {}))
