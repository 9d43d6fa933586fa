"""How much speaks for a cause beyond its own rule: what bound the engine, and what began first.

Both move its confidence, with their numbers as reasons. What bounds an engine is computed by
`kvitals.diagnoser.binding`; a rule says in `binds` which constraints it claims. When something began is known only to
the window that its signals look over: true since T means that it began between T less that window and T. So an order is
told only where the two do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kvitals.diagnoser.binding import CONSTRAINTS, UNKNOWN, over_known
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.text import render
from kvitals.rules.compiled_signal import compile_signal
from kvitals.rules.expressions import expression
from kvitals.rules.loader import SIGNAL_PREFIX
from kvitals.rules.model import SCOPES, Constraint, EvidenceQuery, Rule
from kvitals.series.promql import Expr, Use, selectors
from kvitals.series.types import Labels

BOUND, UNBOUND = 0.5, 0.1
"""Shares of the time: from the first on a constraint is what binds, below the second it is something else. In between
what speaks for it grows evenly, so that a share that wavers about a limit does not make the order of causes waver."""
GAIN, LOSS = 0.05, 0.1
_WORDS: Mapping[str, str] = {
    "fault": "a fault",
    "kv": "KV memory",
    "slots": "slots",
    "token_budget": "the tokens of a step",
    "deferral": "deferral",
    "room": "room",
    "arrival": "arrivals",
}
Order = Literal["first", "after", ""]


@dataclass(frozen=True)
class Weight:
    """What speaks for a cause or against it. change: to its confidence."""

    change: float = 0.0
    why: tuple[str, ...] = ()


class Weighing:
    """Weighs the causes of one moment."""

    def __init__(self, judge: Judge, span: EvaluationSpan) -> None:
        self._judge = judge
        self._span = span
        self._shares = _shares(judge)  # at once: later a server is asked about a few entities only

    def weight(self, cause: Judgement, explained: Sequence[Judgement]) -> Weight:
        """Of a fired cause; `explained`: what it explains, here and now."""
        if cause.rule.kind != "cause":
            return Weight()
        found = [*self._by_what_binds(cause), *self._by_order(cause, explained)]
        return Weight(sum(change for change, _ in found), tuple(why for _, why in found))

    def evidence(self, cause: Judgement) -> list[EvidenceQuery]:
        """A query for the share of time that what the rule claims bound the engine, where that is known."""
        if self._claimed(cause) <= UNBOUND:  # what hardly bound is no proof of the rule
            return []
        mine = f'sum by ($scope) (kvitals_binding_share{{constraint=~"{"|".join(cause.rule.binds)}"}})'
        known = f'sum by ($scope) (kvitals_binding_share{{constraint!="{UNKNOWN}"}})'
        return [EvidenceQuery(f"Share of the time that {_named(cause.rule.binds)} bound", f"{mine} / {known}", "ratio")]

    def _claimed(self, cause: Judgement) -> float:
        """The share of the known time that the constraints of a rule bound its entity."""
        shares = self._shares.get(cause.entity, {})
        return sum(shares.get(one, 0.0) for one in cause.rule.binds)

    def order(self, cause: Judgement, symptoms: Sequence[Judgement]) -> tuple[Order, float]:
        """Whether a cause began before all of these or after all of them, and by how many seconds at least."""
        if cause.since is None or not symptoms:
            return "", 0.0
        leads = [s.since - self._lag(s.rule) - cause.since for s in symptoms if s.since and not s.since_at_least]
        if len(leads) == len(symptoms) and min(leads) > 0:
            return "first", min(leads)
        lags = [cause.since - self._lag(cause.rule) - s.since for s in symptoms if s.since]
        if not cause.since_at_least and len(lags) == len(symptoms) and min(lags) > 0:
            return "after", min(lags)
        return "", 0.0

    def _by_what_binds(self, cause: Judgement) -> Iterator[tuple[float, str]]:
        shares = self._shares.get(cause.entity)
        if not cause.rule.binds or shares is None:
            return
        mine = self._claimed(cause)
        other = max(shares.keys() - set(cause.rule.binds), key=lambda one: shares[one], default=None)
        said = f"{_named(cause.rule.binds)} bound {render(mine, 'ratio')} of the time"
        if mine > UNBOUND:
            yield GAIN * min(1.0, (mine - UNBOUND) / (BOUND - UNBOUND)), said
        elif other and shares[other] >= BOUND:
            yield -LOSS * (1.0 - mine / UNBOUND), f"{said}, {_named([other])} {render(shares[other], 'ratio')}"

    def _by_order(self, cause: Judgement, explained: Sequence[Judgement]) -> Iterator[tuple[float, str]]:
        symptoms = [judgement for judgement in explained if judgement.rule.kind == "symptom"]
        order, by = self.order(cause, symptoms)
        codes = ", ".join(dict.fromkeys(symptom.rule.code for symptom in symptoms))
        if order == "first":
            yield GAIN, f"it began at least {render(by, 'seconds')} before {codes}"
        elif order == "after":
            yield -LOSS, f"{codes} began at least {render(by, 'seconds')} before it"

    def _lag(self, rule: Rule) -> float:
        """Seconds that a rule's signals look back: what it says of now may have begun so much earlier."""
        return max((self._reach(name, ()) for name in self._judge.needs(rule)), default=self._span.fast)

    def _reach(self, name: str, within: tuple[str, ...]) -> float:
        """Seconds that a signal looks back, over the signals that it is made of."""
        signal = self._judge.knowledge.signals.get(name)
        if signal is None or name in within:
            return 0.0
        expr = compile_signal(signal, self._span.windows, expression).expr
        return max(
            (use.reach + self._reach(use.name.removeprefix(SIGNAL_PREFIX), (*within, name)) for use in _reads(expr)),
            default=0.0,
        )


@lru_cache(maxsize=4096)
def _reads(expr: Expr) -> list[Use]:
    """What an expression reads, with how far back; the same few are asked about again and again."""
    return selectors(expr, lookback=0.0)


def _shares(judge: Judge) -> dict[Labels, dict[Constraint, float]]:
    """Of the time of which it is known what bound each engine, the share of each constraint."""
    found: dict[Labels, dict[Constraint, float]] = {}
    judge.signals.focus(())
    told = judge.signals.now.evaluate(expression("kvitals_binding_share"))
    for labels, value in () if isinstance(told, float) else told:
        constraint = next((one for one in CONSTRAINTS if one == labels.get("constraint", "")), None)
        if constraint is not None:
            found.setdefault(labels.keep(SCOPES["engine"]), {})[constraint] = float(value)
    return {entity: known for entity, shares in found.items() if (known := over_known(shares))}


def _named(constraints: Sequence[str]) -> str:
    """Constraints in words, of those that say more than that there was no room."""
    return " or ".join(_WORDS[one] for one in constraints if one != "room" or len(constraints) == 1)
