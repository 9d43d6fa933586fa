"""Outcomes: what each rule says of each entity now, with the memory that `for`, `keep` and `clear` need."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import msgspec

from kvitals.diagnoser import last_seconds, short_window
from kvitals.diagnoser.entities import ENTITIES, IN_FRONT, INFO, NOTHING_KNOWN, Entities, not_for
from kvitals.diagnoser.judgement import Judgement, Memory, kept_seconds, needed_duration, seconds, too_early
from kvitals.diagnoser.kleene import Verdict, decide, truths
from kvitals.diagnoser.late_requests import HISTOGRAMS, late_engines
from kvitals.diagnoser.processes import RESTARTS
from kvitals.diagnoser.quiet import REFUSALS, quiet_engines, quiet_entities
from kvitals.diagnoser.reasons import describe_false, describe_true, missing_signals, signals_in
from kvitals.diagnoser.rule_conditions import RuleConditions
from kvitals.diagnoser.rule_entities import RuleEntities, RuleEntity
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.text import clock_text, plain, render
from kvitals.rules.condition import alternatives
from kvitals.rules.engine_map import find_map, told_by_programs
from kvitals.rules.expressions import expression
from kvitals.rules.loader import PLACEHOLDER, Knowledge, family_of, signal_names
from kvitals.rules.model import SCOPES, Quantity, Rule, Scope
from kvitals.rules.origins import FACTS, PAGE
from kvitals.series.promql import Moment, evaluate
from kvitals.series.slices import Steps, complete
from kvitals.series.types import Labels

TRAFFIC = "traffic"
SEVERAL_PROCESSES = "TEL12"
"""The rule of pages that are of several processes in turn: where it is true, no other figure of the page is."""
UNREADABLE = "TEL01"
"""The rule of pages that cannot be read."""
FORGET_SECONDS = 300.0
UNSEEN_SECONDS = 60.0
"""While no agent ran for less than that, what was true is taken to have gone on until enough is seen to tell."""
MAX_REASONS = 3
"""Comparisons that a conclusion names, where any one of several conditions is enough."""


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
    _needs: dict[str, list[str]] = field(default_factory=dict)
    _entities: Entities | None = None
    _pairs_of: dict[str, RuleEntities] = field(default_factory=dict)  # rule code -> while the entities are the same
    _span: EvaluationSpan | None = None  # the moment that is judged
    _quiet: Mapping[tuple[Scope, Labels], float] | None = None  # at that moment; None: nobody has asked
    _suspects: bool = False  # whether what the figures do not prove counts like the rest: windows are compared
    _judged: set[str] = field(default_factory=set)  # keys of `memory` that were looked at in this cycle
    _since: float | None = None  # the first moment that was judged
    _glance: Judge | None = None  # judges the short window; made when first needed
    _watch: Judge | None = None  # judges the last seconds for what clients feel; made when first needed
    _last: Judge | None = None  # judges the last seconds for what has ended; made when first needed
    _recent: short_window.RecentSymptoms = field(default_factory=short_window.RecentSymptoms)
    _short: EvaluationSpan | None = None  # the short window of the moment that is judged
    _shown_short: dict[str, float] = field(default_factory=dict)  # keys of `memory` of what was last true in a short
    # window alone -> its seconds

    def renewed(self, knowledge: Knowledge, signals: Signals, params: Mapping[str, Mapping[str, float]]) -> Judge:
        """A judge by other rules or parameters, that remembers what this one does."""
        judge = Judge(knowledge, signals, params, self.memory, glances=self.glances, _since=self._since)
        judge._shown_short = self._shown_short
        return judge

    def judge(self, span: EvaluationSpan) -> list[Judgement]:
        """Evaluate the signals and then every rule for every entity of its scope."""
        return complete(self.judge_steps(span))

    def judge_steps(self, span: EvaluationSpan) -> Steps[list[Judgement]]:
        """The same in steps."""
        self._short = None
        yield from self.signals.observe_steps(span)
        judged: list[Judgement] = yield partial(self._judge_rules, span)
        judgements, ended = yield from self._with_ended_steps(judged, span)
        recent: Mapping[short_window.Place, float] = {}
        if self.glances and not span.cold:
            recent = yield from self._recent_steps(span.at)
        short = short_window.short_span(judgements, recent, span) if self.glances else None
        if short is None:
            promoted: list[Judgement] = yield partial(self._promoted, judgements, span.at, ended)
            return self._of_pages(promoted)
        glance = self._glance_judge()
        glance.signals.lent = {name: self.signals.known[name] for name in self._history}
        in_short: list[Judgement] = yield from glance.judge_steps(short)
        counted: list[Judgement] = yield partial(self._with_short, judgements, in_short, short, recent, ended)
        self._short = short
        return self._of_pages(counted)

    def _with_ended_steps(
        self, judged: list[Judgement], span: EvaluationSpan
    ) -> Steps[tuple[list[Judgement], set[short_window.Place]]]:
        """The judgements, with what the last seconds show to have ended; and of what these show that it is not so."""
        if not self.glances or span.fast <= last_seconds.LAST_SECONDS:
            return judged, set()
        in_last: list[Judgement] = []
        last: Judge = yield self._last_judge
        if any(last_seconds.is_asked_about(j, last.knowledge.rules, self.memory) for j in judged):
            in_last = yield from last.judge_steps(last_seconds.last_span(span.at))
        clear = last_seconds.not_so(in_last)
        over = yield partial(last_seconds.shown_over, judged, clear, self.signals, last.signals, span)
        return last_seconds.with_ended(judged, in_last, over, self.memory, span), clear

    def _with_short(
        self,
        judgements: list[Judgement],
        in_short: list[Judgement],
        short: EvaluationSpan,
        recent: Mapping[short_window.Place, float],
        ended: set[short_window.Place],
    ) -> list[Judgement]:
        """The judgements, with what a short window shows."""
        over = ended | {(j.rule.code, j.entity) for j in in_short if j.outcome == "clear"}
        confirmed = short_window.confirm_symptoms(judgements, in_short, self.memory)
        with_symptoms = short_window.add_hidden_symptoms(in_short, confirmed, short, recent)
        promoted = self._promoted(with_symptoms, short.at, over)
        hidden = [j for j in in_short if j.outcome == "fired" and j.rule.kind == "cause"]
        open_ = self._open([*promoted, *hidden], short.at)
        counted = short_window.add_hidden_causes(in_short, promoted, short, open_, self.memory)
        for judgement in counted:
            if judgement.short is not None and judgement.last_true is None:
                self._remember_short(judgement, short.at)
        return list(short_window.count_explained(counted, partial(self.around, at=short.at)))

    def _of_pages(self, judgements: list[Judgement]) -> list[Judgement]:
        """The judgements, as far as pages allow: of a page that is of several processes, only that it is; what the page
        alone shows of an engine was last true when it could not be read any more."""
        pages = [j for j in judgements if j.rule.code == SEVERAL_PROCESSES and j.outcome == "fired"]
        pages += [j for j in judgements if j.rule.code == UNREADABLE and (j.outcome == "fired" or j.early is not None)]
        if not pages:
            return judgements
        mixed = {j.entity for j in pages if j.rule.code == SEVERAL_PROCESSES}
        unread = {j.entity: j.since for j in pages if j.rule.code == UNREADABLE and j.since is not None}

        def as_read(judgement: Judgement) -> Judgement:
            since = unread.get(judgement.entity)
            if since is None or judgement.outcome != "fired" or not self._is_of_page(judgement.rule):
                return judgement
            if judgement.last_true is not None and judgement.last_true < since:
                return judgement
            return msgspec.structs.replace(judgement, last_true=since)

        return [as_read(j) for j in judgements if j.entity not in mixed or j.rule.code == SEVERAL_PROCESSES]

    def _is_of_page(self, rule: Rule) -> bool:
        """Whether the engine's own page and its configuration alone show what a rule speaks of."""
        origins = {self.knowledge.signals[name].origin for name in self.needs(rule)}
        return rule.kind in ("cause", "symptom") and origins <= {PAGE, FACTS}

    def _remember_short(self, shown: Judgement, at: float) -> None:
        """Remember what only a short window shows, as what the long one shows is: a cause that one window shows and the
        next one does not would come and go as these windows grow."""
        memory = self.memory.setdefault(shown.key, Memory())
        memory.true_since, memory.last_true, memory.last_seen = shown.since, at, at
        memory.covered = self._is_covered(shown.rule, shown.entity, shown.began)
        memory.fired = memory.fired or shown.rule.kind == "cause"
        assert shown.short is not None
        self._shown_short[shown.key] = shown.short

    def _recent_steps(self, at: float) -> Steps[Mapping[short_window.Place, float]]:
        """Since when short windows show a symptom that clients feel."""
        watch = self._recent_judge()
        span = EvaluationSpan(at, short_window.RECENT_SECONDS, short_window.RECENT_SECONDS, cold=True)
        found: list[Judgement] = yield from watch.judge_steps(span)
        fired = [j for j in found if j.outcome == "fired"]
        late: dict[Quantity, list[Labels]] = {}
        for quantity in {one for j in fired for one in j.rule.about if one in HISTOGRAMS}:
            families = self.signals.source.families
            late[quantity] = yield partial(late_engines, families, quantity, at, short_window.RECENT_SECONDS)
        yield lambda: self._recent.observe([j for j in fired if short_window.is_beyond_chance(j, late)], at)
        return self._recent.since

    def _recent_judge(self) -> Judge:
        """A judge of the symptoms that clients feel, that remembers nothing from one moment to the next."""
        if self._watch is None:
            felt = short_window.felt_symptoms(self.knowledge)
            families = self.signals.source.families
            self._watch = Judge(felt, Signals(felt, families, short_window.SHORTEST_SECONDS), self.params)
        self._watch.memory.clear()
        return self._watch

    @cached_property
    def _history(self) -> list[str]:
        return [name for name, signal in self.knowledge.signals.items() if short_window.is_of_longer_time(signal)]

    def _glance_judge(self) -> Judge:
        """A judge of the same rules that remembers nothing from one moment to the next."""
        if self._glance is None:
            families = self.signals.source.families
            signals = Signals(self.knowledge, families, FORGET_SECONDS)  # what `keep` holds open is asked about
            self._glance = Judge(self.knowledge, signals, self.params)
        self._glance.memory.clear()
        self._glance.signals.lent = {}
        self._glance._suspects = False
        return self._glance

    def _last_judge(self) -> Judge:
        """A judge of the last seconds, that remembers nothing from one moment to the next."""
        if self._last is None:
            ending = last_seconds.rules_that_end(self.knowledge)
            signals = Signals(ending, self.signals.source.families, last_seconds.LAST_SECONDS)
            self._last = Judge(ending, signals, self.params, _suspects=True)
        self._last.memory.clear()
        return self._last

    def judge_alone(self, span: EvaluationSpan) -> tuple[Judge, list[Judgement]]:
        """A window judged as if there were nothing before it, and who judged it. What this judge remembers stays.

        Both are to be read before the next window is judged alone.
        """
        self._short = None
        judge = self._glance_judge()
        judge._suspects = True
        return judge, judge.judge(replace(span, slow=span.fast, cold=True))

    def shown_by(self, judgement: Judgement, span: EvaluationSpan) -> tuple[Moment, EvaluationSpan]:
        """The moment and the windows that show a judgement of `span.at`, which was judged last: the short window where
        that alone shows it, and the moment when it was last true of what `keep` holds open."""
        signals = self.signals if judgement.short is None or self._glance is None else self._glance.signals
        if judgement.last_true is not None:
            at = judgement.last_true if judgement.last_seen is None else judgement.last_seen
            short = judgement.short
            then = replace(span, at=at) if short is None else EvaluationSpan(at, short, short, cold=True)
            return Moment(signals.source, at), then
        if signals is self.signals or self._short is None:
            return self.signals.now, self.signals.span_of(judgement.entity, span)
        return signals.now, self._short

    def _open(self, found: Sequence[Judgement], at: float) -> short_window.OpenSymptoms:
        return short_window.open_symptoms(found, partial(self.around, at=at))

    def _promoted(
        self, found: Sequence[Judgement], at: float, over: Container[tuple[str, Labels]] = ()
    ) -> list[Judgement]:
        counted = short_window.promote_causes(found, self._open(found, at), over)
        return list(short_window.count_explained(counted, partial(self.around, at=at)))

    def _judge_rules(self, span: EvaluationSpan) -> list[Judgement]:
        """Every rule for every entity of its scope, by the signals of this moment."""
        self._conditions.look()
        self._span, self._quiet = span, None
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
            memory = self.memory[judgement.key] = before.get(judgement.key, Memory())
            return self._outcome(rule, entity, verdict, memory, span, watched=math.inf)

        return self._promoted([with_memory(judgement) for judgement in found], span.at)

    @cached_property
    def _conditions(self) -> RuleConditions:
        return RuleConditions(self.knowledge, self.signals, self.params)

    def _forget(self, at: float) -> None:
        """Forget entities that are gone, once they would not be taken for the same again."""
        self._shown_short = {key: of for key, of in self._shown_short.items() if key in self._judged}
        gone = self.memory.keys() - self._judged
        self._judged = set()
        for key in gone:
            last = self.memory[key].last_true
            if last is None or not 0 <= at - last < FORGET_SECONDS:
                del self.memory[key]

    def entities(self, scope: str, at: float) -> list[Labels]:
        """The entities of a scope: whatever has `kvitals_target_up` at this moment."""
        return self._at(at).of(scope)

    def title(self, scope: str, entity: Labels, at: float) -> str:
        """What people call an entity."""
        return self._at(at).title(scope, entity)

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
        """The signals that a rule's conditions name, to be true, to stay so and to be proven."""
        sides = self._conditions.compared(rule)
        proof = self.knowledge.proof(rule)
        sides += [] if proof is None else [proof]
        return {name for side in sides for name in signal_names(side)}

    def _at(self, at: float) -> Entities:
        known = self._entities
        if known is None or known.at != at:
            up, infos = (evaluate(expression(family), self.signals.source, at) for family in (ENTITIES, INFO))
            assert not isinstance(up, float) and not isinstance(infos, float)
            if known is None or known.up != up.labels or known.infos != infos.labels:
                known = self._entities = Entities(at, self.signals.entity, up.labels, infos.labels)
                self._pairs_of = {}
            known.at = at
        return known

    def _judge_rule(self, rule: Rule, span: EvaluationSpan) -> list[Judgement]:
        pairs = self._pairs(rule, span.at)
        for key in pairs.not_for:
            if key in self.memory:
                self._let_go(key, span)
        if not pairs.here:
            return pairs.told
        when, clear = self._conditions.of_rule(rule)
        side, told = partial(self._conditions.sides, rule), pairs.told.copy()
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
                    told[place] = (
                        self._untold(pair, rule, None, span) or self._unasked(pair, rule, span) or pair.unknown
                    )
        return told

    def _pairs(self, rule: Rule, at: float) -> RuleEntities:
        """What a rule is asked about, as long as entities and what is known of them stay the same."""
        there = self._at(at)
        found = self._pairs_of.get(rule.code)
        if found is None:
            found = self._pairs_of[rule.code] = RuleEntities()
            for entity in there.of(rule.scope) if self.only is None else self.only[rule.code]:
                self._add(found, rule, entity, there)
        return found

    def _add(self, pairs: RuleEntities, rule: Rule, entity: Labels, there: Entities) -> None:
        info = there.info(entity) if rule.scope == "engine" else NOTHING_KNOWN
        key = rule.code + there.text(entity)
        if other := not_for(rule, info):
            pairs.not_for.append(key)
            pairs.told.append(Judgement(rule, entity, "n/a", other, None))
            return
        verdict = partial(self._verdict, rule, entity)
        clear = Judgement(rule, entity, "clear", partial(self._why_clear, rule, entity), None)
        unknown = Judgement(rule, entity, "unknown", partial(self._why_not_told, rule, entity), verdict)
        pairs.places.append(len(pairs.told))
        pairs.told.append(unknown)
        pairs.here.append(RuleEntity(entity, key, clear, unknown, there.info(entity).get("kind") in IN_FRONT))
        pairs.entities.append(entity)

    def _let_go(self, key: str, span: EvaluationSpan) -> None:
        """Forget what was true of a pair of which there is nothing to judge now."""
        memory = self.memory.get(key)
        if memory is not None and not self._may_go_on(memory, span):
            del self.memory[key]

    def _verdict(self, rule: Rule, entity: Labels) -> Verdict:
        """What is found of a pair that was not true before, at the latest moment."""
        return decide(self._conditions.of_rule(rule)[0], entity, partial(self._conditions.sides, rule))

    def _why_clear(self, rule: Rule, entity: Labels) -> str:
        return self.why_false(self._verdict(rule, entity), entity)

    def _why_not_told(self, rule: Rule, entity: Labels) -> str:
        assert self._span is not None
        return self.why_unknown(self._verdict(rule, entity), entity, self._span)

    def not_applicable(self, rule: Rule, entity: Labels, span: EvaluationSpan, *, idle: bool = False) -> str:
        """Why a rule has nothing to judge on an entity; empty where it has. With `idle` no traffic is no reason."""
        info = self.info(entity, span.at) if rule.scope == "engine" else NOTHING_KNOWN
        return not_for(rule, info) or self._nothing_to_judge(rule, entity, span, idle=idle)

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
                return f"a {known.title} does not have to report {family}; the engines behind it do"
        return ""

    def _untold(self, pair: RuleEntity, rule: Rule, verdict: Verdict | None, span: EvaluationSpan) -> Judgement | None:
        """The judgement where what is missing for a verdict is no fault of the page; None where it is one."""
        if not pair.in_front:
            return None
        verdict = self._verdict(rule, pair.entity) if verdict is None else verdict
        missing = [m for name in missing_signals(verdict) for m in self.signals.untold(name, pair.entity, span)]
        untold = self.need_not_tell(missing, pair.entity, span.at)
        return Judgement(rule, pair.entity, "n/a", untold, verdict) if untold else None

    def _unasked(self, pair: RuleEntity, rule: Rule, span: EvaluationSpan) -> Judgement | None:
        """A core rule about requests that cannot be decided of an engine without any; None of others."""
        if not rule.core or (since := self._quiet_since(rule, pair.entity, span)) is None:
            return None
        return Judgement(rule, pair.entity, "n/a", f"no requests since {clock_text(since)}", None)

    def _outcome(
        self, rule: Rule, entity: Labels, verdict: Verdict, memory: Memory, span: EvaluationSpan, watched: float
    ) -> Judgement:
        """`watched`: seconds for which there has been a judge of the entity."""
        at, quiet = span.at, self._quiet_since(rule, entity, span) if verdict.truth or memory.fired else None
        proven = not verdict.truth or self._is_proven(rule, entity)
        at_once = span.cold and proven
        if quiet is not None and memory.fired:
            memory.last_true = min(memory.last_true or at, max(quiet, memory.true_since or quiet))
        if quiet is not None and verdict.truth:
            # Without history, a cause is judged by a mean over seconds with load and seconds without.
            if not (memory.fired or (at_once and rule.kind == "symptom")):
                return Judgement(rule, entity, "clear", f"no requests since {clock_text(quiet)}", verdict)
        elif verdict.truth:
            if memory.true_since is None:
                memory.true_since = at
                memory.from_start = self._since is None
            memory.last_true = memory.last_seen = at
            memory.covered = self._is_covered(rule, entity, memory.true_since)
            held = at - memory.true_since
            # What a window without history showed goes on: it does not end because there is history now.
            needed = seconds(needed_duration(rule, proven=proven))
            memory.fired = memory.fired or held >= needed or (memory.fired_cold and not span.cold)
            memory.fired_cold = at_once
            if not (memory.fired or at_once):
                return too_early(rule, entity, verdict, memory, held, watched, proven=proven)
        elif self._is_kept(rule, entity, memory, span):
            pass  # keeps firing over a short gap
        elif verdict.truth is None and self._may_go_on(memory, span):
            pass
        else:
            memory.true_since, memory.fired, memory.last_true, memory.fired_cold = None, False, None, False
            memory.ended = None
        if memory.fired or (at_once and verdict.truth):
            since = None if span.cold else memory.true_since  # one cold window shows that it is so, not since when
            fired = Judgement(rule, entity, "fired", "", verdict, since, memory.from_start)
            if verdict.truth and quiet is None:
                self._shown_short.pop(fired.key, None)
                return fired
            short = self._shown_short.get(fired.key)
            shown_now = span.cold and verdict.truth
            last = quiet if shown_now or memory.last_true is None else memory.last_true
            return msgspec.structs.replace(
                fired, short=short, last_true=last, last_seen=memory.last_seen, over=quiet is not None
            )
        if verdict.truth is None:
            return Judgement(rule, entity, "unknown", partial(self.why_unknown, verdict, entity, span), verdict)
        return Judgement(rule, entity, "clear", partial(self.why_false, verdict, entity), verdict)

    def _is_proven(self, rule: Rule, entity: Labels) -> bool:
        """Whether the figures prove what a rule says of an entity, and do not only suggest it."""
        proof = None if self._suspects else self.knowledge.proof(rule, self.params.get(rule.code))
        if proof is None:
            return True
        found = self.signals.now.evaluate(proof)
        return not isinstance(found, float) and entity in self.signals.by_entity(found, SCOPES[rule.scope])

    def _quiet_since(self, rule: Rule, entity: Labels, span: EvaluationSpan) -> float | None:
        """Since when an entity has had no requests, where a rule's condition is about these: what the window still
        shows is of the time before. None: it has some, or its load is not known."""
        if not rule.applies.traffic or rule.kind not in ("cause", "symptom"):
            return None
        return self.quiet(span).get((rule.scope, entity))

    def quiet(self, span: EvaluationSpan) -> Mapping[tuple[Scope, Labels], float]:
        """What has had no requests at the end of a span, which was judged last -> since when, by scope and entity."""
        if self._quiet is None:
            metrics = (*self.signals.metrics(TRAFFIC, span), *REFUSALS)
            self._quiet = quiet_entities(quiet_engines(self.signals, metrics, span), self._at(span.at))
        return self._quiet

    def _may_go_on(self, memory: Memory, span: EvaluationSpan) -> bool:
        """Whether it was true when an agent ended that this one took over from soon after, and this one has not looked
        for as long as its signals need: that there is no traffic, or too little to tell, is not seen yet."""
        since = span.at if self._since is None else self._since
        if memory.last_true is None or memory.covered:
            return False
        return 0 < since - memory.last_true < UNSEEN_SECONDS and span.at - since < span.fast

    def _is_kept(self, rule: Rule, entity: Labels, memory: Memory, span: EvaluationSpan) -> bool:
        """Whether `keep` holds open what is not true any more. What another rule had the place of was never told: it
        does not come up once that one closes. What was so in an engine's process ends with the process."""
        if not memory.fired or memory.last_true is None or memory.covered:
            return False
        if rule.scope == "engine" and self._has_restarted(entity, memory.last_true, span):
            return False
        return span.at - memory.last_true < kept_seconds(rule, span.fast)

    def _has_restarted(self, entity: Labels, last_true: float, span: EvaluationSpan) -> bool:
        """Whether an engine's process is another one than when something was last true."""
        if (begins := self.signals.begins.get(entity)) is not None:
            return last_true < begins
        restarts = self.signals.known[RESTARTS].values.get(entity) if RESTARTS in self.signals.known else None
        return bool(restarts) and last_true < span.start

    def _is_covered(self, rule: Rule, entity: Labels, since: float) -> bool:
        """Whether a rule that fired, and was true since then, has the place of another one."""
        others = (self.memory.get(f"{code}{entity}") for code in rule.excluded_by)
        return any(one is not None and one.fired and (one.last_true or since) >= since for one in others)

    def why_unknown(self, verdict: Verdict, entity: Labels, span: EvaluationSpan) -> str:
        """Which signals were missing, and why."""
        missing = missing_signals(verdict)
        known = self.signals.known
        absent = [n for n in missing if entity not in known[n].values]
        return "; ".join(f"{plain(n)}: {self.signals.why_missing(n, entity, span).why}" for n in absent)

    def is_leaving(self, judgement: Judgement) -> bool:
        """Whether what has fired is true no more, and counts until its figures reach the level at which it ends."""
        held = judgement.rule.clear and judgement.outcome == "fired" and judgement.short is None
        return bool(held) and self._conditions.truth(judgement.rule, judgement.entity) is False

    def why_true(self, judgement: Judgement) -> str:
        """The comparisons of those of a rule's alternatives that are true, with their values; empty where the rule has
        no alternatives. Where an alternative takes several comparisons, those of the first true one; empty where the
        conclusion has all their values, or of a symptom, which has no other reason, that of the first of them."""
        rule, entity = judgement.rule, judgement.entity
        either = alternatives(self._conditions.of_rule(rule)[0])
        if len(either) < 2 or judgement.verdict is None:
            return ""
        found = [decide(one, entity, partial(self._conditions.sides, rule)) for one in either]
        holding = [verdict for verdict in found if verdict.truth]
        if any(len(verdict.decided) > 1 for verdict in found):
            holding = holding[:1]
            sides = [d.comparison.left for verdict in holding for d in verdict.decided if d.truth]
            said, asked = self._concluded_signals(rule), sides[:1] if rule.kind == "symptom" else sides
            if all(said.issuperset(signals_in(side)) for side in asked):
                return ""
        true = [d for verdict in holding for d in verdict.decided if d.truth]
        told = dict.fromkeys(describe_true(d, entity, self.signals.known, self.knowledge) for d in true)
        return ", ".join([text for text in told if text][:MAX_REASONS])

    def _concluded_signals(self, rule: Rule) -> set[str]:
        """The signals whose values a conclusion has, and those that these are of."""
        named = set(PLACEHOLDER.findall(rule.conclusion)) & self.knowledge.signals.keys()
        return named.union(*(self.signals.named_by(name) for name in named))

    def why_false(self, verdict: Verdict, entity: Labels) -> str:
        """The first false comparison of a measured number, with its value, else the first at all."""
        signals = self.knowledge.signals
        measured = [d for d in verdict.false if any(signals[n].unit != "bool" for n in signals_in(d.comparison.left))]
        first = next(iter(measured or verdict.false), None)
        return describe_false(first, entity, self.signals.known, self.knowledge) if first else ""
