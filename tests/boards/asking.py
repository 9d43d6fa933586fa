"""A board's queries as Grafana sends them once its variables are chosen, and what comes back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvitals.dashboards.board_files import panels_of
from kvitals.dashboards.queries import WINDOW
from tests.support import grafana

Series = dict[tuple[tuple[str, str], ...], list[tuple[float, float]]]
"""Labels without the cluster's -> times and values."""


@dataclass(frozen=True)
class Asked:
    """One query of one panel."""

    board: str
    panel: str
    ref: str
    expr: str
    instant: bool
    least_step: float  # seconds
    closed: bool = False  # whether Grafana sends it only when somebody opens its row

    @property
    def place(self) -> str:
        return f"{self.board}: {self.panel}"

    def filled(self, step: float, cluster: str = ".*", engine: str = ".*") -> str:
        """The query as Grafana sends it. `step`: seconds, of a range; no shorter than the query's least step."""
        expr = self.expr.replace("$cluster", cluster).replace("$engine", engine).replace("$tenant", ".*")
        return expr.replace(WINDOW, f"{max(step, self.least_step):g}s")

    def parameters(self, start: float, end: float, step: float, **chosen: str) -> tuple[str, dict[str, str]]:
        """The path below /api/v1 and the form. `chosen`: see `filled`."""
        query = self.filled(step, **chosen)
        if self.instant:
            return "query", {"query": query, "time": f"{end:.3f}"}
        return "query_range", {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}


def asked(boards: dict[str, dict[str, Any]]) -> list[Asked]:
    """Every query of every panel."""
    found = []
    for path, board in boards.items():
        name, shown = path.split("/")[-1].removesuffix(".json"), {panel["id"] for panel in board["panels"]}
        for panel in panels_of(board):
            closed = panel["id"] not in shown
            for t in panel["targets"]:
                least = grafana.seconds(t["interval"])
                found.append(Asked(name, panel["title"], t["refId"], t["expr"], t["instant"], least, closed))
    return found


def marks_asked(boards: dict[str, dict[str, Any]]) -> list[Asked]:
    """Every query of the marks on a board's panels, which Grafana sends with each load."""
    return [
        Asked(
            path.split("/")[-1].removesuffix(".json"),
            mark["name"],
            "mark",
            t["expr"],
            False,
            grafana.seconds(t["interval"]),
        )
        for path, board in boards.items()
        for mark in board["annotations"]["list"]
        for t in [mark["target"]]
    ]


def series(answer: dict[str, Any]) -> Series:
    """What an answer of the HTTP API holds. Raises ValueError with the error where it holds one."""
    if answer["status"] != "success":
        raise ValueError(f"{answer['errorType']}: {answer['error']}")
    found: Series = {}
    for one in answer["data"]["result"]:
        labels = tuple(sorted((k, v) for k, v in one["metric"].items() if k != "cluster"))
        points = one["values"] if "values" in one else [one["value"]]
        found[labels] = [(float(t), float(v)) for t, v in points]
    return found


def draws(found: Series) -> bool:
    """Whether anything is to be seen: NaN says that there is too little traffic."""
    return any(not math.isnan(v) for points in found.values() for _, v in points)


def differences(mine: Series, theirs: Series, tolerance: float) -> Iterator[str]:
    for labels in mine.keys() ^ theirs.keys():
        yield f"only {'ours' if labels in mine else 'theirs'} has {dict(labels)}"
    for labels in mine.keys() & theirs.keys():
        a, b = dict(mine[labels]), dict(theirs[labels])
        if a.keys() != b.keys():
            yield f"{dict(labels)} has values on one side only at {sorted(a.keys() ^ b.keys())[:3]}"
        for t in a.keys() & b.keys():
            if not (_both_nan(a[t], b[t]) or math.isclose(a[t], b[t], rel_tol=tolerance, abs_tol=1e-12)):
                yield f"{dict(labels)} at {t}: ours {a[t]!r}, theirs {b[t]!r}"


def _both_nan(a: float, b: float) -> bool:
    return math.isnan(a) and math.isnan(b)
