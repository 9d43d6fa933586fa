"""The page's shell: what Streamlit runs. Which views there are, and how a view stays live without flicker."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from ui.web.fetch import api_url
from ui.web.views import now

EVERY_SECONDS = 5
STYLE = Path(__file__).with_name("style.css")
ICON = Path(__file__).with_name("icon.svg")


def main() -> None:
    st.set_page_config(page_title="kvitals", page_icon=str(ICON), layout="wide")
    st.html(STYLE)
    page = st.navigation([st.Page(_now, title="Now", url_path="now", default=True)], position="hidden")
    page.run()


def _now() -> None:
    """The verdict of this moment, in a fragment: it alone is drawn again, and keeps what was opened."""
    with st.container(key="bar", horizontal=True, vertical_alignment="center"):
        st.markdown(":material/vital_signs: **kvitals**", width="stretch")
        live = st.toggle("Live", value=True, key="live", help=f"Ask the agent every {EVERY_SECONDS} seconds.")
    st.fragment(now.show, run_every=EVERY_SECONDS if live else None)(api_url())


main()
