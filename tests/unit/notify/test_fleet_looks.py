"""A storm of messages is one look at the server, also while that look is under way."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from kvitals.app.notify import diagnosis
from kvitals.app.notify.diagnosis import OfFleet
from kvitals.app.notify.finding_match import diagnosis_request
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.rules.finding import Triage
from tests.unit.notify.notify_stage import AT, alert


class Judged:
    def __init__(self, document: Triage) -> None:
        self.document, self.engines = document, ()


async def test_messages_of_one_moment_share_a_look(full_cache: Triage, monkeypatch: pytest.MonkeyPatch) -> None:
    moments: list[float] = []
    go = threading.Event()

    def judge(access: Any, setup: Any, at: float) -> Judged:
        moments.append(at)
        assert go.wait(20)
        return Judged(full_cache)

    monkeypatch.setattr(diagnosis, "judge_server", judge)
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), None)  # type: ignore[arg-type]
    about = [diagnosis_request([alert()], alert().entity, AT + i / 10) for i in range(8)]
    several = [asyncio.create_task(fleet(one)) for one in about]
    await asyncio.sleep(0)
    go.set()
    found = await asyncio.gather(*several)
    assert moments == [AT]
    assert all(one.lead is not None and one.lead.code == "KVC01" for one in found)


async def test_a_look_that_failed_is_not_taken_again(full_cache: Triage, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ServerError("the server is away"), Judged(full_cache)]

    def judge(access: Any, setup: Any, at: float) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(diagnosis, "judge_server", judge)
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), None)  # type: ignore[arg-type]
    about = diagnosis_request([alert()], alert().entity, AT)
    assert (await fleet(about)).how == "not judged: the server is away"
    assert (await fleet(about)).lead is not None
