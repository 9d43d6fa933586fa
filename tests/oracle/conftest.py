"""Our PromQL evaluator against a real Prometheus.

A Prometheus (Debian's package `prometheus`, 2.42) is started on loopback with an empty database in a
temporary folder, gets exactly the samples of `oracle_data` through its remote-write receiver, stale markers
and NaN included, and is asked the same questions as we are: at a dozen instants and over a range. Values must
agree to 1e-9 relative, label sets exactly, and where one side refuses, so must the other.

    pytest tests/oracle                                 the fixed questions and the fixed generated ones
    KVITALS_ORACLE_EXAMPLES=5000 pytest tests/oracle    as many generated expressions, different every time

Without the command `prometheus` on PATH the tests fail; they are never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracle import oracle_data
from tests.oracle.oracle_compare import Oracle
from tests.oracle.oracle_server import prometheus


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    frames = oracle_data.frames()
    try:
        server = prometheus(tmp_path_factory.mktemp("prometheus"))
        with server as running:
            running.write(frames)
            both = Oracle(running, oracle_data.Memory(frames))
            yield both
            both.pool.shutdown()
    except RuntimeError as error:
        pytest.fail(str(error))
