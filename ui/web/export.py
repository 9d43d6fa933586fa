"""Findings as Markdown, for a ticket."""

from __future__ import annotations

from collections.abc import Iterator

from kvitals.app.escaping.markdown import code
from kvitals.app.escaping.markdown import text as plain
from kvitals.rules.finding import Finding, LeverAdvice, Triage
from kvitals.ui.formats import since_text
from kvitals.ui.web.page_text import moment


def document(triage: Triage, link: str = "") -> str:
    """All of it."""
    lines = [f"# {plain(triage.verdict)}", ""]
    lines += [f"{triage.source.kind} {plain(triage.source.name)}, {triage.window.seconds:.0f} s up to "
              f"{moment(triage.window.end)}.", ""]  # fmt: skip
    if triage.regime is not None:
        lines += [plain(triage.regime.sentence), ""]
    if triage.slo:
        objectives = ", ".join(f"{plain(s.name)} {s.seconds:g} s ({plain(s.source)})" for s in triage.slo)
        lines += [f"Objectives: {objectives}.", ""]
    lines += [line for warning in triage.coverage.warnings for line in (f"**Warning.** {plain(warning)}", "")]
    if link:
        lines += [link, ""]
    leading, unexplained = triage.leading, triage.unexplained_symptoms
    for finding in (*leading, *(cause for cause in triage.causes if cause not in leading)):
        lines += [*_finding(finding), ""]
    if explained := [symptom for symptom in triage.symptoms if symptom not in unexplained]:
        lines += ["## Explained by these", ""]
        lines += [f"- {f.code_and_severity} {plain(f.title)}: {plain(f.conclusion)}" for f in explained] + [""]
    if triage.ruled_out:
        lines += ["## Ruled out", ""]
        lines += [f"- {r.code} {plain(r.title)} ({plain(r.entity)}): {plain(r.because)}" for r in triage.ruled_out]
        lines += [""]
    if triage.unknown:
        lines += ["## Not checked", ""]
        lines += [f"- {f.code} {plain(f.title)}: {plain(f.reason)}" for f in triage.unknown] + [""]
    return "\n".join(lines).rstrip() + "\n"


def impact(triage: Triage, lead: Finding) -> str:
    """What users notice of a finding: the first symptom that it explains, else its own conclusion."""
    return next((one for one in triage.explained(lead) if one.kind == "symptom"), lead).conclusion


def incident(triage: Triage, link: str) -> str:
    """The first finding for a chat: what, who, since when, its impact, the first lever, and a link to the moment."""
    lead = triage.leading[0]
    seen = f"unknown, seen since {moment(triage.window.start)}"
    since = since_text(lead, moment(lead.since)) if lead.since is not None else seen
    lines = [
        f"**{plain(triage.verdict)}** ({lead.code}, {lead.severity})",
        "",
        f"- Who: {plain(lead.entity.title)}",
        f"- Since: {since}",
        f"- Impact: {plain(impact(triage, lead))}",
    ]
    if lead.levers:
        lever = lead.levers[0]
        setting = f": {code(lever.setting.command or lever.setting.text)}" if lever.setting is not None else ""
        effect = f", expect {plain(f'{lever.predicted[0].title} {lever.predicted[0].text}')}" if lever.predicted else ""
        lines.append(f"- Now: {plain(lever.title)}{setting}{effect}")
    return "\n".join([*lines, f"- Evidence: {link}"]) + "\n"


def export_finding(finding: Finding, triage: Triage, link: str = "") -> str:
    """A single finding."""
    head = [
        f"# {finding.code} {plain(finding.title)}",
        "",
        f"On {plain(finding.entity.title)}, {triage.source.kind} {plain(triage.source.name)}, "
        f"{triage.window.seconds:.0f} s up to {moment(triage.window.end)}.",
        "",
    ]
    return "\n".join([*head, *([link, ""] if link else []), *list(_finding(finding))[2:]]).rstrip() + "\n"


def _finding(finding: Finding) -> Iterator[str]:
    yield f"## {finding.code} {plain(finding.title)} ({finding.severity}, {plain(finding.entity.title)})"
    yield ""
    yield plain(finding.conclusion)
    yield ""
    if finding.since is not None:
        yield f"Since {since_text(finding, moment(finding.since))}."
    if finding.confidence_words:
        yield f"Confidence {finding.confidence_words} ({finding.confidence:.2f})."
    if finding.evidence:
        yield ""
        yield "| proof | value | query |"
        yield "|---|---|---|"
        for item in finding.evidence:
            yield f"| {plain(item.title)} | {plain(item.text)} | {code(item.query)} |"
    if finding.levers:
        yield ""
        yield "What to do, in this order:"
        yield ""
        for number, lever in enumerate(finding.levers, 1):
            yield from _lever(number, lever)
    for unknown in finding.unknowns:
        yield f"Not known: {plain(unknown.what)}: {plain(unknown.why)}"
    if finding.next_check:
        yield ""
        yield f"Next: {plain(finding.next_check)}"


def _lever(number: int, lever: LeverAdvice) -> Iterator[str]:
    yield f"{number}. **{plain(lever.title)}**: {plain(lever.why)}"
    if lever.setting is not None:
        restart = ", needs a restart" if lever.setting.restart else ""
        now = f" (now {plain(lever.setting.now)})" if lever.setting.now else ""
        command = lever.setting.command
        yield f"   {code(command)}{now}{restart}" if command else f"   {plain(lever.setting.text)}{restart}"
    for effect in lever.predicted:
        yield f"   Expect: {plain(effect.title)} {plain(effect.text)} ({plain(effect.method)})"
    if lever.does_not_fix:
        yield f"   Will not fix: {plain(lever.does_not_fix)}"
    if lever.risk:
        yield f"   Risk: {plain(lever.risk)}"
