"""Families from engines' own metrics, as a Prometheus has them that scrapes the engines: no agent in between.

Each selector of a family becomes selectors of raw names, by the engine maps: of all programs and versions whose names
the server has, so that the number of queries does not depend on how many engines there are or which. Labels and the
engine's identity are made as the agent makes them. What PromQL can not say of raw series is not told at all: a
histogram whose bounds have another unit, a value scaled by a fact, whatever comes from beside the page.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from kvitals.diagnoser.entities import ENTITIES, INFO
from kvitals.diagnoser.sources.prometheus import Prometheus, PrometheusQuery, PrometheusSeries
from kvitals.diagnoser.sources.served import Rows
from kvitals.diagnoser.unusable import UNUSABLE
from kvitals.rules.engine_map import EngineMap, InfoMetric, Metric, load_map, systems
from kvitals.rules.loader import HISTOGRAM_PARTS
from kvitals.rules.value_bounds import value_bounds
from kvitals.series.promql import Aggregate, Binary, Call, Expr, Matching, NumberLiteral, Range, Selector, String
from kvitals.series.promql.rewrite import map_children
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp

FACT, OBJECTIVE = "kvitals_engine_fact", "kvitals_slo_seconds"
STATE = "kvitals_target_state"
SCRAPE_FAILED, TARGET_GONE = "scrape failed", "target gone"
"""What a server knows of why a page is not read: its last scrape failed, or it has no such target any more."""
LOCAL = frozenset({ENTITIES, INFO, FACT, OBJECTIVE, STATE})
"""Families that are made here, of what identifies the engines and of the labels of their info metrics."""

PLACE = ("cluster", "pool", "node")
IDENTITY = ("cluster", "node", "engine")
TARGET = ("instance", "job")
SEEN_SECONDS = 3600
"""For so long an engine that is gone is still asked about: it is down."""
MOST_OF_THE_TIME = 0.75
"""Of these seconds, in which a pool had no more engines than it needs: a rollout has one more for the rest at most."""

_LARGEST = ("_ratio", "_seconds", "_sleep")  # gauges of which several are not added up
_ONCE = frozenset({"count_over_time", "present_over_time", "changes", "resets", "timestamp"})
_MAX_FACT = 1e18
_KEEPING = frozenset(
    {
        "",
        "avg_over_time",
        "min_over_time",
        "max_over_time",
        "last_over_time",
        "quantile_over_time",
        "increase",
        "rate",
        "irate",
    }
)
"""Functions of samples that are within bounds whose results are, too."""

Objectives = Callable[[str, str], Sequence[tuple[str, float, str]]]
"""Model and role of an engine -> its objectives: name, seconds, where it was set."""


@dataclass(frozen=True)
class RawMetricSource:
    """One raw metric that feeds a family: its names on the server, and how it does."""

    map: EngineMap
    metric: Metric
    names: tuple[str, ...]
    part: str = ""
    shadowed: tuple[Mapping[str, str], ...] = ()  # what earlier entries of the same name take
    zero: bool = False  # it only says that the family's value is 0


@dataclass
class Pages:
    """The dialect of a server that has engines' own metrics. To be made by `read_pages`."""

    names: frozenset[str]
    maps: Sequence[EngineMap]
    jobs: Mapping[str, Sequence[str]] | None  # system -> the jobs that scrape it; None: not known yet
    rows: Mapping[str, Rows]
    answered: Mapping[Labels, float] = field(default_factory=dict)  # engine that is down -> when its page last answered
    _sources: dict[str, list[list[RawMetricSource]]] = field(default_factory=dict)

    def local(self, name: str, at: float) -> Rows | None:
        rows = self.rows.get(name)
        if rows is None:
            return [] if name in LOCAL else None
        answered = [at <= self.answered.get(labels.keep(IDENTITY), -math.inf) for labels, _ in rows]
        if name == ENTITIES:
            return [(row[0], 1.0) if then else row for row, then in zip(rows, answered, strict=True)]
        if name == STATE:
            return [row for row, then in zip(rows, answered, strict=True) if not then]
        return list(rows)

    def has(self, name: str) -> bool:
        return bool(self.rows.get(name)) if name in LOCAL else bool(self.sources(name))

    def why_not(self, metric: str) -> str:
        """Why no page reports a metric; empty where the page of some engine, here or elsewhere, has it."""
        known = page_metrics() | {UNUSABLE}
        if metric in known or any(_feeds(map_, metric) for map_ in self.maps):
            return ""
        return f"{metric} needs the agent"

    def translate(self, expr: Expr) -> Expr | None:
        if any(isinstance(node, Selector) and node.name in LOCAL for node in expr.walk()):
            return None
        return self.rewrite(expr)

    def sources(self, metric: str) -> list[list[RawMetricSource]]:
        """The raw metrics of a metric of a family: lists of which the first that an engine has counts."""
        if metric not in self._sources:
            self._sources[metric] = [group for map_ in self.maps for group in self._of_map(map_, metric)]
        return self._sources[metric]

    def _of_map(self, map_: EngineMap, metric: str) -> Iterable[list[RawMetricSource]]:
        groups: dict[tuple[object, ...], list[RawMetricSource]] = {}
        for entry in map_.metrics:
            part = metric.removeprefix(entry.family)
            if not metric.startswith(entry.family) or part not in ("", *HISTOGRAM_PARTS) or not _meant(map_, entry):
                continue
            if isinstance(entry.scale, str) or (part == "_bucket" and entry.scale != 1.0):
                continue
            key = (tuple(sorted(entry.constant.items())), entry.raw if entry.also else "")
            names = self._names(map_, entry, part)
            if names:
                groups.setdefault(key, []).append(RawMetricSource(map_, entry, names, part, _earlier(map_, entry)))
            for beside in map_.by_raw.get(entry.zero_beside, ())[:1]:
                shown = next((p for p in ("", "_count") if self._names(map_, beside, p)), None)
                if shown is not None:
                    zero = RawMetricSource(map_, entry, self._names(map_, beside, shown), part, zero=True)
                    groups.setdefault(key, []).append(zero)
        return groups.values()

    def _names(self, map_: EngineMap, entry: Metric, part: str) -> tuple[str, ...]:
        bare = entry.bare or map_.full_names
        possible = [prefix + entry.raw + part for prefix in (("",) if bare else map_.recognise.prefixes)]
        found = [name for name in possible if name in self.names]
        return tuple(found or [f"{name}_total" for name in possible if not part and f"{name}_total" in self.names])

    def rewrite(self, expr: Expr) -> Expr:
        """The expression in raw names. Families that are only known here, and names of none, stay as they are."""
        if isinstance(expr, Selector):
            return self.leaf(expr)
        if isinstance(expr, Call):
            ranges = [i for i, arg in enumerate(expr.args) if isinstance(arg, Range)]
            if ranges or (expr.func == "timestamp" and isinstance(expr.args[0], Selector)):
                place = ranges[0] if ranges else 0
                arg = expr.args[place]
                selector = arg.selector if isinstance(arg, Range) else arg
                assert isinstance(selector, Selector)

                def applied(raw: Expr) -> Expr:
                    assert isinstance(raw, Selector)
                    inner = Range(raw, arg.range) if isinstance(arg, Range) else raw
                    return Call(expr.func, (*expr.args[:place], inner, *expr.args[place + 1 :]))

                return self.leaf(selector, applied, expr.func)
        return map_children(expr, self.rewrite)

    def leaf(self, selector: Selector, applied: Callable[[Selector], Expr] = lambda raw: raw, func: str = "") -> Expr:
        """A selector of a family, or a function of its ranges, in raw names."""
        groups = []
        for sources in self.sources(selector.name):
            made = [expr for s in sources if (expr := self._source(s, selector, applied, func)) is not None]
            groups += [_first_of(made)] if made else []
        if not groups:
            return applied(Selector(selector.name, selector.matchers, selector.offset))  # no page tells it
        whole = groups[0]
        for other in groups[1:]:
            whole = Binary("or", whole, other)
        return whole

    def _source(
        self, source: RawMetricSource, selector: Selector, applied: Callable[[Selector], Expr], func: str
    ) -> Expr | None:
        map_, entry = source.map, source.metric
        matchers = _raw_matchers(source, selector)
        if matchers is None:
            return None
        foreign = entry.bare or any(not map_.owns(name) for name in source.names)
        if foreign and self.jobs is not None:
            matchers = [*matchers, _one_of("job", self.jobs.get(map_.system, ()))]
        name, more = (source.names[0], []) if len(source.names) == 1 else ("", [_one_of(METRIC_NAME, source.names)])
        expr = applied(Selector(name, (*more, *matchers), selector.offset))
        if foreign and self.jobs is None:
            expr = Binary("and", expr, _present(map_, self.names), matching=Matching(on=True, labels=TARGET))
        expr = _possible(expr, source, func)
        if map_.replica_labels and entry.replicas == "one":
            expr = Aggregate("max", expr, tuple(sorted((*map_.replica_labels, METRIC_NAME))), without=True)
        if source.zero:
            expr = Binary("*", NumberLiteral(0.0), expr)
        elif entry.scale != 1.0 and source.part in ("", "_sum") and func not in _ONCE:
            expr = Binary("*", expr, NumberLiteral(float(entry.scale)))
        ours = {*PLACE, "engine", "model", *entry.labels.values(), *entry.constant}
        ours |= {"le"} if source.part == "_bucket" else set()
        largest = "max" in (entry.fold, entry.replicas) or (not entry.fold and entry.family.endswith(_LARGEST))
        is_gauge = not source.part and not entry.family.endswith("_total")
        fold = "max" if (largest and is_gauge) or func in _ONCE else "sum"
        return Aggregate(fold, _relabelled(expr, source), tuple(sorted(ours)))


