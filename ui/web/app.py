"""The page's shell: who may look, which pages there are, and how a page stays live without flicker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import streamlit as st

from kvitals.app.page_settings import SettingsError, read
from kvitals.ui.web import access, header, links, source_registry, state
from kvitals.ui.web.data import EVERY_SECONDS
from kvitals.ui.web.failure import NotYetError, UnansweredError
from kvitals.ui.web.sources.base import PageWindow
from kvitals.ui.web.views import (
    cache,
    cascades,
    efficiency,
    engine,
    fleet,
    requests,
    rules,
    size,
    sources,
    tenants,
    timeline,
    triage,
    whatif,
)

STYLE = Path(__file__).with_name("style.css")
NAVIGATION = Path(__file__).with_name("navigation.js")
ICON = Path(__file__).with_name("icon.svg")
LOGO = Path(__file__).with_name("logo.svg")


@dataclass(frozen=True)
class PageView:
    """A page. `live`: drawn again and again while the source is live; `windowed`: follows the window."""

    title: str
    path: str
    icon: str
    show: Callable[[str, PageWindow | None], None]
    live: bool = True
    windowed: bool = True


SECTIONS = {
    "Now": [
        PageView("Triage", "triage", "vital_signs", triage.show),
        PageView("Timeline", "timeline", "timeline", timeline.show),
    ],
    "Why, and who": [
        PageView("Tenants", "tenants", "groups", tenants.show),
        PageView("Cache", "cache", "memory", cache.show),
        PageView("Cascades", "cascades", "waterfall_chart", cascades.show),
        PageView("Requests", "requests", "swap_vert", requests.show),
        PageView("Fleet", "fleet", "dns", fleet.show),
        PageView("Engine", "engine", "developer_board", engine.show),
        PageView("Efficiency", "efficiency", "savings", efficiency.show, live=False),
    ],
    "What to do": [
        PageView("What if", "what-if", "science", whatif.show, live=False, windowed=False),
        PageView("Size", "size", "calculate", size.show, live=False, windowed=False),
        PageView("Rules", "rules", "menu_book", rules.show, live=False),
    ],
    "Where from": [PageView("Sources", "sources", "cable", sources.show, live=False, windowed=False)],
}


FIRST = "triage"
FOLDED = "No data in this source"


def main() -> None:
    st.set_page_config(page_title="kvitals", page_icon=str(ICON), layout="wide")
    st.html(STYLE)
    st.logo(str(LOGO), icon_image=str(ICON), size="large")
    try:
        settings = read()
    except SettingsError as error:
        header.failure_text("The page cannot start", str(error))
        return
    if not access.admit_viewer(settings):
        st.navigation([st.Page(lambda: None, title="kvitals")], position="hidden").run()
        return
    wanted = state.take_link()
    empty = _empty_pages()
    pages = {
        section: [
            st.Page(
                partial(_page, view),
                title=view.title,
                icon=f":material/{view.icon}:",
                url_path=view.path,
                default=view.path == FIRST,
            )
            for view in views
        ]
        for section, views in _sections(empty).items()
    }
    chosen = st.navigation(pages, position="sidebar", expanded=True)
    links.register({page.url_path or FIRST: page for of in pages.values() for page in of})
    if wanted and (page := next((p for of in pages.values() for p in of if p.url_path == wanted), None)):
        st.switch_page(page, query_params=state.parameters())
    elif wanted and wanted != FIRST:
        state.miss_page(wanted)
    script = NAVIGATION.read_text(encoding="utf-8")
    st.sidebar.html(f"<script>{script}</script>", unsafe_allow_javascript=True)
    st.sidebar.html(f'<i hidden data-shown-page="{chosen.url_path}"></i>')
    header.side(settings)
    chosen.run()
    if _empty_pages() != empty:
        st.rerun()  # the recording was still being read when the sidebar was drawn


def _empty_pages() -> frozenset[str]:
    """Paths of the pages for which the source has no data."""
    try:
        return source_registry.open_source(state.place()).empty_pages()
    except UnansweredError:
        return frozenset()


def _sections(empty: frozenset[str]) -> dict[str, list[PageView]]:
    """The sections of the sidebar. Pages without data are the last one; each states the reason."""
    kept = {section: [view for view in views if view.path not in empty] for section, views in SECTIONS.items()}
    folded = [view for views in SECTIONS.values() for view in views if view.path in empty]
    return {section: views for section, views in (kept | {FOLDED: folded}).items() if views}


def _page(view: PageView) -> None:
    """One page: the bar, and what it shows. What is live is a fragment, which alone is drawn again and keeps what was
    opened."""
    place, look = state.place(), state.picked_window()
    state.on_page("" if view.path == FIRST else view.path)
    live = header.top(view.title, place, look, windowed=view.windowed, may_live=view.live)
    for what in state.missed_selections():
        header.hint(f"The link names {what}, which does not exist here. The page shows its default instead.")
    if live:
        st.fragment(_live, run_every=EVERY_SECONDS)(view.show, place)
    else:
        _guarded(view.show, place, look)


def _live(show: Callable[[str, PageWindow | None], None], place: str) -> None:
    if show is not triage.show:  # it states the age in its verdict
        header.show_age(place)
    _guarded(show, state.place(), state.picked_window())
    if (state.place(), state.picked_window()) != (place, None):
        st.rerun()  # the bar is about what was picked on the page, too


def _guarded(show: Callable[[str, PageWindow | None], None], place: str, look: PageWindow | None) -> None:
    try:
        show(place, look)
    except UnansweredError as error:
        header.failure(error.failure)
    except NotYetError:
        header.show_progress(place, look)
    except Exception as error:  # one page's trouble with what a source told ends that page alone
        header.show_page_error(error)


main()
