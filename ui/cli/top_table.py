"""The fleet as a table: which columns fit a width, what each cell says, and in which order the engines stand.

It renders the rows of the triage document and computes no figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from kvitals.app.escaping import plain
from kvitals.rules.finding import EngineRow, Measure, Triage
from kvitals.ui.cli.render import SEVERITY_STYLE, spark
from kvitals.ui.cli.screen import by_severity

NOT_KNOWN = "–"
MARKS = {"page": "✗", "ticket": "!", "info": "·"}
_RANK = {"page": 0, "ticket": 1, None: 2, "info": 3}
_LEAST_CAUSE = 17
_MOST_ENGINE = 40


@dataclass(frozen=True)
class FleetColumn:
    """One column. width: with the blank behind it; 0: what the others leave. least: the width of the screen from which
    on it is shown. order: by what rows are sorted, the first on top."""

    key: str
    title: str
    width: int
    least: int
    cell: Callable[[EngineRow], Text]
    order: Callable[[EngineRow], tuple[float | str, ...]]
    right: bool = True


def clip_middle(text: str, width: int) -> str:
    """At most so many characters. The middle is left out: names of pods and ports differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def figure(measure: Measure | None) -> str:
    """A figure as a cell has it: the document's text without the words that the column's title has."""
    if measure is None or not measure.text:
        return NOT_KNOWN
    if measure.value is None:
        return "∞"  # beyond the last bucket of a histogram
    return measure.text.removesuffix(" requests")


def _figure_cell(signal: str) -> Callable[[EngineRow], Text]:
    return lambda row: Text(figure(row.figures.get(signal)))


def _latency_cell(signal: str, objective: str, doubt: str = "", *, with_objective: bool) -> Callable[[EngineRow], Text]:
    """A latency, marked where it is above its objective and the engine is not judged healthy: with `?` where that is
    interpolated in a histogram bucket and not proven. doubt: the signal that has a value then."""

    def cell(row: EngineRow) -> Text:
        latency, limit = row.figures.get(signal), row.figures.get(objective)
        text = figure(latency)
        if latency is None or limit is None or limit.value is None or text == NOT_KNOWN:
            return Text(text)
        above = latency.value is None or latency.value > limit.value
        said = f"{text} / {limit.text}" if with_objective else text
        if not above or row.healthy is True:
            return Text(f"{said} ")
        in_doubt = row.figures.get(doubt)
        unproven = in_doubt is not None and in_doubt.value is not None
        return Text(f"{said}?", style="bold yellow") if unproven else Text(f"{said}!", style="bold red")

    return cell


def _mark_cell(row: EngineRow) -> Text:
    if row.severity is not None:
        return Text(MARKS[row.severity], style=SEVERITY_STYLE[row.severity])
    return Text("✓", style="green") if row.healthy else Text("?", style="bold yellow")


def _name(row: EngineRow) -> str:
    return plain.line(row.entity.title)


def _cause_cell(row: EngineRow) -> Text:
    style = SEVERITY_STYLE[row.severity] if row.severity else "dim" if row.healthy else "yellow"
    return Text(plain.line(row.verdict), style=style)


def _value(row: EngineRow, signal: str) -> float | None:
    """What a row is sorted by: a figure without a value is above all others where it is beyond the last bucket."""
    measure = row.figures.get(signal)
    if measure is None or not measure.text:
        return None
    return float("inf") if measure.value is None else measure.value


def _descending(signal: str) -> Callable[[EngineRow], tuple[float | str, ...]]:
    def order(row: EngineRow) -> tuple[float | str, ...]:
        value = _value(row, signal)
        return (1.0, 0.0) if value is None else (0.0, -value)

    return order


def _ascending(signal: str) -> Callable[[EngineRow], tuple[float | str, ...]]:
    def order(row: EngineRow) -> tuple[float | str, ...]:
        value = _value(row, signal)
        return (1.0, 0.0) if value is None else (0.0, value)

    return order


def _by_severity(row: EngineRow) -> tuple[float | str, ...]:
    rank = _RANK[row.severity] if row.severity or row.healthy is not True else 4
    return (float(rank), *_descending("waiting_avg")(row))