SCALERS = "kube_state_metrics"
"""Tells of autoscalers what no engine and no agent does, so it is read beside either of them."""


def page_maps() -> list[EngineMap]:
    """The maps of the engines that are read by their own names where there is no agent."""
    return [m for m in map(load_map, systems()) if m.kind == "engine" and not m.guest]


@lru_cache(maxsize=1)
def page_metrics() -> frozenset[str]:
    """The metrics of families that engines' pages feed, so that rules may record them without an agent."""
    fed = {metric.family for map_ in page_maps() for metric in map_.metrics}
    return LOCAL | {family + part for family in fed for part in ("", *HISTOGRAM_PARTS)}


def engines_present(names: frozenset[str]) -> Selector:
    """What tells that any engine is there, of a server with these names of metrics."""
    return Selector("", (_one_of(METRIC_NAME, [name for map_ in page_maps() for name in _always(map_, names)]),))


def scalers(names: frozenset[str]) -> Pages:
    """What a server has of autoscalers."""
    return Pages(names, [load_map(SCALERS)], None, {})


def read_pages(server: Prometheus, names: frozenset[str], at: float, objectives: Objectives) -> Pages:
    """What a server has of engines' own metrics at a moment. Raises ServerError."""
    maps = [m for m in page_maps() if _always(m, names)]
    questions = [PrometheusQuery("up", at)]
    engines: list[str] = []  # of each map, what has a series for each engine
    for map_ in maps:
        labels = ", ".join(
            dict.fromkeys(
                ("instance", "job", *PLACE, *map_.rank_labels, *filter(None, (map_.model_label, map_.role_label)))
            )
        )
        metric = _always(map_, names)[0]
        engines.append(f"max by ({labels}) ({metric})")
        questions.append(PrometheusQuery(f"max by ({labels}) (last_over_time({metric}[{SEEN_SECONDS}s]))", at))
    infos = [
        name
        for map_ in maps
        for prefix in map_.recognise.prefixes
        for i in map_.infos
        if (name := prefix + i.raw) in names
    ]
    if infos:
        questions.append(PrometheusQuery(str(Selector("", (_one_of(METRIC_NAME, infos),))), at))
    answers = [server.one(question) for question in questions]
    up = {(f.metric.get("instance"), f.metric.get("job")): float(f.value[1]) for f in answers[0] if f.value}
    rows: dict[str, Rows] = {name: [] for name in LOCAL}
    jobs: dict[str, list[str]] = {}
    for map_, found, present in zip(maps, answers[1:], engines, strict=False):
        jobs[map_.system] = sorted({f.metric.get("job", "") for f in found})
        found = _without_replaced(server, found, present, up, at)
        _identify(map_, found, answers[-1] if infos else [], up, objectives, rows)
    pages = Pages(names, [*maps, load_map(SCALERS)], jobs, rows, _last_answers(server, rows[ENTITIES], at))
    if pages.sources(FACT):  # some programs tell what they were configured with as metrics
        told = server.one(PrometheusQuery(str(pages.leaf(Selector(FACT))), at))
        rows[FACT] += [(Labels({**f.metric, METRIC_NAME: FACT}), float(f.value[1])) for f in told if f.value]
    return pages


