"""What has ended, though the long window still holds it: the last seconds show that it is not true any more.

The minute after a load has ended, or has fallen to little, is in one window with that load. So where a cause or symptom
is true over the long window, the last `LAST_SECONDS` are judged by themselves. What these show to be over stays over
until they show it again, or until the long window holds nothing of the time before.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from kvitals.diagnoser.judgement import Judgement, Memory, seconds
from kvitals.diagnoser.late_requests import HISTOGRAMS, late_and_all
from kvitals.diagnoser.short_window import TRAFFIC, Place, is_of_longer_time
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.compiled_signal import compile_signal
from kvitals.rules.expressions import expression
from kvitals.rules.loader import Knowledge, signal_names
from kvitals.rules.model import Quantity, Rule

LAST_SECONDS = 20.0
"""Long enough for a condition that comes and goes to be true in some of it."""
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
        seen = rule.applies.traffic or lasts or "fault" in rule.binds  # a fault is a state, that each scrape shows
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
    judged: Iterable[Judgement], clear: Container[Place], long: Signals, last: Signals, span: EvaluationSpan
) -> set[Place]:
    """What is true over the long window and, for more than chance, not over the last seconds.

    clear: as `not_so` returns; long, last: the signals of both windows.
    """
    found: set[Place] = set()
    for one in judged:
        rule = one.rule
        if one.outcome == "fired" and _place(one) in clear:
            counts = [_share_and_count(one, quantity, long, last, span) for quantity in rule.about]
            if rule.kind == "cause" or not any(is_chance(*count) for count in counts):
                found.add(_place(one))
    return found


def is_chance(share: float, requests: float) -> bool:
    """Whether there may be none among so many requests of what a share of all requests have."""
    return math.pow(1.0 - min(share, 1.0), requests) > CHANCE


def _share_and_count(
    symptom: Judgement, quantity: Quantity, long: Signals, last: Signals, span: EvaluationSpan
) -> tuple[float, float]:
    """The share of requests, or gaps, of the long window that had a symptom, and how many the last seconds had; 0 where
    one of these had it."""
    if quantity in HISTOGRAMS:
        families = long.source.families
        late, total = late_and_all(families, quantity, span.at, span.fast).get(symptom.entity, (0.0, 0.0))
        late_now, now = late_and_all(families, quantity, span.at, LAST_SECONDS).get(symptom.entity, (0.0, 0.0))
        return (late / total if total else 0.0), (0.0 if late_now else now)
    needs = long.knowledge.needs(symptom.rule)
    ratios = [
        long.known[name].values.get(symptom.entity) for name in needs if long.knowledge.signals[name].unit == "ratio"
    ]
    finished = last.known[FINISHED].values if FINISHED in last.known else {}
    requests = finished.get(symptom.entity, 0.0) * LAST_SECONDS
    return max((value for value in ratios if value is not None), default=0.0), requests


def with_ended(
    judged: Sequence[Judgement],
    in_last: Iterable[Judgement],
    over: Container[Place],
    memory: Mapping[str, Memory],
    span: EvaluationSpan,
) -> list[Judgement]:
    """The judgements, those that have ended with the moment when they were last true; `memory` has it, too."""
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
            known.ended = max(span.at - LAST_SECONDS, judgement.began)
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
