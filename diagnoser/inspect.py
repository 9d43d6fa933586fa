"""Inspects telemetry: for each target what it is, which families it feeds, what is off or wrong, what it is enough for.

It reads series alone, so a live look, a recording and a Prometheus that holds the families are inspected alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kvitals.diagnoser.availability import Reach
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.signals import FACT, EvaluationSpan, by_entity
from kvitals.diagnoser.text import render
from kvitals.diagnoser.units import WRONG_UNIT, oddities
from kvitals.diagnoser.unusable import UNUSABLE, metric_text
from kvitals.rules.engine_flags import GUESSED, flag_table
from kvitals.rules.engine_map import EngineMap, Metric, load_map, systems
from kvitals.rules.finding import DocumentSource
from kvitals.rules.inspection import (
    Fact,
    FamilyState,
    InspectedTarget,
    Inspection,
    Lack,
    Resolution,
    Score,
    Sense,
    State,
    Switch,
    TelemetryProblem,
)
from kvitals.rules.journeys import Journey, journeys
from kvitals.rules.loader import family_of, parameters
from kvitals.rules.model import SCOPES
from kvitals.rules.origins import PAGE, origins
from kvitals.rules.versions import in_range, release
from kvitals.series.bucket_bound import bucket_around
from kvitals.series.promql import evaluate, expand, parse
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, SeriesSource, is_stale

FRESH_SECONDS = 15.0
"""Samples older than this, when targets are looked at every few seconds, are stale."""

OBJECTIVES = {"ttft_p99": "kvitals_ttft_seconds", "itl_p99": "kvitals_itl_seconds"}
MAX_NAMES = 10  # listed in a problem

WRONG_VALUE = "an engine's defect, or a proxy that changes the page"

_DROPS = {
    "duplicate": (
        "series that appear on the page twice; none of them counts",
        "two collectors register the same metric",
    ),
    "falling_sum": (
        "histogram sums that fell while the count rose; those intervals are left out",
        "an engine's defect",
    ),
    "bucket_order": (
        "samples of histograms whose buckets are out of order; they are left out",
        WRONG_VALUE,
    ),
    "series_cap": (
        "samples beyond the limit of series in memory; they are left out",
        "drop labels with many values at the engine",
    ),
    "scale": ("samples whose unit depends on a fact that is unknown", "give the fact in kvitals.toml"),
    "out_of_range": (
        "impossible samples (NaN in a counter, infinite, above 1e30); they are left out",
        "an engine's defect, or a division by zero there",
    ),
    "negative": ("samples below 0 of what cannot be below 0; they are left out", WRONG_VALUE),
    "above_one": ("samples of shares above 1; they are left out", WRONG_UNIT),
    "clock": ("pages that arrived out of order", "check the clock of the node that runs kvitals"),
}


def inspect(judge: Judge, span: EvaluationSpan, source: DocumentSource) -> Inspection:
    """The inspection of everything that a judge's source has at a moment."""
    look = _Look(judge, span)
    targets = [look.target(entity) for entity in judge.entities("engine", span.at)]
    known = [target for target in targets if target.up]
    defects = any(problem.defect for target in targets for problem in target.problems)
    return Inspection(
        source=source,
        at=span.at,
        targets=targets,
        senses=look.senses(),
        ok=False if defects else True if known else None,
    )


