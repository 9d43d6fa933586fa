"""A storm of messages is one look at the server, also while that look is under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kvitals.app.identity import KnownEngine, known_engine
from kvitals.app.notify import diagnosis
from kvitals.app.notify.diagnosis import OfFleet
from kvitals.app.notify.finding_match import diagnosis_request
from kvitals.app.notify.incident_tracker import Rules, settle
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.rules.finding import Triage
from tests.unit.notify.notify_stage import AT, ENGINE, alert, message


class Judged:
    def __init__(self, document: Triage, engines: Sequence[KnownEngine] = ()) -> None:
        self.document, self.engines = document, engines


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


@pytest.mark.parametrize("cold", [False, True])
async def test_a_message_names_the_pool_of_its_engine(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch, *, cold: bool
) -> None:
    """Alerts of engines have no label `pool`; the first message and the last name it all the same."""
    window = msgspec.structs.replace(full_cache.window, cold=cold)
    document = msgspec.structs.replace(full_cache, window=window)
    engines = [known_engine({"engine": ENGINE, "pool": "chat"}), known_engine({"engine": "other/0", "pool": "code"})]
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_: Judged(document, engines))
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), None)  # type: ignore[arg-type]
    first = await settle(message(alert("ENG01")), AT, (), fleet, Rules(3600.0))
    known = list(first.incidents.values())
    last = await settle(message(alert("ENG01", "resolved")), AT + 60, known, fleet, Rules(3600.0))
    for notice in (*first.notices, *last.notices):
        assert notice.where == f"engine {ENGINE} · pool chat"
        assert notice.entity == {**alert("ENG01").entity, "pool": "chat"}
    assert len(first.notices) == len(last.notices) == 1


async def test_an_alert_that_names_no_engine_gets_no_pool(full_cache: Triage, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [known_engine({"engine": ENGINE, "pool": "chat"})]
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_: Judged(full_cache, engines))
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), None)  # type: ignore[arg-type]
    about = diagnosis_request([alert()], {"cluster": "a"}, AT)
    assert (await fleet(about)).pool == ""
