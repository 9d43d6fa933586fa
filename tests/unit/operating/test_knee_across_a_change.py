"""`kvitals knee` on a recording of a real engine that was restarted with more slots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvitals.ui.cli.main import main

RAISED = Path(__file__).parents[2] / "captures" / "changes" / "slots_raised.kvcap"


def test_the_last_configuration_is_fitted_alone_and_stated(capsys: pytest.CaptureFixture[str]) -> None:
    """With 2 slots no first token kept its objective; with 16 all of them did."""
    with pytest.raises(SystemExit):
        main(["knee", str(RAISED), "--json"])
    (point,) = json.loads(capsys.readouterr().out)
    assert point["changed"] == ["slots 2 → 16"]
    assert point["start"] >= point["changed_at"]
    assert point["steps"] < 16
    ttft = next(one for one in point["limits"] if one["objective"] == "ttft_p99")
    assert "met at all observed loads" in ttft["why"]


def test_the_terminal_states_the_change(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["knee", str(RAISED)])
    assert "slots 2 → 16. Only steps after that change are counted." in " ".join(capsys.readouterr().out.split())
