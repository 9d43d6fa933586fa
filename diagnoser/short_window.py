"""What a short window adds to the verdict of the long one: the first minute after a change.

The minute before a change is still in the mean of a long window. So at each moment the last `RECENT_SECONDS` are asked
for what clients feel (`felt_symptoms`). Where a symptom is new, the time since it began is judged by itself as well.
That confirms the symptom, before its `for` or where the long window hides it, and shows causes that the mean hides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kvitals.diagnoser.judgement import Judgement, Memory
from kvitals.diagnoser.late_requests import HISTOGRAMS
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.compiled_signal import compile_signal
from kvitals.rules.expressions import expression
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, signal_names
from kvitals.rules.model import Quantity, Rule, Scope, Signal
from kvitals.series.promql import selectors
from kvitals.series.types import Labels

SHORTEST_SECONDS = 10.0
"""The shortest window in which a change is confirmed: two cycles of an agent after the first that showed it."""
STEP_SECONDS = 5.0
RECENT_SECONDS = 10.0
"""What is asked for symptoms at each moment. A change is confirmed when two such windows, one after the other, show the
symptom, as `SHORTEST_SECONDS` is as long."""
FELT: frozenset[Quantity] = frozenset({"ttft", "itl", "errors"})
"""What a client feels of a symptom."""
TRAFFIC = "traffic"

Place = tuple[str, Labels]
"""A rule's code and an entity."""
OpenSymptoms = dict[tuple[Scope, Labels, str], float]
"""Scope and entity of whatever a cause of it is a cause of, and the code of an open symptom or of a cause of one; since
when the symptom is true, in seconds since the epoch, negative infinity where that is not known."""


def _shown(hidden: Judgement, short: EvaluationSpan, since: float) -> Judgement:
    """What a short window shows and the long one hides."""
    return msgspec.structs.replace(hidden, how=hidden.verdict, since=since, since_at_least=False, short=short.fast)


@dataclass
class RecentSymptoms:
    """Since when the windows of `RECENT_SECONDS` show a symptom, by rule and entity. A gap of one look ends nothing."""

    since: dict[Place, float] = field(default_factory=dict)
    _last: dict[Place, float] = field(default_factory=dict)

    def observe(self, true: Iterable[Judgement], at: float) -> None:
        """What is true in the window that ends at `at`, seconds since the epoch."""
        for judgement in true:
            key = (judgement.rule.code, judgement.entity)
            self.since.setdefault(key, at)
            self._last[key] = at
        for key in [key for key, last in self._last.items() if not 0 <= at - last <= STEP_SECONDS]:
            del self._last[key], self.since[key]


def felt_symptoms(knowledge: Knowledge) -> Knowledge:
    """The symptoms of engines that clients feel and that ask for something, with the signals that they need: those that
    a window shows by itself, as they compare it with no time before."""

    def is_felt(rule: Rule) -> bool:
        asks = rule.kind == "symptom" and rule.severity != "info" and rule.scope == "engine"
        return asks and FELT.issuperset(rule.about) and not any(map(is_of_signals, knowledge.needs(rule)))

    def is_of_signals(name: str) -> bool:
        return SIGNAL_PREFIX in knowledge.signals[name].expr

    rules = {code: rule for code, rule in knowledge.rules.items() if is_felt(rule)}
    needed = {
        TRAFFIC,
        *(name for rule in rules.values() for name in (*knowledge.needs(rule), *_proofs(knowledge, rule))),
    }
    return replace(knowledge, rules=rules, signals={n: s for n, s in knowledge.signals.items() if n in needed})


def _proofs(knowledge: Knowledge, rule: Rule) -> frozenset[str]:
    """The signals that prove what a rule says, where they decide when it counts."""
    proof = knowledge.proof(rule)
    return frozenset(signal_names(proof)) if proof is not None else frozenset()


