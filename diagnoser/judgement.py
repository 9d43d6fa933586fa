"""What a rule says of an entity at one moment, and what is remembered of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

import msgspec

from kvitals.diagnoser.kleene import Verdict
from kvitals.diagnoser.text import render
from kvitals.rules.finding import Outcome
from kvitals.rules.model import Rule
from kvitals.series.types import Labels

TOO_EARLY = "too early to judge"
"""How the reason begins of what is true, where the judge has not watched for as long as the rule asks for."""
OVER_SECONDS = 20.0
"""What was last true longer ago is over: a condition that comes and goes is true in one of a few cycles."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(duration: str) -> float:
    """`90s`, `5m` as seconds."""
    return float(duration[:-1]) * _SECONDS[duration[-1]]


def needed_duration(rule: Rule, *, proven: bool) -> str:
    """For how long a rule's condition has to hold before it counts."""
    return rule.for_ if proven else max(rule.for_, rule.unproven_for, key=seconds)


def is_halt(rule: Rule) -> bool:
    """Whether a cause states that an engine does no work at all, so that all its requests wait."""
    return list(rule.binds) == ["fault"]


def kept_seconds(rule: Rule, window: float) -> float:
    """For how long a finding stays open after it was last true: a halt for as long as it explains what waited."""
    return max(seconds(rule.keep), window) if is_halt(rule) else seconds(rule.keep)


class Memory(msgspec.Struct):
    """What is remembered of one rule and one entity between cycles."""

    true_since: float | None = None  # start of the current run of true
    last_true: float | None = None
    last_seen: float | None = None  # when the figures last showed it: as late, or after the last request of its engine
    fired: bool = False
    from_start: bool = False  # the run was already true when first looked at
    covered: bool = False  # when it was last true, another rule that fired had its place
    fired_cold: bool = False  # it was true, and so fired, in the last window without history
    ended: float | None = None  # when it was last true, where the last seconds show that it is not any more

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
    unproven: bool = False  # whether the figures leave open if it is so; of what is true for less than is needed
    short: float | None = None  # seconds of the short window that shows it, where the long one does not
    last_true: float | None = None  # when it was, where it is not any more and `keep` holds it
    last_seen: float | None = None  # when its figures showed it, where that is not the same
    over: bool = False  # whether it has ended for sure: no requests since then, or the last seconds show it

    @property
    def key(self) -> str:
        """By which its rule and entity are remembered."""
        return f"{self.rule.code}{self.entity}"

    @property
    def reason(self) -> str:
        """Why it is so, for people. To be asked before the next moment is judged."""
        return self.why if isinstance(self.why, str) else self.why()

    @property
    def verdict(self) -> Verdict | None:
        """The comparisons that made it; None of what is clear or has nothing to judge. To be asked as early."""
        return self.how if self.how is None or isinstance(self.how, Verdict) else self.how()

    @property
    def title(self) -> str:
        """What it is called; of what has fired, the finding knows."""
        return self.rule.unproven_title if self.unproven else self.rule.title

    @property
    def needed(self) -> str:
        """For how long its condition has to hold, such as `30s`."""
        return needed_duration(self.rule, proven=not self.unproven)

    @property
    def is_pending(self) -> bool:
        """Whether its condition holds, and nobody has watched for as long as its `for`: it is too early to judge."""
        return self.early is not None and self.outcome == "unknown"

    @property
    def is_new_alarm(self) -> bool:
        """Whether it is page-worthy, a symptom, a loss of telemetry or a fault of the engine, and its condition holds
        and does not count yet."""
        seen = self.rule.kind in ("symptom", "telemetry") or "fault" in self.rule.binds
        return seen and self.rule.severity == "page" and self.early is not None and self.outcome != "fired"

    @property
    def is_recent_symptom(self) -> bool:
        """Whether it is a page-worthy symptom that is true, and its beginning was seen."""
        pages = self.rule.kind == "symptom" and self.rule.severity == "page"
        return pages and (self.early is not None or self.outcome == "fired") and not self.since_at_least

    @property
    def began(self) -> float:
        """Since when it is true, seconds since the epoch; before all time where that is not known."""
        return -math.inf if self.since is None else self.since

    def is_ended(self, at: float) -> bool:
        """Whether a cause or symptom that `keep` holds open was last true so long before a moment that it tells nothing
        of it. What telemetry lost stays lost for as long as its `keep`."""
        if self.rule.kind not in ("cause", "symptom") or self.last_true is None:
            return False
        return self.over or self.last_true < at - OVER_SECONDS

    def was_over(self, effect: Judgement, window: float) -> bool:
        """Whether this was last true before an effect began: it does not explain it. Requests that waited while an
        engine was halted come late when it goes on: a halt explains what begins within one window after it."""
        after = window if is_halt(self.rule) else 0.0
        return self.last_true is not None and self.last_true + after < effect.began

    @property
    def is_true(self) -> bool:
        """Whether its condition holds now, though it may not count yet. False where its verdict is not made yet."""
        return isinstance(self.how, Verdict) and bool(self.how.truth)


def too_early(
    rule: Rule, entity: Labels, verdict: Verdict, memory: Memory, held: float, watched: float, *, proven: bool
) -> Judgement:
    """A rule whose condition holds, for less than is needed. It is clear, but unknown while nobody has watched for as
    long as that: the condition may have held long before. Both in seconds."""
    needed = needed_duration(rule, proven=proven)
    reason = f"true for {render(held, 'seconds')}, it counts after {render(seconds(needed), 'seconds')}"
    early = Judgement(rule, entity, "clear", reason, verdict, memory.true_since, early=held, unproven=not proven)
    if watched >= seconds(needed):
        return early
    return msgspec.structs.replace(early, outcome="unknown", why=f"{TOO_EARLY}: {reason}")


def harmless(cause: Judgement, judgements: Iterable[Judgement]) -> bool:
    """Whether the symptoms by which a cause does harm are known to be clear on its entity: it is information."""
    return known_clear(cause.rule.harm, cause.entity, judgements)


def known_clear(codes: Collection[str], entity: Labels, judgements: Iterable[Judgement]) -> bool:
    """Whether rules are known to be clear on an entity: all of them that can be judged of it, and at least one."""
    if not codes:
        return False
    seen = [j for j in judgements if j.rule.code in codes and j.entity == entity]
    kept = [j.outcome == "clear" and j.early is None for j in seen if j.outcome != "n/a"]
    return bool(kept) and all(kept)
