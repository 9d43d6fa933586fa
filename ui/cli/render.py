"""The triage document for a terminal: verdict, proof, what to do, what was ruled out, what is unknown.

It renders `kvitals.rules.finding.Triage` and computes nothing that the document lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvitals.diagnoser.text import render as render_value
from kvitals.rules.finding import Evidence, Finding, LeverAdvice, LeverSetting, RuledOut, SinceChange, Triage
from kvitals.ui.formats import since_text

SEVERITY_STYLE = {"page": "bold red", "ticket": "bold yellow", "info": "bold cyan"}
_BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24
FEW = 2
"""Findings of one rule that are told in full; of more only the first is, and where the others are."""

NAMED = 10

FULL_LEVERS = 3
"""Levers of a finding that are told in full without `-vv`; of the others what they are and set."""

ALTERNATIVES = 6
"""Causes ruled out that are told without `-vv`; they stand in the order of what they could have explained."""


def show(document: Triage, console: Console, *, verbose: bool = False) -> None:
    """Print a whole triage. `verbose` also lists what could not be told, rule by rule, and the queries."""
    _head(document, console)
    if document.since_change is not None:
        show_change(document.since_change, console)
    console.print(Group(*verdict_lines(document)))
    if document.lacks_cause:
        console.print(_indent("No known cause matches. The symptoms are below."))
    for finding, others in _each_rule(document.leading):
        _finding(finding, console, verbose, document.explained(finding))
        _likewise(others, console)
    _ruled_out(document.ruled_out, console, verbose)
    _notes(document.notes, console)
    _unknown(document, console, verbose)
    _muted(document.muted, console)
    _foot(document, console)


def moment(t: float) -> str:
    """A time in UTC and local time."""
    utc = datetime.fromtimestamp(t, UTC)
    local = utc.astimezone()
    text = utc.strftime("%Y-%m-%d %H:%M:%S UTC")
    return text if local.utcoffset() == UTC.utcoffset(None) else f"{text} ({local:%H:%M:%S %Z})"


def spark(values: Sequence[float], width: int = SPARK_WIDTH, unit: str = "") -> str:
    """A line of bars from zero to the maximum, of ratios at least to 100 %; empty for fewer than three values."""
    finite = [v for v in values if v == v and abs(v) != float("inf")]
    if len(finite) < 3:
        return ""
    step = max(1, len(finite) // width)
    kept = finite[::step][-width:]
    top = max(max(kept), 1.0 if unit == "ratio" else 1e-12)
    return "".join(_BARS[round(7 * min(1.0, max(0.0, v / top)))] for v in kept)


def verdict_lines(document: Triage) -> list[Text]:
    """The verdict, and the change of load or latency after which the window begins."""
    regime = document.regime
    return [verdict_line(document), *([] if regime is None else [Text(regime.sentence, style="dim")])]


def verdict_line(document: Triage) -> Text:
    """The verdict, marked as good, bad or unknown."""
    mark = {True: "✓ ", False: "✗ ", None: "? "}[document.healthy]
    style = {True: "bold green", False: "bold red", None: "bold yellow"}[document.healthy]
    return Text(mark + document.verdict, style=style)


def head_line(document: Triage) -> Text:
    """Source, moment and window. A window that begins where the load changed has a time before it."""
    cold = ", little or no history before it" if document.window.cold and document.regime is None else ""
    window = f"window {document.window.seconds:.0f} s{cold}"
    return Text(f"{document.source.name} · {moment(document.window.end)} · {window}", style="dim")


def _head(document: Triage, console: Console) -> None:
    console.print(head_line(document))
    slo = " · ".join(f"{s.name} {s.seconds:g} s ({s.source})" for s in document.slo)
    if slo:
        console.print(Text(f"objectives: {slo}", style="dim"))
    console.print()


_OUTCOME = {
    **{"worked": "green", "in part": "yellow", "nothing": "yellow", "worse": "red"},
    **{"cannot be judged": "yellow", "not judged": "yellow"},
}


def show_change(told: SinceChange, console: Console) -> None:
    """What came of the latest change."""
    head = Text(f"SINCE THE CHANGE of {told.entity.title}", style="bold")
    console.print(head.append(f"  {moment(told.at)} · {', '.join(told.changed)}", "not bold dim"))
    console.print(_indent(Text(told.conclusion, style=f"bold {_OUTCOME[told.verdict]}")))
    table = Table.grid(padding=(0, 2))
    for one in told.effects:
        expected = "" if one.predicted is None else f"expected {one.predicted.text.rpartition(' → ')[2]}"
        table.add_row(one.title, Text(one.text, style="bold"), Text(one.verdict, style=_OUTCOME[one.verdict]), expected)
    console.print(_indent(table, 4))
    for word, several in (("gone", told.gone), ("new", told.come)):
        if several:
            console.print(_indent(f"{word}: {'; '.join(several)}"))
    console.print()


def _each_rule(findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """The findings to tell in full, each with others of its rule that are like it, where there are more than a few."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    return [
        (finding, same[1:] if len(same) > FEW else [])
        for finding in findings
        if len(same := by_code[finding.code]) <= FEW or finding is same[0]
    ]