class _Look:
    def __init__(self, judge: Judge, span: EvaluationSpan) -> None:
        self._judge = judge
        self._span = span
        self._source: SeriesSource = judge.signals.source
        self._known: dict[str, dict[Labels, float]] = {}
        self._rows: dict[str, dict[str, list[tuple[Labels, float]]]] = {}  # name -> engine -> its series
        self._conditions = {
            code: parse(expand(rule.when, parameters(rule, judge.params.get(code))))
            for code, rule in judge.knowledge.rules.items()
            if rule.scope == "engine"
        }
        self._reach = Reach(judge.knowledge, self._source, span)

    def target(self, entity: Labels) -> InspectedTarget:
        """One target or rank, inspected."""
        info = self._judge.info(entity, self._span.at)
        system = load_map(info["system"]) if info.get("system") in systems() else None
        facts = self._facts(entity)
        version = info.get("version", "")
        state = next((labels["reason"] for labels in self._labels("kvitals_target_state", entity)), "unknown")
        up = self._values("kvitals_target_up").get(entity, 0.0) == 1.0
        own = Labels() if info.get("kind") == "exporter" else entity  # an exporter's series are of GPUs
        families = list(self._families(system, version, own)) if system else []
        known = {fact.fact: fact.value for fact in facts}
        return InspectedTarget(
            engine=entity.get("engine", ""),
            up=up,
            state=state,
            system=info.get("system", ""),
            kind=info.get("kind", ""),
            version=version,
            version_source=info.get("version_source", ""),
            untested=bool(info.get("untested")),
            model=info.get("model", ""),
            role=info.get("role", ""),
            strings={name: text for name, text in info.items() if name not in _OWN},
            facts=facts,
            families=families,
            switches=list(_switches(system, known, version)) if system else [],
            resolutions=list(self._resolutions(entity)),
            problems=[*self._problems(entity, system, info, up, state), *self._units(entity)],
            scores=[s for journey in journeys() if (s := self._score(journey, entity, info.get("kind", ""))).of],
        )

    def senses(self) -> list[Sense]:
        """The node's own senses and how they fare."""
        found = self._labels("kvitals_sense_state", Labels())
        return sorted((Sense(x["sense"], x["state"], x.get("reason", "")) for x in found), key=lambda s: s.sense)

    def _values(self, query: str) -> dict[Labels, float]:
        """The values of all entities: a query is evaluated once, however many targets ask for it."""
        if query not in self._known:
            found = evaluate(parse(query), self._source, self._span.at)
            self._known[query] = by_entity(found, SCOPES["engine"])
        return self._known[query]

    def _labels(self, name: str, entity: Labels) -> list[Labels]:
        """The label sets of an entity's series that have a value now."""
        return [labels for labels, _ in self._pairs(name, entity)]

    def _facts(self, entity: Labels) -> list[Fact]:
        found = (Fact(x["fact"], v, x.get("source", "")) for x, v in self._pairs(FACT, entity))
        return sorted(found, key=lambda fact: (fact.fact, fact.source))

    def _families(self, system: EngineMap, version: str, entity: Labels) -> Iterator[FamilyState]:
        entries: dict[str, list[Metric]] = {}
        for metric in system.metrics:
            entries.setdefault(metric.family, []).append(metric)
        missing = {x["family"]: x for x in self._labels("kvitals_family_missing", entity) if entity}
        no_number = {x["family"] for x in self._labels(UNUSABLE, entity) if x.get("reason") == "not_a_number"}
        for family, metrics in entries.items():
            state, why = self._seen(family, entity)
            if not state and family in no_number:
                yield FamilyState(family, "zero", metrics[0].raw, "NaN: the engine has no value for it")
            elif state:
                yield FamilyState(family, state, metrics[0].raw, why)
            elif family in missing:
                raw = missing[family].get("raw", metrics[0].raw)
                yield FamilyState(family, "missing", raw, "this version shows it by default")
            elif found := _absent(metrics, version):
                yield found

    def _seen(self, family: str, entity: Labels) -> tuple[State | None, str]:
        """How a family's samples look, None where there are none."""
        kind = self._judge.knowledge.families[family].type
        name = f"{family}_count" if kind == "histogram" else family
        matchers = [Matcher(METRIC_NAME, MatchOp.EQ, name), *_of(entity)]
        latest, moving = 0.0, False
        for frame in self._source.select(matchers, self._span.at - self._span.slow, self._span.at):
            rows = np.flatnonzero((~is_stale(frame.values)).any(axis=1))
            if rows.size:
                latest = max(latest, float(frame.times[rows[-1]]))
                moving |= bool(np.nan_to_num(frame.values).any())
        if not latest:
            return None, ""
        if self._span.at - latest > FRESH_SECONDS:
            return "stale", f"last seen {render(self._span.at - latest, 'seconds')} ago"
        return ("live", "") if moving else ("zero", "0 since it was first seen")

    def _resolutions(self, entity: Labels) -> Iterator[Resolution]:
        objectives = {x["slo"]: v for x, v in self._pairs("kvitals_slo_seconds", entity) if "class" not in x}
        for name, seconds in objectives.items():
            bounds = {x["le"] for x in self._labels(f"{OBJECTIVES[name]}_bucket", entity)} if name in OBJECTIVES else ()
            edges = sorted(float(bound) for bound in bounds if bound != "+Inf")
            if edges:
                yield _resolution(name, seconds, edges)

    def _pairs(self, name: str, entity: Labels) -> list[tuple[Labels, float]]:
        """An entity's series of a name that have a value now, with it."""
        if name not in self._rows:
            found, rows = evaluate(parse(name), self._source, self._span.at), self._rows.setdefault(name, {})
            for labels, value in () if isinstance(found, float) else zip(found.labels, found.values, strict=True):
                rows.setdefault(labels.get("engine", ""), []).append((labels, float(value)))
        rows = self._rows[name]
        some = rows.get(entity["engine"], []) if "engine" in entity else [row for of in rows.values() for row in of]
        return [row for row in some if entity.items() <= row[0].items()]

    def _problems(
        self, entity: Labels, system: EngineMap | None, info: Labels, up: bool, state: str
    ) -> Iterator[TelemetryProblem]:
        if not up:
            yield TelemetryProblem(f"not readable: {state}", "run kvitals triage on its URL for the lever", True)
        if info.get("untested") and system:
            what = f"newer than the versions that kvitals was tested with (up to {system.newest})"
            yield TelemetryProblem(
                f"{what}: read with the newest map", "check the unknown and missing names below", False
            )
        if system is not None:
            yield from _flag_problems(system.system, info)
        outdated = sorted(x["raw"] for x in self._labels("kvitals_family_outdated", entity))
        if outdated:
            what = f"names from another version than {info.get('version', '?')}: {_listed(outdated)}"
            yield TelemetryProblem(
                what, "kvitals uses the values; boards and alerts that use these names show nothing", True
            )
        missing = sorted(x["raw"] for x in self._labels("kvitals_family_missing", entity))
        if missing:
            what = f"missing although this version shows them: {_listed(missing)}"
            yield TelemetryProblem(
                what, "statistics are switched off, a filter removes them, or the version is wrong", True
            )
        unusable = sorted({metric_text(x) for x in self._labels(UNUSABLE, entity) if x.get("reason") != "not_a_number"})
        if unusable:
            what = f"values that cannot be true, which are not used: {_listed(unusable)}"
            yield TelemetryProblem(what, f"{WRONG_VALUE}; or {WRONG_UNIT}", True)
        unknown = sorted(x["raw"] for x in self._labels("kvitals_name_unknown", entity))
        if unknown:
            yield TelemetryProblem(
                f"names that kvitals does not know: {_listed(unknown)}", "they are left out; report them", False
            )
        for labels, count in self._pairs("kvitals_scrape_dropped_total", entity):
            if count and labels["reason"] in _DROPS:
                what, remedy = _DROPS[labels["reason"]]
                yield TelemetryProblem(f"{count:.0f} {what}", remedy, labels["reason"] != "falling_sum")
        yield from self._ranks(entity)

    def _ranks(self, entity: Labels) -> Iterator[TelemetryProblem]:
        """Whether a page shows as many ranks as were configured."""
        told = self._values('max by (cluster, node, engine) (kvitals_engine_fact{fact="data_parallel"})').get(entity)
        address, _, rank = entity.get("engine", "").rpartition("/")
        if told is None or told < 2 or rank != "0":
            return
        seen = sum(e.get("engine", "").startswith(f"{address}/") for e in self._judge.entities("engine", self._span.at))
        if seen < told:
            what = f"{told:.0f} data-parallel ranks are configured, but this page shows {seen}"
            yield TelemetryProblem(what, "add the other ranks' API servers as targets", False)

    def _units(self, entity: Labels) -> Iterator[TelemetryProblem]:
        for oddity, remedy in oddities(self._source, _of(entity), self._span, self._judge.knowledge.families):
            yield TelemetryProblem(oddity, remedy, True)

    def _score(self, journey: Journey, entity: Labels, kind: str) -> Score:
        if kind and journey.kinds and kind not in journey.kinds:
            return Score(journey.name, journey.title, 0, 0, [])
        scope = {"scope": ", ".join(SCOPES["engine"]), "window": f"{max(1, round(self._span.fast))}s"}
        lacks = [
            Lack(need.what, need.remedy)
            for need in journey.needs
            if not self._values(expand(need.expr, scope)).get(entity, 0.0) > 0
        ]
        asked = len(journey.needs)
        if journey.rules:
            undecided = list(self._undecided(entity))
            asked += len(undecided)
            lacks += [Lack(f"{code} {title}", remedy) for code, title, remedy in undecided if remedy]
        return Score(journey.name, journey.title, asked - len(lacks), asked, lacks)

    def _undecided(self, entity: Labels) -> Iterator[tuple[str, str, str]]:
        """Each rule that applies to an entity: code, title, and what it lacks to be decided (may be empty)."""
        for rule in self._judge.knowledge.rules.values():
            if rule.scope == "engine" and not self._judge.not_applicable(rule, entity, self._span, idle=True):
                lacking = self._reach.lacking(self._conditions[rule.code], entity)
                if not self._judge.need_not_tell(lacking, entity, self._span.at):
                    yield rule.code, rule.title, self._remedy(lacking)

    def _remedy(self, lacking: Sequence[str]) -> str:
        families = self._judge.knowledge.families
        named = [families[name] for name in map(self._family, lacking) if name]
        remedies = [family.caveat for family in named if family.caveat.startswith("Only with")]
        remedies += [origins()[family.origin].brings for family in named if family.origin != PAGE]
        return f"no {', '.join(lacking[:3])}" + (f": {remedies[0]}" if remedies else "") if lacking else ""

    def _family(self, metric: str) -> str | None:
        return family_of(metric, self._judge.knowledge.families)