def _without_replaced(
    server: Prometheus,
    found: Sequence[PrometheusSeries],
    present: str,
    up: Mapping[tuple[str | None, str | None], float],
    at: float,
) -> list[PrometheusSeries]:
    """The engines without those whose target is gone from a pool that has as many engines as before: in a rollout a new
    one took their place, even if requests ran on them. present: a query that has a series for each engine."""

    def is_gone(one: PrometheusSeries) -> bool:
        return (one.metric.get("instance"), one.metric.get("job")) not in up

    def pool(one: PrometheusSeries) -> tuple[str, str]:
        return one.metric.get("cluster", ""), one.metric.get("pool", "")

    if not any(map(is_gone, found)):
        return list(found)
    now = Counter(pool(one) for one in found if up.get((one.metric.get("instance"), one.metric.get("job"))))
    course = f"(count by (cluster, pool) ({present}))[{SEEN_SECONDS}s:30s]"
    usual = server.one(PrometheusQuery(f"quantile_over_time({MOST_OF_THE_TIME}, {course})", at))
    whole = {pool(one) for one in usual if one.value and now[pool(one)] >= float(one.value[1])}
    return [one for one in found if not (is_gone(one) and pool(one) in whole)]


def _last_answers(server: Prometheus, engines: Rows, at: float) -> dict[Labels, float]:
    """When the pages of engines that are down last answered, of those that did in the time that is asked about."""
    down: dict[str, list[Labels]] = {}
    for labels, up in engines:
        if not up:
            down.setdefault(labels.get("engine", "").partition("/")[0], []).append(labels.keep(IDENTITY))
    if not down:
        return {}
    instances = _one_of("instance", sorted(down))
    text = f"max by (instance) (max_over_time(timestamp({Selector('up', (instances,))} == 1)[{SEEN_SECONDS}s:5s]))"
    found = server.one(PrometheusQuery(text, at))
    return {
        engine: float(one.value[1])
        for one in found
        if one.value
        for engine in down.get(one.metric.get("instance", ""), ())
    }


