"""Outcomes: what each rule says of each entity now, with the memory that `for`, `keep` and `clear` need."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import msgspec

from kvitals.diagnoser.kleene import ComparisonResult, Values, Verdict, decide, truths
from kvitals.diagnoser.signals import EvaluationSpan, Signals, SignalValues
from kvitals.diagnoser.text import plain, render, render_apart
from kvitals.rules.condition import Comparison, Condition, alternatives, comparisons, parse_condition
from kvitals.rules.engine_map import find_map, told_by_programs
from kvitals.rules.expressions import expression
from kvitals.rules.finding import Outcome
from kvitals.rules.loader import PLACEHOLDER, SIGNAL_PREFIX, Knowledge, family_of, parameters, signal_names
from kvitals.rules.model import AROUND, SCOPES, Rule, Scope
from kvitals.series.promql import Expr, ExpressionBatch, NumberLiteral, Selector, evaluate, expand
from kvitals.series.slices import Steps, complete
from kvitals.series.types import Labels

ENTITIES = "kvitals_target_up"
INFO = "kvitals_engine_info"
TRAFFIC = "traffic"
IN_FRONT = ("router", "gateway")
"""Programs that see requests pass and engines from outside: what they do not tell is not missing."""
FORGET_SECONDS = 300.0
GLANCE_SECONDS = 10.0
"""The shortest window in which a change is confirmed: two looks of an agent after the first that saw it."""
GLANCE_STEP = 5.0
MAX_REASONS = 3
"""Comparisons that a conclusion names, where any one of several conditions is enough."""
TOO_EARLY = "too early to judge"
"""How the reason begins of what is true, where the judge has not watched for as long as the rule asks for."""

_IS = {">": "above", "<": "below", ">=": "at least", "<=": "at most", "==": "which is", "!=": "and not"}
_NOT = {">": "not above", "<": "not below", ">=": "below", "<=": "above", "==": "not", "!=": "is"}
_NOTHING = Labels()
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(duration: str) -> float:
    """`90s`, `5m` as seconds."""
    return float(duration[:-1]) * _SECONDS[duration[-1]]


class Memory(msgspec.Struct):
    """What is remembered of one rule and one entity between cycles."""

    true_since: float | None = None  # start of the current run of true
    last_true: float | None = None
    fired: bool = False
    from_start: bool = False  # the run was already true when first looked at
    fired_cold: bool = False  # it was true, and so fired, in the last window without history

    @property
    def blank(self) -> bool:
        return not self.fired and self.true_since is None


class Judgement(msgspec.Struct, frozen=True):
    """One rule on one entity at one moment."""

    rule: Rule
    entity: Labels
    outcome: Outcome
    why: str | Callable[[], str]  # or how to tell, of what is rarely asked
    how: Verdict | Callable[[], Verdict] | None  # the same of what made it
    since: float | None = None
    since_at_least: bool = False
    early: float | None = None  # seconds for which it has been true, where that is less than `for`
    short: float | None = None  # seconds of the short window that shows it, where the long one does not

    @property
    def reason(self) -> str:
        """Why it is so, for people. To be asked before the next moment is judged."""
        return self.why if isinstance(self.why, str) else self.why()

    @property
    def verdict(self) -> Verdict | None:
        """The comparisons that made it; None of what is clear or has nothing to judge. To be asked as early."""
        return self.how if self.how is None or isinstance(self.how, Verdict) else self.how()

    @property
    def is_pending(self) -> bool:
        """Whether its condition holds, and nobody has watched for as long as its `for`: it is too early to judge."""
        return self.early is not None and self.outcome == "unknown"

    @property
    def is_new_symptom(self) -> bool:
        """Whether it is a page-worthy symptom whose condition holds, and does not count yet."""
        pages = self.rule.kind == "symptom" and self.rule.severity == "page"
        return pages and self.early is not None and self.outcome != "fired"

    @property
    def is_recent_symptom(self) -> bool:
        """Whether it is a page-worthy symptom that is true, and its beginning was seen."""
        pages = self.rule.kind == "symptom" and self.rule.severity == "page"
        return pages and (self.early is not None or self.outcome == "fired") and not self.since_at_least

    @property
    def is_true(self) -> bool:
        """Whether its condition holds now, though it may not count yet. False where its verdict is not made yet."""
        return isinstance(self.how, Verdict) and bool(self.how.truth)


class _Pair(msgspec.Struct, frozen=True):
    """A rule and an entity that it is for. `key`: of what is remembered of them. `clear` and `unknown`: the usual
    judgements; their reasons are calculated on request, for the latest moment.

    The garbage collector must see it: both judgements hold their judge, which holds the pairs.
    """

    entity: Labels
    key: str
    clear: Judgement
    unknown: Judgement
    in_front: bool


@dataclass
class _Pairs:
    """A rule and all entities of its scope. `told`: a judgement of each; those at `places` are made anew each time."""

    told: list[Judgement] = field(default_factory=list)
    not_for: list[str] = field(default_factory=list)  # keys of the others
    places: list[int] = field(default_factory=list)
    here: list[_Pair] = field(default_factory=list)
    entities: list[Labels] = field(default_factory=list)  # of `here`


@dataclass
class _Entities:
    """Who is there at one moment."""

    at: float
    entity: Callable[[Labels, tuple[str, ...]], Labels]
    up: Sequence[Labels] = ()
    infos: Sequence[Labels] = ()
    _of: dict[str, list[Labels]] = field(default_factory=dict)  # by scope
    _info: dict[tuple[str, ...], dict[Labels, Labels]] = field(default_factory=dict)  # names of labels -> by entity
    _around: dict[tuple[Scope, Labels], dict[Scope, Labels]] = field(default_factory=dict)
    _told: dict[Labels, Labels] = field(default_factory=dict)  # entity -> what is known of it
    _texts: dict[Labels, str] = field(default_factory=dict)
    _first: dict[tuple[str, ...], dict[Labels, Labels]] = field(default_factory=dict)  # scope -> entity -> a target
    pairs: dict[str, _Pairs] = field(default_factory=dict)  # by the rule's code

    def of(self, scope: str) -> list[Labels]:
        if scope not in self._of:
            self._of[scope] = sorted({self.entity(labels, SCOPES[scope]) for labels in self.up}, key=str)
        return self._of[scope]

    def text(self, entity: Labels) -> str:
        """An entity as text; it is asked for by every rule."""
        found = self._texts.get(entity)
        if found is None:
            found = self._texts[entity] = str(entity)
        return found

    def info(self, entity: Labels) -> Labels:
        found = self._told.get(entity)
        if found is None:
            names = tuple(entity)
            if names not in self._info:
                self._info[names] = {labels.keep(names): labels for labels in self.infos}
            found = self._told[entity] = self._info[names].get(entity, _NOTHING)
        return found

    def around(self, scope: Scope, entity: Labels) -> dict[Scope, Labels]:
        """An entity and what it is part of, by scope. `up` tells an engine's pool, which its identity does not."""
        key = (scope, entity)
        if key not in self._around:
            labels = self._targets(SCOPES[scope]).get(entity, entity)
            self._around[key] = {wider: labels.keep(SCOPES[wider]) for wider in AROUND[scope]}
        return self._around[key]

    def _targets(self, scope: tuple[str, ...]) -> dict[Labels, Labels]:
        """The first target of each entity."""
        if scope not in self._first:
            first = self._first[scope] = {}
            for labels in self.up:
                first.setdefault(labels.keep(scope), labels)
        return self._first[scope]


