"""What every page has: where its answers come from, which window, how to share it; and how a failure is told."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

import streamlit as st

from kvitals.app.escaping import plain
from kvitals.app.page_settings import PageSettings
from kvitals.ui.web import access, data, source_registry, state
from kvitals.ui.web.failure import Failure, NotYetError, UnansweredError
from kvitals.ui.web.page_text import inline_code, literal, moment, span
from kvitals.ui.web.sources.base import Extent, PageWindow

PROGRESS_SECONDS = 0.5
"""How often the progress of an answer is drawn."""

OLD_SECONDS = 60.0
"""The age from which a live source's document is stated to be old."""

TYPED = "%Y-%m-%d %H:%M:%S"
"""How a moment is typed, in UTC."""

PRESETS = {"last minute": 60.0, "last 5 min": 300.0, "last 15 min": 900.0, "last hour": 3600.0, "last 6 hours": 21600.0}


def side(settings: PageSettings) -> None:
    """Below the names of the pages: whose installation, and who looks."""
    if who := access.viewer(settings):
        st.sidebar.caption(f"seen by {literal(who)}")


def top(title: str, place: str, look: PageWindow | None, *, windowed: bool, may_live: bool) -> bool:
    """Title, source and window, and how to share them; whether the page goes on asking."""
    live = may_live and look is None and _is_live(place)
    with st.container(key="bar", horizontal=True, vertical_alignment="center"):
        st.markdown(f"## {title}", width="stretch")
        st.markdown(f":material/cable: {inline_code(source_registry.place_name(place))}", width="content")
        if windowed:
            _window(place, look)
        shared = st.popover("Share", icon=":material/link:", key="share", on_change="rerun")
        with shared:
            _share(place, look, opened=bool(shared.open))
        return live and st.toggle("Live", value=True, key="live", help=f"Ask again every {data.EVERY_SECONDS} seconds.")


def show_age(place: str) -> None:
    """On a page that shows the present: that an agent has no new verdict. Without it a page that has nothing of the
    last minutes would look like one where nothing happened."""
    with st.container():  # it comes and goes, and must not move the elements below
        try:
            if source_registry.open_source(place).kind != "agent":
                return
            triage = data.triage(place, None)
        except (UnansweredError, NotYetError):
            return
        age = time.time() - triage.window.end
        if age > OLD_SECONDS:
            what = "The agent stopped scraping" if triage.source.kind in ("agent", "live") else "The agent's data ended"
            st.markdown(f":material/history: **{what} {span(age)} ago.** Its last verdict: {literal(triage.verdict)}")


def failure(told: Failure, *, key: str = "failure") -> None:
    """Why there is no answer now, and what to do about it."""
    with st.container(border=True, key=key):
        st.markdown(f"### :material/cloud_off: {literal(told.title)}")
        st.markdown(literal(told.detail))
        st.markdown(literal(told.todo))
        for command in told.commands:
            st.code(command, language=None, wrap_lines=True)


def show_progress(place: str, look: PageWindow | None) -> None:
    """How far the answer is; the page is drawn once it is there."""
    st.fragment(_progress, run_every=PROGRESS_SECONDS)(place, look)


def _progress(place: str, look: PageWindow | None) -> None:
    try:
        progress = source_registry.progress(place, look)
    except UnansweredError:
        progress = source_registry.Progress(1.0)  # it is gone, which the page says
    if progress.done:
        st.rerun()
    with st.container(border=True, key="replaying"):
        if progress.share is not None:
            st.progress(progress.share, f"Evaluating the recording, window by window: {progress.share:.0%}")
            st.caption(
                "The verdict uses the whole recording: also for the usual values, and for the time when a change began."
            )
        else:
            st.progress(1 - 2 ** (-progress.seconds / 15), f"Evaluating the fleet for {progress.seconds:.0f} s")
            st.caption(
                "The first verdict of a large fleet takes up to a minute. Later verdicts are calculated in the "
                "background, so you can change the page at any time."
            )


def show_page_error(error: Exception) -> None:
    """A page that failed; its cause is in the log, since its text may hold anything."""
    sys.stderr.write("".join(traceback.format_exception(error, limit=-8)))
    failure(
        Failure(
            "This page failed",
            f"{type(error).__name__}: the source sent an answer that this page cannot read; see the page's log.",
            "The other pages still work. Use the same kvitals version for the agent and for this page.",
            ("kvitals version",),
        )
    )


def hint(text: str) -> None:
    """That a link asked for something else than what is shown."""
    st.markdown(f":material/link_off: {literal(text)}")


def pick_hint(kind: str, wanted: str, known: Collection[str], shown: str) -> None:
    """State that a link picks what is not among the known, as long as `shown` stands in its place."""
    missed = state.missed_pick(kind, wanted if wanted not in known else "", shown)
    if missed:
        instead = f"The page shows {shown} instead." if shown else "The page shows its default instead."
        hint(f"The link names the {kind} {missed}, which does not exist here. {instead}")


def figures(told: Sequence[tuple[str, str, str]], *, key: str) -> None:
    """Numbers side by side: name, value, what it means."""
    with st.container(horizontal=True, gap="large", key=key):
        for name, value, meaning in told:
            st.metric(name, plain.line(value), help=meaning or None, width="content")