def _identify(
    map_: EngineMap,
    found: Sequence[PrometheusSeries],
    infos: Sequence[PrometheusSeries],
    up: Mapping[tuple[str | None, str | None], float],
    objectives: Objectives,
    rows: dict[str, Rows],
) -> None:
    """Say of each engine that it is there, what it is, and what its info metrics tell. found: the requests that ran on
    each at its last sample. One whose target is gone and that was idle was taken away: it is no engine any more."""
    ranks: dict[str, int] = {}
    for one in found:
        ranks[one.metric.get("instance", "")] = ranks.get(one.metric.get("instance", ""), 0) + 1
    for one in found:
        instance = one.metric.get("instance", "")
        engine = {name: one.metric.get(name, "") for name in PLACE} | {"engine": _engine(map_, one.metric)}
        own = [f for f in infos if f.metric.get("instance") == instance and _is_of(map_, f.metric, one.metric)]
        facts, strings = _told(map_, own, ranks[instance])
        model = one.metric.get(map_.model_label, "")
        role = map_.roles.get(one.metric.get(map_.role_label, "") or strings.get("kv_role", ""), "")
        about = {"system": map_.system, "kind": map_.kind, "model": model, "role": role, **strings}
        alive = up.get((instance, one.metric.get("job")))
        if alive is None and not (one.value and float(one.value[1]) > 0.0):
            continue
        if not alive:
            reason = TARGET_GONE if alive is None else SCRAPE_FAILED
            rows[STATE].append((_series(STATE, engine, {"reason": reason}), 1.0))
        rows[ENTITIES].append((_series(ENTITIES, engine), alive or 0.0))
        rows[INFO].append((_series(INFO, engine, about), 1.0))
        rows[FACT] += [
            (_series(FACT, engine, {"fact": fact, "source": "metrics page"}), n) for fact, n in facts.items()
        ]
        for name, seconds, source in objectives(model, about.get("role", "")):
            rows[OBJECTIVE].append((_series(OBJECTIVE, engine, {"slo": name, "source": source}), seconds))