def is_beyond_chance(symptom: Judgement, late: Mapping[Quantity, list[Labels]]) -> bool:
    """Whether a symptom of a short window is more than a few late requests. Of others than those of a latency their
    signals ask for enough samples."""
    entity, latencies = symptom.entity, [one for one in symptom.rule.about if one in HISTOGRAMS]
    return all(any(engine.keep(tuple(entity)) == entity for engine in late[one]) for one in latencies)


def is_of_longer_time(signal: Signal) -> bool:
    """Whether a signal is of a longer time, or is what others were over a time: a short window has none of its own, and
    takes the long one's. A restart a minute ago is none in the last half minute. Raises PromQLError."""
    if signal.window == "slow":
        return True
    if SIGNAL_PREFIX not in signal.expr:
        return False
    return all(use.range > 0 for use in selectors(compile_signal(signal, parsed=expression).expr))


def short_span(
    found: Iterable[Judgement], recent: Mapping[Place, float], span: EvaluationSpan
) -> EvaluationSpan | None:
    """The window since a symptom became true, to be judged by itself beside the long one; None where each such symptom
    is true for less than `SHORTEST_SECONDS` or for as long as the long window.

    found: what the long window shows, of which page-worthy symptoms count; recent: since when short ones show one.
    """
    if span.cold:
        return None
    began = [*(j.since for j in found if j.is_recent_symptom and j.since is not None), *recent.values()]
    held = [span.at - since for since in began]
    since = max((seconds for seconds in held if SHORTEST_SECONDS <= seconds < span.fast), default=0.0)
    if not since:
        return None
    length = since // STEP_SECONDS * STEP_SECONDS  # few lengths, as each is compiled anew
    return EvaluationSpan(span.at, length, length, cold=True)


def open_symptoms(found: Iterable[Judgement], around: Callable[[Judgement], Mapping[Scope, Labels]]) -> OpenSymptoms:
    """The symptoms that fired, and the causes that fired and explain one, by way of other such causes too: what
    explains such a cause explains the symptom. around: the entities, by scope, of which a cause explains a judgement.
    """
    fired = [j for j in found if j.outcome == "fired" and not j.over]
    explained = [j for j in fired if j.rule.kind == "symptom"]
    causes = [j for j in fired if j.rule.kind == "cause"]
    open_: OpenSymptoms = {}
    since = [-math.inf if j.since is None else j.since for j in explained]
    while explained:
        for j, began in zip(explained, since, strict=True):
            for scope, entity in around(j).items():
                place = (scope, entity, j.rule.code)
                open_[place] = min(began, open_.get(place, math.inf))
        explained = [j for j in causes if explains_any(j, open_)]
        since = [_since_of_symptoms(j, open_) for j in explained]
        causes = [j for j in causes if not explains_any(j, open_)]
    return open_


def explains_any(cause: Judgement, open_: OpenSymptoms) -> bool:
    """Whether a cause explains one of these on its entity."""
    return any((cause.rule.scope, cause.entity, code) in open_ for code in cause.rule.explains)


def _since_of_symptoms(cause: Judgement, open_: OpenSymptoms) -> float:
    """Since when the first symptom is true that a cause explains on its entity."""
    places = ((cause.rule.scope, cause.entity, code) for code in cause.rule.explains)
    return min((open_[place] for place in places if place in open_), default=-math.inf)


def confirm_symptoms(
    found: Iterable[Judgement], in_short: Iterable[Judgement], memory: Mapping[str, Memory]
) -> list[Judgement]:
    """New symptoms that are true in the short window as well count now. Each keeps the moment since which it is true,
    so it is the same episode once its `for` is over."""
    true = {(j.rule.code, j.entity) for j in in_short if j.outcome == "fired"}

    def counted(judgement: Judgement) -> Judgement:
        rule, entity = judgement.rule, judgement.entity
        if judgement.early is None or rule.kind != "symptom" or (rule.code, entity) not in true:
            return judgement
        memory[judgement.key].fired = True
        return msgspec.structs.replace(judgement, outcome="fired", why="")

    return [counted(judgement) for judgement in found]