def _likewise(others: Sequence[Finding], console: Console) -> None:
    """Where else the same is so, without telling it again."""
    if others:
        console.print(_indent(Text("THE SAME ON", style="bold").append(f"  {_names(others)}", "not bold")))


def names(several: Sequence[str]) -> str:
    """The first few, and how many more."""
    named = ", ".join(several[:NAMED])
    rest = len(several) - NAMED
    return f"{named} and {rest} more" if rest > 0 else named


def _names(findings: Sequence[Finding]) -> str:
    return names([finding.entity.title for finding in findings])


def _finding(finding: Finding, console: Console, verbose: bool, explained: Sequence[Finding] = ()) -> None:
    console.print()
    head = Text(f"{finding.code} {finding.title}", style=SEVERITY_STYLE[finding.severity])
    head.append(f"  {finding.severity} · {finding.entity.title}", style="dim")
    if finding.kind != "telemetry":
        head.append(f" · confidence {finding.confidence_words} ({finding.confidence:.2f})", style="dim")
    console.print(head)
    console.print(_indent(finding.conclusion))
    if finding.since is not None:
        console.print(_indent(Text(f"since {since_text(finding, moment(finding.since))}", style="dim")))
    if finding.confidence_why and finding.kind != "telemetry":
        console.print(_indent(Text(f"confidence: {'; '.join(finding.confidence_why)}", style="dim")))
    _proof(finding.evidence, console, verbose)
    if explained:
        console.print(_indent(Text("EXPLAINS", style="bold")))
        rows = []
        for symptom in explained:
            where = "" if symptom.entity == finding.entity else f" on {symptom.entity.title}"
            rows.append((symptom.code_and_severity, f"{symptom.title}{where}. {symptom.conclusion}"))
        console.print(_items(rows, 4))
    _levers(finding.levers, console, verbose)


def _proof(evidence: Sequence[Evidence], console: Console, verbose: bool) -> None:
    if not evidence:
        return
    console.print(_indent(Text("PROOF", style="bold")))
    table = Table.grid(padding=(0, 2))
    for item in evidence:
        values = [p.value for p in item.lines[0].points] if item.lines else []
        newest = max((line.points[-1].t for line in item.lines), default=0.0)
        last = [(line.labels.values(), line.points[-1]) for line in item.lines if line.points[-1].t == newest]
        shown = item.text
        if len(last) > 1 and item.unit != "bool":  # the text names those that are so
            shown = ", ".join(f"{' '.join(names)} {render_value(point.value, item.unit)}" for names, point in last)
        if item.window is not None:
            shown += f" (last {render_value(item.window, 'seconds')})"
        table.add_row(item.title, Text(shown, style="bold"), spark(values, unit=item.unit))
    console.print(_indent(table, 4))
    if verbose:
        for item in evidence:
            console.print(_indent(Text(f"{item.title}: {' '.join(item.query.split())}", style="dim"), 4))


def _levers(levers: Sequence[LeverAdvice], console: Console, verbose: bool) -> None:
    if not levers:
        return
    console.print(_indent(Text("DO, in this order", style="bold")))
    full = len(levers) if verbose else FULL_LEVERS
    for number, lever in enumerate(levers[:full], 1):
        console.print(_indent(Text(f"{number}. {lever.title}", style="bold"), 4))
        if lever.setting is not None:
            console.print(_indent(_setting(lever.setting), 7))
            if lever.setting.note:
                console.print(_indent(_brief(lever.setting.note, verbose), 7))
        else:
            console.print(_indent(Text(lever.setting_note, style="dim"), 7))
        console.print(_indent(f"why: {lever.why}", 7))
        for effect in lever.predicted:
            line = Text(f"expect: {effect.title} {effect.text}")
            console.print(_indent(line.append(f"  {_brief(effect.method, verbose)}", "dim"), 7))
        console.print(_indent(Text(f"will not fix: {_brief(lever.does_not_fix, verbose)}", style="dim"), 7))
        console.print(_indent(Text(f"risk: {_brief(lever.risk, verbose)}", style="dim"), 7))
    for number, lever in enumerate(levers[full:], full + 1):
        line = Text(f"{number}. {lever.title}", style="bold")
        if lever.setting is not None:
            line.append("  ", "not bold").append_text(_setting(lever.setting))
        console.print(_indent(line, 4))
    if len(levers) > full:
        console.print(_indent(Text("reason, what it does not fix, and risk: -vv", style="dim"), 7))


