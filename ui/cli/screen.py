"""A triage on one screen: what is wrong, since when, the proof in three lines, what to do now and what to do later.

It renders `kvitals.rules.finding.Triage` and computes nothing that the document does not hold. At most `LINES` lines
at 80 columns for one entity; `kvitals.ui.cli.render` has all the rest (`-v`, `-vv`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import get_args

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvitals.diagnoser.text import last_true_text, render
from kvitals.rules.finding import Finding, LeverAdvice, SloInForce, Triage
from kvitals.rules.model import Severity
from kvitals.ui.cli.output import Block, Item
from kvitals.ui.cli.render import SEVERITY_STYLE, change_of, head_line, names, show_change, spark, verdict_lines

LINES = 25
"""What a terminal of the usual height shows, less the prompt."""

PROOFS = 3
SPARK_COLUMNS = 76
"""The least width at which the course of a value fits beside it."""

CONCLUSION_LINES, SYMPTOM_LINES, OTHERS_LINES = 3, 2, 2
MORE = " · more: -v"
UNKNOWN = 6
"""Core checks that were not made and are listed where the verdict itself is unknown."""
_NOT_CHECKED = "Not checked, and needed for a verdict"

EVENTS = "ENG"
"""The group of rules whose notes are printed: a restart, rejected clients, a silent replica. These are no trouble by
themselves, and explain what a reader sees elsewhere."""

SENTENCE_END = re.compile(r"(?<=[.]) (?=[A-Z])")

NAMED = 2
"""Engines of one rule that are all named."""

NOTE_LINES = {"cause": 2, "symptom": 2}
"""Of one note, by its kind; an event has one."""

PRINTED = ((2, 2, 3, PROOFS), (2, 2, 0, PROOFS), (2, 1, 0, PROOFS), (1, 1, 0, PROOFS), (1, 1, 0, 1), (1, 1, 0, 0))
"""How many levers without and with a restart, notes and rows of proof are printed: the first of these that fits. One
lever of each kind always is: without the second, a reader would not know that there is a remedy."""


def show(document: Triage, console: Console) -> None:
    """Print the short form of a triage."""
    if document.since_change is not None:
        show_change(document.since_change, console)
    for now, later, notes, proofs in PRINTED:
        parts = Group(*_parts(document, now, later, notes, proofs, console.width))
        if len(console.render_lines(parts, pad=False)) <= LINES:
            break
    console.print(parts)


def blocks(document: Triage) -> list[Block]:
    """The same as parts for a ticket, a chat or a mail."""
    leading = document.leading
    parts = [Block(head_line(document).plain), *(Block(line.plain) for line in _objectives(document.slo))]
    if document.regime is not None:
        parts.append(Block(document.regime.sentence))
    if document.since_change is not None:
        change = document.since_change
        effects = tuple(Item(f"{one.title}: {one.text} ({one.verdict})") for one in change.effects)
        parts += [Block(f"Since the change of {change.entity.title}: {', '.join(change.changed)}. {change.conclusion}")]
        parts += [Block("Before and after", effects)] if effects else []
    if leading:
        parts += _finding_blocks(leading[0], document)
    parts += [Block(title, tuple(Item(one) for one in rules)) for title, rules in by_severity(leading[1:])]
    parts += [Block(line.plain) for line in _warnings(document)]
    if document.healthy is None and document.unknown:
        reasons = tuple(Item(one) for one in _not_checked(document))
        parts += [Block(_NOT_CHECKED, reasons)] if reasons else []
    return [*parts, Block(_last(document).plain)]


def _finding_blocks(finding: Finding, document: Triage) -> list[Block]:
    parts = [Block(_title(finding, document).plain), Block(finding.conclusion)]
    if codes := document.explained_codes(finding):
        parts.append(Block(f"Explains {codes}: {document.explained(finding)[0].conclusion}"))
    proof = tuple(Item(f"{item.title}: {item.text}") for item in finding.evidence if item.lines)[:PROOFS]
    now = tuple(_lever_item(lever) for lever in finding.levers if not lever.restart)[:2]
    later = tuple(_lever_item(lever) for lever in finding.levers if lever.restart)[:2]
    lists = (("Proof", proof), ("Now (no restart)", now), ("Then (restart or deploy)", later))
    return [*parts, *(Block(name, items) for name, items in lists if items)]


def _lever_item(lever: LeverAdvice) -> Item:
    effect = lever.predicted[0] if lever.predicted else None
    detail = f"expect: {effect.title} {effect.text}" if effect else f"why: {lever.why}"
    setting, now, today = change_of(lever.setting).plain.partition(" (now ") if lever.setting else ("", "", "")
    return Item(lever.title, setting, f"{now}{today}; {detail}".strip() if now else detail)  # the code is for pasting


def _parts(document: Triage, now: int, later: int, notes: int, proofs: int, width: int) -> list[RenderableType]:
    """Everything from the source to the last line. now, later: levers without and with a restart; proofs: rows; width:
    columns."""
    leading = document.leading
    first, others = (leading[0] if leading else None), leading[1:]
    parts: list[RenderableType] = [head_line(document), *_objectives(document.slo), *verdict_lines(document)]
    if document.lacks_cause:
        parts.append(Text("No known cause matches. The first symptom is below.", style="dim"))
    if first is not None:
        parts += ["", _title(first, document)]
        parts.append(_clipped(first.conclusion, width, CONCLUSION_LINES, 2))
        parts += explained_lines(first, document, width)
        parts += proof_lines(first, width, proofs)
        parts += lever_lines("Now (no restart)", [one for one in first.levers if not one.restart][:now], width)
        parts += lever_lines("Then (restart or deploy)", [one for one in first.levers if one.restart][:later], width)
    for title, rules in by_severity(others):
        parts.append(_clipped(f"{title}: {'; '.join(rules)}", width, OTHERS_LINES, 0))
    for several in by_rule(_printed_notes(document))[:notes]:
        lines = NOTE_LINES.get(several[0].kind, 1)
        parts.append(_clipped(_note_line(several, _room(width, lines)), width, lines, 0))
    if document.muted:
        muted = "; ".join(f"{one.code} {one.title} ({one.muted})" for one in document.muted)
        parts.append(_clipped(f"Muted: {muted}", width, 1, 0))
    parts += _warnings(document)
    if document.healthy is None:
        parts += _unknown(document, width)
    blank = [""] if first is not None or document.healthy is None else []
    return [*parts, *blank, *_last_lines(document, _more(first, now, later), width)]


def by_severity(findings: Sequence[Finding]) -> list[tuple[str, list[str]]]:
    """Findings in words, the gravest first: of each severity its title, and each rule once. In a fleet, one rule fires
    for many engines, and a page must not stand behind a row of tickets."""
    parts = []
    for severity in get_args(Severity):
        here = [one for one in findings if one.severity == severity]
        rules = [f"{several[0].code} {several[0].title} ({_whose(several)})" for several in by_rule(here)]
        plural = "s" if len(here) > 1 and severity != "info" else ""
        parts += [(f"Also {len(here)} {severity}{plural}", rules)] if here else []
    return parts


def by_rule(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of the same rule together, in the order of the first of each; those that have ended apart."""
    rules: dict[tuple[str, bool], list[Finding]] = {}
    for one in findings:
        rules.setdefault((one.code, one.last_true is None), []).append(one)
    return list(rules.values())