def add_hidden_symptoms(
    in_short: Iterable[Judgement],
    found: Sequence[Judgement],
    short: EvaluationSpan,
    recent: Mapping[Place, float],
) -> list[Judgement]:
    """Symptoms that the long window hides count where each window of `RECENT_SECONDS` for `SHORTEST_SECONDS` showed
    them and the short window does, too. recent: since when they are shown."""
    held = {key for key, since in recent.items() if short.at - since >= SHORTEST_SECONDS}
    true = {(j.rule.code, j.entity): j for j in in_short if j.outcome == "fired"}

    def counted(judgement: Judgement) -> Judgement:
        of = (judgement.rule.code, judgement.entity)
        hidden = true.get(of) if of in held and judgement.early is None else None
        return judgement if hidden is None or _is_true_now(judgement) else _shown(hidden, short, recent[of])

    return [counted(judgement) for judgement in found]


def add_hidden_causes(
    in_short: Iterable[Judgement],
    found: Sequence[Judgement],
    short: EvaluationSpan,
    open_: OpenSymptoms,
    memory: Mapping[str, Memory],
) -> list[Judgement]:
    """Causes that only the short window shows count where they explain an open symptom. Each begins when a short window
    first showed it, as `memory` has it, so it is one episode whichever window shows it later. The window is as long as
    the oldest trouble of any engine: a cause does not begin with that, but with what it explains on its own."""
    true = {(j.rule.code, j.entity): j for j in in_short if j.outcome == "fired" and j.rule.kind == "cause"}

    def counted(judgement: Judgement) -> Judgement:
        hidden = true.get((judgement.rule.code, judgement.entity))
        if hidden is None or _is_true_now(judgement) or not explains_any(hidden, open_):
            return judgement
        before = memory.get(hidden.key)
        since = before.true_since if before is not None and before.fired else None
        began = max(short.start, _since_of_symptoms(hidden, open_))
        return _shown(hidden, short, began if since is None else since)

    return [counted(judgement) for judgement in found]


def count_explained(
    found: Sequence[Judgement], around: Callable[[Judgement], Mapping[Scope, Labels]]
) -> Sequence[Judgement]:
    """A symptom that the figures do not prove counts at once where a cause that explains it has fired: then there is
    little doubt. Without one it has to last. around: the entities, by scope, of which a cause explains a judgement."""
    doubtful = [j for j in found if j.unproven and j.rule.kind == "symptom"]
    if not doubtful:
        return found
    causes = [j for j in found if j.outcome == "fired" and j.rule.kind == "cause" and j.last_true is None]
    explained = {(j.rule.scope, j.entity, code) for j in causes for code in j.rule.explains}

    def counts(j: Judgement) -> bool:
        return j.unproven and any((*place, j.rule.code) in explained for place in around(j).items())

    return [msgspec.structs.replace(j, outcome="fired", why="", unproven=False) if counts(j) else j for j in found]


def _is_true_now(judgement: Judgement) -> bool:
    """Whether the long window shows it, or there is nothing to judge: what `keep` holds open is not shown by it."""
    return judgement.outcome not in ("clear", "unknown") and judgement.last_true is None


def promote_causes(
    found: Iterable[Judgement], open_: OpenSymptoms, over: Container[tuple[str, Labels]] = ()
) -> list[Judgement]:
    """A cause that is true, if not for long yet, counts at once where a symptom that it explains is open.

    `for` keeps short spikes from raising an alarm; when the alarm is there already, withholding the cause that is true
    right now would only leave it unexplained. `over`: rules and entities of which a shorter window shows that they are
    true no longer.
    """

    def counts(j: Judgement) -> bool:
        early_cause = j.early is not None and j.rule.kind == "cause" and (j.rule.code, j.entity) not in over
        return early_cause and explains_any(j, open_)

    return [msgspec.structs.replace(j, outcome="fired", why="") if counts(j) else j for j in found]