def _told(map_: EngineMap, infos: Sequence[PrometheusSeries], ranks: int) -> tuple[dict[str, float], dict[str, str]]:
    facts: dict[str, float] = {}
    strings: dict[str, str] = {}
    known: dict[str, InfoMetric] = {
        prefix + info.raw: info for info in map_.infos for prefix in map_.recognise.prefixes
    }
    for found in infos:
        info = known.get(found.metric.get(METRIC_NAME, ""))
        facts |= info.facts(partial(_number_of, found.metric), ranks) if info else {}
        told = {ours: found.metric.get(theirs, "None") for ours, theirs in (info.strings if info else {}).items()}
        strings |= {ours: text for ours, text in told.items() if text != "None"}
    return facts, strings


def _number_of(labels: Mapping[str, str], label: str) -> float | None:
    return _number(labels.get(label, ""))


def _number(text: str) -> float | None:
    known = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}
    try:
        number = known[text] if text in known else float(text)
    except ValueError:
        return None
    return number if abs(number) < _MAX_FACT else None


def _series(family: str, engine: Mapping[str, str], more: Mapping[str, str] | None = None) -> Labels:
    return Labels({**(more or {}), **engine, METRIC_NAME: family})


def _engine(map_: EngineMap, raw: Mapping[str, str]) -> str:
    rank = "/".join(raw[label] for label in map_.rank_labels if raw.get(label))
    return f"{raw.get('instance', '')}/{rank or '0'}" if map_.rank_labels else raw.get("instance", "")


def _is_of(map_: EngineMap, info: Mapping[str, str], engine: Mapping[str, str]) -> bool:
    return all(info.get(label, "") in ("", engine.get(label, "")) for label in map_.rank_labels)


def _possible(expr: Expr, source: RawMetricSource, func: str) -> Expr:
    """The expression without values that cannot be true, NaN among them, as an agent leaves them out.

    Of a function of several samples it is the result that is judged. Parts of histograms are left as they are, but for
    `_count`: what is computed from impossible ones is NaN, which decides nothing.
    """
    if source.part in ("_bucket", "_sum") or func not in _KEEPING:
        return expr
    scale = source.metric.scale if isinstance(source.metric.scale, float) else 1.0
    bounds = value_bounds(source.metric, source.part, scale)
    above = Binary(">=", expr, NumberLiteral(bounds.lowest))
    return Binary("<=", above, NumberLiteral(bounds.highest))


def _always(map_: EngineMap, names: frozenset[str]) -> list[str]:
    """The metric that every engine of the kind has always, under whichever of its names the server has it."""
    raws = [metric.raw for metric in map_.metrics if metric.family == "kvitals_requests_running"]
    return [p + raw for raw in raws for p in map_.recognise.prefixes if p + raw in names]


def _present(map_: EngineMap, names: frozenset[str]) -> Selector:
    """What tells that an engine of the kind is there."""
    found = _always(map_, names)
    return Selector(found[0]) if len(found) == 1 else Selector("", (_one_of(METRIC_NAME, found),))


def _feeds(map_: EngineMap, metric: str) -> bool:
    return any(
        metric.startswith(m.family) and metric.removeprefix(m.family) in ("", *HISTOGRAM_PARTS) for m in map_.metrics
    )


