"""What one viewer looks at: a source and a window. Both are in the address, so that a link shows the same."""

from __future__ import annotations

import math
import zoneinfo
from datetime import tzinfo
from urllib.parse import urlencode, urlsplit, urlunsplit

import streamlit as st

from kvitals.ui.web import source_registry
from kvitals.ui.web.sources.base import PageWindow

SOURCE, FROM, TO, PAGE = "source", "from", "to", "page"
_PLACE, _LOOK, _TAKEN, _PAGE = "place", "look", "link-taken", "shown-page"
LEAST_SECONDS = 5.0


def take_link() -> str:
    """Begin with what the address names; afterwards the viewer's choices count, and the address follows them.

    Returns the page that it names, the first time. Links name it as a parameter: of a path Streamlit's own browser
    code first asks for what is not there.
    """
    page = ""
    if not st.session_state.get(_TAKEN):
        st.session_state[_TAKEN] = True
        page = st.query_params.get(PAGE, "")
        place = st.query_params.get(SOURCE, "")
        if place and source_registry.is_known(place):
            st.session_state[_PLACE] = place
        st.session_state[_LOOK] = _look_of(st.query_params.get(FROM, ""), st.query_params.get(TO, ""))
    told = parameters()
    if st.query_params.to_dict() != told:
        st.query_params.from_dict(told)
    return page


def place() -> str:
    """The source that is looked at."""
    return str(st.session_state.get(_PLACE) or source_registry.first())


def choose(chosen: str) -> None:
    """Look at another source; its window is another too."""
    if chosen != place():
        st.session_state[_PLACE] = chosen
        st.session_state[_LOOK] = None


def picked_window() -> PageWindow | None:
    """The window that was picked; None: now, or a recording's end."""
    found = st.session_state.get(_LOOK)
    return found if isinstance(found, PageWindow) else None


def pick(chosen: PageWindow | None) -> None:
    """Look at another window."""
    st.session_state[_LOOK] = chosen


def parameters() -> dict[str, str]:
    """What a link needs to show the same. An address that somebody typed is not told to others."""
    told = {SOURCE: place()} if place() != source_registry.first() and source_registry.is_known(place()) else {}
    if (window := picked_window()) is not None:
        told |= {FROM: f"{window.start:.3f}", TO: f"{window.end:.3f}"}
    return told


def link() -> str:
    """An address that shows what is seen now."""
    parts = urlsplit(st.context.url or "http://localhost/")
    page = str(st.session_state.get(_PAGE, ""))
    told = ({PAGE: page} if page else {}) | parameters()
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(told), ""))


def on_page(path: str) -> None:
    """Remember which page is shown, for links."""
    st.session_state[_PAGE] = path


def zone() -> tzinfo | None:
    """The reader's time zone, as the browser tells it."""
    try:
        return zoneinfo.ZoneInfo(st.context.timezone or "UTC")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _look_of(start: str, end: str) -> PageWindow | None:
    try:
        found = PageWindow(float(start), float(end))
    except ValueError:
        return None
    good = math.isfinite(found.start) and math.isfinite(found.end) and 0 < found.start < found.end < 4e9
    return found if good and found.seconds >= LEAST_SECONDS else None
