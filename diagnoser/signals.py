"""Signals: the numbers that rules compare, computed from families for every entity at one moment.

Each cycle's values are kept as series of their own (`kvitals:<name>`), which is what baselines, evidence over
time and queries read. A signal that has no value leaves a stale marker, and says why when asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.processes import (
    LENGTHS,
    RESTARTS,
    WENT_BACK,
    is_of_process,
    process_begins,
    window_since,
)
from kvitals.diagnoser.text import render
from kvitals.diagnoser.unusable import metric_text, of_family, unusable_metrics
from kvitals.rules.compiled_signal import (
    STAND_INS,
    CompiledSignal,
    WindowDurations,
    compile_signal,
    sample_gate,
    with_windows,
)
from kvitals.rules.expressions import expression
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, family_of, signal_names
from kvitals.rules.model import SCOPES, Signal
from kvitals.rules.origins import FACTS, HISTORY, PAGE, TRAFFIC, VALUES, origins
from kvitals.series.promql import Expr, ExpressionBatch, Moment, Selector, Series, Vector, evaluate_range, selectors
from kvitals.series.slices import Steps, complete
from kvitals.series.types import (
    METRIC_NAME,
    Frame,
    InstantRow,
    Labels,
    LabelSets,
    Matcher,
    MatchOp,
    SeriesSource,
    SourceView,
    label_sets,
    newest_rows,
    views,
)
from kvitals.series.window import SeriesGroup, Window

FACT = "kvitals_engine_fact"
BASELINE_SECONDS = 3600.0
MILLISECOND = 0.001
"""To which PromQL rounds times."""
MAX_ENTITIES = 100_000
"""Labels of which it is remembered whose they are, for each scope."""


@dataclass(frozen=True)
class EvaluationSpan:
    """The moment that is judged and the windows that lead up to it. Seconds since the epoch."""

    at: float
    fast: float = 60.0
    slow: float = 900.0
    cold: bool = False  # nothing was seen before the window
    seen: float = math.inf  # seconds before `at` since when there is anything, where that may be less than `fast`

    def __post_init__(self) -> None:
        # PromQL counts in milliseconds: a moment between two of them would be asked for before it is.
        object.__setattr__(self, "at", math.ceil(self.at * 1000) / 1000)

    @property
    def start(self) -> float:
        return self.at - self.fast

    @property
    def watched(self) -> float:
        """The seconds of the fast window in which anything was watched."""
        return min(self.fast, self.seen)

    @property
    def windows(self) -> WindowDurations:
        """The windows as expressions have them. With nothing before the fast window, the slow one is no longer."""
        slow = self.fast if self.cold else self.slow
        return WindowDurations(duration(self.fast), duration(slow), duration(BASELINE_SECONDS))


class Missing(NamedTuple):
    """Why a signal has no value, what it lacks, in words, and what brings that."""

    why: str
    lacks: str
    remedy: str


def missing_origin(origin: str, why: str) -> Missing:
    """What is missing for want of an origin (rules/origins.yaml)."""
    known = origins()[origin]
    return Missing(why, known.title, known.brings)


@dataclass
class SignalValues:
    """What is known of one signal at one moment: values by entity, and why others are missing."""

    values: dict[Labels, float] = field(default_factory=dict)
    too_few: dict[Labels, float] = field(default_factory=dict)  # entity -> samples counted


class Union:
    """Families from one source and signals from another, read as one."""

    def __init__(self, families: SeriesSource, signals: SeriesSource) -> None:
        self.families = families
        self.signals = signals

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        return [frame for source in self._of(matchers) for frame in source.select(matchers, start, end)]

    def newest(self, matchers: Sequence[Matcher], start: float, end: float) -> list[InstantRow] | None:
        found: list[InstantRow] = []
        for source in self._of(matchers):
            rows = newest_rows(source, matchers, start, end)
            if rows is None:
                return None
            found += rows
        return found

    def label_sets(self, matchers: Sequence[Matcher], start: float, end: float) -> set[Labels]:
        """The series that `select` would give."""
        return {labels for source in self._of(matchers) for labels in label_sets(source, matchers, start, end)}

    def views(self, matchers: Sequence[Matcher], start: float, end: float) -> list[SourceView]:
        """What `select` needs, to be worked on in any thread."""
        return [view for source in self._of(matchers) for view in views(source, matchers, start, end)]

    def has(self, name: str) -> bool:
        """Whether there may be series of that name."""
        has = getattr(self._named(name), "has", None)  # a window knows, other sources need not
        return has is None or bool(has(name))

    def finds(self, selector: Selector) -> bool:
        """Whether there may be series that a selector is about."""
        window = self.window(selector.name)
        return self.has(selector.name) if window is None else window.finds(selector.all_matchers())

    def begins(self, selector: Selector) -> float:
        """From this moment on a selector may find a sample; it looks back by its offset. Seconds since the epoch."""
        window = self.window(selector.name)
        return window.oldest + selector.offset if window is not None and selector.offset > 0 else -math.inf

    def may_find(self, selector: Selector, at: float) -> bool:
        """Whether a selector may find samples at a moment or before it."""
        return self.finds(selector) and self.begins(selector) <= at + MILLISECOND

    @property
    def version(self) -> tuple[int, int] | None:
        """As long as it is the same, there are the same series. None: that is not known."""
        families, signals = self.families, self.signals
        if isinstance(families, Window) and isinstance(signals, Window):
            return families.version, signals.version
        return None

    def window(self, name: str) -> Window | None:
        """The window that has the series of that name, where it is one."""
        source = self._named(name)
        return source if isinstance(source, Window) else None

    def _of(self, matchers: Sequence[Matcher]) -> list[SeriesSource]:
        name = next((m.value for m in matchers if m.name == METRIC_NAME and m.op is MatchOp.EQ), None)
        return [self.families, self.signals] if name is None else [self._named(name)]

    def _named(self, name: str) -> SeriesSource:
        return self.signals if name.startswith(SIGNAL_PREFIX) else self.families


@dataclass(frozen=True)
class _Possible:
    """What a stage can know with the series of a version, from one moment until another."""

    names: frozenset[str]
    """Signals that may have a value."""
    counted: frozenset[str]
    """Signals of which samples may be counted, with or without a value."""
    version: tuple[int, int] | None
    since: float
    until: float


class Signals:
    """Evaluates all signals of the knowledge over `families` and remembers them."""

    def __init__(self, knowledge: Knowledge, families: SeriesSource, retention: float = 7200.0) -> None:
        self.knowledge = knowledge
        self.store = Window(retention=retention, max_series=200_000)
        self.source = Union(families, self.store)
        self.known: dict[str, SignalValues] = {}
        self.now = Moment(self.source, 0.0)  # of the last observation
        self.lent: Mapping[str, SignalValues] = {}  # values of signals that are of other windows than the others
        self.begins: Mapping[Labels, float] = {}  # engines that restarted -> when their new process was first seen
        self._columns: dict[SeriesGroup, set[int]] = {}  # with a value in the last row
        self._templates = {n: compile_signal(s, STAND_INS, expression) for n, s in knowledge.signals.items()}
        self._compiled: dict[tuple[float, float, bool], Mapping[str, CompiledSignal]] = {}
        self._since_restart: dict[EvaluationSpan, Mapping[str, CompiledSignal]] = {}  # by their windows, moment 0
        self._batches: dict[SeriesGroup, tuple[frozenset[str], ExpressionBatch]] = {}  # stage -> of which signals
        self._that_can: dict[SeriesGroup, _Possible] = {}  # of each stage
        self._readers = _readers(knowledge)
        self._of_process = [n for n, s in knowledge.signals.items() if n not in self._readers and is_of_process(s)]
        self._stages = [(self.store.group(g), n) for g, n in _stages(knowledge, self._readers).items()]
        self._reads: dict[str, list[str]] = {}  # signal -> metrics of families that it reads
        self._series: dict[str, dict[Labels, Labels]] = {}  # signal -> entity -> its series
        self._identities: dict[tuple[str, ...], dict[Labels, Labels]] = {}  # scope -> labels -> whose they are
        self._whose: dict[tuple[str, ...], dict[LabelSets, list[Labels]]] = {}  # the same of whole results
        self._asked: EvaluationSpan | None = None  # the moment of `_seen`
        self._unusable: tuple[EvaluationSpan | None, Sequence[Labels]] = (None, ())
        self._seen: dict[tuple[str, ...], set[Labels]] = {}  # metric and names of labels -> their values

    def observe(self, span: EvaluationSpan) -> dict[str, SignalValues]:
        """Evaluate every signal at `span.at` and keep the values. Returns them by signal name."""
        return complete(self.observe_steps(span))

    def observe_steps(self, span: EvaluationSpan) -> Steps[dict[str, SignalValues]]:
        """The same in steps; what is known is replaced as a whole at the end of each stage.

        Expressions are evaluated as pure work: one over 20,000 series takes half a second.
        """
        compiled: Mapping[str, CompiledSignal] = yield partial(self._compile, span)
        known: dict[str, SignalValues] = {}
        for group, names in self._stages:
            self.now = Moment(self.source, span.at)
            possible = yield partial(self._that_may_be, group, names, compiled, span.at)
            yield partial(self._prepare, group, possible, compiled)
            known |= yield partial(self._evaluate_stage, names, possible, compiled)
            known |= {name: self.lent[name] for name in names if name in self.lent}
            if RESTARTS in names:
                yield partial(self._keep_to_process, known, span)
            self.known = known
            self._remember(group, names, span.at)
            yield None
        self.now = Moment(self.source, span.at)
        return self.known

    def _prepare(self, stage: SeriesGroup, possible: _Possible, compiled: Mapping[str, CompiledSignal]) -> None:
        """Read what the stage's signals share at once."""
        names = possible.names | possible.counted
        if stage not in self._batches or self._batches[stage][0] != names:
            reads = [read for name in sorted(names) for read in compiled[name].reads_at_once]
            self._batches[stage] = names, ExpressionBatch(reads, self.source.window)
        self.now.prepare(self._batches[stage][1])

    def _evaluate_stage(
        self, names: Sequence[str], possible: _Possible, compiled: Mapping[str, CompiledSignal]
    ) -> dict[str, SignalValues]:
        return {
            name: self._evaluate(name, compiled, name in possible.names, name in possible.counted) for name in names
        }

    def _keep_to_process(self, known: Mapping[str, SignalValues], span: EvaluationSpan) -> None:
        """Of engines that restarted in the fast window, the values of a window since then. While that is too short for
        any, there are none."""
        mixed = known[WENT_BACK].values if WENT_BACK in known else {}
        restarted = [engine for engine, n in known[RESTARTS].values.items() if n > 0 and not mixed.get(engine)]

        def course(expr: Expr, step: float) -> list[Series]:
            start = span.at - (math.ceil(span.fast / step) + 1) * step  # so that the last moment is that of the span
            return self.course(expr, start, span.at, step)

        self.begins = process_begins(restarted, course, self.sample_seconds(span) if restarted else 0.0)
        engines_of: dict[float, list[Labels]] = {}
        for engine, begins in self.begins.items():
            if (length := window_since(span.at - begins, span.fast)) is not None:
                engines_of.setdefault(length, []).append(engine)
        for length, engines in engines_of.items():
            since = self._compile_since_restart(span, length) if length else {}
            for name in self._of_process:
                anew = self._evaluate(name, since) if length else SignalValues()
                _replace_values(known[name], anew, engines)

    def _compile_since_restart(self, span: EvaluationSpan, length: float) -> Mapping[str, CompiledSignal]:
        key = EvaluationSpan(0.0, length, span.slow, span.cold)
        if key not in self._since_restart:
            if len(self._since_restart) >= 2 * len(LENGTHS):
                self._since_restart.clear()
            self._since_restart[key] = self._with_windows(replace(span, fast=length).windows)
        return self._since_restart[key]

    def seconds_since_restart(self, entity: Labels, at: float) -> float:
        """Since when the process of an engine is seen; infinite where it did not restart in the fast window."""
        return at - self.begins.get(entity, -math.inf)

    def named_by(self, name: str) -> list[str]:
        """The signals that a signal's expression names."""
        return signal_names(self._templates[name].expr)

    def span_of(self, entity: Labels, span: EvaluationSpan) -> EvaluationSpan:
        """The windows of a moment as they are of an entity: of an engine that restarted, the fast one since then."""
        length = window_since(self.seconds_since_restart(entity, span.at), span.fast)
        return replace(span, fast=length) if length else span

    def _that_may_be(
        self, stage: SeriesGroup, names: Sequence[str], compiled: Mapping[str, CompiledSignal], at: float
    ) -> _Possible:
        """What there are the series for that a stage's signals, or the counts of their samples, need."""
        known = self._that_can.get(stage)
        version = self.source.version
        if known is not None and known.version == version is not None and known.since <= at < known.until:
            return known
        exists = _Memo(self.source.finds)
        there = _Memo(lambda selector: exists[selector] and self.source.begins(selector) <= at + MILLISECOND)
        templates = self._templates
        found = frozenset(
            n for n in names if _all_found(templates[n].reads, exists) and _all_found(compiled[n].reads, there)
        )
        counted = frozenset(
            n for n in names if templates[n].samples is not None and _all_found(templates[n].samples_reads, exists)
        )
        begins = (self.source.begins(one) for one in there)
        until = min((begin for begin in begins if begin > at + MILLISECOND), default=math.inf)
        self._that_can[stage] = _Possible(found, counted, version, at, until)
        return self._that_can[stage]

    def why_missing(self, name: str, entity: Labels, span: EvaluationSpan) -> Missing:
        """Why a signal has no value for an entity, what it lacks, and what would bring that."""
        signal = self.knowledge.signals[name]
        for metric in self.metrics(name, span):
            if unusable := of_family(self.unusable(span), family_of(metric, self.knowledge.families), entity):
                return missing_origin(VALUES, f"the values of {metric_text(unusable)} are not used")
        known = self.known.get(name, SignalValues())
        if signal.samples is not None and entity in known.too_few:
            seen = f"{math.floor(known.too_few[entity]):,} of {render(signal.samples.min, 'count')}"
            return missing_origin(TRAFFIC, f"only {seen} {signal.samples.of}{self._counted_in(signal, entity, span)}")
        for metric in self.untold(name, entity, span):
            family = family_of(metric, self.knowledge.families)
            origin = self.knowledge.families[family].origin if family else PAGE
            return missing_origin(origin, f"no {metric} from this engine")
        if name in self._of_process and (since := self.seconds_since_restart(entity, span.at)) < span.fast:
            return missing_origin(TRAFFIC, f"the engine restarted and was read for {since:.0f} s since then")
        if name in self._readers or self._looks_before(name, span):
            return missing_origin(HISTORY, "no history before this window")
        for fact in self._unknown_facts(name, entity, span):
            missing = missing_origin(FACTS, f"fact {fact} is not known")
            return missing._replace(remedy=missing.remedy.replace("NAME", fact))
        return missing_origin(signal.origin, "no value in the window")

    def _counted_in(self, signal: Signal, entity: Labels, span: EvaluationSpan) -> str:
        """In which time the samples of a signal are counted; empty where that is a time of its own."""
        if signal.samples is None or "$window" not in signal.samples.expr:
            return ""
        if signal.window == "slow":
            return f" in {render(span.fast if span.cold else span.slow, 'seconds')}"
        own = self.span_of(entity, span) if is_of_process(signal) else span
        return f" in {render(own.fast, 'seconds')}"

    def _looks_before(self, name: str, span: EvaluationSpan) -> bool:
        """Whether a signal compares with a time before the first that was seen."""
        return any(self.source.begins(use.selector) > span.at for use in selectors(self._compile(span)[name].expr))

    def _unknown_facts(self, name: str, entity: Labels, span: EvaluationSpan) -> list[str]:
        """The facts of the configuration that a signal names and an entity does not have."""
        if not self.source.has(FACT):
            return []
        matchers = [
            matcher
            for use in selectors(self._compile(span)[name].expr)
            if use.selector.name == FACT
            for matcher in use.selector.matchers
            if matcher.name == "fact" and matcher.op is MatchOp.EQ
        ]
        return [m.value for m in dict.fromkeys(matchers) if not self._has_fact(m, entity, span)]

    def _has_fact(self, fact: Matcher, entity: Labels, span: EvaluationSpan) -> bool:
        frames = self.source.select([Matcher(METRIC_NAME, MatchOp.EQ, FACT), fact], span.start, span.at)
        return any(labels.keep(tuple(entity)) == entity for frame in frames for labels in frame.labels)

    def unusable(self, span: EvaluationSpan) -> Sequence[Labels]:
        """The series of the metrics whose values are not used at a moment."""
        if self._unusable[0] != span:
            self._unusable = span, unusable_metrics(self.source, span.start, span.at)
        return self._unusable[1]

    def untold(self, name: str, entity: Labels, span: EvaluationSpan) -> list[str]:
        """The metrics of a signal that an entity does not have, if the signal has no value for it."""
        if entity in self.known.get(name, SignalValues()).values:
            return []
        return [metric for metric in self.metrics(name, span) if not self.exists(metric, entity, span)]

    def _compile(self, span: EvaluationSpan) -> Mapping[str, CompiledSignal]:
        key = (span.fast, span.slow, span.cold)
        if key not in self._compiled:
            compiled = self._with_windows(span.windows)
            self._compiled, self._that_can, self._batches = {key: compiled}, {}, {}
        return self._compiled[key]

    def _with_windows(self, windows: WindowDurations) -> Mapping[str, CompiledSignal]:
        return with_windows(self._templates, windows)

    def _evaluate(
        self, name: str, compiled: Mapping[str, CompiledSignal], possible: bool = True, counted: bool = True
    ) -> SignalValues:
        """What is known of a signal now. possible, counted: whether there may be a value, and samples to count."""
        scope = SCOPES[self.knowledge.signals[name].scope]
        values = self.by_entity(self.now.evaluate(compiled[name].expr), scope) if possible else {}
        if self.knowledge.signals[name].samples is None:
            return SignalValues(values)
        samples = compiled[name].samples if counted else None
        counts = {} if samples is None else self.by_entity(self.now.evaluate(samples), scope)
        return with_enough_samples(self.knowledge.signals[name], values, counts)

    def by_entity(self, result: Vector | float, scope: tuple[str, ...]) -> dict[Labels, float]:
        """As the function of that name. The labels of an entity are always the same object, which is soon found."""
        if isinstance(result, float):
            return {}
        whose = self._whose.setdefault(scope, {})
        entities = whose.get(result.labels)
        if entities is None:
            if sum(map(len, whose)) > MAX_ENTITIES:
                whose.clear()
            entities = whose[result.labels] = [self.entity(labels, scope) for labels in result.labels]
        return dict(zip(entities, result.values.tolist(), strict=True))

    def entity(self, labels: Labels, scope: tuple[str, ...]) -> Labels:
        """The identity of the entity that labels are of."""
        known = self._identities.setdefault(scope, {})
        found = known.get(labels)
        if found is None:
            if len(known) > MAX_ENTITIES:
                known.clear()
            found = labels.keep(scope)
            found = known[labels] = known.setdefault(found, found)
        return found

    def focus(self, entities: Sequence[Labels]) -> None:
        """From here on only these entities are asked about. It is for signals that are far away; here all are near."""

    def course(self, expr: Expr, start: float, end: float, step: float) -> list[Series]:
        """An expression over families and signals from `start` to `end`, for people to look at. Seconds."""
        return evaluate_range(expr, self.source, start, end, step)

    def _remember(self, group: SeriesGroup, names: Sequence[str], at: float) -> None:
        """One row of this moment's values; a signal without a value now has a gap, not its last value."""
        row: dict[int, float] = {}
        for name in names:
            for entity, value in self.known[name].values.items():
                column = group.column(self._series_of(name, entity))
                if column is not None:
                    row[column] = value
        group.end(list(self._columns.get(group, set()) - row.keys()))  # it begins again with its next value
        self._columns[group] = set(row)
        group.append(at, list(row), list(row.values()))

    def _series_of(self, name: str, entity: Labels) -> Labels:
        """The labels of the series of a signal of an entity."""
        known = self._series.setdefault(name, {})
        found = known.get(entity)
        if found is None:
            if len(known) > MAX_ENTITIES:
                known.clear()
            found = known[entity] = entity.with_(**{METRIC_NAME: SIGNAL_PREFIX + name})
        return found

    def metrics(self, name: str, span: EvaluationSpan) -> list[str]:
        """The metrics of families that a signal reads."""
        if name not in self._reads:
            found = self._compile(span)[name].metrics
            self._reads[name] = [metric for metric in found if family_of(metric, self.knowledge.families)]
        return self._reads[name]

    def reports(self, metric: str) -> bool:
        """Whether there may be series of a metric, of any entity."""
        return self.source.has(metric)

    def sample_seconds(self, span: EvaluationSpan) -> float:
        """Seconds between two samples of the target that has the fewest, in the fast window; 0 with too few to tell."""
        frames = self.source.select([Matcher(METRIC_NAME, MatchOp.EQ, ENTITIES)], span.start, span.at)
        return max((float(np.median(np.diff(f.times))) for f in frames if len(f.times) > 1), default=0.0)

    def exists(self, metric: str, entity: Labels, span: EvaluationSpan) -> bool:
        """Whether an entity had any series of a metric in the fast window."""
        if span != self._asked:
            self._asked, self._seen = span, {}
        key = (metric, *entity)
        if key not in self._seen:
            self._seen[key] = self._with(metric, key[1:], span)
        return entity in self._seen[key]

    def _with(self, metric: str, names: tuple[str, ...], span: EvaluationSpan) -> set[Labels]:
        if not self.source.has(metric):
            return set()
        frames = self.source.select([Matcher(METRIC_NAME, MatchOp.EQ, metric)], span.start, span.at)
        return {labels.keep(names) for frame in frames for labels in frame.labels}


