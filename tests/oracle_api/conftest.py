"""Our HTTP API against a real Prometheus that holds the same samples (those of `tests/oracle`).

    pytest tests/oracle_api

Both get the same requests over HTTP. Status, content type and the shape of the answer must be equal, values
to 1e-9; of errors the text may differ. Without the command `prometheus` on PATH the tests fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracle import oracle_data
from tests.oracle.oracle_server import Prometheus, prometheus


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    try:
        with prometheus(tmp_path_factory.mktemp("prometheus")) as server:
            server.write(oracle_data.frames())
            yield server
    except RuntimeError as error:
        pytest.fail(str(error))
