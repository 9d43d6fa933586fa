"""A server with more engines than are read at once: a part of them is read, and the rest is stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from kvitals.app.pipeline import Setup
from kvitals.app.sources import prometheus_fleet
from kvitals.app.sources.prometheus_fleet import dialect
from kvitals.config import Config
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.sources.prometheus import PrometheusAccess, ServerError
from kvitals.diagnoser.sources.served import ServedFamilies, Snapshot
from kvitals.diagnoser.sources.survey import Survey
from kvitals.rules.expressions import expression
from kvitals.rules.loader import load
from kvitals.series.types import METRIC_NAME, Labels
from tests.unit.diagnoser.test_remote import Server

SURVEY = Survey(frozenset({ENTITIES}), 1000.0, 5.0, agents=True, cold=False)
SETUP = Setup(load(), Config())


class Fleet(Server):
    """So many engines of each pool. left_out: as of a client."""

    def __init__(self, pools: Mapping[str, int], only: Mapping[str, Sequence[str]] | None = None) -> None:
        rows = [
            (Labels({METRIC_NAME: ENTITIES, "engine": f"{pool or 'none'}-{n}", "node": "n", "pool": pool}), 1.0)
            for pool, count in pools.items()
            for n in range(count)
        ]
        super().__init__(Snapshot({ENTITIES: rows}))
        self.access = PrometheusAccess("http://127.0.0.1:9090", only=only or {})
        self.left_out = ""


def engines(fleet: Fleet) -> list[str]:
    """The engines that are read."""
    served = ServedFamilies(fleet, dialect(fleet, SURVEY, SETUP))  # type: ignore[arg-type]
    expr = expression(ENTITIES)
    return sorted(labels["engine"] for labels, _ in served.instant([expr], SURVEY.at)[expr])


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_fleet, "MAX_ENGINES", 4)


def test_a_fleet_within_the_limit_is_read_whole() -> None:
    fleet = Fleet({"chat": 3, "code": 1})
    assert engines(fleet) == ["chat-0", "chat-1", "chat-2", "code-0"]
    assert fleet.left_out == ""


def test_of_more_engines_the_pools_that_fit_are_read_and_the_rest_is_stated() -> None:
    fleet = Fleet({"chat": 3, "code": 2, "batch": 1, "huge": 9})
    assert engines(fleet) == ["batch-0", "chat-0", "chat-1", "chat-2"]
    assert fleet.left_out.startswith(
        "15 engines; at most 4 are read at once. Read: 4 of pool=chat, pool=batch. Left out: "
    )
    assert "Left out: 11 engines; read them with --prometheus-only LABEL=PATTERN" in fleet.left_out


def test_engines_without_a_label_that_divides_them_are_refused_with_what_to_do() -> None:
    with pytest.raises(ServerError, match=r"6 engines; at most 4 are read at once.* --prometheus-only LABEL=PATTERN"):
        engines(Fleet({"": 6}))


@pytest.mark.parametrize(
    ("only", "read"),
    [
        ({"pool": ["code"]}, ["code-0", "code-1"]),
        ({"engine": ["*-1"]}, ["chat-1", "code-1", "none-1"]),
        ({"engine": ["*-1", "chat-?"], "pool": ["c*"]}, ["chat-1", "code-1"]),
    ],
)
def test_a_part_is_chosen_by_patterns_of_labels(only: Mapping[str, Sequence[str]], read: list[str]) -> None:
    assert engines(Fleet({"chat": 3, "code": 2, "huge": 1, "": 2}, only)) == read


def test_a_part_without_engines_is_refused() -> None:
    with pytest.raises(ServerError, match="no engine of this server has pool=nonesuch"):
        engines(Fleet({"chat": 3, "": 2}, {"pool": ["nonesuch"]}))


def test_answers_that_do_not_fit_together_are_the_servers_fault_and_not_a_busy_machine() -> None:
    """A server that answers every query with the same series does not evaluate queries."""
    fleet = Fleet({"chat": 2})
    served = ServedFamilies(fleet, prometheus_fleet.dialect(fleet, SURVEY, SETUP))  # type: ignore[arg-type]
    asked = expression(f"label_replace({ENTITIES}, 'engine', 'same', 'pool', '.*')")
    served.dialect = Refusing(served.dialect, asked)  # type: ignore[assignment]
    assert served.instant([asked], SURVEY.at)[asked] == []
    assert "do not fit together" in served.why_failed(asked)


class Refusing:
    """A dialect that the server cannot be asked one expression in, so that it is put together here."""

    def __init__(self, whole: object, expr: object) -> None:
        self._whole, self._expr = whole, expr

    def translate(self, expr: object) -> object:
        return None if expr == self._expr else self._whole.translate(expr)  # type: ignore[attr-defined]

    def local(self, name: str) -> None:
        return None
