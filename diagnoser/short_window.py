"""What a short window adds to the verdict of the long one: the first minute after a change.

The minute before a change is still in the mean of a long window. So where a page-worthy symptom is new, the time since
it began is judged by itself as well: it confirms the symptom before its `for`, and shows causes that the mean hides.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import msgspec

from kvitals.diagnoser.judgement import Judgement, Memory
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.model import Scope
from kvitals.series.types import Labels

SHORTEST_SECONDS = 10.0
"""The shortest window in which a change is confirmed: two cycles of an agent after the first that showed it."""
STEP_SECONDS = 5.0

OpenSymptoms = set[tuple[Scope, Labels, str]]
"""Scope and entity of whatever a cause of the symptom is a cause of, and the symptom's code."""


def short_span(found: Iterable[Judgement], span: EvaluationSpan) -> EvaluationSpan | None:
    """The window since a page-worthy symptom became true, to be judged by itself beside the long one; None where each
    such symptom is true for less than `SHORTEST_SECONDS` or for as long as the long window."""
    if span.cold:
        return None
    held = [span.at - j.since for j in found if j.is_recent_symptom and j.since is not None]
    since = max((seconds for seconds in held if SHORTEST_SECONDS <= seconds < span.fast), default=0.0)
    if not since:
        return None
    length = since // STEP_SECONDS * STEP_SECONDS  # few lengths, as each is compiled anew
    return EvaluationSpan(span.at, length, length, cold=True)


def open_symptoms(found: Iterable[Judgement], around: Callable[[Judgement], Mapping[Scope, Labels]]) -> OpenSymptoms:
    """The symptoms that fired. around: the entities, by scope, of which a cause explains a judgement."""
    symptoms = [j for j in found if j.outcome == "fired" and j.rule.kind == "symptom"]
    return {(scope, entity, j.rule.code) for j in symptoms for scope, entity in around(j).items()}


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
        memory[f"{rule.code}{entity}"].fired = True
        return msgspec.structs.replace(judgement, outcome="fired", why="")

    return [counted(judgement) for judgement in found]


def add_hidden_causes(
    in_short: Iterable[Judgement],
    found: Sequence[Judgement],
    short: EvaluationSpan,
    open_: OpenSymptoms,
    shown_before: Mapping[str, float],
) -> tuple[list[Judgement], dict[str, float]]:
    """Causes that only the short window shows count where they explain an open symptom. Returned with the moments since
    when only short windows show them, by key of what is remembered; `shown_before`: the same a cycle earlier.

    The verdict that made one stays that of the long window, as the figures of the document are. One that the long
    window shows later begins when the short one first did, so it is one episode.
    """
    true = {(j.rule.code, j.entity) for j in in_short if j.outcome == "fired" and j.rule.kind == "cause"}
    shown: dict[str, float] = {}

    def counted(judgement: Judgement) -> Judgement:
        rule, entity = judgement.rule, judgement.entity
        hidden = judgement.outcome in ("clear", "unknown") and (rule.code, entity) in true
        if not hidden or not any((rule.scope, entity, code) in open_ for code in rule.explains):
            return judgement
        key = f"{rule.code}{entity}"
        since = shown[key] = shown_before.get(key, short.start)
        return msgspec.structs.replace(
            judgement, outcome="fired", why="", how=judgement.verdict, since=since, short=short.fast
        )

    return [counted(judgement) for judgement in found], shown


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
        return early_cause and any((j.rule.scope, j.entity, code) in open_ for code in j.rule.explains)

    return [msgspec.structs.replace(j, outcome="fired", why="") if counts(j) else j for j in found]