def with_enough_samples(
    signal: Signal, values: dict[Labels, float], counts: dict[Labels, float] | None
) -> SignalValues:
    """The values of the entities that have as many samples as the signal asks for; counts: None where it asks none."""
    if counts is None or signal.samples is None:
        return SignalValues(values)
    enough = sample_gate(signal.samples)
    few = {e: n for e, n in counts.items() if n < enough}
    return SignalValues({e: v for e, v in values.items() if e in counts and e not in few}, few)


def _replace_values(known: SignalValues, anew: SignalValues, entities: Sequence[Labels]) -> None:
    """Let some entities have other values of a signal, or none."""
    for entity in entities:
        for values, others in ((known.values, anew.values), (known.too_few, anew.too_few)):
            values.pop(entity, None)
            if entity in others:
                values[entity] = others[entity]


def by_entity(result: Vector | float, scope: Sequence[str]) -> dict[Labels, float]:
    """A query's result keyed by the identity of its entities."""
    if isinstance(result, float):
        return {}
    return {labels.keep(scope): float(v) for labels, v in zip(result.labels, result.values, strict=True)}


def duration(seconds: float) -> str:
    """A PromQL duration to the millisecond."""
    return f"{round(seconds * 1000)}ms"


def _all_found(reads: Sequence[Set[Selector]], there: Mapping[Selector, bool]) -> bool:
    """Whether at least one selector of each set finds a series."""
    return all(any(there[selector] for selector in either) for either in reads)


class _Memo(dict[Selector, bool]):
    """The answers to a question, each asked once."""

    def __init__(self, ask: Callable[[Selector], bool]) -> None:
        self._ask = ask

    def __missing__(self, selector: Selector) -> bool:
        self[selector] = self._ask(selector)
        return self[selector]


def _readers(knowledge: Knowledge) -> set[str]:
    """Signals that are made from other signals' history."""
    return {name for name, signal in knowledge.signals.items() if SIGNAL_PREFIX in signal.expr}


def _stages(knowledge: Knowledge, readers: set[str]) -> dict[str, list[str]]:
    """Signals over families first, then those over signals, which read what the first stage remembered."""
    first = [n for n in knowledge.signals if n not in readers]
    return {"signals": first, "baselines": sorted(readers)}
