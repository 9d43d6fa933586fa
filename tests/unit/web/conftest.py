"""Every test of the page begins as in a process that just started."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import streamlit as st

from kvitals.ui.web.sources import recording


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is cached, no settings are set; Streamlit's own deprecations are not ours."""
    for name in ("KVITALS_WEB", "KVITALS_API"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(recording, "PATIENCE_SECONDS", 120.0)  # no test is about how long a replay takes
    st.cache_data.clear()
    st.cache_resource.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