@dataclass
class Judge:
    """Judges all rules at successive moments. `params`: rule code -> parameter -> value."""

    knowledge: Knowledge
    signals: Signals
    params: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    only: Mapping[str, Sequence[Labels]] | None = None  # rule code -> entities that are looked at; None: all
    glances: bool = False  # whether a symptom counts before its `for` where a short window shows it by itself
    crashed: dict[str, str] = field(default_factory=dict)  # rule code -> what went wrong in it
    _conditions: dict[str, tuple[Condition, Condition]] = field(default_factory=dict)
    _needs: dict[str, list[str]] = field(default_factory=dict)
    _batch: ExpressionBatch | None = None  # what the sides of all conditions read
    _entities: _Entities | None = None
    _span: EvaluationSpan | None = None  # the moment that is judged
    _values: dict[int, tuple[Values, Values]] = field(default_factory=dict)  # by id of a comparison, at that moment
    _judged: set[str] = field(default_factory=set)  # keys of `memory` that were looked at in this cycle
    _since: float | None = None  # the first moment that was judged
    _glance: Judge | None = None  # judges the short window; made when first needed
    _short: dict[str, float] = field(default_factory=dict)  # keys of `memory` -> since when only short windows show it

    def renewed(self, knowledge: Knowledge, signals: Signals, params: Mapping[str, Mapping[str, float]]) -> Judge:
        """A judge by other rules or parameters, that remembers what this one does."""
        return Judge(knowledge, signals, params, self.memory, glances=self.glances, _since=self._since)

    def judge(self, span: EvaluationSpan) -> list[Judgement]:
        """Evaluate the signals and then every rule for every entity of its scope."""
        return complete(self.judge_steps(span))

    def judge_steps(self, span: EvaluationSpan) -> Steps[list[Judgement]]:
        """The same in steps."""
        yield from self.signals.observe_steps(span)
        judgements: list[Judgement] = yield partial(self._judge_rules, span)
        short = self._glance_span(judgements, span)
        if short is None:
            self._short = {}
            return self._promoted(judgements, span.at)
        in_short: list[Judgement] = yield from self._glance_judge().judge_steps(short)
        over = {(j.rule.code, j.entity) for j in in_short if j.outcome == "clear"}
        promoted = self._promoted(self._confirmed(judgements, in_short), span.at, over)
        return self._with_causes_of(in_short, promoted, short)

    def _glance_span(self, found: Sequence[Judgement], span: EvaluationSpan) -> EvaluationSpan | None:
        """The window since a page-worthy symptom became true, to be judged by itself beside the long one; None where
        each such symptom is true for less than `GLANCE_SECONDS` or for as long as the long window."""
        if not self.glances or span.cold:
            return None
        held = [span.at - j.since for j in found if j.is_recent_symptom and j.since is not None]
        since = max((seconds for seconds in held if GLANCE_SECONDS <= seconds < span.fast), default=0.0)
        if not since:
            return None
        length = since // GLANCE_STEP * GLANCE_STEP  # few lengths, as each is compiled anew
        return EvaluationSpan(span.at, length, length, cold=True)

    def _glance_judge(self) -> Judge:
        """A judge of the same rules that remembers nothing from one moment to the next."""
        if self._glance is None:
            families = self.signals.source.families
            self._glance = Judge(self.knowledge, Signals(self.knowledge, families, GLANCE_SECONDS), self.params)
        self._glance.memory.clear()
        return self._glance

    def judge_alone(self, span: EvaluationSpan) -> tuple[Judge, list[Judgement]]:
        """A window judged as if there were nothing before it, and who judged it. What this judge remembers stays.

        Both are to be read before the next window is judged alone.
        """
        judge = self._glance_judge()
        return judge, judge.judge(replace(span, slow=span.fast, cold=True))

    def _confirmed(self, found: list[Judgement], in_short: Sequence[Judgement]) -> list[Judgement]:
        """New symptoms that are true in the short window as well count now. Each keeps the moment since which it is
        true, so it is the same episode once its `for` is over."""
        true = {(j.rule.code, j.entity) for j in in_short if j.outcome == "fired"}

        def confirmed(judgement: Judgement) -> Judgement:
            rule, entity = judgement.rule, judgement.entity
            if judgement.early is None or rule.kind != "symptom" or (rule.code, entity) not in true:
                return judgement
            self.memory[f"{rule.code}{entity}"].fired = True
            return msgspec.structs.replace(judgement, outcome="fired", why="")

        return [confirmed(judgement) for judgement in found]

    def _with_causes_of(
        self, in_short: Sequence[Judgement], found: list[Judgement], short: EvaluationSpan
    ) -> list[Judgement]:
        """Causes that only the short window shows count where they explain an open symptom: the minute before a change
        is still in the mean of the long window, and no cause is above its limit there.

        The verdict that made one stays that of the long window, as the figures of the document are. One that the long
        window shows later begins when the short one first did, so it is one episode.
        """
        true = {(j.rule.code, j.entity) for j in in_short if j.outcome == "fired" and j.rule.kind == "cause"}
        open_ = self._open(found, short.at)
        shown: dict[str, float] = {}

        def counted(judgement: Judgement) -> Judgement:
            rule, entity = judgement.rule, judgement.entity
            hidden = judgement.outcome in ("clear", "unknown") and (rule.code, entity) in true
            if not hidden or not any((rule.scope, entity, code) in open_ for code in rule.explains):
                return judgement
            key = f"{rule.code}{entity}"
            since = shown[key] = self._short.get(key, short.start)
            return msgspec.structs.replace(
                judgement, outcome="fired", why="", how=judgement.verdict, since=since, short=short.fast
            )

        counts = [counted(judgement) for judgement in found]
        self._short = shown
        return counts

    def _open(self, found: Sequence[Judgement], at: float) -> set[tuple[Scope, Labels, str]]:
        """The open symptoms, by every scope and entity of which a cause explains them."""
        symptoms = [j for j in found if j.outcome == "fired" and j.rule.kind == "symptom"]
        return {(scope, entity, j.rule.code) for j in symptoms for scope, entity in self.around(j, at).items()}

    def _judge_rules(self, span: EvaluationSpan) -> list[Judgement]:
        """Every rule for every entity of its scope, by the signals of this moment."""
        self.signals.now.prepare(self._reads())
        self._span, self._values = span, {}
        found: list[Judgement] = []
        self.crashed = {}
        for rule in self.knowledge.rules.values():
            try:
                found += self._judge_rule(rule, span)
            except Exception as error:  # a rule's crash is that rule's, and is said
                self.crashed[rule.code] = f"{type(error).__name__}: {error}"
        self._since = span.at if self._since is None else self._since
        self._forget(span.at)
        return found

    def again(self, found: Sequence[Judgement], span: EvaluationSpan, before: Mapping[str, Memory]) -> list[Judgement]:
        """What was found true at a moment, judged once more with the memory of the moments before it."""

        def with_memory(judgement: Judgement) -> Judgement:
            if not judgement.is_true:
                return judgement
            rule, entity, verdict = judgement.rule, judgement.entity, judgement.verdict
            assert verdict is not None
            memory = self.memory[f"{rule.code}{entity}"] = before.get(f"{rule.code}{entity}", Memory())
            return self._outcome(rule, entity, verdict, memory, span, watched=math.inf)

        return self._promoted([with_memory(judgement) for judgement in found], span.at)

    def _forget(self, at: float) -> None:
        """Forget entities that are gone, once they would not be taken for the same again."""
        gone = self.memory.keys() - self._judged
        self._judged = set()
        for key in gone:
            last = self.memory[key].last_true
            if last is None or not 0 <= at - last < FORGET_SECONDS:
                del self.memory[key]

    def entities(self, scope: str, at: float) -> list[Labels]:
        """The entities of a scope: whatever has `kvitals_target_up` at this moment."""
        return self._at(at).of(scope)

    def info(self, entity: Labels, at: float) -> Labels:
        """The strings that are known of an engine: model, system, version."""
        return self._at(at).info(entity)

    def around(self, judgement: Judgement, at: float) -> dict[Scope, Labels]:
        """What explains a judgement is a cause of one of these entities, by scope: its own, its node, its pool."""
        return self._at(at).around(judgement.rule.scope, judgement.entity)

    def needs(self, rule: Rule) -> list[str]:
        """The signals that decide a rule's outcome."""
        if rule.code not in self._needs:
            self._needs[rule.code] = self.knowledge.needs(rule)
        return self._needs[rule.code]

    def asks(self, rule: Rule) -> set[str]:
        """The signals that a rule's conditions name, to be true and to stay so."""
        sides = (side for c in self._condition(rule) for found in comparisons(c) for side in (found.left, found.right))
        return {name for side in sides for name in signal_names(side)}

    def _at(self, at: float) -> _Entities:
        known = self._entities
        if known is None or known.at != at:
            up, infos = (evaluate(expression(family), self.signals.source, at) for family in (ENTITIES, INFO))
            assert not isinstance(up, float) and not isinstance(infos, float)
            if known is None or known.up != up.labels or known.infos != infos.labels:
                known = self._entities = _Entities(at, self.signals.entity, up.labels, infos.labels)
            known.at = at
        return known

    def _reads(self) -> ExpressionBatch:
        """What the conditions read beside what is known of signals."""
        if self._batch is None:
            sides: list[Expr] = []
            for rule in self.knowledge.rules.values():
                with suppress(Exception):  # it crashes again where it is judged, and there it is said
                    both = [s for c in self._condition(rule) for one in comparisons(c) for s in (one.left, one.right)]
                    sides += [side for side in both if not self._known_as(side, rule)]
            self._batch = ExpressionBatch(sides, self.signals.source.window)
        return self._batch

    def _judge_rule(self, rule: Rule, span: EvaluationSpan) -> list[Judgement]:
        pairs = self._pairs(rule, span.at)
        for key in pairs.not_for:
            if key in self.memory:
                self._let_go(key, span)
        if not pairs.here:
            return pairs.told
        when, clear = self._condition(rule)
        side, told = partial(self._sides, rule), pairs.told.copy()
        watched = 0.0 if self._since is None else span.at - self._since
        may_be_nothing = bool(rule.applies.having or rule.applies.traffic)
        for place, pair, truth in zip(pairs.places, pairs.here, truths(when, pairs.entities, side), strict=True):
            entity, memory = pair.entity, self.memory.get(pair.key)
            if may_be_nothing and (reason := self._nothing_to_judge(rule, entity, span)):
                self._let_go(pair.key, span)
                told[place] = Judgement(rule, entity, "n/a", reason, None)
            elif truth is True or not (memory is None or memory.blank):
                self._judged.add(pair.key)
                memory = self.memory.setdefault(pair.key, Memory())
                verdict = decide(clear if memory.fired else when, entity, side)
                unknown = verdict.truth is None and not memory.fired
                told[place] = (self._untold(pair, rule, verdict, span) if unknown else None) or self._outcome(
                    rule, entity, verdict, memory, span, watched
                )
            else:
                if memory is not None:
                    del self.memory[pair.key]
                if truth is False:
                    told[place] = pair.clear
                else:
                    told[place] = self._untold(pair, rule, None, span) or pair.unknown
        return told

    def _pairs(self, rule: Rule, at: float) -> _Pairs:
        """What a rule is asked about, as long as entities and what is known of them stay the same."""
        there = self._at(at)
        found = there.pairs.get(rule.code)
        if found is None:
            found = there.pairs[rule.code] = _Pairs()
            for entity in there.of(rule.scope) if self.only is None else self.only[rule.code]:
                self._add(found, rule, entity, there)
        return found

    def _add(self, pairs: _Pairs, rule: Rule, entity: Labels, there: _Entities) -> None:
        info = there.info(entity) if rule.scope == "engine" else _NOTHING
        key = rule.code + there.text(entity)
        if other := _not_for(rule, info):
            pairs.not_for.append(key)
            pairs.told.append(Judgement(rule, entity, "n/a", other, None))
            return
        verdict = partial(self._verdict, rule, entity)
        clear = Judgement(rule, entity, "clear", partial(self._why_clear, rule, entity), None)
        unknown = Judgement(rule, entity, "unknown", partial(self._why_not_told, rule, entity), verdict)
        pairs.places.append(len(pairs.told))
        pairs.told.append(unknown)
        pairs.here.append(_Pair(entity, key, clear, unknown, there.info(entity).get("kind") in IN_FRONT))
        pairs.entities.append(entity)

    def _let_go(self, key: str, span: EvaluationSpan) -> None:
        """Forget what was true of a pair of which there is nothing to judge now."""
        memory = self.memory.get(key)
        if memory is not None and not self._may_go_on(memory, span):
            del self.memory[key]

    def _verdict(self, rule: Rule, entity: Labels) -> Verdict:
        """What is found of a pair that was not true before, at the latest moment."""
        return decide(self._condition(rule)[0], entity, partial(self._sides, rule))

    def _why_clear(self, rule: Rule, entity: Labels) -> str:
        return self.why_false(self._verdict(rule, entity), entity)

    def _why_not_told(self, rule: Rule, entity: Labels) -> str:
        assert self._span is not None
        return self.why_unknown(self._verdict(rule, entity), entity, self._span)

    def _condition(self, rule: Rule) -> tuple[Condition, Condition]:
        if rule.code not in self._conditions:
            values = parameters(rule, self.params.get(rule.code))
            when = parse_condition(expand(rule.when, values))
            clear = parse_condition(expand(rule.clear, values)) if rule.clear else when
            self._conditions[rule.code] = (when, clear)
        return self._conditions[rule.code]

    def _sides(self, rule: Rule, comparison: Comparison) -> tuple[Values, Values]:
        """The values of both sides of one of a rule's comparisons, at the latest moment."""
        found = self._values.get(id(comparison))  # conditions stay, so this is it and no other
        if found is None:
            left, right = (self._side(expr, rule) for expr in (comparison.left, comparison.right))
            found = self._values[id(comparison)] = left, right
        return found

    def _side(self, expr: Expr, rule: Rule) -> Values:
        if isinstance(expr, NumberLiteral):
            return expr.value
        if name := self._known_as(expr, rule):
            return self.signals.known[name].values  # what was just stored need not be looked up
        result = self.signals.now.evaluate(expr)
        return result if isinstance(result, float) else self.signals.by_entity(result, SCOPES[rule.scope])

    def _known_as(self, expr: Expr, rule: Rule) -> str:
        """The name of the signal whose values, just as they are, those of a side are; empty where it takes a query."""
        name = _plain(expr)
        signal = self.knowledge.signals.get(name)
        return name if signal is not None and signal.scope == rule.scope else ""

    def not_applicable(self, rule: Rule, entity: Labels, span: EvaluationSpan, *, idle: bool = False) -> str:
        """Why a rule has nothing to judge on an entity; empty where it has. With `idle` no traffic is no reason."""
        info = self.info(entity, span.at) if rule.scope == "engine" else _NOTHING
        return _not_for(rule, info) or self._nothing_to_judge(rule, entity, span, idle=idle)

    def _nothing_to_judge(self, rule: Rule, entity: Labels, span: EvaluationSpan, *, idle: bool = False) -> str:
        """The same, of an entity that the rule is for."""
        applies = rule.applies
        if applies.having and not self.signals.exists(applies.having, entity, span):
            return f"the engine has no {applies.having}"
        if applies.traffic and not idle and self.signals.known[TRAFFIC].values.get(entity) == 0:
            return f"no traffic in the last {render(span.fast, 'seconds')}"
        return ""

    def need_not_tell(self, metrics: Iterable[str], entity: Labels, at: float) -> str:
        """Why a program in front of engines can do without one of these metrics; empty where none is of that kind."""
        info = self.info(entity, at)
        known = find_map(info.get("system", "")) if info.get("kind") in IN_FRONT else None
        for family in (family_of(metric, self.knowledge.families) for metric in metrics if known):
            if known and family in told_by_programs() and not known.tells(family):
                return f"a {known.title} need not tell {family}; the engines behind it do"
        return ""

    def _untold(self, pair: _Pair, rule: Rule, verdict: Verdict | None, span: EvaluationSpan) -> Judgement | None:
        """The judgement where what is missing for a verdict is no fault of the page; None where it is one."""
        if not pair.in_front:
            return None
        verdict = self._verdict(rule, pair.entity) if verdict is None else verdict
        missing = [m for name in missing_signals(verdict) for m in self.signals.untold(name, pair.entity, span)]
        untold = self.need_not_tell(missing, pair.entity, span.at)
        return Judgement(rule, pair.entity, "n/a", untold, verdict) if untold else None

    def _outcome(
        self, rule: Rule, entity: Labels, verdict: Verdict, memory: Memory, span: EvaluationSpan, watched: float
    ) -> Judgement:
        """`watched`: seconds for which there has been a judge of the entity."""
        at = span.at
        if verdict.truth:
            if memory.true_since is None:
                memory.true_since = self._short.get(f"{rule.code}{entity}", at)
                memory.from_start = self._since is None
            memory.last_true = at
            held = at - memory.true_since
            # What a window without history showed goes on: it does not end because there is history now.
            memory.fired = memory.fired or held >= seconds(rule.for_) or (memory.fired_cold and not span.cold)
            memory.fired_cold = span.cold
            if not (memory.fired or span.cold):
                return _too_early(rule, entity, verdict, memory, held, watched)
        elif memory.fired and memory.last_true is not None and at - memory.last_true < seconds(rule.keep):
            pass  # keeps firing over a short gap
        elif verdict.truth is None and self._may_go_on(memory, span):
            pass
        else:
            memory.true_since, memory.fired, memory.last_true, memory.fired_cold = None, False, None, False
        if memory.fired or (span.cold and verdict.truth):
            since = None if span.cold else memory.true_since  # one cold window shows that it is so, not since when
            return Judgement(rule, entity, "fired", "", verdict, since, memory.from_start)
        if verdict.truth is None:
            return Judgement(rule, entity, "unknown", partial(self.why_unknown, verdict, entity, span), verdict)
        return Judgement(rule, entity, "clear", partial(self.why_false, verdict, entity), verdict)

    def _may_go_on(self, memory: Memory, span: EvaluationSpan) -> bool:
        """Whether it was true when an agent ended that this one took over from, and this one has not looked for as long
        as its signals need: that there is no traffic, or too little to tell, is not seen yet."""
        since = span.at if self._since is None else self._since
        return memory.last_true is not None and memory.last_true < since and span.at - since < span.fast

    def _promoted(self, found: list[Judgement], at: float, over: Container[tuple[str, Labels]] = ()) -> list[Judgement]:
        """A cause that is true, if not for long yet, counts at once where a symptom that it explains is open.

        `for` keeps short spikes from raising an alarm; when the alarm is there already, withholding the cause that is
        true right now would only leave it unexplained. `over`: rules and entities of which a shorter window shows that
        they are true no longer.
        """
        open_ = self._open(found, at)
        return [
            msgspec.structs.replace(j, outcome="fired", why="")
            if j.early is not None
            and j.rule.kind == "cause"
            and (j.rule.code, j.entity) not in over
            and any((j.rule.scope, j.entity, code) in open_ for code in j.rule.explains)
            else j
            for j in found
        ]

    def why_unknown(self, verdict: Verdict, entity: Labels, span: EvaluationSpan) -> str:
        """Which signals were missing, and why."""
        missing = missing_signals(verdict)
        known = self.signals.known
        absent = [n for n in missing if entity not in known[n].values]
        return "; ".join(f"{plain(n)}: {self.signals.why_missing(n, entity, span).why}" for n in absent)

    def why_true(self, judgement: Judgement) -> str:
        """The comparisons of those of a rule's alternatives that are true, with their values; empty where the rule has
        no alternatives. Where an alternative takes several comparisons, those of the first true one; empty where the
        conclusion has all their values."""
        rule, entity = judgement.rule, judgement.entity
        either = alternatives(self._condition(rule)[0])
        if len(either) < 2 or judgement.verdict is None:
            return ""
        found = [decide(one, entity, partial(self._sides, rule)) for one in either]
        holding = [verdict for verdict in found if verdict.truth]
        if any(len(verdict.decided) > 1 for verdict in found):
            said, holding = set(PLACEHOLDER.findall(rule.conclusion)), holding[:1]
            if all(said.issuperset(_named(d.comparison.left)) for v in holding for d in v.decided if d.truth):
                return ""
        true = [d for verdict in holding for d in verdict.decided if d.truth]
        told = dict.fromkeys(_true(d, entity, self.signals.known, self.knowledge) for d in true)
        return ", ".join([text for text in told if text][:MAX_REASONS])

    def why_false(self, verdict: Verdict, entity: Labels) -> str:
        """The first false comparison of a measured number, with its value, else the first at all."""
        signals = self.knowledge.signals
        measured = [d for d in verdict.false if any(signals[n].unit != "bool" for n in _named(d.comparison.left))]
        first = next(iter(measured or verdict.false), None)
        return describe(first, entity, self.signals.known, self.knowledge) if first else ""


