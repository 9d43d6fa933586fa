"""Weeks that are made by hand, so that what a review should say of them is known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvitals.diagnoser.review.ledger import ledger
from kvitals.diagnoser.review.money import GpuPrices, price_engines
from kvitals.diagnoser.review.review_steps import Engine, ReviewArrays, StepGrid, _questions
from kvitals.diagnoser.review.work import Week, within
from kvitals.diagnoser.steps import Counts
from kvitals.series.types import Floats, Labels

HOUR = 3600.0
NAMES = tuple(_questions(HOUR, 60.0))
OBJECTIVES = {"ttft_p99": 0.5, "itl_p99": 0.2}


def engine(name: str, **place: str) -> Engine:
    return Engine(Labels({"engine": name, "node": "n"}), Labels({"model": "m", "pool": "chat", **place}))


def seen(engines: tuple[Engine, ...], steps: int, **data: float | Floats) -> ReviewArrays:
    """Of each name a number for all, or [step, engine]; `seen` is all of the time where it is not given."""
    shape = steps, len(engines)
    columns = {name: np.full(shape, np.nan) for name in NAMES} | {"seen": np.full(shape, HOUR)}
    for name, value in data.items():
        columns[name] = np.broadcast_to(np.asarray(value, dtype=np.float64), shape).copy()
    grid = StepGrid(0.0, HOUR, steps, 86400.0)
    return ReviewArrays(grid, engines, columns, {}, {}, {}, float("nan"), grid.empty(), None, {})


def week(
    of: ReviewArrays, given: GpuPrices | None = None, latencies: Mapping[str, Mapping[int, Counts]] | None = None
) -> Week:
    of = ReviewArrays(**{**vars(of), "latencies": latencies or {}})
    given = given or GpuPrices(every=2.0)
    parts = ledger(of, given.gpus)
    return Week(of, parts, price_engines(of.engines, parts.gpu_hours.sum(axis=0), given), within(of, OBJECTIVES))
