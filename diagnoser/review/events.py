"""What changed in the time: settings, versions, restarts, engines that came and went, and what the agent noted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from kvitals.diagnoser.review.incidents import TOLD
from kvitals.diagnoser.review.result import ReviewEvent
from kvitals.diagnoser.review.review_steps import ENGINE, ReviewArrays, over, promql_time
from kvitals.diagnoser.review.words import count
from kvitals.diagnoser.steps import Ask
from kvitals.series.history.event_log import HistoryEvent
from kvitals.series.types import Labels

MOST = 30
MOST_TIMES = 6
"""A fact that changes more often than this is no setting."""
_E = ", ".join(ENGINE)
_SETTING = "kvitals_engine_fact"


def noted_events(events: Iterable[HistoryEvent]) -> list[ReviewEvent]:
    """What the agent wrote down, but for what is told of findings elsewhere."""
    return [
        ReviewEvent(one.t, one.kind, _who(one.entity), one.text) for one in events if one.kind not in (TOLD, "finding")
    ]


def order_events(ask: Ask, seen: ReviewArrays, others: Iterable[ReviewEvent]) -> tuple[list[ReviewEvent], int]:
    """All of it in order of time, and how many were left out."""
    found = [*others, *_settings(ask, seen), *_versions(ask, seen), *_restarts(ask, seen), *_came_and_went(seen)]
    found = sorted(
        set(found), key=lambda one: (one.t, one.kind, one.who, one.text)
    )  # a fact may be told by several sources
    return found[-MOST:], max(len(found) - MOST, 0)


def _settings(ask: Ask, seen: ReviewArrays) -> Iterator[ReviewEvent]:
    """Facts of the configuration that changed from one step to the next."""
    of = promql_time(seen.step)
    changed = f"(changes({_SETTING}[{of}]) > 0)"
    values: dict[Labels, dict[float, list[float | None]]] = {}
    for place, text in enumerate((f"{_SETTING} offset {of} and {changed}", f"{_SETTING} and {changed}")):
        for one in over(ask, text, seen.grid):
            for t, value in zip(one.times.tolist(), one.values.tolist(), strict=True):
                row = values.setdefault(one.labels.drop("__name__"), {}).setdefault(t, [None, None])
                row[place] = value
    for labels, rows in values.items():
        for t, (before, after) in rows.items() if len(rows) <= MOST_TIMES else ():
            if before is not None and after is not None and before != after:
                text = f"{labels.get('fact', '')}: {count(before)} before, {count(after)} now"
                yield ReviewEvent(t, "setting", _who(labels), text)


def _versions(ask: Ask, seen: ReviewArrays) -> Iterator[ReviewEvent]:
    """Engines whose version is another than in the step before."""
    there: dict[Labels, dict[float, str]] = {}
    text = f'count by ({_E}, version) (kvitals_engine_info{{version!=""}})'
    for one in over(ask, text, seen.grid):
        for t in one.times.tolist():
            there.setdefault(one.labels.keep(ENGINE), {})[t] = one.labels.get("version", "")
    for entity, of in there.items():
        times = sorted(of)
        for before, after in pairwise(times):
            if of[before] != of[after]:
                yield ReviewEvent(after, "version", _who(entity), f"{of[after]}, {of[before]} before")


def _restarts(ask: Ask, seen: ReviewArrays) -> Iterator[ReviewEvent]:
    text = f"max by ({_E}) (changes(kvitals_process_start_time_seconds[{promql_time(seen.step)}])) > 0"
    for one in over(ask, text, seen.grid):
        if one.labels.get("engine"):
            for t, times in zip(one.times.tolist(), one.values.tolist(), strict=True):
                yield ReviewEvent(
                    t, "restart", _who(one.labels), "restarted" + (f" {times:.0f} times" if times > 1 else "")
                )


def _came_and_went(seen: ReviewArrays) -> Iterator[ReviewEvent]:
    for i, engine in enumerate(seen.engines):
        there = np.flatnonzero(seen.data["seen"][:, i] > 0)
        if len(there) and there[0] > 0:
            yield ReviewEvent(
                float(seen.start + there[0] * seen.step), "engine", _who(engine.entity), "seen from then on"
            )
        if len(there) and there[-1] < seen.steps - 1:
            yield ReviewEvent(float(seen.ends[there[-1]]), "engine", _who(engine.entity), "not seen any more")


def _who(labels: Mapping[str, str]) -> str:
    return next((labels[name] for name in ("engine", "pool", "node", "cluster") if labels.get(name)), "")
