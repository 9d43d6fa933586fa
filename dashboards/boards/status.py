"""The status wall: which engines are there, what is wrong with which, in one look."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import gauge
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import Now, PanelLine, States, TablePanel
from kvitals.dashboards.queries import ConditionQuery, ExpressionQuery, Holds, SignalQuery
from kvitals.rules.loader import ROOT, Knowledge
from kvitals.rules.model import Rule, Severity

_RULES_STEP = "2m"
"""Between two points of the panels with a row for each rule, which read several signals of all engines each."""

_ORDER: dict[Severity, int] = {"page": 0, "ticket": 1, "info": 2}

_COUNTS = BoardRow(
    "Fleet",
    (
        Now(
            title="Engines watched",
            question="How many engines are watched?",
            lines=(PanelLine(gauge("kvitals_target_up", unit="count", scope="fleet", of="count"), "{{cluster}}"),),
            note="Routers, exporters and stores that are watched also count.",
            width=6,
            height=4,
        ),
        Now(
            title="Engines unreachable",
            question="How many are unreachable?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "count by ($scope) (kvitals_target_up == 0) or 0 * count by ($scope) (kvitals_target_up)",
                        "count",
                        "fleet",
                    ),
                    "{{cluster}}",
                ),
            ),
            by=("TEL01",),
            note="An engine that was never seen is not counted: compare with the number of watched engines.",
            width=6,
            height=4,
        ),
        Now(
            title="Running requests",
            question="How many requests run?",
            lines=(
                PanelLine(gauge("kvitals_requests_running", unit="requests", scope="fleet", of="sum"), "{{cluster}}"),
            ),
            width=6,
            height=4,
        ),
        Now(
            title="Waiting requests (queue)",
            question="How many requests wait?",
            lines=(
                PanelLine(gauge("kvitals_requests_waiting", unit="requests", scope="fleet", of="sum"), "{{cluster}}"),
            ),
            width=6,
            height=4,
        ),
    ),
)

_ENGINES = BoardRow(
    "Engines",
    (
        TablePanel(
            title="Engines: load, KV cache usage, TTFT, ITL, preemptions",
            question="Which engine has a problem?",
            lines=(
                PanelLine(SignalQuery("target_up"), "readable"),
                PanelLine(SignalQuery("running_avg"), "running"),
                PanelLine(SignalQuery("waiting_avg"), "waiting"),
                PanelLine(SignalQuery("kv_usage_p90"), "KV usage"),
                PanelLine(SignalQuery("ttft_p99_seconds"), "TTFT p99"),
                PanelLine(SignalQuery("itl_p99_seconds"), "ITL p99"),
                PanelLine(SignalQuery("prefix_hit_ratio"), "prefix hits"),
                PanelLine(SignalQuery("preemptions_per_request"), "preemptions"),
                PanelLine(SignalQuery("restarts"), "restarts"),
            ),
            judges=(
                ConditionQuery("TEL01", "target_up"),
                None,
                None,
                ConditionQuery("KVC01", "kv_usage_p90", "kv_high"),
                None,
                None,
                None,
                ConditionQuery("KVC09", "preemptions_per_request", "preemptions"),
                ConditionQuery("ENG04", "restarts"),
            ),
            by=("LAT01", "LAT02"),
            note="Click on an engine to open its board. An empty cell means no data: neither good nor bad.",
            drill="kvitals-engines",
            width=24,
            height=9,
        ),
        States(
            title="Engine up (scrape target)",
            question="Since when has each engine been reachable?",
            lines=(PanelLine(SignalQuery("target_up"), "{{engine}}"),),
            words=((0, "not readable"), (1, "readable")),
            judged=ConditionQuery("TEL01", "target_up"),
            unit="bool_yes_no",
            drill="kvitals-telemetry",
            width=24,
            height=7,
        ),
    ),
)


def board(knowledge: Knowledge) -> Board:
    """The status wall with the core rules that are known."""
    core = sorted((r for r in knowledge.rules.values() if r.core), key=lambda r: (_ORDER[r.severity], r.code))
    others = [
        r for r in knowledge.rules.values() if not r.core and r.kind in ("cause", "symptom") and r.severity == "page"
    ]
    return Board(
        "status",
        "Status wall",
        "Is every engine reachable, and which has a problem? For causes, proof and levers use `kvitals triage`.",
        (_COUNTS, _wrong(core), _ENGINES, *_wrong_besides(others, _own(knowledge))),
    )


def _own(knowledge: Knowledge) -> list[Rule]:
    """The rules that do not ship: those of directories of the user's."""
    codes = [code for code in knowledge.rules if not knowledge.files[code].is_relative_to(ROOT)]
    return [knowledge.rules[code] for code in sorted(codes)]


def _wrong(core: list[Rule]) -> BoardRow:
    question = "Which core rule holds, and for how many engines?"
    return BoardRow("Rules that hold", (_rules("Core rules: engines for which each rule holds", question, core),))


def _wrong_besides(others: list[Rule], own: list[Rule]) -> tuple[BoardRow, ...]:
    """Rows of rules that are not of the core, where there are any; the user's own are open."""
    title = "Other causes and symptoms of severity page"
    more = _rules(
        title, "Which other causes and symptoms of severity page are active?", [r for r in others if r not in own]
    )
    mine = _rules("Your own rules: engines for which each rule holds", "Which of your own rules holds?", own)
    rows = BoardRow("Rules of your own", (mine,)), BoardRow("Other rules of severity page", (more,), closed=True)
    return tuple(one for one in rows if one.panels[0].lines)


_NOTE = "Prometheus does not distinguish “no” from “unknown”. `kvitals triage` does, and names the cause and the lever."


def _rules(title: str, question: str, rules: list[Rule]) -> States:
    return States(
        title=title,
        question=question,
        lines=tuple(PanelLine(Holds(r.code), f"{r.code} {r.title}") for r in rules),
        words=((0, "no"),),
        severities=tuple(r.severity for r in rules),
        note=_NOTE,
        width=24,
        height=2 + len(rules),
        least_step=_RULES_STEP,
    )
