"""Every test of the page begins as in a process that just started."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator

import pytest
import streamlit as st
from streamlit import config as streamlit_options
from streamlit.components.v2 import manifest_scanner

from kvitals.ui.web.sources import recording

installed_components = functools.cache(manifest_scanner.scan_component_manifests)


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is cached, no settings are set; Streamlit's own deprecations are not ours."""
    for name in ("KVITALS_WEB", "KVITALS_API"):
        monkeypatch.delenv(name, raising=False)
    # Streamlit reads the metadata of all installed packages whenever an app starts; they stay the same.
    monkeypatch.setattr(manifest_scanner, "scan_component_manifests", installed_components)
    monkeypatch.setattr(recording, "PATIENCE_SECONDS", 120.0)  # no test is about how long a replay takes
    # Streamlit collects garbage after each run of the app, which takes a second where other tests left many objects.
    streamlit_options.set_option("runner.postScriptGC", False)
    st.cache_data.clear()
    st.cache_resource.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
