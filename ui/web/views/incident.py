"""The incident above the fold: what, who, since when, its impact, the first lever, and a copy for the ticket."""

from __future__ import annotations

from datetime import tzinfo

import streamlit as st

from kvitals.rules.finding import Finding, LeverAdvice, Triage
from kvitals.ui.formats import since_text
from kvitals.ui.web import export, links, state
from kvitals.ui.web.page_text import inline_code, literal, moment
from kvitals.ui.web.sources.base import PageWindow


def show(triage: Triage, zone: tzinfo | None) -> None:
    """The first finding of the document in five lines, its links, and the incident as Markdown."""
    if not triage.leading:
        return
    lead = triage.leading[0]
    rows = [
        ("Who", literal(lead.entity.title)),
        ("Since", _since(lead, triage, zone)),
        ("Impact", literal(export.impact(triage, lead))),
    ]
    if lead.levers:
        rows.append(("Then" if lead.levers[0].restart else "Now", _lever(lead.levers[0])))
    st.markdown("  \n".join(f"**{name}** {text}" for name, text in rows))
    with st.container(horizontal=True, key="incident-actions"):
        pinned = state.link(PageWindow(triage.window.start, triage.window.end))
        with st.popover("Copy as Markdown", icon=":material/content_copy:", key="incident-copy"):
            st.code(export.incident(triage, pinned), language=None, wrap_lines=True)
        with st.popover("Pin this moment", icon=":material/keep:", key="incident-pin"):
            st.markdown("**A link that also shows this moment later**")
            st.code(pinned, language=None, wrap_lines=True)
    links.of_finding(lead, triage)


def _since(lead: Finding, triage: Triage, zone: tzinfo | None) -> str:
    if lead.since is None:
        return literal(f"unknown, seen since {moment(triage.window.start, zone)}")
    return literal(since_text(lead, moment(lead.since, zone)))


def _lever(lever: LeverAdvice) -> str:
    setting = f": {inline_code(lever.setting.command or lever.setting.text)}" if lever.setting is not None else ""
    restart = " (needs a restart)" if lever.setting is not None and lever.setting.restart else ""
    effect = f", expect {literal(_effect(lever))}" if lever.predicted else ""
    return f"{literal(lever.title)}{setting}{restart}{effect}"


def _effect(lever: LeverAdvice) -> str:
    return f"{lever.predicted[0].title} {lever.predicted[0].text}"