def _too_early(rule: Rule, entity: Labels, verdict: Verdict, memory: Memory, held: float, watched: float) -> Judgement:
    """A rule whose condition holds, for less than its `for`. It is clear, but unknown while nobody has watched for as
    long as `for`: the condition may have held long before. Both in seconds."""
    reason = f"true for {render(held, 'seconds')}, it counts after {rule.for_}"
    if watched >= seconds(rule.for_):
        return Judgement(rule, entity, "clear", reason, verdict, memory.true_since, early=held)
    return Judgement(rule, entity, "unknown", f"{TOO_EARLY}: {reason}", verdict, memory.true_since, early=held)


def harmless(cause: Judgement, judgements: Iterable[Judgement]) -> bool:
    """Whether the symptoms by which a cause does harm are known to be clear on its entity: it is information."""
    codes = cause.rule.harm
    if not codes:
        return False
    seen = [j for j in judgements if j.rule.code in codes and j.entity == cause.entity]
    kept = [j.outcome == "clear" and j.early is None for j in seen if j.outcome != "n/a"]
    return bool(kept) and all(kept)


def _not_for(rule: Rule, info: Labels) -> str:
    """Why a rule is not for an engine of which so much is known; empty where it is."""
    applies = rule.applies
    system, kind, role = info.get("system", ""), info.get("kind", ""), info.get("role", "")
    if system and applies.systems and system not in applies.systems:
        return f"only for {', '.join(applies.systems)}, this is {system}"
    if kind and applies.kinds and kind not in applies.kinds:
        return f"not for a {kind}"
    if role in applies.not_roles:
        return f"not for the {role} side"
    known = find_map(system)
    return known.not_applicable.get(rule.code, "") if known is not None else ""


