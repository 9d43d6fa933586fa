"""What has ended, though the long window still holds it: the last seconds show that it is not true any more.

The minute after a load has ended, or has fallen to little, is in one window with that load. So where a cause or symptom
is true over the long window, the last `LAST_SECONDS` are judged by themselves. What these show to be over stays over
until they show it again, or until the long window holds nothing of the time before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import msgspec

from kvitals.diagnoser.judgement import Judgement, Memory, seconds
from kvitals.diagnoser.late_requests import HISTOGRAMS, late_and_all
from kvitals.diagnoser.short_window import TRAFFIC, Place, is_of_longer_time
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.compiled_signal import compile_signal
from kvitals.rules.expressions import expression
from kvitals.rules.loader import Knowledge, signal_names
from kvitals.rules.model import Quantity, Rule
from kvitals.series.types import Labels

LAST_SECONDS = 20.0
"""Long enough for a condition that comes and goes to be true in some of it."""
STRETCH_SECONDS = 10.0
"""By which the last seconds are looked at for longer, where they had too few requests."""
COUNTED: frozenset[Quantity] = frozenset({"ttft", "itl", "errors"})
"""What a symptom is about whose requests are counted: that none had it for some seconds may be chance."""
CHANCE = 0.01
FINISHED = "finished_per_second"


def last_span(at: float) -> EvaluationSpan:
    """The last seconds before a moment."""
    return EvaluationSpan(at, LAST_SECONDS, LAST_SECONDS, cold=True)


def rules_that_end(knowledge: Knowledge) -> Knowledge:
    """The rules of which the last seconds can show that they are not true any more, with the signals that they need:
    those about requests, pools or faults, all of whose signals are of the fast window. Raises PromQLError."""

    def is_fast(name: str) -> bool:
        signal = knowledge.signals[name]
        return signal.window == "fast" and not is_of_longer_time(signal)

    def ends(rule: Rule) -> bool:
        felt = rule.kind == "symptom" and COUNTED.issuperset(rule.about)
        lasts = rule.scope == "pool" and seconds(rule.for_) > 0  # what counts at once is an event, such as a scale-in
        state = rule.each_scrape or "fault" in rule.binds  # each scrape shows it
        seen = rule.applies.traffic or lasts or state
        return (rule.kind == "cause" or felt) and seen and all(map(is_fast, knowledge.needs(rule)))

    rules = {code: rule for code, rule in knowledge.rules.items() if ends(rule)}
    asked = {name for rule in rules.values() for name in knowledge.needs(rule)}
    asked |= {TRAFFIC, FINISHED} & knowledge.signals.keys()
    needed: set[str] = set()
    while asked:
        needed |= asked
        compiled = [compile_signal(knowledge.signals[name], parsed=expression) for name in asked]
        asked = {name for one in compiled for expr in one.exprs for name in signal_names(expr)} - needed
    return replace(knowledge, rules=rules, signals={n: s for n, s in knowledge.signals.items() if n in needed})


def is_asked_about(judgement: Judgement, ends: Container[str], memory: Mapping[str, Memory]) -> bool:
    """Whether the last seconds decide if a judgement is of now. ends: the codes of the rules that can end so."""
    if judgement.outcome != "fired" or judgement.last_true is not None:
        return False
    known = memory.get(judgement.key)
    return known is not None and (known.ended is not None or judgement.rule.code in ends)


def not_so(in_last: Iterable[Judgement]) -> set[Place]:
    """What the last seconds show not to be so."""
    return {_place(j) for j in in_last if j.outcome == "clear" and j.early is None}


def shown_over(
    judged: Sequence[Judgement], clear: Container[Place], long: Signals, last: Signals, span: EvaluationSpan
) -> dict[Place, float]:
    """What is true over the long window and, for more than chance, not over the last seconds; since how many seconds.
    What a fault alone explains ends with it: that is no chance.

    clear: as `not_so` returns; long, last: the signals of both windows.
    """
    found: dict[Place, float] = {}
    late = cache(partial(late_and_all, long.source.families))
    asked = [one for one in judged if one.outcome == "fired" and _place(one) in clear]
    faults = {(code, one.entity) for one in asked if "fault" in one.rule.binds for code in one.rule.explains}
    going_on = {(code, one.entity) for one in judged if _goes_on(one, clear) for code in one.rule.explains}
    for one in asked:
        calm = [LAST_SECONDS]
        if one.rule.kind != "cause" and not one.rule.each_scrape and _place(one) not in faults - going_on:
            calm = [_calm_seconds(one, quantity, long, last, span, late) for quantity in one.rule.about]
        if all(calm):
            found[_place(one)] = min(calm)
    return found


def _goes_on(one: Judgement, clear: Container[Place]) -> bool:
    return one.rule.kind == "cause" and one.outcome == "fired" and _place(one) not in clear


def is_chance(late: float, total: float, calm: float) -> bool:
    """Whether it may be chance that none of the last `calm` of `total` requests is one of the `late` ones: by the
    hypergeometric distribution. Counts may be fractions, as increases are."""
    before = total - calm
    if late <= 0 or late > before:
        return late <= 0
    ways = math.lgamma(before + 1) - math.lgamma(before - late + 1)
    return ways - math.lgamma(total + 1) + math.lgamma(total - late + 1) > math.log(CHANCE)


LateAndAll = Callable[[Quantity, float, float], dict[Labels, tuple[float, float]]]


def _calm_seconds(
    symptom: Judgement, quantity: Quantity, long: Signals, last: Signals, span: EvaluationSpan, counts: LateAndAll
) -> float:
    """For how long up to now no request had a symptom, where that is more than chance by how many of the requests, or
    gaps, of the long window had it; 0 where it may be chance. Of few requests the last seconds alone do not show it."""
    if quantity in HISTOGRAMS:
        late, total = counts(quantity, span.at, span.fast).get(symptom.entity, (0.0, 0.0))
        calm, requests, back = 0.0, 0.0, LAST_SECONDS
        while back < span.fast:
            late_then, then = counts(quantity, span.at, back).get(symptom.entity, (0.0, 0.0))
            if late_then:
                break
            calm, requests, back = back, then, back + STRETCH_SECONDS
        return 0.0 if is_chance(late, total, requests) else calm
    needs = long.knowledge.needs(symptom.rule)
    ratios = [
        long.known[name].values.get(symptom.entity) for name in needs if long.knowledge.signals[name].unit == "ratio"
    ]
    share = max((value for value in ratios if value is not None), default=0.0)
    total, calm = (_finished(of, symptom) * seconds for of, seconds in ((long, span.fast), (last, LAST_SECONDS)))
    return 0.0 if is_chance(share * total, total, calm) else LAST_SECONDS


def _finished(of: Signals, judgement: Judgement) -> float:
    known = of.known.get(FINISHED)
    return known.values.get(judgement.entity, 0.0) if known is not None else 0.0


def with_ended(
    judged: Sequence[Judgement],
    in_last: Iterable[Judgement],
    over: Mapping[Place, float],
    memory: Mapping[str, Memory],
    span: EvaluationSpan,
) -> list[Judgement]:
    """The judgements, those that have ended with the moment when they were last true; `memory` has it, too. over: as
    `shown_over` returns."""
    true = {_place(j) for j in in_last if j.outcome == "fired"}

    def told(judgement: Judgement) -> Judgement:
        known = memory.get(judgement.key)
        if judgement.outcome != "fired" or known is None:
            return judgement
        if judgement.last_true is not None:
            if judgement.over:
                known.ended = judgement.last_true
            return msgspec.structs.replace(judgement, over=known.ended is not None)
        if known.ended is None and _place(judgement) in over:
            known.ended = max(span.at - over[_place(judgement)], judgement.began)
        if known.ended is None:
            return judgement
        if _place(judgement) in true or span.at - known.ended >= span.fast:
            return _true_again(judgement, known, span)
        known.last_true = known.last_seen = known.ended
        return msgspec.structs.replace(judgement, last_true=known.ended, last_seen=known.ended, over=True)

    return _details_ended([told(judgement) for judgement in judged], true)


def _details_ended(judgements: list[Judgement], true: Container[Place]) -> list[Judgement]:
    """Symptoms for information end with the ones that they tell more of: too few requests may have come since to show
    it of themselves."""
    asking = [j for j in judgements if j.rule.kind == "symptom" and j.rule.severity != "info" and j.outcome == "fired"]

    def told(judgement: Judgement) -> Judgement:
        rule = judgement.rule
        detail = rule.kind == "symptom" and rule.severity == "info" and judgement.outcome == "fired"
        if not detail or judgement.last_true is not None or _place(judgement) in true:
            return judgement
        about = [j for j in asking if j.entity == judgement.entity and not set(rule.about).isdisjoint(j.rule.about)]
        if not about or not all(j.over for j in about):
            return judgement
        last = max(j.last_true or -math.inf for j in about)
        return msgspec.structs.replace(judgement, last_true=last, last_seen=last, over=True)

    return [told(judgement) for judgement in judgements]


def _true_again(judgement: Judgement, known: Memory, span: EvaluationSpan) -> Judgement:
    """What had ended and is true once more: after a whole window, or beyond `keep`, it is another episode."""
    apart = min(seconds(judgement.rule.keep), span.fast)
    is_new = known.ended is not None and span.at - known.ended >= apart
    known.ended = None
    if not is_new:
        return judgement
    known.true_since, known.from_start = span.at, False
    return msgspec.structs.replace(judgement, since=span.at, since_at_least=False)


def _place(judgement: Judgement) -> Place:
    return judgement.rule.code, judgement.entity
