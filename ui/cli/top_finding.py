"""One engine in full for `kvitals top`: its figures, and one of its findings with proof and levers."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvitals.rules.finding import EngineRow, Finding, Triage
from kvitals.ui.cli.render import SEVERITY_STYLE, moment, spark
from kvitals.ui.cli.screen import explained_lines, lasting, lever_lines, proof_lines
from kvitals.ui.cli.top_table import NOT_KNOWN

PROOFS, MORE_PROOFS = 3, 8
"""Rows of proof, on a screen of usual height and on a tall one."""

TALL_LINES = 40
MAX_UNKNOWN = 12
NOW, THEN = "Now (no restart)", "Then (restart or deploy)"
FIGURE_TITLES = {
    "ttft_p99_seconds": "TTFT p99",
    "slo_ttft_seconds": "objective",
    "itl_p99_seconds": "ITL p99",
    "slo_itl_seconds": "objective",
    "running_avg": "running",
    "waiting_avg": "waiting",
    "kv_usage_p90": "KV usage p90",
    "prefix_hit_ratio": "hit rate",
    "generation_tokens_per_second": "tokens generated",
}


def findings_of(row: EngineRow, document: Triage) -> list[Finding]:
    """The open findings about an engine, in the order of its row."""
    listed = {f.id: f for f in (*document.causes, *document.telemetry, *document.symptoms)}
    return [listed[id_] for id_ in row.findings if id_ in listed]


def preview(row: EngineRow, document: Triage, width: int) -> list[RenderableType]:
    """An engine in a few lines: the conclusion of its first finding, and the first lever of each kind."""
    findings = findings_of(row, document)
    if not findings:
        return []
    first = findings[0]
    name = Text(f"{row.entity.title}  {first.code} ", style=SEVERITY_STYLE[first.severity])
    parts: list[RenderableType] = [name.append(first.conclusion, "not bold default")]
    for word, restart in ((NOW, False), (THEN, True)):
        levers = [lever for lever in first.levers if lever.restart is restart]
        parts += lever_lines(word, levers[:1], width)[:2]
    return parts


def engine_view(row: EngineRow, document: Triage, place: int, width: int, lines: int) -> Group:
    """An engine and one of its findings. place: which finding, from 0. width, lines: of the screen."""
    findings = findings_of(row, document)
    parts: list[RenderableType] = [*_head(row, document, findings), ""]
    if findings:
        proofs = MORE_PROOFS if lines >= TALL_LINES else PROOFS
        parts += _finding(findings[place % len(findings)], document, width, proofs)
        parts += _others(findings, place % len(findings))
    else:
        parts += _not_checked(row, document)
    return Group(*parts)


def _head(row: EngineRow, document: Triage, findings: list[Finding]) -> Iterator[RenderableType]:
    about = " · ".join(row.about.values())
    node = row.entity.labels.get("node", "")
    named = " · ".join(filter(None, (row.entity.title, f"node {node}" if node else "", about)))
    style = SEVERITY_STYLE[row.severity] if row.severity else "bold green" if row.healthy else "bold yellow"
    when = f"  {moment(document.window.end)} · window {document.window.seconds:.0f} s"
    yield Text(named, style="bold").append(when, "not bold dim")
    if not findings:
        yield Text(row.verdict, style=style)
    figures = [
        f"{title} {row.figures[name].text or NOT_KNOWN}"
        for name, title in FIGURE_TITLES.items()
        if name in row.figures  # an agent of another version may report others
    ]
    yield Text(" · ".join(figures).replace(" · objective ", " / objective "))
    if row.course:
        yield Text(f"waiting over time {spark([point.value for point in row.course])}")


def _finding(finding: Finding, document: Triage, width: int, proofs: int) -> Iterator[RenderableType]:
    since = ""
    if finding.since is not None:
        since = lasting(finding, finding.since, document)
    confidence = f"confidence {finding.confidence_words}" if finding.kind != "telemetry" else ""
    said = " · ".join(filter(None, (finding.severity, finding.entity.title, since, confidence)))
    yield Text(f"{finding.code} {finding.title}", style=SEVERITY_STYLE[finding.severity])
    yield Padding(Text(said, style="dim"), (0, 0, 0, 2))
    yield Padding(Text(finding.conclusion), (0, 0, 0, 2))
    yield from explained_lines(finding, document, width)
    yield ""
    if any(item.lines for item in finding.evidence):
        yield from proof_lines(finding, width, proofs)
    else:
        yield Text("Proof: listed for the first engines with this finding only", style="dim")
    for title, restart in ((NOW, False), (THEN, True)):
        if levers := [lever for lever in finding.levers if lever.restart is restart]:
            yield ""
            yield from lever_lines(title, levers, width)
    if finding.next_check:
        yield ""
        yield Text(f"Next: {finding.next_check}", style="dim")


def _others(findings: list[Finding], place: int) -> Iterator[RenderableType]:
    if len(findings) < 2:
        return
    yield ""
    yield Text(f"Finding {place + 1} of {len(findings)} on this engine; ← → show the others:", style="bold")
    table = Table.grid(padding=(0, 2))
    for number, finding in enumerate(findings):
        mark = "▸" if number == place else " "
        table.add_row(Text(mark), Text(finding.code, style=SEVERITY_STYLE[finding.severity]), Text(finding.title))
    yield table


def _not_checked(row: EngineRow, document: Triage) -> Iterator[RenderableType]:
    """What is unknown about an engine without a finding."""
    labels = row.entity.labels
    unknown = [f for f in document.unknown if f.entity.kind == "engine" and f.entity.labels == labels]
    yield Text("No finding is open on this engine.")
    if unknown:
        yield ""
        yield Text(f"Not checked: missing data ({len(unknown)})", style="bold")
        for finding in unknown[:MAX_UNKNOWN]:
            yield Padding(Text(f"{finding.code} {finding.title}: {finding.reason}", style="dim"), (0, 0, 0, 2))
        if len(unknown) > MAX_UNKNOWN:
            yield Text(f"  and {len(unknown) - MAX_UNKNOWN} more: kvitals triage -vv", style="dim")
