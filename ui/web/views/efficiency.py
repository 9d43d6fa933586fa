"""What was paid for, what came of it, and what would bring more: the document of `kvitals review`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import msgspec
import streamlit as st

from kvitals.diagnoser.review.result import Review
from kvitals.ui.review.charts import COLOURS, NAMES
from kvitals.ui.review.sections import DataTable, Section, Text, sections, tiles
from kvitals.ui.web import commands, data, graphs, header, source_registry, tables
from kvitals.ui.web.charts import value_axis
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import literal, moment
from kvitals.ui.web.sources.base import PageWindow

MAX_TEXT = 60
PERIODS = {"1h": "the last hour", "1d": "a day", "7d": "a week", "14d": "two weeks", "28d": "four weeks"}
PRICE = "2.50 for every GPU, or H100=2.10 for one kind; empty: the price in the configuration, or the usual price"
OPEN = ("Where the GPU time went", "Day by day", "Levers, by money", "Incidents")
_ANSWER = "reviewed"
_FILES = {
    "review.html": ("The page (.html)", "text/html", ":material/description:"),
    "review.md": ("Markdown", "text/markdown", ":material/notes:"),
    "review.json": ("JSON", "application/json", ":material/data_object:"),
}


def show(place: str, look: PageWindow | None) -> None:
    """The form, then the review."""
    if source_registry.file_of(place) is not None:
        header.show_empty(
            "A recording is too short for a review",
            "A review needs hours to days of series, from an agent that keeps its history or from a Prometheus."
            " Choose one under Sources.",
            "kvitals review --since 7d --out review",
        )
        return
    with st.form("review"):
        period, price, gpus = st.columns(3)
        picked = look is not None
        since = period.selectbox(
            "Of", list(PERIODS), index=2, format_func=PERIODS.__getitem__, key="review-since", disabled=picked
        )
        usd = price.text_input(
            "US dollars per GPU-hour", max_chars=MAX_TEXT, key="review-price", help=PRICE, placeholder="2.50"
        )
        each = gpus.text_input(
            "GPUs per engine, for engines that do not report their GPUs",
            max_chars=MAX_TEXT,
            key="review-gpus",
            placeholder="1",
        )
        asked = st.form_submit_button("Review", type="primary", icon=":material/summarize:")
    if asked:
        _ask(place, [*_when(since, look), *_option("price", usd), *_option("gpus", each)])
    kept = st.session_state.get(_ANSWER)
    if kept is not None and kept[0] == place:
        _review(kept[1], kept[2])
    elif not asked:
        st.caption("Nothing was reviewed yet. A week takes some seconds.")


def _option(name: str, text: str) -> list[str]:
    return [f"--{name}={text.strip()}"] if text.strip() else []


def _when(since: str, look: PageWindow | None) -> list[str]:
    """A window that was picked goes before the form."""
    return [f"--since={since}"] if look is None else [f"--from={look.start:.3f}", f"--to={look.end:.3f}"]


def _ask(place: str, options: list[str]) -> None:
    try:
        with st.spinner("adding up"):
            told = data.command(("review", *source_registry.arguments(place), *options, f"--out={commands.OUT}"))
        st.session_state[_ANSWER] = (place, msgspec.json.decode(told.files["review.json"], type=Review), told.files)
    except UnansweredError as error:
        st.session_state.pop(_ANSWER, None)
        header.failure(error.failure, key="review-failure")


def _review(review: Review, files: dict[str, bytes]) -> None:
    with st.container(border=True, key="review-story"):
        st.caption(literal(f"{moment(review.start)} to {moment(review.end)} · {review.source}"))
        for sentence in review.story:
            st.markdown(literal(sentence))
    header.figures([(what, value, "") for value, what in tiles(review)], key="review-tiles")
    with st.container(horizontal=True, key="review-files"):
        for name, (title, mime, icon) in _FILES.items():
            st.download_button(title, files[name], file_name=name, mime=mime, icon=icon, on_click="ignore", key=name)
    for i, section in enumerate(sections(review)):
        if section.title in OPEN:
            st.markdown(f"### {literal(section.title)}")
            _section(section, review, i)
        else:
            with st.expander(literal(section.title), key=f"review-{i}"):
                _section(section, review, i)


def _section(section: Section, review: Review, number: int) -> None:
    drawings = iter(DRAWN.get(section.title, ()))
    for i, block in enumerate(section.blocks):
        if isinstance(block, Text):
            (st.caption if block.small else st.markdown)(literal(block.text))
        elif isinstance(block, DataTable):
            _table(block, f"review-{number}-{i}")
        elif (draw := next(drawings, None)) is not None:
            graphs.draw(draw(review), key=f"review-chart-{number}-{i}")
            st.caption(literal(block.caption))


def _table(block: DataTable, key: str) -> None:
    head = [name or " " for name in block.head]
    columns = {name: st.column_config.TextColumn(alignment="right") for name in head[block.text :]}
    tables.show([dict(zip(head, row, strict=True)) for row in block.rows], key, columns)


def _went(review: Review) -> Any:
    """GPU-hours of each step by what they went into, one part on another.

    The edges are computed here: Vega-Lite does not stack bars that have a beginning and an end on the other axis.
    """
    rows = gpu_time_rectangles(review)
    titles = [title for name, title in NAMES.items() if name in COLOURS and any(row["part"] == title for row in rows)]
    colours = [COLOURS[name] for name, title in NAMES.items() if title in titles]
    return (
        alt.Chart(graphs.values(rows), height=220, padding=graphs.PADDING)
        .mark_rect()
        .encode(
            x=alt.X("from:T", title=None, scale=alt.Scale(type="utc"), axis=utc_axis(review.courses.ends)),
            x2="to:T",
            y=alt.Y("low:Q", title="GPU-hours"),
            y2="high:Q",
            color=alt.Color("part:N", scale=alt.Scale(domain=titles, range=colours),
                            legend=alt.Legend(title=None, orient="bottom", columns=4, offset=4)),
            tooltip=[alt.Tooltip("part:N"), alt.Tooltip("hours:Q", title="GPU-hours", format=".4~g"),
                     alt.Tooltip("from:T", title="UTC", format="%d %b %H:%M", timeUnit=graphs.SECOND)],
        )
    )  # fmt: skip


def gpu_time_rectangles(review: Review) -> list[dict[str, Any]]:
    """A rectangle for each step and part of the GPU time: its edges in time and in GPU-hours."""
    rows: list[dict[str, Any]] = []
    for at, end in enumerate(review.courses.ends):
        low = 0.0
        times = {"from": graphs.milliseconds(end - review.step), "to": graphs.milliseconds(end)}
        for name in COLOURS:
            hours = review.courses.parts.get(name)
            if hours and hours[at]:
                rows.append({**times, "part": NAMES[name], "hours": hours[at], "low": low, "high": low + hours[at]})
                low += hours[at]
    return rows


def utc_axis(ends: Sequence[float]) -> alt.Axis:
    """Times of day in UTC with 24 hours, with the day where the course is longer than one."""
    long = bool(ends) and ends[-1] - ends[0] > 86_400
    return alt.Axis(tickCount=7, grid=False, format="%d %b %H:%M" if long else "%H:%M", labelOverlap="greedy")


def _tokens(review: Review) -> Any:
    return _course(review.courses.ends, review.courses.tokens_per_gpu_hour, "count")


def _in_time(review: Review) -> Any:
    return _course(review.courses.ends, review.courses.ttft_within, "ratio")


def _course(ends: Sequence[float], of: Sequence[float | None], unit: str) -> Any:
    """One value a step; where nothing was seen the line ends."""
    rows = [{"time": graphs.milliseconds(end), "value": value} for end, value in zip(ends, of, strict=True)]
    known = [row for row in rows if row["value"] is not None]
    return (
        alt.Chart(graphs.values(rows), height=150, padding=graphs.PADDING)
        .mark_line(strokeWidth=2, point=len(known) < 40)
        .encode(
            x=alt.X("time:T", title=None, scale=alt.Scale(type="utc"), axis=utc_axis(ends)),
            y=alt.Y("value:Q", title=None, axis=value_axis(unit, known)),
            tooltip=[alt.Tooltip("time:T", title="UTC", format="%d %b %H:%M", timeUnit=graphs.SECOND),
                     alt.Tooltip("value:Q", format=".4~g")],
        )
    )  # fmt: skip


def _factors(review: Review) -> Any:
    """What made the rate of then the rate of now, one bar after the other."""
    compared = review.compared
    at = compared.before or 0.0
    rows: list[dict[str, Any]] = [{"what": "then", "from": 0.0, "to": at, "kind": "rate"}]
    for factor in compared.factors:
        kind = "more" if factor.tokens_per_gpu_hour >= 0 else "less"
        rows.append({"what": factor.what, "from": at, "to": at + factor.tokens_per_gpu_hour, "kind": kind})
        at += factor.tokens_per_gpu_hour
    rows.append({"what": "now", "from": 0.0, "to": compared.now or 0.0, "kind": "rate"})
    colours = {"rate": "#8a8f98", "more": graphs.COLORS["info"], "less": graphs.COLORS["unhealthy"]}
    return (
        alt.Chart(graphs.values(rows), height=26 * len(rows) + graphs.AXIS + graphs.LEGEND, padding=graphs.PADDING)
        .mark_bar(height=15)
        .encode(
            y=alt.Y("what:N", sort=None, title=None, axis=graphs.names(260)),
            x=alt.X("from:Q", title="output tokens per GPU-hour", axis=value_axis("count", [{"value": at}])),
            x2="to:Q",
            color=alt.Color("kind:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=None),
            tooltip=["what:N", alt.Tooltip("from:Q", format=".4~s"), alt.Tooltip("to:Q", format=".4~s")],
        )
    )


DRAWN: dict[str, tuple[Callable[[Review], Any], ...]] = {
    "Where the GPU time went": (_went,),
    "Day by day": (_tokens, _in_time),
    "Against the best week": (_factors,),
}
"""A section's drawings, in the order of its charts."""
