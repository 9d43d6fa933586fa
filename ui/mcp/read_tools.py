"""The eight tools: arguments, the use case that each calls, and the answer in short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from kvitals.app.comparison import ComparedSource, compare_live, compare_recording, compared_signals
from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import history_file
from kvitals.app.lookups import Lookups, agent_lookups, parse_capacity, recorded_lookups
from kvitals.app.offered_sources import LIVE_SECONDS, OfferedSource, OfferedSources, compared_source, moment_of
from kvitals.app.sources.recording import Moments
from kvitals.app.weekly_review import gpu_prices, history_review, review_of, server_review
from kvitals.diagnoser.replay_worth import base_of, worth
from kvitals.diagnoser.sources.prometheus import PrometheusAccess
from kvitals.kvcache.eviction import Policy
from kvitals.kvcache.routing import Routing
from kvitals.kvcache.whatif import ReplayPlan, what_if
from kvitals.rules.finding import Finding, Triage
from kvitals.ui.mcp.quoting import NameQuoter
from kvitals.ui.mcp.short_documents import (
    ExplainedFinding,
    FindingEvidence,
    ShortChange,
    ShortComparison,
    ShortInspection,
    ShortReview,
    ShortTriage,
    ShortWhatif,
    explained_finding,
    finding_evidence,
    percent,
    short_change,
    short_comparison,
    short_inspection,
    short_review,
    short_triage,
    short_whatif,
)

DAY_SECONDS = 86400.0

SourceName = Annotated[str, Meta(max_length=200, description="name of an offered source; may be empty if one exists")]
Moment = Annotated[str, Meta(max_length=40, description="+75s, -5s (recording), -2h (history), or RFC 3339")]
FindingName = Annotated[str, Meta(max_length=20, description="id or code (KVC01) of a finding; empty: the first cause")]
Capacity = Annotated[
    str, Meta(max_length=24, description="blocks (1953), tokens (3000000t), 2x for twice today's, or inf")
]


class TriageArguments(Struct, frozen=True, forbid_unknown_fields=True):
    source: SourceName = ""
    at: Moment = ""


class FindingArguments(Struct, frozen=True, forbid_unknown_fields=True):
    finding: FindingName = ""
    source: SourceName = ""
    at: Moment = ""


class CompareArguments(Struct, frozen=True, forbid_unknown_fields=True):
    a: SourceName
    b: SourceName
    at_a: Moment = ""
    at_b: Moment = ""


class WhatifArguments(Struct, frozen=True, forbid_unknown_fields=True):
    source: SourceName = ""
    capacities: Annotated[tuple[Capacity, ...], Meta(min_length=1, max_length=4)] = ("1x", "2x", "inf")
    nodes: Annotated[int, Meta(ge=1, le=64)] = 1
    routing: Routing = "round-robin"
    policy: Policy = "lru"


class SourceArguments(Struct, frozen=True, forbid_unknown_fields=True):
    source: SourceName = ""


class ReviewArguments(Struct, frozen=True, forbid_unknown_fields=True):
    source: SourceName = ""
    days: Annotated[float, Meta(gt=0, le=31)] = 7.0


@dataclass(frozen=True)
class ToolAnswer:
    """text: one or two sentences, names quoted; document: the typed answer."""

    text: str
    document: Struct


@dataclass(frozen=True)
class ReadTool:
    """answer: blocks, and raises the errors that `kvitals` reports."""

    name: str
    title: str
    description: str
    arguments: type[Struct]
    result: type[Struct]
    answer: Callable[[OfferedSources, Any], ToolAnswer]


def triage(offered: OfferedSources, asked: TriageArguments) -> ToolAnswer:
    document = offered.triage(asked.source, asked.at)
    quoter = NameQuoter.of_document(document)
    short = short_triage(document, quoter)
    text = short.verdict
    if short.causes:
        first = short.causes[0]
        text = f"{first.code}: {text}" + (f" Lever: {first.lever}." if first.lever else "")
    checked = f" {short.rules_not_checked} checks have no answer because data is missing." * bool(
        short.rules_not_checked
    )
    return ToolAnswer(text + checked, short)


def explain(offered: OfferedSources, asked: FindingArguments) -> ToolAnswer:
    document, finding = _finding(offered, asked)
    short = explained_finding(finding, NameQuoter.of_document(document))
    return ToolAnswer(f"{short.code} {short.title}: {short.outcome}.", short)


def evidence(offered: OfferedSources, asked: FindingArguments) -> ToolAnswer:
    document, finding = _finding(offered, asked)
    short = finding_evidence(finding, document, NameQuoter.of_document(document))
    shown = "; ".join(f"{one.title}: {one.value}" for one in short.evidence) or "no evidence is kept for this finding"
    return ToolAnswer(f"{short.code}: {shown}.", short)


def compare(offered: OfferedSources, asked: CompareArguments) -> ToolAnswer:
    sources = [compared_source(offered.source(name)) for name in (asked.a, asked.b)]
    sides = [_side(source, offered, at) for source, at in zip(sources, (asked.at_a, asked.at_b), strict=True)]
    rows = compared_signals(sides[0], sides[1], offered.setup.knowledge.signals)
    short = short_comparison(sides[0], sides[1], rows)
    return ToolAnswer(f"A: {short.a.verdict} B: {short.b.verdict}", short)


def whatif(offered: OfferedSources, asked: WhatifArguments) -> ToolAnswer:
    source = offered.source(asked.source)
    lookups = _lookups(source)
    capacities = tuple(dict.fromkeys(parse_capacity(text, lookups) for text in asked.capacities))
    plan = ReplayPlan(capacities, asked.nodes, (asked.routing,), (asked.policy,))
    try:
        rows = what_if(lookups.accesses, plan)
    except ValueError as error:
        raise UsageError(f"whatif: {error}") from error
    base = base_of(rows, lookups.today)
    worths = [worth(row, base, len(lookups.accesses), None) for row in rows]
    observed = lookups.accesses.observed
    short = short_whatif(source.name, len(lookups.accesses), observed, rows, worths, rows.index(base))
    sizes = (("endless" if r.capacity_blocks is None else f"{r.capacity_blocks:,}", r.token_hit_rate) for r in rows)
    return ToolAnswer("Hit rate by blocks: " + ", ".join(f"{n}: {percent(rate)}" for n, rate in sizes) + ".", short)


def since_change(offered: OfferedSources, asked: SourceArguments) -> ToolAnswer:
    document = offered.since_change(asked.source)
    short = short_change(document, NameQuoter.of_document(document))
    return ToolAnswer(f"{short.verdict}: {short.conclusion}", short)


def review(offered: OfferedSources, asked: ReviewArguments) -> ToolAnswer:
    source, setup = offered.source(asked.source), offered.setup
    end = time.time()
    start = end - asked.days * DAY_SECONDS
    if source.kind == "recording":
        raise UsageError("review reads an agent, a history or a Prometheus; triage reads recordings")
    if source.kind == "history":
        opened = history_review(history_file(Path(source.place), setup.config), setup, start, end)
    else:
        access = PrometheusAccess(source.place) if source.kind == "server" else offered.prometheus
        assert access is not None
        opened = server_review(access, setup, start, end, may_be_agent=source.kind == "server")
    with opened as of:
        made = review_of(of, setup, start, gpu_prices(setup.config, None, {}, None))
    short = short_review(made, NameQuoter([row.name for row in made.groups]))
    return ToolAnswer(short.summary[0] if short.summary else "The review has no summary.", short)


def check(offered: OfferedSources, asked: SourceArguments) -> ToolAnswer:
    inspection = offered.check(asked.source)
    short = short_inspection(inspection, NameQuoter.of_inspection(inspection))
    state = {True: "no defect", False: "defects found", None: "not checked: no target was readable"}[short.ok]
    return ToolAnswer(f"Telemetry of {len(inspection.targets)} targets: {state}.", short)


def _finding(offered: OfferedSources, asked: FindingArguments) -> tuple[Triage, Finding]:
    """The finding that is asked for, and its document. Raises UsageError, which lists those that fired."""
    document = offered.latest(asked.source, asked.at)
    leading = document.leading
    if not asked.finding and leading:
        return document, leading[0]
    every = [*document.causes, *document.telemetry, *document.symptoms, *document.notes, *document.unknown]
    if found := next((one for one in every if asked.finding in (one.id, one.code)), None):
        return document, found
    fired = ", ".join(one.code for one in leading[:12]) or "none"
    if not asked.finding:
        raise UsageError("no finding fired; name a code to read why the rule was not checked")
    known = asked.finding in offered.setup.knowledge.rules
    state = "is clear or does not apply" if known else "is not a finding of this document"
    raise UsageError(f"{asked.finding} {state}; leading findings: {fired}")


def _side(source: OfferedSource, offered: OfferedSources, at: str) -> ComparedSource:
    if source.kind == "recording":
        return compare_recording(Path(source.place), offered.setup, Moments(moment_of(source, at)), source.name)
    if at:
        raise UsageError("at_a= and at_b= work with recordings; a live source shows only the present")
    return asyncio.run(compare_live(source.place, offered.setup, LIVE_SECONDS))


def _lookups(source: OfferedSource) -> Lookups:
    if source.kind == "recording":
        return recorded_lookups(Path(source.place))
    if source.kind == "server":
        return agent_lookups(source.place)
    raise UsageError("whatif reads the KV events of a recording or of an agent; choose such a source")


def _tools() -> Iterable[ReadTool]:
    yield ReadTool(
        "triage",
        "Diagnose",
        "What is wrong with the LLM engines: verdict, ranked causes with their lever, symptoms, and what was not"
        " checked. Begin here.",
        TriageArguments,
        ShortTriage,
        triage,
    )
    yield ReadTool(
        "explain",
        "Explain a finding",
        "One finding of the last triage: its numbers, what it explains, what it ruled out, what was not checked, and"
        " its levers with setting, expected effect and risk.",
        FindingArguments,
        ExplainedFinding,
        explain,
    )
    yield ReadTool(
        "evidence",
        "Show evidence",
        "The series that made a finding fire: value, least, most, last, a few points, and the PromQL query.",
        FindingArguments,
        FindingEvidence,
        evidence,
    )
    yield ReadTool(
        "compare",
        "Compare",
        "Two sources, or two times in recordings, signal by signal: objectives first, then the largest differences.",
        CompareArguments,
        ShortComparison,
        compare,
    )
    yield ReadTool(
        "whatif",
        "Predict the hit rate",
        "Replays the recorded KV cache lookups with other memory, routing or eviction. Needs KV events.",
        WhatifArguments,
        ShortWhatif,
        whatif,
    )
    yield ReadTool(
        "since_change",
        "Effect of the last change",
        "The latest configuration change of an engine, and whether it worked, signal by signal at a comparable load.",
        SourceArguments,
        ShortChange,
        since_change,
    )
    yield ReadTool(
        "review",
        "Review a time range",
        "GPU time, cost, waste and levers by savings for the last days, from an agent, a history or a Prometheus.",
        ReviewArguments,
        ShortReview,
        review,
    )
    yield ReadTool(
        "check",
        "Check the telemetry",
        "Which metrics each engine exposes, which are wrong or missing, and the flag that enables more.",
        SourceArguments,
        ShortInspection,
        check,
    )


TOOLS: dict[str, ReadTool] = {tool.name: tool for tool in _tools()}
