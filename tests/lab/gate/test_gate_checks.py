"""The counts of `make live-gate`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.gate.__main__ import checks, report, with_requests
from tests.lab.incidents.recording import CAPTURES


def figures(code: str, hit_rate: float | None, ttft: float) -> dict[str, Any]:
    return {"causes": [{"code": code, "title": "x"}], "hit_rate": hit_rate, "ttft_p50": ttft}


def answer(candidate: dict[str, Any] | None) -> dict[str, Any]:
    return {"recorded": figures("KVC01", 0.5, 1.0), "candidate": candidate, "outcome": "returns", "why": ""}


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (figures("KVC01", 0.519, 1.19), (True, True, True)),
        (figures("ENG01", 0.6, 1.3), (False, False, False)),
        (figures("KVC01", None, 1.0), (True, None, True)),
        (None, (None, None, None)),
    ],
)
def test_a_play_is_held_against_its_recording(candidate: Any, expected: tuple[bool | None, ...]) -> None:
    assert tuple(checks(answer(candidate)).values()) == expected


def test_a_play_that_is_not_judged_counts_against_the_share(capsys: pytest.CaptureFixture[str]) -> None:
    same, unjudged = answer(figures("KVC01", 0.5, 1.0)), answer(None)
    assert report([same] * 18 + [unjudged] * 2)
    assert not report([same] * 17 + [unjudged] * 3)
    assert "cause: the same in 17 of 17, 3 not judged" in capsys.readouterr().out


def test_there_are_recorded_incidents_with_requests() -> None:
    assert len(with_requests(sorted(CAPTURES.glob("*.kvcap")))) == 16
