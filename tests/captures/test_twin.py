"""The twin on recorded changes of a real vLLM: the floor of what was seen, see docs/measured.md."""

import pytest

from tests.captures.twin import scores


@pytest.mark.system
def test_predictions_of_recorded_changes_have_the_right_direction() -> None:
    several = scores()
    predicted = [score for score in several if score.predicted]
    assert {score.name for score in predicted} >= {"slots_lowered forward", "slots_lowered back"}
    assert len(predicted) >= 4
    assert all(right for score in predicted for right in score.directions())
    inside = [one for score in predicted for one in score.inside()]
    assert sum(inside) >= 7
    assert len(inside) == 3 * len(predicted)
    for score in several:
        assert (
            score.predicted
            or "did not vary enough" in score.document.no_prediction
            or ("--kv-events-config" in score.document.no_prediction)
        )
