"""What other settings do to an engine's latency and throughput: the forecasts of `kvitals whatif SOURCE --set`."""

from __future__ import annotations

import msgspec
import streamlit as st

from kvitals.app.engine_twin import advised_settings
from kvitals.diagnoser.twin.forecast import TwinDocument
from kvitals.diagnoser.twin.settings import FLAGS
from kvitals.rules.finding import Triage
from kvitals.ui import twin_text
from kvitals.ui.web import commands, data, header, source_registry, tables
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import literal

MAX_TEXT = 20
OPEN = 3
"""Engines whose forecast is open."""
TILES = (
    *("ttft_p50_seconds", "ttft_p99_seconds", "itl_p50_seconds"),
    *("output_tokens_per_second", "prefix_hit_ratio", "preemptions_per_second"),
)
"""Quantities above the table, now and then."""
_ANSWER, _ADVISED = "settings-answer", "settings-advised"


def show(place: str, triage: Triage, lever: str, engine: str) -> None:
    """The form, then each engine's forecast. lever, engine: that a link names; empty: none."""
    flags = _flags(triage)
    flag, value, linked = _filled_in(place, triage, lever, engine)
    # Defaults, and no values set by key: of those the browser has lost the text field's.
    with st.form("settings"):
        first, first_value, second, second_value = st.columns(4)
        settings = [
            _setting(
                first.selectbox("Setting", flags, index=flags.index(flag) if flag in flags else 0),
                first_value.text_input("Value", value=value, max_chars=MAX_TEXT, placeholder="16"),
            ),
            _setting(
                second.selectbox("A second setting", flags, index=None, placeholder="none"),
                second_value.text_input("Its value", max_chars=MAX_TEXT),
            ),
        ]
        asked = st.form_submit_button("Predict", type="primary", icon=":material/play_arrow:")
    if asked or linked:
        _ask(place, [one for one in settings if one], engine)
    kept = st.session_state.get(_ANSWER)
    if kept is not None and kept[0] == place:
        for number, document in enumerate(kept[1]):
            _forecast(document, number)
    elif not asked:
        st.caption(
            "The prediction comes from a twin that is fitted to each engine's own counters, at most 15 minutes of them."
            " It takes some seconds."
        )


def _flags(triage: Triage) -> list[str]:
    """The settings that the twins of the source's engines simulate; of all systems where no engine reports its own."""
    systems = {engine.about.get("system", "") for engine in triage.engines} & FLAGS.keys()
    return [flag.name for system in sorted(systems or FLAGS.keys(), reverse=True) for flag in FLAGS[system]]


def _filled_in(place: str, triage: Triage, lever: str, engine: str) -> tuple[str, str, bool]:
    """The flag and the value that the form begins with: of the lever that a link names, else of the first lever that
    sets something; and whether a link names it now. Until the next link they stay, whatever a live source advises."""
    advised = advised_settings(triage)
    named = [one for one in advised if one.lever == lever and engine in ("", one.engine.title)]
    kept = st.session_state.get(_ADVISED)
    if named or kept is None or kept[0] != place:
        kept = (place, (named or advised)[0].text if named or advised else "")
        st.session_state[_ADVISED] = kept
    flag, _, value = kept[1].partition("=")
    return flag, value, bool(named)


def _setting(flag: str | None, value: str) -> str:
    """`max-num-seqs=16`; empty where one of both is missing."""
    return f"{flag}={value.strip()}" if flag and value.strip() else ""


def _ask(place: str, settings: list[str], engine: str) -> None:
    """Predict for each engine; `engine`, where a link names one, stands first."""
    st.session_state.pop(_ANSWER, None)
    if not settings:
        header.show_empty("No value is given", "Write the value of the setting, such as 16.")
        return
    source = [one for one in source_registry.arguments(place) if not one.startswith("--slo=")]
    asked = ("whatif", *source, *(f"--set={one}" for one in settings), "--json")
    # A live source is asked anew each time; the answer of a recording stays the same.
    ask = commands.run if source_registry.open_source(place).live else data.command
    try:
        with st.spinner("simulating"):
            documents = msgspec.json.decode(ask(asked).out, type=list[TwinDocument])
        documents.sort(key=lambda document: document.title != engine)
        st.session_state[_ANSWER] = (place, documents)
    except UnansweredError as error:
        header.failure(error.failure, key="settings-failure")


def _forecast(document: TwinDocument, number: int) -> None:
    """One engine: the figures now and then, or why there are none."""
    with st.expander(literal(twin_text.changes_text(document)), expanded=number < OPEN, key=f"forecast-{number}"):
        if refusal := twin_text.refusal_text(document):
            st.markdown(f":material/block: {literal(refusal)}")
        rows = {row.name: twin_text.cells(document, row) for row in document.quantities}
        if not refusal:
            tiles = [rows[name] for name in TILES if name in rows and rows[name][3]]
            header.figures(
                [(title, f"{now} → {then}" if now else then, f"90% range {span}" if span else "")
                 for title, now, _, then, span in tiles],
                key=f"forecast-tiles-{number}",
            )  # fmt: skip
        titles = ("quantity", *twin_text.columns(document)[1:])
        table = [dict(zip(titles, row, strict=True)) for row in rows.values()]
        tables.show(table, f"forecast-rows-{number}", most=tables.HEAD + tables.ROW * len(table))
        for text in (twin_text.load_text(document), *twin_text.notes(document), "" if refusal else twin_text.NOTE):
            if text:
                st.caption(literal(text))
