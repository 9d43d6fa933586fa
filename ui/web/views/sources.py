"""Where answers come from: an agent, a Prometheus, a recording that is sent, or an incident that ships."""

from __future__ import annotations

import streamlit as st

from kvitals.app.page_settings import read
from kvitals.ui.web import data, header, source_registry, state
from kvitals.ui.web.failure import NotYetError, UnansweredError
from kvitals.ui.web.page_text import count, inline_code, literal, moment, span
from kvitals.ui.web.sources.base import PageWindow

MAGIC = b"\x89KVCAP\r\n"


def show(place: str, look: PageWindow | None) -> None:
    """What is looked at now, then what else there is."""
    del look
    _now(place)
    _incidents(place)
    left, right = st.columns(2, gap="medium")
    with left:
        _upload()
    with right:
        _addresses(place)


def _now(place: str) -> None:
    with st.container(border=True, key="source-now"):
        st.markdown(f"### :material/cable: {literal(source_registry.place_name(place))}")
        try:
            there = data.extent(place)
            triage = data.triage(place, None)
        except UnansweredError as error:
            st.markdown(f":material/cloud_off: **{literal(error.failure.title)}** {literal(error.failure.detail)}")
            st.markdown(literal(error.failure.todo))
            return
        except NotYetError:
            header.show_progress(place, None)
            return
        zone = state.zone()
        st.markdown(
            f"{span(there.end - there.start)}, from {literal(moment(there.start, zone))} to "
            f"{literal(moment(there.end, zone))}. {literal(triage.verdict)}"
        )
        for warning in triage.coverage.warnings[:10]:
            st.markdown(f":material/warning: {literal(warning)}")
        for engine in triage.coverage.engines[:8]:
            st.caption(" · ".join(f"{literal(k)} {inline_code(v)}" for k, v in engine.items() if v))
        if len(triage.coverage.engines) > 8:
            st.caption(f"and {count(len(triage.coverage.engines) - 8, 'more engine')}: see Fleet")


def _incidents(place: str) -> None:
    st.markdown("### Incidents that ship: recorded on real engines")
    columns = st.columns(2, gap="small")
    for i, demo in enumerate(source_registry.demos()):
        name = demo.removeprefix(source_registry.DEMO)
        with columns[i % 2].container(border=True, key=f"demo-{name}", horizontal=True, vertical_alignment="center"):
            st.markdown(
                f"**{literal(name.replace('_', ' '))}**  \n{literal(source_registry.DEMOS.get(name, ''))}",
                width="stretch",
            )
            _choice("Look", demo, place, f"choose-{name}")


def _choice(label: str, chosen: str, place: str, key: str) -> None:
    here = chosen == place
    st.button(
        "Looking" if here else label,
        key=key,
        disabled=here,
        type="secondary",
        on_click=state.choose,
        args=(chosen,),
    )


def _upload() -> None:
    st.markdown("### A recording of yours")
    most = read().upload_megabytes
    sent = st.file_uploader(
        "A .kvcap file, made by kvitals record",
        type="kvcap",
        max_upload_size=most,
        key="upload",
        help=f"{most} MB at most. The recording stays on the machine that serves this page, until the page is "
        f"restarted.",
    )
    if sent is None:
        return
    body = sent.getvalue()
    if not body.startswith(MAGIC):
        header.show_empty(
            "This file is not a recording", f"{sent.name[:100]} does not begin like a recording made by kvitals record."
        )
        return
    chosen = source_registry.upload(sent.name, body)
    if state.place() != chosen:
        _choice(f"Look at {sent.name[:40]}", chosen, state.place(), "choose-upload")


def _addresses(place: str) -> None:
    st.markdown("### An agent or a Prometheus")
    for offered, name in source_registry.offered_places().items():
        if offered in (source_registry.AGENT, source_registry.RECORDING, source_registry.PROMETHEUS):
            with st.container(horizontal=True, vertical_alignment="center", key=f"offered-{offered}"):
                st.markdown(inline_code(name), width="stretch")
                _choice("Look", offered, place, f"choose-{offered}")
    if not read().may_type:
        st.caption("Only the person who starts this page can add other addresses.")
        return
    with st.form("address"):
        kind = st.segmented_control(
            "What it is", ["Agent", "Prometheus"], default="Agent", required=True, key="address-kind"
        )
        url = st.text_input(
            "Address", placeholder="http://127.0.0.1:9477", max_chars=source_registry.MAX_URL, key="address-url"
        )
        asked = st.form_submit_button("Look")
    if asked:
        try:
            good = source_registry.check_url(url)
        except UnansweredError as error:
            header.failure(error.failure, key="address-failure")
            return
        state.choose((source_registry.TYPED_AGENT if kind == "Agent" else source_registry.TYPED_SERVER) + good)
        st.rerun()