def _meant(map_: EngineMap, entry: Metric) -> bool:
    """Whether an entry is how its name is read where the version is not known: as in the newest that has it."""
    same = map_.by_raw[entry.raw]
    known = [one for one in same if one.known_in(map_.newest)]
    return entry in (known or same[:1])


def _earlier(map_: EngineMap, entry: Metric) -> tuple[Mapping[str, str], ...]:
    if entry.also:
        return ()
    same = [one for one in map_.by_raw[entry.raw] if not one.also and _meant(map_, one)]
    return tuple(one.where for one in same[: same.index(entry)] if len(one.where) == 1)


def _raw_matchers(source: RawMetricSource, selector: Selector) -> list[Matcher] | None:
    """The selector's matchers on raw labels; None where the source has no such series."""
    entry = source.metric
    matchers = [] if source.zero else [Matcher(label, MatchOp.EQ, value) for label, value in entry.where.items()]
    if not source.zero:
        matchers += [Matcher(label, MatchOp.NE, value) for label, value in entry.unless.items()]
        matchers += [Matcher(label, MatchOp.NE, v) for taken in source.shadowed for label, v in taken.items()]
    theirs = {ours: raw for raw, ours in entry.labels.items()} | {"model": source.map.model_label or "model"}
    for matcher in selector.matchers:
        if matcher.name in entry.constant:
            if not matcher.matches(entry.constant):
                return None
        elif matcher.name == "engine":
            matchers.append(_of_instances(matcher))
        else:
            matchers.append(Matcher(theirs.get(matcher.name, matcher.name), matcher.op, matcher.value))
    return matchers


def _of_instances(matcher: Matcher) -> Matcher:
    """A choice of engines as one of their pages, which may be a few engines more."""
    pages = [alternative.rpartition("\\/")[0] or alternative for alternative in matcher.value.split("|")]
    return Matcher("instance", matcher.op, "|".join(dict.fromkeys(pages)))


def _one_of(label: str, values: Sequence[str]) -> Matcher:
    return Matcher(
        label, MatchOp.RE, "|".join(re.sub(r"[^a-zA-Z0-9_:\x80-\U0010ffff]", r"\\\g<0>", value) for value in values)
    )


def _first_of(alternatives: Sequence[Expr]) -> Expr:
    """Of expressions the first that an engine has."""
    whole = alternatives[0]
    for other in alternatives[1:]:
        whole = Binary("or", whole, other, matching=Matching(on=True, labels=IDENTITY))
    return whole


def _relabelled(expr: Expr, source: RawMetricSource) -> Expr:
    """With the labels that the family has, and the engine's identity."""
    map_ = source.map
    if map_.model_label and map_.model_label != "model":
        expr = _replaced(expr, "model", "$1", map_.model_label, "(.*)")
    for ours, alternatives in map_.series_labels.items():
        for theirs in reversed(alternatives):
            expr = _replaced(expr, ours, "$1", theirs, "(.+)")
    for theirs, ours in source.metric.labels.items():
        if theirs != ours:
            expr = _replaced(expr, ours, "$1", theirs, "(.*)")
    for ours, value in source.metric.constant.items():
        expr = _replaced(expr, ours, value.replace("$", "$$"), "kvitals_none", "")
    if map_.rank_labels:
        # Each call costs as much as a series' rate, so there are few. A label that is not there leaves its slash.
        expr = _joined(expr, "engine", "/", ("instance", *map_.rank_labels))
        expr = _replaced(expr, "engine", "$1/$2$3", "engine", "(.+)/(?:/([^/]+)|([^/]+)/)")
        return _replaced(expr, "engine", "$1/0", "engine", "(.+)//")
    return _replaced(expr, "engine", "$1", "instance", "(.*)")


def _replaced(expr: Expr, label: str, value: str, source: str, pattern: str) -> Expr:
    return Call("label_replace", (expr, String(label), String(value), String(source), String(pattern)))


def _joined(expr: Expr, label: str, separator: str, sources: Sequence[str]) -> Expr:
    return Call("label_join", (expr, String(label), String(separator), *map(String, sources)))
