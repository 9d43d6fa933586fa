"""Counts that a server answers."""

import pytest

from kvitals.diagnoser.sources.presence import _by_pool
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.series.types import Labels


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_count_that_is_no_number_is_the_servers_fault(value: float) -> None:
    with pytest.raises(ServerError, match="no number"):
        _by_pool([(Labels({"pool": "chat"}), value)])


def test_counts_are_whole_numbers() -> None:
    assert _by_pool([(Labels({"pool": "chat"}), 6.0)]) == {Labels({"pool": "chat"}): 6}