def _whose(several: Sequence[Finding]) -> str:
    titles = [one.entity.title for one in several]
    return ", ".join(titles) if len(titles) <= NAMED else f"{titles[0]} and {len(titles) - 1} more"


def _printed_notes(document: Triage) -> list[Finding]:
    """Causes that harm nobody now, symptoms that have ended and that none of these explains, then events."""
    causes = [one for one in document.notes if one.kind == "cause"]
    symptoms = [one for one in document.notes if one.kind == "symptom" and one.severity != "info"]
    unexplained = [one for one in symptoms if not {cause.code for cause in causes}.intersection(one.explained_by)]
    events = [one for one in document.notes if one.kind == "note" and one.code.startswith(EVENTS)]
    return [*causes, *unexplained, *events]


def _objectives(slo: Sequence[SloInForce]) -> list[Text]:
    if not slo:
        return []
    listed = ", ".join(f"{one.name} {one.seconds:g} s" for one in slo)
    unset = " (defaults: set yours with --slo)" if all(one.source == "default" for one in slo) else ""
    return [Text(f"objectives: {listed}{unset}", style="dim")]


def _title(finding: Finding, document: Triage) -> Text:
    title = "" if finding.title in document.verdict else f" {finding.title}"
    text = Text(f"{finding.code}{title}", style=SEVERITY_STYLE[finding.severity])
    said = [finding.severity, finding.entity.title]
    if finding.since is not None:
        said.append(lasting(finding, finding.since, document))
    if finding.kind != "telemetry":
        said.append(f"confidence {finding.confidence_words}")
    return text.append(f"  {' · '.join(said)}", style="dim")


def lasting(finding: Finding, since: float, document: Triage) -> str:
    """For how long a finding holds, or held if it has ended: `for 70 s`, `for at least 24 min`."""
    least = "at least " if finding.since_at_least else ""
    until = finding.last_true if finding.ended and finding.last_true is not None else document.window.end
    return f"for {least}{render(max(round(until - since), 0), 'seconds')}"


def explained_lines(cause: Finding, document: Triage, width: int) -> list[RenderableType]:
    """The first finding that a cause explains, with the codes of the others."""
    if not (codes := document.explained_codes(cause)):
        return []
    return [_clipped(f"Explains {codes}: {document.explained(cause)[0].conclusion}", width, SYMPTOM_LINES, 2)]


