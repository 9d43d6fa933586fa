"""How many GPUs a workload takes, step by step: the numbers and the working of `kvitals size`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import streamlit as st

from kvitals.diagnoser.sizing.memory import KV, WEIGHTS
from kvitals.rules import catalogue
from kvitals.ui.web import commands, data, header, source_registry, tables
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import literal
from kvitals.ui.web.sources.base import PageWindow

MAX_TEXT = 60
_EVERY = "every GPU; the cheapest result is shown"
_SEEN_MODEL = "as seen"
_PUBLISHED = "as the model is published"
_ANSWER = "sized"
_FIELDS = (
    ("peak", "Requests per second, at the peak", "120", "in the busiest minutes: p95 or p99"),
    ("rate", "Requests per second, on average", "", "for the cost of a token"),
    ("prompt", "Tokens of a prompt: mean, p95, p99", "1000,3000,8000", ""),
    ("answer", "Tokens of an answer: mean, p95, p99", "200,400,800", ""),
    ("hits", "Prompt tokens found in the prefix cache", "", "a share, such as 36%"),
    ("price", "US dollars per hour for one GPU", "", "empty: the median of the catalogue"),
)
_KNOWN = (
    ("usable-rate", "Requests per second at C_max", "as measured; kvitals knee calculates it"),
    ("c-max", "Concurrent requests at C_max", "the concurrency at which latency exceeds the objective"),
    ("hold", "Concurrent requests that it must serve", ""),
    ("tp", "Tensor parallel degree", "empty: all are tried"),
    ("safety", "Times the peak", "empty: chosen by whether the traffic is known"),
    ("front-end", "Time before the engine", "such as 40ms"),
)


def show(place: str, look: PageWindow | None) -> None:
    """The form, then the plan."""
    del look  # what was seen is all taken
    with st.form("size"):
        options = _machine()
        options += _workload(place)
        with st.expander("Known facts of one instance, and the objectives", key="size-known"):
            options += _texts([(name, title, "", text) for name, title, text in _KNOWN])
            promised = st.columns(2)
            for column, name, title in zip(promised, ("ttft", "itl"), ("First token, p99", "Gap, p99"), strict=True):
                text = column.text_input(title, max_chars=MAX_TEXT, key=f"size-{name}", placeholder="1.5s, 80ms")
                options += [f"--slo={name}={text.strip()}"] if text.strip() else []
        asked = st.form_submit_button("Size it", type="primary", icon=":material/calculate:")
    if asked:
        _ask(place, tuple(options))
    kept = st.session_state.get(_ANSWER)
    if kept is None or kept[0] != place:
        if not asked:
            st.caption("No result yet. A figure that was not measured is a bound, and is marked as a bound.")
        return
    _plan(kept[1], kept[2])


def _ask(place: str, options: tuple[str, ...]) -> None:
    seen = source_registry.arguments(place) if st.session_state.get("size-seen") else source_registry.judging_options()
    try:
        with st.spinner("sizing"):
            told = data.command(("size", *seen, *options, "--json"))
        st.session_state[_ANSWER] = (place, msgspec.json.decode(told.out), options)
    except UnansweredError as error:
        st.session_state.pop(_ANSWER, None)
        header.failure(error.failure, key="size-failure")


def _machine() -> list[str]:
    first, second = st.columns(2)
    models = [_SEEN_MODEL, *(one.name for one in catalogue.models())]
    gpus = [_EVERY, *(one.name for one in catalogue.gpus())]
    model = first.selectbox("Model", models, index=_first(models, "Llama-3.3-70B"), key="size-model")
    gpu = second.selectbox("GPU", gpus, index=_first(gpus, "H100 SXM"), key="size-gpu")
    weights = first.selectbox("Format of the weights", [_PUBLISHED, *WEIGHTS], key="size-weights")
    cache = second.selectbox("Format of the KV cache", KV, key="size-kv")
    options = [*([f"--weights={weights}"] if weights != _PUBLISHED else []), f"--kv={cache}"]
    options += [f"--model={model}"] if model != _SEEN_MODEL else []
    return [*options, *([f"--gpu={gpu}"] if gpu != _EVERY else [])]


def _first(names: list[str], beginning: str) -> int:
    return next((i for i, name in enumerate(names) if name.startswith(beginning)), 0)


def _workload(place: str) -> list[str]:
    st.toggle(
        literal(f"Values for empty fields, as observed at: {source_registry.place_name(place)}"),
        key="size-seen",
        help="Rates, lengths, hits and C_max of the selected source.",
    )
    return _texts(_FIELDS)


def _texts(fields: Any) -> list[str]:
    columns = st.columns(2)
    options = []
    for i, (name, title, value, text) in enumerate(fields):
        given = columns[i % 2].text_input(title, value=value, max_chars=MAX_TEXT, help=text or None, key=f"size-{name}")
        options += [f"--{name}={given.strip()}"] if given.strip() else []
    return options


def _plan(plan: Mapping[str, Any], options: tuple[str, ...]) -> None:
    layout = plan["layout"]
    cost = plan["usd_per_hour"]
    stages = f" × PP{layout['pipeline_parallel']}" if layout["pipeline_parallel"] > 1 else ""
    stages += f" × DP{layout['data_parallel']}" if layout["data_parallel"] > 1 else ""
    st.markdown(f"### {literal(plan['model']['name'])} on {literal(plan['gpu']['name'])}")
    least = "at least " if plan["bound"] else ""
    header.figures(
        [
            (f"{least}GPUs", f"{plan['gpus']:,}", ""),
            ("instances", f"{plan['instances']:,}", f"each TP{layout['tensor_parallel']}{stages}"),
            ("layout", f"TP{layout['tensor_parallel']}{stages}", "of one instance"),
            ("an hour", f"${cost:,.2f}" if cost is not None else "no price", "at the price of a GPU below"),
            ("of one instance", f"{plan['usable_requests_per_second']:,.4g}/s", "requests that it can serve"),
        ],
        key="size-figures",
    )
    if plan["bound"]:
        st.markdown(":material/warning: **A bound:** no instance can exceed it. Measure one before buying.")
        st.markdown(f"**Expected:** {literal(plan['estimate']['text'])}. It uses the shares that engines reach.")
    for doubt in plan["doubts"]:
        st.markdown(f":material/warning: {literal(doubt)}.")
    if plan["model"]["note"]:
        st.caption(literal(plan["model"]["note"]))
    st.markdown("### The working")
    for step in plan["steps"]:
        label = f"**{step['number']}\\. {literal(step['title'])}** {literal(step['answer'])}"
        with st.expander(label, key=f"size-step-{step['number']}"):
            rows = [{"what": one["name"], "value": one["text"], "how": one["how"]} for one in step["lines"]]
            tables.show(rows, f"size-lines-{step['number']}", {"how": st.column_config.TextColumn(width="large")})
    st.caption("the same in a terminal, without the observed values:")
    st.code(commands.command_text(("size", *options)), language=None, wrap_lines=True)
