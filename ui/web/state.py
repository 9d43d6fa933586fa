"""What one viewer looks at: a source, a window, and what is picked on the page. All of it is in the address, so that a
link shows the same."""

from __future__ import annotations

import math
import zoneinfo
from collections.abc import Mapping
from datetime import tzinfo
from urllib.parse import urlencode, urlsplit, urlunsplit

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from kvitals.ui.web import source_registry
from kvitals.ui.web.sources.base import PageWindow

SOURCE, FROM, TO, PAGE = "source", "from", "to", "page"
FOCUS = ("engine", "tenant", "request", "rule", "lever")
"""What a link may pick on a page, by parameter."""

GO = "go"
"""Parameter of the links on the page: the number of links followed before. The browser repeats an old address in
requests that are under way, so an address counts once."""

MAX_FOCUS = 300
"""Characters of a name in a link."""

_PLACE, _LOOK, _TAKEN, _PAGE = "place", "look", "link-taken", "shown-page"
_MISSED, _MISSED_PICKS = "link-missed", "link-missed-picks"
_FOCUS, _PENDING, _FOLLOWED, _FOCUS_PAGE = "focus", "focus-pending", "links-followed", "focus-page"
LEAST_SECONDS = 5.0


def take_link() -> str:
    """Adopt what the address names, once for each link that is opened or followed, and after the browser's Back and
    Forward. Otherwise the viewer's choices count, and the address follows them.

    Returns the page that a link names as a parameter, at the first visit: of a path Streamlit's own browser code first
    requests what is not there.
    """
    told = st.query_params.to_dict()
    first_visit = not st.session_state.get(_TAKEN)
    followed = told.get(GO) == str(_followed())
    if not first_visit and not followed and not _went_back():
        return ""
    st.session_state[_TAKEN] = True
    st.session_state[_FOLLOWED] = _followed() + followed
    source = told.get(SOURCE, "")
    st.session_state[_MISSED], st.session_state[_MISSED_PICKS] = {}, {}
    if source and source_registry.is_known(source):
        st.session_state[_PLACE] = source
    elif source:
        _miss(SOURCE, f"the source {source[:MAX_FOCUS]}")
    elif source_registry.is_known(place()):
        st.session_state[_PLACE] = source_registry.first()
    start, end = told.get(FROM, ""), told.get(TO, "")
    st.session_state[_LOOK] = _look_of(start, end)
    if (start or end) and picked_window() is None:
        _miss(FROM, f"the time range {start[:MAX_FOCUS] or 'nothing'} to {end[:MAX_FOCUS] or 'nothing'}")
    picked = {name: told[name][:MAX_FOCUS] for name in FOCUS if told.get(name)}
    st.session_state[_FOCUS], st.session_state[_PENDING] = picked, dict(picked)
    st.session_state[_FOCUS_PAGE] = None
    return told.get(PAGE, "") if first_visit else ""


def _miss(name: str, what: str) -> None:
    """Remember that a link names what does not exist."""
    st.session_state[_MISSED][name] = what


def miss_page(path: str) -> None:
    """A link names a page that does not exist."""
    _miss(PAGE, f"the page {path[:MAX_FOCUS]}")


def missed_selections() -> list[str]:
    """What the link named that does not exist: sources, time ranges and pages. Until the next link."""
    return list((st.session_state.get(_MISSED) or {}).values())


def missed_pick(kind: str, wanted: str, shown: str) -> str:
    """What a link picked in vain on this page while `shown` stands in its place; empty: nothing. wanted: what a link
    picks in vain now."""
    missed = st.session_state.setdefault(_MISSED_PICKS, {})
    if wanted:
        missed[kind] = (wanted, shown)
    name, instead = missed.get(kind, ("", ""))
    return name if instead == shown else ""


def _went_back() -> bool:
    """Whether the browser's Back or Forward asks for this run."""
    return bool(getattr(get_script_run_ctx(), "is_history_navigation", False))


def _followed() -> int:
    return int(st.session_state.get(_FOLLOWED, 0))


def write_address() -> None:
    """Let the address name what is shown."""
    told = parameters()
    if st.query_params.to_dict() != told:
        st.query_params.from_dict(told)


def take_pick(name: str) -> str:
    """What the link that was just opened picks, at the first question only; empty: nothing. For the widget that
    picks it."""
    pending = st.session_state.get(_PENDING) or {}
    return str(pending.pop(name, ""))


def focus(name: str) -> str:
    """What is picked on this page, by the parameter of its links; empty: nothing."""
    return str((st.session_state.get(_FOCUS) or {}).get(name, ""))


def keep(name: str, value: str) -> None:
    """What the viewer picked on this page: the address names it."""
    picked = dict(st.session_state.get(_FOCUS) or {})
    if picked.get(name, "") != value:
        picked.pop(name, None)
        st.session_state[_FOCUS] = picked | ({name: value} if value else {})
        write_address()


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
    picked = {name: focus(name) for name in FOCUS if focus(name)}
    return _parameters(picked_window(), picked)


def link_parameters(window: PageWindow | None, picked: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a link on this page to another page."""
    return _parameters(window, {name: value[:MAX_FOCUS] for name, value in picked.items() if value}) | {
        GO: str(_followed())
    }


def _parameters(window: PageWindow | None, picked: Mapping[str, str]) -> dict[str, str]:
    told = {SOURCE: place()} if place() != source_registry.first() and source_registry.is_known(place()) else {}
    if window is not None:
        told |= {FROM: f"{window.start:.3f}", TO: f"{window.end:.3f}"}
    return told | dict(picked)


def link(pinned: PageWindow | None = None) -> str:
    """An address that shows what is seen now; with `pinned` it shows that window at any later time."""
    parts = urlsplit(st.context.url or "http://localhost/")
    picked = {name: focus(name) for name in FOCUS if focus(name)}
    told = ({PAGE: page()} if page() else {}) | _parameters(picked_window() or pinned, picked)
    return urlunsplit((parts.scheme, parts.netloc, "/", urlencode(told), ""))


def on_page(path: str) -> None:
    """Remember which page is shown, for links. What was picked on another page is not picked on this one."""
    st.session_state[_PAGE] = path
    of = st.session_state.get(_FOCUS_PAGE)
    if of is not None and of != path:
        st.session_state[_FOCUS], st.session_state[_PENDING], st.session_state[_MISSED_PICKS] = {}, {}, {}
    st.session_state[_FOCUS_PAGE] = path
    write_address()


def page() -> str:
    """The path of the page that is shown; empty: the first one."""
    return str(st.session_state.get(_PAGE, ""))


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
