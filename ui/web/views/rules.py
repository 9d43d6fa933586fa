"""The rules: find one, read it, see what it says now, and try it with other thresholds over the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from kvitals.rules.finding import Triage
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, parameters
from kvitals.rules.model import SCOPES, Rule
from kvitals.rules.proof import proof_of
from kvitals.series.promql import PromQLError, expand
from kvitals.ui.web import data, graphs, header, source_registry, state, tables
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import count, inline_code, literal, prose
from kvitals.ui.web.sources.base import MAX_STEPS, ChartLine, PageWindow

MAX_PARAMS = 20
_SECTIONS = (
    ("What it sees", "sees"),
    ("Why it happens", "why"),
    ("When it is wrong", "wrong_when"),
    ("What to do", "do"),
    ("What not to do", "do_not"),
)
_WINDOWS = {"fast": "1m", "slow": "15m"}


def show(place: str, look: PageWindow | None) -> None:
    """One rule at a time; the list behind a click."""
    known = source_registry.knowledge()
    codes = sorted(known.rules)
    said = _said(place, look)
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    groups = sorted({rule.group for rule in known.rules.values()})
    group = right.selectbox("Group", ["all", *groups], key="rule-group")
    codes = [code for code in codes if group in ("all", known.rules[code].group)]
    if (wanted := state.take_pick("rule")) in codes:
        st.session_state[f"rule-{group}"] = wanted
    code = left.selectbox(
        "Rule",
        codes,
        index=None if f"rule-{group}" in st.session_state else _first(codes, said),
        format_func=lambda c: f"{c} {known.rules[c].title}",
        key=f"rule-{group}",
    )
    header.pick_hint("rule", wanted, codes, code or "")
    state.keep("rule", code or "")
    with st.expander(f"All of them: {count(len(codes), 'rule')}", key="all-rules"):
        tables.show([_listed(known.rules[c], said) for c in codes], "rules", most=320)
    for problem in known.problems[:20]:
        st.markdown(f":material/warning: left out: {literal(str(problem))}")
    if code is not None:
        _rule(known.rules[code], known, place, look, said)


def _said(place: str, look: PageWindow | None) -> dict[str, list[str]]:
    """Rule -> what the document of the window says of it."""
    try:
        triage = data.triage(place, look)
    except UnansweredError:
        return {}
    return outcomes(triage)


def outcomes(triage: Triage) -> dict[str, list[str]]:
    """Rule -> sentences on it; rules that are clear or not applicable are in no document."""
    told: dict[str, list[str]] = {}
    for finding in (*triage.causes, *triage.symptoms, *triage.telemetry, *triage.notes):
        told.setdefault(finding.code, []).append(f"fired on {finding.entity.title}: {finding.conclusion}")
    for out in triage.ruled_out:
        told.setdefault(out.code, []).append(f"ruled out on {out.entity}: {out.because}")
    for finding in triage.unknown:
        told.setdefault(finding.code, []).append(f"unknown on {finding.entity.title}: {finding.reason}")
    for finding in triage.muted:
        told.setdefault(finding.code, []).append(f"muted on {finding.entity.title}: {finding.muted}")
    return told


def _first(codes: Sequence[str], said: dict[str, list[str]]) -> int:
    """The rule of the first cause, where one fired: what is said is in the document's order."""
    fired = (codes.index(code) for code, told in said.items() if told[0].startswith("fired") and code in codes)
    return next(fired, 0)


def _listed(rule: Rule, said: dict[str, list[str]]) -> dict[str, Any]:
    outcome = said.get(rule.code, ["clear, or no data to evaluate"])[0].partition(" on ")[0]
    return {
        "code": rule.code,
        "now": outcome,
        "its meaning when it fires": rule.title,
        "kind": rule.kind,
        "severity": rule.severity,
        "group": rule.group,
    }


def _rule(rule: Rule, known: Knowledge, place: str, look: PageWindow | None, said: dict[str, list[str]]) -> None:
    st.markdown(f"## {inline_code(rule.code)} {literal(rule.title)}")
    proof = proof_of(rule.code)
    seen = f" · proof: {proof.proof}" if proof is not None else ""
    st.caption(f"{rule.kind} · {rule.severity} · {rule.stage} · of each {rule.scope}{seen}")
    for sentence in said.get(rule.code, ["Clear here, or no data to evaluate."])[:10]:
        st.markdown(literal(sentence))
    page, trial, query = st.tabs(["Its page", "Try it on this window", "PromQL"], key=f"tabs-{rule.code}")
    with page:
        _page(rule, known)
    with trial:
        _trial(rule, known, place, look)
    with query:
        _queries(rule, known)


