"""One finding as a card: what is so, since when, how sure, the proof, what it explains, what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import tzinfo

import streamlit as st

from kvitals.rules.finding import Evidence, Finding, LeverAdvice, LeverSetting, Triage
from kvitals.ui.formats import since_text
from kvitals.ui.web import export, links, state
from kvitals.ui.web.charts import chart, show
from kvitals.ui.web.page_text import count, inline_code, literal, moment

COLUMNS = 4
MAX_EXPLAINED = 12
"""Symptoms told under a cause; one of a whole fleet explains hundreds."""

_SEVERITY = {
    "page": (":material/e911_emergency:", "red"),
    "ticket": (":material/build:", "orange"),
    "info": (":material/info:", "blue"),
}


def card(
    finding: Finding,
    zone: tzinfo | None,
    triage: Triage,
    *,
    number: int | None = None,
    explained: Sequence[Finding] = (),
    whole: bool = True,
) -> None:
    """A finding. `explained` are folded in; `number` is its rank where there are several; unless it is shown `whole`,
    its proof and what to do are behind a click."""
    with st.container(border=True, key=f"card-{finding.severity}-{finding.id}", gap="small"):
        rank = f"{number}\\. " if number else ""
        # One element, since each takes the browser its time.
        st.markdown(f"## {rank}{literal(finding.title)}\n\n{_badges(finding)}\n\n{literal(finding.conclusion)}")
        _since(finding, zone)
        _explains(finding, explained)
        if whole and finding != triage.leading[0]:  # the incident has the links of the first finding
            links.of_finding(finding, triage)
        if whole:
            _details(finding, triage, explained)
            return
        opened = st.expander("Proof, and what to do", key=f"details-{finding.id}", on_change="rerun")
        if opened.open:  # what nobody looks at takes the browser as long as what is looked at
            with opened:
                _details(finding, triage, explained)


def _details(finding: Finding, triage: Triage, explained: Sequence[Finding]) -> None:
    _proof(finding, finding.id)
    _explained_proof(finding, explained)
    _levers(finding, finding.id)
    _doubt(finding)
    _ticket(finding, triage)


def _badges(finding: Finding) -> str:
    icon, color = _SEVERITY[finding.severity]
    told = [
        f":{color}-badge[{icon} {finding.severity}]",
        f":gray-badge[{literal(f'{finding.code} {finding.name}')}]",
        f":gray-badge[:material/dns: {literal(finding.entity.title)}]",
    ]
    if finding.confidence_words:
        words = f"confidence {finding.confidence_words} ({finding.confidence:.2f})"
        told.append(f":gray-badge[:material/balance: {literal(words)}]")
    return " ".join(told)


def _since(finding: Finding, zone: tzinfo | None) -> None:
    if finding.since is None:
        return
    st.caption(f":material/schedule: since {literal(since_text(finding, moment(finding.since, zone)))}")


def _proof(finding: Finding, place: str) -> None:
    """The evidence, side by side. `place` tells apart a finding that is shown under several others."""
    if not finding.evidence:
        return
    rows = math.ceil(len(finding.evidence) / COLUMNS)
    per_row = max(2, math.ceil(len(finding.evidence) / rows))
    with st.container(key=f"proofs-{place}", gap="small"):
        for start in range(0, len(finding.evidence), per_row):
            row = finding.evidence[start : start + per_row]
            for i, (column, item) in enumerate(zip(st.columns(per_row, gap="small"), row, strict=False), start):
                with column.container(border=True, height="stretch", key=f"proof-{place}-{i}"):
                    _evidence(finding, item, f"chart-{place}-{i}")


def _evidence(finding: Finding, item: Evidence, key: str) -> None:
    st.caption(literal(item.title))
    st.markdown(f"**{literal(item.text)}**")
    drawn = chart(item, finding.entity)
    if drawn is not None:
        show(drawn, key=key)


def _explains(finding: Finding, explained: Sequence[Finding]) -> None:
    with st.container(gap="xsmall"):
        for f in explained[:MAX_EXPLAINED]:
            named = f"{inline_code(f.code_and_severity)} **{literal(f.title)}**"
            head = f":material/subdirectory_arrow_right: explains {named}"
            where = "" if f.entity == finding.entity else f" on {literal(f.entity.title)}"
            st.markdown(f"{head}{where}: {literal(f.conclusion)}")
        if len(explained) > MAX_EXPLAINED:
            st.caption(f"and {len(explained) - MAX_EXPLAINED:,} more: Export lists all")


def _explained_proof(finding: Finding, explained: Sequence[Finding]) -> None:
    with st.container():
        if not any(f.evidence or f.levers for f in explained):
            return
        explained = explained[:MAX_EXPLAINED]
        codes = ", ".join(dict.fromkeys(f.code for f in explained))
        label = f"Proof of the findings that this one explains: {literal(codes)}"
        opened = st.expander(label, key=f"explains-{finding.id}", on_change="rerun")
        if not opened.open:
            return
        with opened:
            for f in explained:
                st.markdown(f"{inline_code(f.code)} **{literal(f.title)}**")
                _proof(f, f"{finding.id}-{f.id}")
                _levers(f, f"{finding.id}-{f.id}")


def _levers(finding: Finding, place: str) -> None:
    with st.container(key=f"levers-{place}", gap="small"):
        if not finding.levers:
            return
        st.markdown("### What to do, in this order")
        for number, lever in enumerate(finding.levers, 1):
            label = f"**{number}\\. {literal(lever.title)}**{_setting_in_short(lever.setting)}"
            with st.expander(label, expanded=number == 1, key=f"lever-{place}-{lever.lever}"):
                _lever(lever)


def _setting_in_short(setting: LeverSetting | None) -> str:
    return f" \u2002{inline_code(setting.command or setting.text)}" if setting else ""


def _lever(lever: LeverAdvice) -> None:
    st.markdown(literal(lever.why))
    if lever.setting is not None:
        if command := lever.setting.command:  # with a button that copies it
            st.code(command, language=None, wrap_lines=True)
            parts = [f"now {lever.setting.now}"] if lever.setting.now else []
        else:
            parts = [lever.setting.text]
        parts += ["needs a restart" if lever.setting.restart else "no restart", f"cost {lever.cost}"]
        parts += [lever.setting.note] if lever.setting.note else []
    else:
        parts = [lever.setting_note, f"cost {lever.cost}"]
    st.caption(literal(" · ".join(p for p in parts if p)))
    texts = (("Does", lever.does), ("Will not fix", lever.does_not_fix), ("Risk", lever.risk))
    st.markdown("\n\n".join(f"**{word}:** {literal(text)}" for word, text in texts if text))
    for effect in lever.predicted:
        told = literal(f"{effect.title} {effect.text}")
        st.markdown(f"**Expect:** {told}", help=literal(effect.method))
    if lever.references:
        st.caption("see " + literal("; ".join(lever.references)))


def _doubt(finding: Finding) -> None:
    """How sure it is and why, the queries behind the charts, and what to look at after a change."""
    label = "Confidence, and how to check it"
    with st.expander(label, key=f"doubt-{finding.id}"):
        told = [f"- {literal(why)}" for why in finding.confidence_why]
        for unknown in finding.unknowns:
            remedy = f" ({literal(unknown.remedy)})" if unknown.remedy else ""
            told.append(f"- not known: {literal(unknown.what)}: {literal(unknown.why)}{remedy}")
        following = [f"\n**Next:** {literal(finding.next_check)}"] if finding.next_check else []
        if told or following:
            st.markdown("\n".join([*told, *following]))
        if finding.evidence:
            st.caption(f"{count(len(finding.evidence), 'query', 'queries')} behind the charts")
        for item in finding.evidence:
            st.code(item.query.strip(), language=None, wrap_lines=True)


def _ticket(finding: Finding, triage: Triage) -> None:
    """The finding to paste into a ticket."""
    with st.expander("As Markdown, for a ticket", key=f"ticket-{finding.id}"):
        st.code(export.export_finding(finding, triage, state.link()), language=None, wrap_lines=True)
