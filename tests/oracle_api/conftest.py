"""Our HTTP API against a real Prometheus that holds the same samples (those of `tests/oracle`).

    pytest tests/oracle_api

Both get the same requests over HTTP. Status, content type and the shape of the answer must be equal, values
to 1e-9; of errors the text may differ. Without the command `prometheus` on PATH the tests fail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "oracle"))

import oracle_data
from oracle_server import Prometheus, prometheus


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    try:
        with prometheus(tmp_path_factory.mktemp("prometheus")) as server:
            server.write(oracle_data.frames())
            yield server
    except RuntimeError as error:
        pytest.fail(str(error))