def _page(rule: Rule, known: Knowledge) -> None:
    told = []
    for title, name in _SECTIONS:
        paragraphs = str(getattr(rule.page, name)).strip().split("\n\n")
        told += [f"### {title}", *(prose(paragraph) for paragraph in paragraphs)]
    if rule.levers:
        levers = ((known.levers[use.lever].title, known.levers[use.lever].does) for use in rule.levers)
        told += ["### Levers, in order", "\n".join(f"- **{literal(title)}**: {prose(does)}" for title, does in levers)]
    if rule.explains:
        told.append(f"**Explains** {', '.join(inline_code(code) for code in rule.explains)}")
    st.markdown("\n\n".join(told))  # one element, since each takes the browser its time
    if rule.page.references:
        st.caption("see " + literal("; ".join(rule.page.references)))


def _queries(rule: Rule, known: Knowledge) -> None:
    st.markdown("The condition, over signals; each comparison is true, false or unknown.")
    st.code(expand(rule.when, parameters(rule)).strip(), language=None, wrap_lines=True)
    for name, param in rule.params.items():
        st.markdown(f"- {inline_code(f'${name} = {param.default:g}')} {literal(param.why)}")
    st.markdown("Each signal, over the families that the agent exports:")
    for name in known.needs(rule):
        signal = known.signals[name]
        scope = ", ".join(SCOPES[signal.scope])
        st.markdown(f"{inline_code(SIGNAL_PREFIX + name)} {literal(signal.meaning)}")
        text = expand(signal.expr, {"window": _WINDOWS[signal.window], "scope": scope})
        st.code(text.strip(), language=None, wrap_lines=True)


def _trial(rule: Rule, known: Knowledge, place: str, look: PageWindow | None) -> None:
    """Where the condition held, with thresholds as chosen."""
    window = data.window(place, look)
    overrides = {}
    if rule.params:
        columns = st.columns(min(3, len(rule.params)))
        for i, (name, param) in enumerate(list(rule.params.items())[:MAX_PARAMS]):
            overrides[name] = columns[i % len(columns)].number_input(
                f"${name}", value=float(param.default), help=param.why, key=f"param-{rule.code}-{name}", format="%g"
            )
    condition = expand(rule.when, parameters(rule, overrides))
    try:
        held = data.series(place, condition, window.start, window.end)
    except (UnansweredError, PromQLError) as error:
        told = error.failure.detail if isinstance(error, UnansweredError) else str(error)
        st.markdown(f":material/warning: {literal(told)}")
        return
    changed = any(overrides[n] != rule.params[n].default for n in overrides)
    what = "With these thresholds" if changed else "With its own thresholds"
    rows, order = stretches(held, window)
    if rows:
        st.markdown(f"{what} the condition holds on {count(len(order), 'entity', 'entities')} here:")
        drawn = graphs.lanes(rows, order, window.start, window.end)
        graphs.show(drawn, key=f"held-{rule.code}")
    else:
        st.markdown(f"{what} the condition holds nowhere in this window.")
    lasts = f"when it held for {rule.fires_after}" if rule.for_ != "0s" else "at once"
    st.caption(f"Only the condition: the rule fires {lasts}, and is “unknown” if a signal is missing.")
    for name in known.needs(rule)[:6]:
        signal = known.signals[name]
        found = data.series(place, f"{SIGNAL_PREFIX}{name}", window.start, window.end)
        chart = graphs.lines(found, signal.unit, window.start, window.end)
        if chart is None:
            st.caption(f"{literal(name.replace('_', ' '))}: no value in this window")
        else:
            st.caption(f"**{literal(name.replace('_', ' '))}**")
            graphs.show(chart, key=f"trial-{rule.code}-{name}")


def stretches(held: Sequence[ChartLine], window: PageWindow) -> tuple[list[dict[str, Any]], list[str]]:
    """When each entity had a value: rows for `graphs.lanes`, and the lanes."""
    step = max(1.0, window.seconds / MAX_STEPS)
    rows: list[dict[str, Any]] = []
    for line in held[: graphs.MAX_SHOWN]:
        lane = graphs.series_name(line.labels)
        begun = last = line.points[0][0]
        for t, _ in [*line.points[1:], (float("inf"), 0.0)]:
            if t - last > max(2.5 * step, 6.0):
                rows.append({"lane": lane, "color": "ticket", "start": begun, "end": max(last, begun + step),
                             "label": "true", "text": "", "where": lane, "from": ""})  # fmt: skip
                begun = t
            last = t
    return rows, list(dict.fromkeys(str(row["lane"]) for row in rows))
