"""The app without a browser: opened on a page, and what it says."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import streamlit as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from streamlit.testing.v1 import AppTest

APP = Path(__file__).parents[3] / "ui" / "web" / "app.py"
FAILED = "This page failed"


def run(page: str = "", **link: str) -> Any:
    """The app as a link opens it."""
    app = AppTest.from_file(str(APP), default_timeout=300)
    for name, value in ({"page": page} if page else {}).items() | link.items():
        app.query_params[name] = value
    return sound(app.run())


def again(app: Any) -> Any:
    """The same viewer, some seconds later."""
    st.cache_data.clear()
    return sound(app.run())


def sound(app: Any) -> Any:
    """The app, which did not fail."""
    assert not app.exception, [e.value for e in app.exception]
    assert FAILED not in words(app), words(app)
    return app


def words(app: Any) -> str:
    """All that the page says, without the escapes of Markdown."""
    elements = [*app.markdown, *app.caption, *app.code, *app.expander, *app.metric]
    said = []
    for e in elements:
        said.append(str(e.label) if e.type in ("expander", "metric") else str(e.value))
        if e.type == "metric":
            said.append(str(e.value))
    return "\n".join(said).replace("\\", "").replace("\u2060", "")