def change_of(setting: LeverSetting) -> Text:
    """The change as the document words it."""
    return Text(setting.text, style="not bold green")


def _setting(setting: LeverSetting) -> Text:
    return change_of(setting).append(f"   {'restart needed' if setting.restart else 'no restart'}", "dim")


def _brief(text: str, verbose: bool) -> str:
    """The first sentence; all of them with `-vv`."""
    words = " ".join(text.split())
    first, stop, _ = words.partition(". ")
    return words if verbose or not stop else f"{first}."


def _ruled_out(ruled_out: Sequence[RuledOut], console: Console, verbose: bool) -> None:
    if not ruled_out:
        return
    console.print()
    console.print(Text("RULED OUT", style="bold"))
    told = ruled_out if verbose else ruled_out[:ALTERNATIVES]
    console.print(_items([(r.code, f"{r.title}: {r.because}") for r in told]))
    if rest := ruled_out[len(told) :]:
        codes = ", ".join(sorted({r.code for r in rest}))
        console.print(_indent(Text(f"and {codes} (by which number: -vv)", style="dim")))


def _notes(notes: Sequence[Finding], console: Console) -> None:
    if not notes:
        return
    console.print()
    console.print(Text("NOTED", style="bold"))
    rows = []
    for n, others in _each_rule(notes):
        also = f" The same on {_names(others)}." if others else ""
        rows.append((n.code, f"{n.title} ({n.entity.title}). {n.conclusion}{also}"))
    console.print(_items(rows))


def _unknown(document: Triage, console: Console, verbose: bool) -> None:
    if not document.unknown:
        return
    console.print()
    whole = verbose or document.healthy is None
    console.print(Text.assemble(("NOT CHECKED", "bold"), "" if whole else ": missing data"))
    if whole:
        console.print(_items([(same[0].code, _why_not(same, document)) for same in _each_reason(document.unknown)]))
        if document.coverage.unknown_not_listed:
            console.print(_indent(f"and {document.coverage.unknown_not_listed} more of these checks on other engines"))
    else:
        table = Table.grid(padding=(0, 2))
        for one in document.lacking:
            table.add_row(Text(str(len(one.codes)), justify="right"), one.what, Text(one.brings, style="dim"))
        console.print(_indent(table))
        console.print(_indent(Text("which checks, and the reason for each: -vv", style="dim")))


def _each_reason(unknown: Sequence[Finding]) -> list[list[Finding]]:
    """Those of one rule that can not be told for one reason are told once."""
    found: dict[tuple[str, str], list[Finding]] = {}
    for finding in unknown:
        found.setdefault((finding.code, finding.reason), []).append(finding)
    return list(found.values())


def _why_not(same: Sequence[Finding], document: Triage) -> str:
    """Why a rule can not be told, and of whom unless it is the only engine there."""
    text = f"{same[0].title}: {same[0].reason}"
    only = {engine["engine"] for engine in document.coverage.engines} if len(document.coverage.engines) == 1 else set()
    return text if {f.entity.title for f in same} == only else f"{text} ({_names(same)})"


def _muted(muted: Sequence[Finding], console: Console) -> None:
    if muted:
        console.print()
        console.print(Text("MUTED", style="bold"))
        console.print(_items([(f.code, f"{f.title} on {f.entity.title}: {f.muted}") for f in muted]))


def _foot(document: Triage, console: Console) -> None:
    c = document.coverage
    for code, error in c.crashed.items():
        console.print()
        console.print(Text(f"RULE FAILED {code}: {error}", style="bold red"))
        console.print(_indent("This is a defect of the rule; all other rules were evaluated. Please report it."))
    for warning in c.warnings:
        console.print(Text(warning, style="yellow"))
    engines = names([" ".join(filter(None, (e["engine"], e.get("system"), e.get("version")))) for e in c.engines])
    console.print()
    console.print(Text(f"{c.summary} · {engines or 'no engine seen'}", style="dim"))


def _items(rows: Sequence[tuple[str, str]], left: int = 2) -> Padding:
    """A line for each rule, with its text beside its code."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for code, text in rows:
        table.add_row(code, Text(text))
    return _indent(table, left)


def _indent(what: str | Text | Table, left: int = 2) -> Padding:
    return Padding(what if not isinstance(what, str) else Text(what), (0, 0, 0, left))