_OWN = (
    METRIC_NAME,
    "engine",
    "cluster",
    "node",
    "system",
    "kind",
    "version",
    "version_source",
    "untested",
    "model",
    "role",
)


def _of(entity: Labels) -> list[Matcher]:
    return [Matcher(name, MatchOp.EQ, value) for name, value in entity.items()]


def _absent(metrics: Sequence[Metric], version: str) -> FamilyState | None:
    """Why a family is not there, where that is a flag or the version; None where the engine just has no use for it."""
    first = metrics[0]
    known = [metric for metric in metrics if not version or metric.known_in(version)]
    flag = next((metric.flag for metric in known if metric.flag), "")
    if flag:
        return FamilyState(first.family, "off", first.raw, flag)
    since = [metric.since for metric in metrics if metric.since and release(metric.since) > release(version)]
    if version and not known and since:
        return FamilyState(first.family, "newer", first.raw, f"since {min(since, key=release)}")
    return None


def _switches(system: EngineMap, facts: dict[str, float], version: str) -> Iterator[Switch]:
    for telemetry in system.telemetry:
        if version and not in_range(version, telemetry.versions):
            continue
        value = facts.get(telemetry.fact)
        on = None if value is None else value > 0
        yield Switch(telemetry.flag, on, telemetry.brings.strip(), telemetry.cost.strip())


