"""What a lever will do, in numbers, where the ledger's reuse curve, the operating point or a formula can tell.

Predictions are data, `predicts` in the levers' files, each a query for what a signal will be. They hold at a like load;
what came of one is in `kvitals.diagnoser.change_effect`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec

from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.questions import Questions
from kvitals.diagnoser.text import render, render_difference
from kvitals.rules.finding import LeverAdvice, LeverSetting, PredictedValue
from kvitals.rules.loader import SIGNAL_PREFIX
from kvitals.rules.model import Prediction

_SETTING = re.compile(r"\$(now|to)\b")


class Predictions:
    """The effects of levers that are advised at one moment."""

    def __init__(self, ask: Questions) -> None:
        self._ask = ask

    def with_effects(self, advice: LeverAdvice, judgement: Judgement) -> LeverAdvice:
        """The same advice, with what it will do as far as that can be told."""
        found = list(self._of(advice, judgement))
        return msgspec.structs.replace(advice, predicted=found) if found else advice

    def _of(self, advice: LeverAdvice, judgement: Judgement) -> Iterator[PredictedValue]:
        told, knowledge = set(), self._ask.judge.knowledge
        for one in knowledge.levers[advice.lever].predicts:
            signal = knowledge.signals[one.signal]
            if one.signal in told or signal.scope != judgement.rule.scope:
                continue
            found = self._one(one, advice.setting, judgement)
            if found is not None:
                told.add(one.signal)
                yield found

    def _one(self, one: Prediction, setting: LeverSetting | None, judgement: Judgement) -> PredictedValue | None:
        """None where a number is missing."""
        values = _numbers(setting)
        asked = {text for query in (one.to, one.before or "") for text in _SETTING.findall(query)}
        if not asked <= values.keys():
            return None
        to = self._number(one.to, judgement, values)
        before = self._number(one.before or f"{SIGNAL_PREFIX}{one.signal}", judgement, values)
        if to is None or before is None:
            return None
        if one.bound == "at least" and to > before:  # the best that it can be is worse: the formula does not fit here
            return None
        error = self._number(one.error, judgement, values) if one.error else None
        unit = self._ask.judge.knowledge.signals[one.signal].unit
        text = f"{render(before, unit)} → {_bounded(one.bound, before, render(to, unit), to)}"
        return PredictedValue(
            metric=one.signal,
            title=one.title,
            from_=before,
            to=to,
            unit=unit,
            bound=one.bound,
            error=error,
            method=" ".join(one.how.split()),
            text=text + (f", give or take {render_difference(error, unit)}" if error else ""),
        )

    def _number(self, text: str, judgement: Judgement, values: dict[str, str]) -> float | None:
        """The value of a query for the judgement's entity; None where it has none, or no finite one."""
        value = self._ask.number(judgement, text, values)
        return value if value is not None and math.isfinite(value) else None


def _bounded(bound: str, before: float, told: str, to: float) -> str:
    """A value and its bound, in words: what can not be passed on the good side is the best that there can be."""
    best = (bound == "at least" and to < before) or (bound == "at most" and to > before)
    return f"{told} at best" if best else f"{bound} {told}"


def _numbers(setting: LeverSetting | None) -> dict[str, str]:
    """A setting's values, those that are numbers."""
    found = {}
    for name, text in (("now", setting.now), ("to", setting.to)) if setting is not None else ():
        try:
            if math.isfinite(float(text)):
                found[name] = text
        except ValueError:
            continue
    return found