def failure_text(title: str, text: str) -> None:
    """A failure before there is a page."""
    failure(Failure(title, text, "Then start the page again."))


def show_empty(title: str, text: str, *commands: str) -> None:
    """Nothing to show, which is no failure: why, and what would bring something."""
    with st.container(border=True, key="nothing"):
        st.markdown(f"### :material/inbox: {literal(title)}")
        st.markdown(literal(text))
        for command in commands:
            st.code(command, language=None, wrap_lines=True)


def _is_live(place: str) -> bool:
    try:
        return source_registry.open_source(place).live
    except UnansweredError:
        return False


def _window(place: str, look: PageWindow | None) -> None:
    try:
        there = data.extent(place)
    except UnansweredError:
        return
    live = _is_live(place)
    now = "now" if live else "the end"
    label = now if look is None else f"{clock(look.start, look)} to {clock(look.end, look)}"
    with st.popover(label, icon=":material/schedule:", key="window"):
        st.markdown("**Time range of every page, in UTC**")
        picker(there, look, key="bar")
        _typed(there, look)
        with st.container(horizontal=True):
            for name, seconds in PRESETS.items():
                if there.end - seconds >= there.start - 1:
                    chosen = PageWindow(there.end - seconds, there.end)
                    st.button(name, key=f"preset-{seconds:.0f}", on_click=state.pick, args=(chosen,))
            if look is not None:
                st.button(f"Back to {now}", key="back", icon=":material/undo:", on_click=state.pick, args=(None,))


def clock(t: float, window: PageWindow) -> str:
    """A moment of a window: with the day where the window is of more than one."""
    days = {datetime.fromtimestamp(at, UTC).date() for at in (window.start, window.end)}
    return f"{datetime.fromtimestamp(t, UTC):{'%d %b %H:%M:%S' if len(days) > 1 else '%H:%M:%S'}}"


def _typed(there: Extent, look: PageWindow | None) -> None:
    """A range by its first and last moment."""
    shown = look or PageWindow(max(there.start, there.end - there.window), there.end)
    with st.form("typed-window", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
        texts = [
            st.text_input(name, value=f"{datetime.fromtimestamp(t, UTC):{TYPED}}", max_chars=19)
            for name, t in (("From", shown.start), ("To", shown.end))
        ]
        asked = st.form_submit_button("Show", icon=":material/schedule:")
    if not asked:
        return
    try:
        start, end = (datetime.strptime(text.strip(), TYPED).replace(tzinfo=UTC).timestamp() for text in texts)
    except ValueError:
        st.caption(f":material/warning: Write a time like {texts[0][:4]}-11-30 14:05:00, in UTC.")
        return
    if end - start < state.LEAST_SECONDS:
        st.caption(f":material/warning: The range is shorter than {state.LEAST_SECONDS:.0f} s.")
        return
    state.pick(PageWindow(start, end))
    st.rerun()


def picker(there: Extent, look: PageWindow | None, *, key: str) -> None:
    """A slider over all that there is; what is picked is looked at."""
    zone = state.zone() or UTC
    low, high = (datetime.fromtimestamp(round(t), zone) for t in (there.start, there.end))
    if (high - low).total_seconds() < state.LEAST_SECONDS:
        st.caption("There is too little data yet to select a window.")
        return
    chosen = look or PageWindow(max(there.start, there.end - there.window), there.end)
    begun, ended = (min(max(datetime.fromtimestamp(round(t), zone), low), high) for t in (chosen.start, chosen.end))
    name = f"pick-{key}-{low.timestamp():.0f}-{high.timestamp():.0f}"
    short = (high - low).total_seconds() < 86400

    def picked() -> None:
        start, end = (one.timestamp() for one in st.session_state[name])
        if end - start >= state.LEAST_SECONDS:
            state.pick(PageWindow(start, min(end, there.end)))

    # One slider for all windows, told only of what was picked elsewhere: whoever moves it by keys keeps hold of it.
    if st.session_state.get(name) != (begun, ended):
        st.session_state[name] = (begun, ended)
    st.slider(
        "from, to",
        min_value=low,
        max_value=high,
        step=_step(there),
        format="HH:mm:ss" if short else "DD MMM HH:mm",
        key=name,
        on_change=picked,
        label_visibility="collapsed",
    )
    whole = PageWindow(there.start, there.end)
    picked_ = f"{clock(chosen.start, whole)} to {clock(chosen.end, whole)}"
    st.caption(f"**{picked_}** of {span(whole.seconds)}, {literal(moment(there.start))} to {clock(there.end, whole)}")


def _step(there: Extent) -> timedelta:
    return timedelta(seconds=1 if there.end - there.start <= 3600 else 15)


def _share(place: str, look: PageWindow | None, *, opened: bool) -> None:
    st.markdown("**A link to this view**")
    st.code(state.link(), language=None, wrap_lines=True)
    if opened and look is None and _is_live(place):
        there = data.extent(place)
        st.markdown("**A link to this moment**")
        st.code(state.link(PageWindow(there.end - there.window, there.end)), language=None, wrap_lines=True)
    if not source_registry.is_known(place):
        st.caption(
            "The link does not contain the address that you typed: whoever opens it sees the source that "
            "the page was started with."
        )
    elif place.startswith(source_registry.UPLOAD):
        st.caption("The link shows the uploaded recording until this page is restarted.")