_named = lru_cache(maxsize=4096)(signal_names)  # the same few expressions are asked about for every entity


@lru_cache(maxsize=4096)
def _plain(expr: Expr) -> str:
    """The signal that an expression is, without its prefix; empty where it is anything else."""
    if isinstance(expr, Selector) and not expr.matchers and not expr.offset and expr.name.startswith(SIGNAL_PREFIX):
        return expr.name.removeprefix(SIGNAL_PREFIX)
    return ""


def missing_signals(verdict: Verdict) -> list[str]:
    """The signals of the comparisons that could not be decided."""
    names = [n for d in verdict.unknown for e in (d.comparison.left, d.comparison.right) for n in _named(e)]
    return list(dict.fromkeys(names))


def describe(decided: ComparisonResult, entity: Labels, known: Mapping[str, SignalValues], knowledge: Knowledge) -> str:
    """A false comparison in words: `kv usage p90 is 41 %, not above 90 %`, or the values that it was made of."""

    def is_(name: str) -> str:
        return f"{plain(name)} is {render(known[name].values.get(entity), knowledge.signals[name].unit)}"

    left, right = decided.comparison.left, decided.comparison.right
    names = _named(left)
    unit = knowledge.signals[names[0]].unit if names else "count"
    if not isinstance(left, Selector) or unit == "bool":
        return ", ".join(is_(n) for n in dict.fromkeys([*names, *_named(right)]))
    limit = render(decided.right, unit)
    if _named(right):
        limit = f"{plain(str(right).replace(SIGNAL_PREFIX, ''))} ({limit})"
    value = render_apart(known[names[0]].values.get(entity), decided.right, unit)
    return f"{plain(names[0])} is {value}, {_NOT[decided.comparison.op]} {limit}"


def _true(decided: ComparisonResult, entity: Labels, known: Mapping[str, SignalValues], knowledge: Knowledge) -> str:
    """A true comparison in words, `kv usage p90 is 98 %, above 90 %`, or `gpu rich in compute is yes`; empty where the
    value that is compared is that of no signal, but calculated from some."""
    names = [n for n in _named(decided.comparison.left) if known[n].values.get(entity) == decided.left]
    if not names or decided.left is None:
        return ""
    unit = knowledge.signals[names[0]].unit
    if unit == "bool":
        return f"{plain(names[0])} is {render(decided.left, unit)}"
    value = render_apart(decided.left, decided.right, unit)
    return f"{plain(names[0])} is {value}, {_IS[decided.comparison.op]} {render(decided.right, unit)}"