def _resolution(name: str, seconds: float, edges: Sequence[float]) -> Resolution:
    around = bucket_around(seconds, edges)
    lower = seconds if around is None else around[0]
    upper = next((edge for edge in edges if edge > lower), None)
    if around is None:
        text = "equal to a bucket's bound: the share of requests within it is exact"
    elif upper is None:
        text = f"above the last bucket ({render(lower, 'seconds')}): whether it is met is unknown"
    else:
        bucket = f"{render(lower, 'seconds')} to {render(upper, 'seconds')}"
        text = f"inside the bucket {bucket}: the share within it is interpolated"
    return Resolution(name, seconds, around is None, lower, upper, text)


def _flag_problems(system: str, info: Mapping[str, str]) -> Iterator[TelemetryProblem]:
    """Whether the flags of the engine's version are known, on which the settings of levers rest."""
    table, version = flag_table(system), info.get("version", "")
    if table is None:
        return
    if not version or info.get("version_source") == GUESSED:
        oldest = f" from {version} on" if version else ""
        what = f"the version is not reported, so levers name the flags of any version{oldest}"
        yield TelemetryProblem(what, "check a flag with the engine's --help before you set it", False)
    elif table.is_newer(version):
        what = f"{version} is newer than the flags that this kvitals knows (to {table.newest})"
        remedy = "upgrade kvitals, or check a flag with the engine's --help before you set it"
        yield TelemetryProblem(what, remedy, False)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
