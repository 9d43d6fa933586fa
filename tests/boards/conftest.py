"""Boards against a real Prometheus, and against Grafana's own published types.

    pytest tests/boards
    KVITALS_BOARDS_MANIFEST=write pytest tests/boards      after boards or recordings changed; then read the difference

Without the command `prometheus` on PATH the tests that need it fail; they are never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvitals.dashboards import boards
from kvitals.rules.loader import Knowledge, load
from tests.boards.sources import Replayed, replays
from tests.oracle.oracle_server import Prometheus, prometheus


@pytest.fixture(scope="session")
def knowledge() -> Knowledge:
    return load()


@pytest.fixture(scope="session")
def built(knowledge: Knowledge) -> dict[str, dict[str, Any]]:
    return boards.built(knowledge, "https://kvitals.example.com/runbooks")


@pytest.fixture(scope="session")
def replayed(knowledge: Knowledge) -> dict[str, Replayed]:
    return replays(knowledge)


@pytest.fixture(scope="session")
def stored(replayed: dict[str, Replayed], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has every sample of the agents' windows and signals, at its time, stale markers too."""
    try:
        with prometheus(tmp_path_factory.mktemp("prometheus")) as server:
            server.write([frame for one in replayed.values() for frame in (*one.frames(), *one.signals())])
            yield server
    except RuntimeError as error:
        pytest.fail(str(error))
