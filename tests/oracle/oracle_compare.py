"""Asks both sides the same question and says how the answers differ."""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kvitals.series.promql import Expr, PromQLError, Vector, evaluate, evaluate_range, parse
from kvitals.series.types import Labels, SeriesSource
from tests.oracle import oracle_data
from tests.oracle.oracle_server import Prometheus, labels_of

TOLERANCE = 1e-9

# Instants: between samples, on a sample, in the gaps, after the restarts, after the end, before the start.
INSTANTS = tuple(round(oracle_data.START + s, 3) for s in (-60.0, 300.0, 912.345, 1543.217, 1861.5, 2820.004, 3285.0))
RANGE = (oracle_data.START - 120.0, oracle_data.START + 3700.0, 77.0)

Points = dict[float, float]
Answer = dict[Labels, Points] | str
"""Series by labels, or the text of the error."""


@dataclass
class Oracle:
    """Both sides, over the same data."""

    server: Prometheus
    source: SeriesSource
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))

    def check(self, query: str, *, ties: bool = False, slack: float = 1e-14) -> None:
        """Asserts that both sides answer `query` alike at all instants and over a range.

        ties: which of several equal values topk and bottomk keep is not defined, so labels are not compared.
        slack: absolute, for what Prometheus computes as a difference of large numbers.
        """
        theirs = self.pool.map(lambda at: self._their_instant(query, at), INSTANTS)
        range_ = self.pool.submit(self._their_range, query)
        ours, our_range = self._ours(query)
        problems = []
        for at, mine, yours in zip(INSTANTS, ours, theirs, strict=True):
            problems += _differences(f"at {at}", mine, yours, ties, slack)
        problems += _differences("over the range", our_range, range_.result(), ties, slack)
        assert not problems, "\n".join([query, *problems[:8]])

    def _ours(self, query: str) -> tuple[list[Answer], Answer]:
        """Our answers at the instants and over the range."""
        try:
            expr = parse(query)
        except PromQLError as error:
            return [str(error)] * len(INSTANTS), str(error)
        return [self._our_instant(expr, at) for at in INSTANTS], self._our_range(expr)

    def _their_instant(self, query: str, at: float) -> Answer:
        return _their_answer(self.server.ask("query", query=query, time=f"{at:.3f}"), at)

    def _their_range(self, query: str) -> Answer:
        start, end, step = RANGE
        asked = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return _their_answer(self.server.ask("query_range", query=query, **asked), None)

    def _our_instant(self, expr: Expr, at: float) -> Answer:
        try:
            value = evaluate(expr, self.source, at)
        except PromQLError as error:
            return str(error)
        if isinstance(value, Vector):
            return _unique((labels, {at: v}) for labels, v in value)
        return {Labels(): {at: value}}

    def _our_range(self, expr: Expr) -> Answer:
        try:
            series = evaluate_range(expr, self.source, *RANGE)
        except PromQLError as error:
            return str(error)
        return _unique((s.labels, dict(zip(s.times.tolist(), s.values.tolist(), strict=True))) for s in series)


def _unique(series: Iterable[tuple[Labels, Points]]) -> dict[Labels, Points]:
    found: dict[Labels, Points] = {}
    for labels, points in series:
        assert labels not in found, f"{labels} is there twice"
        found[labels] = points
    return found


def _their_answer(answer: dict[str, Any], at: float | None) -> Answer:
    if answer["status"] != "success":
        return f"{answer['errorType']}: {answer['error']}"
    data = answer["data"]
    if data["resultType"] == "scalar":
        return {Labels(): {at or 0.0: float(data["result"][1])}}
    if data["resultType"] == "vector":
        assert at is not None
        return _unique((labels_of(s["metric"]), {at: float(s["value"][1])}) for s in data["result"])
    return _unique((labels_of(s["metric"]), {t: float(v) for t, v in s["values"]}) for s in data["result"])


def _differences(where: str, ours: Answer, theirs: Answer, ties: bool, slack: float) -> list[str]:
    if isinstance(ours, str) or isinstance(theirs, str):
        if isinstance(ours, str) and isinstance(theirs, str):
            return []
        return [f"{where}: one side fails\n  ours   {_short(ours)}\n  theirs {_short(theirs)}"]
    if ties:
        return _tied_differences(where, ours, theirs)
    problems = [f"{where}: only ours has {x} {_short(ours[x])}" for x in ours if x not in theirs]
    problems += [f"{where}: only theirs has {x} {_short(theirs[x])}" for x in theirs if x not in ours]
    for labels in ours.keys() & theirs.keys():
        mine, yours = ours[labels], theirs[labels]
        if mine.keys() != yours.keys():
            times = sorted(mine.keys() ^ yours.keys())
            problems.append(f"{where}: {labels} has values on one side only at {times[:5]}")
        problems += [
            f"{where}: {labels} at {t}: ours {mine[t]!r}, theirs {yours[t]!r}"
            for t in mine.keys() & yours.keys()
            if not close(mine[t], yours[t], slack)
        ]
    return problems


def _tied_differences(where: str, ours: dict[Labels, Points], theirs: dict[Labels, Points]) -> list[str]:
    """As above, with the values at each time compared as a bag."""
    problems = []
    mine, yours = _bags(ours), _bags(theirs)
    for t in mine.keys() | yours.keys():
        a, b = mine.get(t, []), yours.get(t, [])
        if len(a) != len(b) or not all(map(close, a, b)):
            problems.append(f"{where}: at {t}: ours {a}, theirs {b}")
    return problems


def _bags(series: dict[Labels, Points]) -> dict[float, list[float]]:
    bags: dict[float, list[float]] = {}
    for points in series.values():
        for t, value in points.items():
            bags.setdefault(t, []).append(value)
    return {t: sorted(values, key=lambda v: (math.isnan(v), v)) for t, values in bags.items()}


def close(a: float, b: float, slack: float = 0.0) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=slack)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 300 else text[:300] + "..."
