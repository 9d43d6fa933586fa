"""Why a window does not decide whether a system is healthy, and what to do: it is too short, too few requests were
counted, an engine has just restarted, or does not report its load."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvitals.diagnoser.entities import IN_FRONT, not_for
from kvitals.diagnoser.evaluator import TRAFFIC, Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.reasons import missing_signals
from kvitals.diagnoser.short_window import SHORTEST_SECONDS
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.text import render
from kvitals.diagnoser.unusable import of_family, sentence
from kvitals.rules.loader import family_of
from kvitals.series.types import Labels

ROUNDING_SECONDS = 0.5
"""What a window may lack, as it ends at a sample."""

MAX_NAMES = 3
"""Engines that a sentence names."""

LONGEST_READ_SECONDS, SPARE = 900.0, 1.25
"""Nobody is asked to wait for longer; and by how much a wait is longer than the rate of requests asks for."""


def is_too_short(span: EvaluationSpan) -> bool:
    """Whether nothing that a window does not show can be ruled out, because it is so short."""
    return span.watched < SHORTEST_SECONDS - ROUNDING_SECONDS


def just_restarted(judge: Judge, core: Sequence[Judgement], span: EvaluationSpan) -> dict[Labels, float]:
    """Engines -> seconds since their process was first seen, where that is too short to rule out trouble, or to decide
    all core rules."""
    since = {j.entity: judge.signals.seconds_since_restart(j.entity, span.at) for j in core}
    undecided = {j.entity for j in core if j.outcome == "unknown" and since[j.entity] < span.fast}
    return {one: seconds for one, seconds in since.items() if seconds < SHORTEST_SECONDS or one in undecided}


def unknown_load(judge: Judge, core: Sequence[Judgement], span: EvaluationSpan) -> list[Labels]:
    """The programs that serve requests and of which it is not known whether they have any: nothing was judged of them,
    whatever is not applicable or clear. Routers and gateways count only where there is no engine."""
    known = judge.signals.known[TRAFFIC].values
    serving = {j.entity for j in core if j.rule.applies.traffic and not not_for(j.rule, judge.info(j.entity, span.at))}
    engines = {entity for entity in serving if judge.info(entity, span.at).get("kind") not in IN_FRONT}
    return sorted((entity for entity in engines or serving if entity not in known), key=str)


def why_undecided(judge: Judge, judgements: Sequence[Judgement], span: EvaluationSpan) -> str:
    """That the window or the time since a restart is too short; else which metrics have values that cannot be used, if
    core checks that could not be decided read them, or where all were decided, which engines do not report their load,
    in words with what to do; else empty."""
    if is_too_short(span):
        took = render(span.watched, "seconds")
        return f"A window of {took} is too short to rule out trouble: at least {SHORTEST_SECONDS:.0f} s are needed."
    if young := just_restarted(judge, [j for j in judgements if j.rule.core], span):
        engine, since = min(young.items(), key=lambda one: (one[1], str(one[0])))
        name = judge.title("engine", engine, span.at)
        return f"{name} has restarted and was read for {since:.0f} s since then: too short to rule out trouble."
    signals, found = judge.signals, judge.signals.unusable(span)
    undecided = [j for j in judgements if found and j.rule.core and j.outcome == "unknown" and j.verdict is not None]
    families: dict[str, None] = {}
    entities: list[Labels] = []
    for judgement in undecided:
        missing = missing_signals(judgement.verdict) if judgement.verdict is not None else []
        metrics = (metric for name in missing for metric in signals.metrics(name, span))
        read = filter(None, (family_of(metric, judge.knowledge.families) for metric in metrics))
        own = [family for family in read if of_family(found, family, judgement.entity)]
        families |= dict.fromkeys(own)
        entities += [judgement.entity] if own else []
    about = [labels for labels in found if any(labels.keep(tuple(entity)) == entity for entity in entities)]
    core = [j for j in judgements if j.rule.core]
    if about or any(j.outcome == "unknown" for j in core):
        return sentence(about, families) or _too_few(judge, core, span)
    silent = unknown_load(judge, core, span)
    if about := [labels for labels in found if any(labels.keep(tuple(entity)) == entity for entity in silent)]:
        load = (family_of(metric, judge.knowledge.families) for metric in signals.metrics(TRAFFIC, span))
        return sentence(about, filter(None, load))
    names = ", ".join(judge.title("engine", entity, span.at) for entity in silent[:MAX_NAMES])
    return f"{names} does not report whether it has requests. Run `kvitals check` on its URL." if silent else ""


def _too_few(judge: Judge, core: Sequence[Judgement], span: EvaluationSpan) -> str:
    """That core checks got too few requests or samples, and when they will have enough at this rate: of a source that
    is read for a while, for how long to read it; of an agent, how long to wait. Empty where that is not why, or where
    it takes too long."""
    longest, said = 0.0, ""
    for judgement in core:
        undecided = judgement.verdict if judgement.outcome == "unknown" else None
        for name in missing_signals(undecided) if undecided is not None else ():
            samples = judge.knowledge.signals[name].samples
            seen = judge.signals.known[name].too_few.get(judgement.entity, 0.0)
            if samples is not None and seen >= 1 and (seconds := span.watched * samples.min / seen) > longest:
                longest, said = seconds, f"{math.floor(seen):,} of {samples.min:g} {samples.of}"
    so_far = f"Only {said} in {render(span.watched, 'seconds')}"
    if not span.cold and span.seen < longest <= EvaluationSpan.fast:
        return f"{so_far}: enough in about {render(math.ceil(longest - span.watched), 'seconds')}."
    if not span.cold or not 0 < longest <= LONGEST_READ_SECONDS:
        return ""
    return f"{so_far}: read for longer, with --for {math.ceil(SPARE * longest / 60)}m."