def proof_lines(finding: Finding, width: int, most: int = PROOFS) -> list[RenderableType]:
    """The first rows that have values over time; a narrow terminal loses the course and no number."""
    seen = [item for item in finding.evidence if item.lines][:most]
    table = Table.grid(padding=(0, 2))
    for item in seen:
        values = [point.value for point in item.lines[0].points]
        row = [Text(item.title), Text(item.text, style="bold")]
        table.add_row(*row, *([Text(spark(values, unit=item.unit), no_wrap=True)] if width >= SPARK_COLUMNS else []))
    return [Text("Proof", style="bold"), Padding(table, (0, 0, 0, 2))] if seen else []


def lever_lines(title: str, levers: Sequence[LeverAdvice], width: int) -> list[RenderableType]:
    """Levers below a title: the setting, and what it is expected to do or why it is advised."""
    parts: list[RenderableType] = [Text(title, style="bold")] if levers else []
    for lever in levers:
        line = Text(lever.title)
        if lever.setting is not None:
            line.append(": ").append_text(change_of(lever.setting))
        parts.append(_clipped(line, width, 2, 2))
        effect = lever.predicted[0] if lever.predicted else None
        said = f"expect: {effect.title} {effect.text}" if effect else f"why: {lever.why}"
        parts.append(_clipped(Text(said, style="dim"), width, 1, 4))
    return parts


def _unknown(document: Triage, width: int) -> list[RenderableType]:
    """Why there is no verdict."""
    reasons = [_clipped(reason, width, 2, 2) for reason in _not_checked(document)]
    return ["", Text(_NOT_CHECKED, style="bold"), *reasons] if reasons else []


def _not_checked(document: Triage) -> list[str]:
    """The core checks that were not made, each reason once: without the others a document may be healthy."""
    core = document.unknown[: document.coverage.core_unknown]
    told = Counter(f"{one.code} {one.title}: {one.reason}" for one in core)
    return [f"{line}{f' (the same on {count - 1} more)' if count > 1 else ''}" for line, count in told.items()][
        :UNKNOWN
    ]


def _warnings(document: Triage) -> list[Text]:
    crashed = [f"RULE FAILED {code}: {error}" for code, error in document.coverage.crashed.items()]
    return [
        *(Text(line, style="bold red") for line in crashed),
        *(Text(line, style="yellow") for line in document.coverage.warnings),
    ]


def _more(finding: Finding | None, now: int, later: int) -> str:
    """How to see the rest, with the number of levers that are not printed."""
    levers = finding.levers if finding is not None else ()
    counts = Counter(lever.restart for lever in levers)
    hidden = max(0, counts[False] - now) + max(0, counts[True] - later)
    return f" · {hidden} more lever{'s' if hidden > 1 else ''}: -v" if hidden else MORE


def _last_lines(document: Triage, more: str, width: int) -> list[RenderableType]:
    """The counts and how to see more, in one line, or in two where the terminal is narrow."""
    line = _last(document, more)
    if width >= SPARK_COLUMNS:
        return [_clipped(line, width, 1, 0)]
    counts, _, rest = line.plain.partition(" · ")
    return [_clipped(Text(part, style="dim"), width, 1, 0) for part in (counts, rest)]


def _last(document: Triage, more: str = "") -> Text:
    engines = names([row.entity.title for row in document.engines]) or "no engine seen"
    return Text(f"{document.coverage.short_summary}{more} · {engines}", style="dim")


def _note_line(several: Sequence[Finding], width: int) -> str:
    """A note with the whole sentences of its conclusion that fit on a line, or with its title where not even one fits:
    a sentence that ends in "…" loses its sense. Of several engines the title, and of what has ended when it was last
    true.
    """
    note, whose = several[0], _whose(several)
    last = [one.last_true for one in several if one.last_true is not None]
    if last:
        return f"Earlier: {note.code} {note.title} ({whose}), {last_true_text(max(last))}"
    if len(several) > 1:
        return f"Noted: {note.code} {note.title} ({whose})"
    line = head = f"Noted: {note.code} ({whose})"
    for sentence in SENTENCE_END.split(note.conclusion):
        if len(line) + 1 + len(sentence) > width:
            break
        line = f"{line} {sentence}"
    return line if line != head else f"Noted: {note.code} {note.title} ({whose})"


def _room(width: int, lines: int) -> int:
    """Characters that fit on so many lines: lines break at words, so each loses some columns."""
    return width * lines - 8 * (lines - 1)


def _clipped(said: str | Text, width: int, lines: int, left: int) -> Padding:
    """A text of at most so many lines, indented: the whole sentences that fit, or the first one with an ellipsis."""
    text = said if isinstance(said, Text) else Text(said)
    room = _room(max(width - left, 10), lines)
    wrapped = text.copy()
    if len(text.plain) > room:
        ends = [end.start() for end in SENTENCE_END.finditer(text.plain, 0, room)]
        wrapped.truncate(ends[-1] if ends else room, overflow="crop" if ends else "ellipsis")
    return Padding(wrapped, (0, 0, 0, left))
