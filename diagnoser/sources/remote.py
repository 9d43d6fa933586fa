"""Signals of a whole fleet, evaluated where its series are: a query a signal, however many engines there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kvitals.diagnoser.entities import ENTITIES, INFO
from kvitals.diagnoser.evaluator import TRAFFIC, Judge
from kvitals.diagnoser.judgement import Judgement, Memory, needed_duration, seconds
from kvitals.diagnoser.signals import (
    EvaluationSpan,
    Missing,
    Signals,
    SignalValues,
    Union,
    missing_origin,
    with_enough_samples,
)
from kvitals.diagnoser.sources.served import Rows, ServedFamilies, Snapshot, focus_engines, vector
from kvitals.diagnoser.unusable import UNUSABLE
from kvitals.rules.compiled_signal import CompiledSignal, needed_metrics
from kvitals.rules.expressions import expression
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import SCOPES, Rule
from kvitals.rules.origins import AGENT, SERVER
from kvitals.series.promql import Expr, Moment, Range, Selector, Series, Subquery, Vector, inline
from kvitals.series.slices import Steps
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher, MatchOp

MAX_MOMENTS = 12
"""That are looked back at, for how long something has been so."""

FEW = 50
"""Entities on which a rule is true: so many are looked back at by themselves, more as a part of the whole fleet."""

Asked = dict[str, tuple[Expr, Expr | None]]
"""Signal -> the expression of its values, and of how many samples they rest on."""


class RemoteMoment(Moment):
    """One time: expressions over signals are evaluated over what is known of them, others by the server."""

    def __init__(self, signals: RemoteSignals, at: float) -> None:
        super().__init__(signals.source, at)
        self._signals = signals
        self._at = at

    def evaluate(self, expr: Expr | str) -> Vector | float:
        """As `Moment.evaluate`. Raises ServerError where the server can not be reached."""
        assert not isinstance(expr, str)
        if not _reads_the_server(expr):
            return super().evaluate(expr)
        return vector(self._signals.ask([expr], self._at)[expr])


class RemoteSignals(Signals):
    """As `Signals`, over a server. `interval`: seconds between two samples there."""

    def __init__(self, knowledge: Knowledge, served: ServedFamilies, interval: float) -> None:
        self._snapshot: dict[str, Rows] = {}
        super().__init__(knowledge, Snapshot(self._snapshot))
        self.source = Union(self.source.families, Newest(self))
        self.served = served
        self.interval = interval
        self._asked_for: Asked = {}
        self._definitions: dict[str, Expr] = {}
        self._full: dict[Expr, Expr] = {}
        self._focus: Sequence[str] = ()
        self._entities: dict[Sequence[str], dict[Labels, Labels]] = {}  # scope -> labels of a row -> its entity
        self._answers: dict[tuple[Expr, float], Rows] = {}
        self._courses: dict[tuple[Expr, float, float], list[Series]] = {}
        self._there: dict[tuple[str, tuple[str, ...]], set[Labels]] = {}

    def observe_steps(self, span: EvaluationSpan) -> Steps[dict[str, SignalValues]]:
        self.define(span)
        wanted = [expr for both in self._asked_for.values() for expr in both if expr is not None]
        names = [ENTITIES, INFO, *([UNUSABLE] if self.served.dialect.has(UNUSABLE) else ())]
        present = [expression(name) for name in names]
        found = self.ask([*present, *wanted], span.at, shared=True)
        yield None
        for name, expr in zip(names, present, strict=True):
            self._snapshot[name] = [(labels.with_(**{METRIC_NAME: name}), value) for labels, value in found[expr]]
        self.known = {name: self._of(name, found) for name in self._asked_for}
        self.now = RemoteMoment(self, span.at)
        return self.known

    def focus(self, entities: Sequence[Labels]) -> None:
        """Where a query allows it only these are asked about; more than a few are no focus."""
        engines = {entity.get("engine", "") for entity in entities}
        self._focus = sorted(engines) if "" not in engines else ()

    def ask(self, exprs: Sequence[Expr], at: float, *, shared: bool = False) -> dict[Expr, Rows]:
        """The values of expressions over families and signals. `shared`: of all engines, whatever the focus is."""
        asked = {expr: self._expanded(expr) for expr in dict.fromkeys(exprs)}
        if not shared:
            asked = {expr: focus_engines(full, self._focus) for expr, full in asked.items()}
        new = [e for e in dict.fromkeys(asked.values()) if (e, at) not in self._answers and self._possible(e)]
        if new:
            self._answers.update({(e, at): rows for e, rows in self.served.instant(new, at).items()})
        return {expr: self._answers.get((full, at), []) for expr, full in asked.items()}

    def past(self, names: Iterable[str], moments: Sequence[float]) -> dict[float, dict[str, SignalValues]]:
        """What signals were at earlier moments, at equal distances."""
        asked = {name: self._asked_for[name] for name in names}
        full = {
            e: focus_engines(self._expanded(e), self._focus) for both in asked.values() for e in both if e is not None
        }
        possible = [expr for expr in dict.fromkeys(full.values()) if self._possible(expr)]
        found = self.served.course(possible, moments)
        return {
            at: {
                name: self._of(name, {e: found.get(asked_as, {}).get(at, []) for e, asked_as in full.items()})
                for name in asked
            }
            for at in moments
        }

    def course(self, expr: Expr, start: float, end: float, step: float) -> list[Series]:
        """As many steps as asked for, but none closer than samples are."""
        full = focus_engines(self._expanded(expr), self._focus)
        if not self._possible(full):
            return []
        count = max(round((end - start) / step), 1)
        step = max(step, self.interval)
        key = (full, end, step)
        if key not in self._courses:
            found = self.served.course([full], [end - (count - i) * step for i in range(count + 1)])[full]
            self._courses[key] = _series(found)
        return self._courses[key]

    def reports(self, metric: str) -> bool:
        return self.served.dialect.has(metric)

    def sample_seconds(self, span: EvaluationSpan) -> float:
        return self.interval

    def exists(self, metric: str, entity: Labels, span: EvaluationSpan) -> bool:
        key = (metric, tuple(entity))
        if key not in self._there:
            asked = expression(f"group by ({', '.join(entity)}) (present_over_time({metric}[{round(span.fast)}s]))")
            self._there[key] = {labels for labels, _ in self.ask([asked], span.at, shared=True)[asked]}
        return entity in self._there[key]

    def why_missing(self, name: str, entity: Labels, span: EvaluationSpan) -> Missing:
        for expr in self._asked_for[name]:
            if expr is not None and (why := self.served.why_failed(self._expanded(expr))):
                return missing_origin(SERVER, f"the server could not answer: {why}")
        for metric in self.untold(name, entity, span):
            if why := self.served.dialect.why_not(metric):
                return missing_origin(AGENT, why)
        return super().why_missing(name, entity, span)

    @property
    def up(self) -> Rows:
        """The targets at the moment that was observed."""
        return self._snapshot.get(ENTITIES, [])

    @property
    def infos(self) -> Rows:
        return self._snapshot.get(INFO, [])

    def define(self, span: EvaluationSpan) -> None:
        """Take signals for what they are made of over the windows of a moment. Asks nothing."""
        compiled = self._compile(span)
        self._asked_for = {name: (c.expr, c.samples) for name, c in compiled.items()}
        recorded = self.served.dialect.has
        definitions = {SIGNAL_PREFIX + name: self._definition(name) for name in compiled}
        self._definitions = {name: expr for name, expr in definitions.items() if not recorded(name)}
        self._full = {}

    def _definition(self, name: str) -> Expr:
        """What stands for a signal in another expression: as little as the rules do, that takes too few samples."""
        expr, samples = self._asked_for[name]
        return CompiledSignal(self.knowledge.signals[name], expr, samples).gated

    def _expanded(self, expr: Expr) -> Expr:
        """The expression with signals replaced by what they are made of, unless the server has them recorded."""
        if expr not in self._full:
            self._full[expr] = inline(expr, self._definitions, self.interval)
        return self._full[expr]

    def _possible(self, expr: Expr) -> bool:
        """Whether the server has what an expression needs to have a value."""
        return all(any(self.served.dialect.has(metric) for metric in either) for either in needed_metrics(expr))

    def _of(self, name: str, rows: Mapping[Expr, Rows]) -> SignalValues:
        """A signal's values from the answers to its expressions."""
        expr, samples = self._asked_for[name]
        signal = self.knowledge.signals[name]
        scope = SCOPES[signal.scope]
        known = self._entities.setdefault(scope, {})
        counts = None if samples is None else _by_entity(rows.get(samples, []), scope, known)
        return with_enough_samples(signal, _by_entity(rows.get(expr, []), scope, known), counts)