def _columns(*, with_objective: bool) -> list[FleetColumn]:
    wide = 18 if with_objective else 10
    ttft = _latency_cell("ttft_p99_seconds", "slo_ttft_seconds", "ttft_p99_unproven", with_objective=with_objective)
    itl = _latency_cell("itl_p99_seconds", "slo_itl_seconds", with_objective=with_objective)
    return [
        FleetColumn("severity", "", 2, 0, _mark_cell, _by_severity, right=False),
        FleetColumn("engine", "ENGINE", 0, 0, lambda row: Text(), lambda row: (row.entity.title,), right=False),
        FleetColumn("cause", "CAUSE", 0, 0, _cause_cell, lambda row: (row.verdict,), right=False),
        FleetColumn("ttft", "TTFT p99", wide, 0, ttft, _descending("ttft_p99_seconds")),
        FleetColumn("itl", "ITL p99", wide, 80, itl, _descending("itl_p99_seconds")),
        FleetColumn("running", "RUN", 6, 90, _figure_cell("running_avg"), _descending("running_avg")),
        FleetColumn("waiting", "WAIT", 6, 0, _figure_cell("waiting_avg"), _descending("waiting_avg")),
        FleetColumn("kv", "KV", 7, 0, _figure_cell("kv_usage_p90"), _descending("kv_usage_p90")),
        FleetColumn("hit", "HIT", 7, 100, _figure_cell("prefix_hit_ratio"), _ascending("prefix_hit_ratio")),
        FleetColumn(
            "tokens",
            "TOK/S",
            9,
            110,
            lambda row: Text(figure(row.figures.get("generation_tokens_per_second")).removesuffix("/s")),
            _descending("generation_tokens_per_second"),
        ),
        FleetColumn("course", "WAIT over time", 25, 140, _course_cell, _descending("waiting_avg"), right=False),
    ]


def _course_cell(row: EngineRow) -> Text:
    return Text(f" {spark([point.value for point in row.course])}")


SORTS = ("severity", "ttft", "itl", "running", "waiting", "kv", "hit", "tokens", "engine")
"""The columns that rows can be sorted by, in the order of the key."""

SORT_TITLES = {column.key: column.title or "severity" for column in _columns(with_objective=False)}
OBJECTIVE_COLUMNS = 156
"""The width of the screen from which on latencies stand beside their objectives."""


class FleetTable:
    """The columns for one width of the screen."""

    def __init__(self, width: int, rows: Sequence[EngineRow]) -> None:
        """width: columns of the terminal. rows: whose names have to fit."""
        shown = [c for c in _columns(with_objective=width >= OBJECTIVE_COLUMNS) if width >= c.least]
        rest = width - sum(column.width for column in shown)
        longest = max((len(_name(row)) for row in rows), default=0)
        engine = max(min(longest + 1, _MOST_ENGINE, rest - _LEAST_CAUSE, max(rest // 2, 17)), 9)
        widths = {"engine": engine, "cause": max(rest - engine, 1)}
        self.columns = [(column, column.width or widths[column.key]) for column in shown]

    def titles(self, sort: str) -> list[Text]:
        """The heads of the columns; the one that rows are sorted by is marked."""
        heads = []
        for column, width in self.columns:
            title = f"{column.title}▾" if column.key == sort and column.title else column.title
            heads.append(_fitted(Text(title), width, column.right))
        return heads

    def cells(self, row: EngineRow) -> list[Text]:
        """One row, each cell as wide as its column."""
        return [
            _fitted(Text(clip_middle(_name(row), width - 1)) if c.key == "engine" else c.cell(row), width, c.right)
            for c, width in self.columns
        ]


def _fitted(text: Text, width: int, right: bool) -> Text:
    """A text of exactly so many columns, the last of them blank."""
    if width < 2:
        return Text(" " * width)
    text.truncate(width - 1, overflow="ellipsis")
    blank = width - 1 - text.cell_len
    if right:
        text.pad_left(max(blank, 0))
    else:
        text.pad_right(max(blank, 0))
    return text.append(" ")


def sorted_rows(rows: Sequence[EngineRow], sort: str, *, reverse: bool = False) -> list[EngineRow]:
    """The rows by one column; those without a value last, equal ones by name."""
    order = next(column.order for column in _columns(with_objective=False) if column.key == sort)
    by_name = sorted(rows, key=lambda row: row.entity.title)
    return sorted(by_name, key=order, reverse=reverse)


def matching(document: Triage, words: str) -> list[EngineRow]:
    """The rows whose name, verdict, findings' codes, model, system or role contain every word, in any case."""
    wanted = words.lower().split()
    listed = [*document.causes, *document.telemetry, *document.symptoms]
    codes = {finding.id: finding.code for finding in listed}

    def text(row: EngineRow) -> str:
        named = (codes.get(id_, "") for id_ in row.findings)
        return " ".join([*row.entity.labels.values(), row.verdict, *row.about.values(), *named]).lower()

    return [row for row in document.engines if all(word in text(row) for word in wanted)]


def counts(rows: Sequence[EngineRow]) -> str:
    """How many engines have which highest severity, in words."""
    kinds = Counter(row.severity or ("healthy" if row.healthy else "unknown") for row in rows)
    said = [f"{kinds[kind]} {kind}" for kind in ("page", "ticket", "unknown", "info", "healthy") if kinds[kind]]
    engines = f"{len(rows)} engine{'' if len(rows) == 1 else 's'}"
    return f"{engines}: {', '.join(said)}" if said else engines


def beside(document: Triage) -> str:
    """The open findings that are about no engine of the table, such as a pool's."""
    listed = {id_ for row in document.engines for id_ in row.findings}
    others = [f for f in (*document.causes, *document.telemetry, *document.symptoms) if f.id not in listed]
    return plain.line(" · ".join(f"{title}: {'; '.join(rules)}" for title, rules in by_severity(others)))
