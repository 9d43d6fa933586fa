"""Who may look: anybody on this machine, or who knows the password, or whom a proxy in front knows."""

from __future__ import annotations

import hmac
import time
from pathlib import Path

import streamlit as st

from kvitals.app.page_settings import PageSettings
from kvitals.series.files import read_regular
from kvitals.ui.web.page_text import literal

MAX_PASSWORD_BYTES = 4096
WAIT_SECONDS = 1.0
_ADMITTED = "admitted"


def admit_viewer(settings: PageSettings) -> bool:
    """Whether this viewer may look; draws what to do where not."""
    if settings.identity_header and not _identity(settings.identity_header):
        _refuse(
            "The user is unknown",
            f"The proxy in front did not send {settings.identity_header}. Open the page through the proxy.",
        )
        return False
    if not settings.password_file or st.session_state.get(_ADMITTED):
        return True
    wanted = _password(Path(settings.password_file))
    if not wanted:
        _refuse("The password cannot be read", f"{settings.password_file} does not exist or is empty.")
        return False
    with st.form("password", width=420):
        st.markdown("### :material/lock: kvitals")
        given = st.text_input("Password", type="password", max_chars=1000, autocomplete="current-password")
        asked = st.form_submit_button("Look", type="primary")
    if not asked:
        return False
    if hmac.compare_digest(given.encode(), wanted):
        st.session_state[_ADMITTED] = True
        st.rerun()
    time.sleep(WAIT_SECONDS)  # who guesses waits
    st.error("The password is wrong.")
    return False


def viewer(settings: PageSettings) -> str:
    """Who looks, where a proxy tells it."""
    return _identity(settings.identity_header) if settings.identity_header else ""


def _identity(header: str) -> str:
    return (st.context.headers.get(header) or "").strip()[:200]


def _password(path: Path) -> bytes:
    """Read each time, so that it may be replaced."""
    try:
        return read_regular(path, MAX_PASSWORD_BYTES).strip()
    except OSError:
        return b""


def _refuse(title: str, what: str) -> None:
    with st.container(border=True, key="failure"):
        st.markdown(f"### :material/lock: {literal(title)}")
        st.markdown(literal(what))