class Newest:
    """The values of signals at the moment that was observed, as series of one sample."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        metric = next((m.value for m in matchers if m.name == METRIC_NAME and m.op is MatchOp.EQ), "")
        known = self._signals.known.get(metric.removeprefix(SIGNAL_PREFIX), SignalValues()).values
        rows = [(entity.with_(**{METRIC_NAME: metric}), value) for entity, value in known.items()]
        return Snapshot({metric: rows}).select(matchers, start, end)


class PastSignals(Signals):
    """What `RemoteSignals.past` found, as the signals of those moments and of a few entities."""

    def __init__(self, now: RemoteSignals, known: Mapping[float, Mapping[str, SignalValues]]) -> None:
        super().__init__(now.knowledge, Snapshot({ENTITIES: now.up, INFO: now.infos}))
        self.source = Union(self.source.families, Newest(self))
        self._now = now
        self._past = known

    def observe_steps(self, span: EvaluationSpan) -> Steps[dict[str, SignalValues]]:
        yield None
        self.known = {name: self._past[span.at].get(name, SignalValues()) for name in self.knowledge.signals}
        self.now = Moment(self.source, span.at)
        return self.known

    def exists(self, metric: str, entity: Labels, span: EvaluationSpan) -> bool:
        return self._now.exists(metric, entity, span)

    def why_missing(self, name: str, entity: Labels, span: EvaluationSpan) -> Missing:
        return Missing("not asked for", "", "")


def judge_with_past(judge: Judge, signals: RemoteSignals, span: EvaluationSpan) -> list[Judgement]:
    """Judge one moment, and what is true at it also at the moments before it, so that `for` and `since` are known.

    What is not true now is not looked back at: unlike an agent, whoever asks a server now does not keep a finding open
    for a while (`keep`, `clear`) that has passed.
    """
    found = judge.judge(span)
    early = [j for j in found if j.is_true]
    if not early or span.cold:
        return found
    by_rule: dict[str, list[Judgement]] = {}
    for judgement in early:
        by_rule.setdefault(judgement.rule.code, []).append(judgement)
    together: dict[tuple[float, bool], dict[str, list[Judgement]]] = {}
    for code, judgements in by_rule.items():
        step = _step(judgements[0].rule, signals.interval)
        together.setdefault((step, len(judgements) <= FEW), {})[code] = judgements
    memory: dict[str, Memory] = {}
    for (step, _), rules in together.items():
        memory |= _look_back(judge, signals, span, rules, step)
    return judge.again(found, span, memory)


def _look_back(
    judge: Judge, signals: RemoteSignals, span: EvaluationSpan, true: Mapping[str, Sequence[Judgement]], step: float
) -> Mapping[str, Memory]:
    """What a judge would remember who had looked at these rules on these entities before, each `step` seconds."""
    rules = {code: judgements[0].rule for code, judgements in true.items()}
    moments = [span.at - (MAX_MOMENTS - i) * step for i in range(MAX_MOMENTS)]
    entities = {code: [j.entity for j in judgements] for code, judgements in true.items()}
    whole = {entity for several in entities.values() for entity in several}
    signals.focus(list(whole))
    names = {TRAFFIC, *(name for rule in rules.values() for name in judge.asks(rule))}
    past = PastSignals(signals, signals.past(names, moments))
    before = Judge(replace(judge.knowledge, rules=rules), past, judge.params, only=entities)
    for at in moments:
        before.judge(EvaluationSpan(at, span.fast, span.slow))
    return before.memory


def _step(rule: Rule, interval: float) -> float:
    """Seconds between moments that reach back at least as far as a rule needs, the last of them one step ago. Rules
    that need less are looked at more closely: their condition may have begun between two moments of another's."""
    needed = seconds(needed_duration(rule, proven=False))
    return float(math.ceil(max(interval, needed / (MAX_MOMENTS - 1))))  # whole seconds, that a moment is found by


def _series(rows: Mapping[float, Rows]) -> list[Series]:
    points: dict[Labels, list[tuple[float, float]]] = {}
    for t, found in rows.items():
        for labels, value in found:
            points.setdefault(labels, []).append((t, value))
    columns = ((labels, np.array(course).T) for labels, course in points.items())
    return [Series(labels, times, values) for labels, (times, values) in sorted(columns, key=lambda s: str(s[0]))]


def _by_entity(rows: Rows, scope: Sequence[str], known: dict[Labels, Labels]) -> dict[Labels, float]:
    """Values by entity. `known`: labels -> their entity; the same labels come with every signal."""
    found = {}
    for labels, value in rows:
        entity = known.get(labels)
        if entity is None:
            entity = known[labels] = labels.keep(scope)
        found[entity] = value
    return found


def _reads_the_server(expr: Expr) -> bool:
    """Whether it is about more than the newest values of signals, which are known here."""
    for node in expr.walk():
        if isinstance(node, Range | Subquery):
            return True
        if isinstance(node, Selector) and (node.offset or not node.name.startswith(SIGNAL_PREFIX)):
            return True
    return False
