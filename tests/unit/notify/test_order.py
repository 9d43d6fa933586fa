"""Pages leave before tickets, several diagnoses run at once with a bound, and none holds up a message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvitals.app.notify import service
from kvitals.app.notify.finding_match import DiagnosisRequest
from kvitals.app.notify.notice_builder import Diagnosis
from kvitals.app.notify.order import Card, Line, card
from kvitals.config import WebhookTarget
from kvitals.rules.finding import Triage
from tests.unit.notify.notify_stage import ENGINE, alert, body, diagnosing, message, stand
from tests.unit.notify.test_notify_service import post, running, settled, table

A, B = frozenset({(("engine", "a"),)}), frozenset({(("engine", "b"),)})
TICKET, PAGE = 1, 2


def order(*several: Card) -> list[int]:
    """The ids in the order in which they are dealt with, one at a time."""
    line, found = Line(), []
    line.add(several)
    while (one := line.next()) is not None:
        found.append(one.id)
        line.done(one)
    return found


def test_pages_come_first_and_otherwise_the_oldest() -> None:
    assert order(Card(1, TICKET, A), Card(2, TICKET, B), Card(3, PAGE, frozenset())) == [3, 1, 2]


def test_nothing_overtakes_a_message_of_the_same_entity() -> None:
    assert order(Card(1, TICKET, B), Card(2, TICKET, A), Card(3, PAGE, A)) == [2, 3, 1]


def test_a_message_waits_while_another_of_its_entity_is_dealt_with() -> None:
    line = Line()
    line.add([Card(1, TICKET, A), Card(2, PAGE, A | B), Card(3, TICKET, B)])
    first = line.next()
    assert first is not None and first.id == 1 and line.next() is None
    line.again(first)
    assert line.next() is first
    line.done(first)
    second = line.next()
    assert second is not None and second.id == 2


def test_a_message_is_as_urgent_as_what_fires_in_it() -> None:
    assert card(1, message(alert(severity="ticket"), alert(severity="page"))).urgency == PAGE
    assert card(1, message(alert("LAT01", "resolved", "page"))).urgency == 0


class Slow:
    """A diagnosis that waits until it is let go."""

    def __init__(self, document: Triage | None) -> None:
        self.document = document
        self.asked: list[str] = []
        self.now = self.most = 0
        self.go = asyncio.Event()

    async def __call__(self, about: DiagnosisRequest) -> Diagnosis:
        self.asked.append(about.entity["engine"])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.go.wait()
        finally:
            self.now -= 1
        found: Diagnosis = await diagnosing(self.document)(about)
        return found


async def test_no_message_waits_for_a_diagnosis_that_takes_long(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FIRST_SECONDS", 0.3)
    monkeypatch.setattr(service, "AGAIN_SECONDS", (0.05,))
    slow = Slow(full_cache)
    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, slow) as (one, url):
        for number in range(20):
            await post(url, body(alert("LAT01", engine=f"e{number}")))
        await post(url, body(alert("LAT01", severity="page")))
        await there.count(21)
        without = [told for _, _, told in there.came]
        assert all("follows" in told["judged"] and told["code"] == "" for told in without)
        assert slow.most == service.MAX_DIAGNOSES
        async with asyncio.timeout(20):
            while len(one._looking) < 21:  # noqa: ASYNC110 (it has no event)
                await asyncio.sleep(0.01)
        await one._in_thread(lambda: None)  # what looks read of their incidents was asked for before
        await asyncio.sleep(0.05)
        slow.go.set()
        await there.count(22)  # the engine that the document has a cause for
    (*_, (_, _, last)) = there.came
    assert (last["change"], last["code"]) == ("cause", "KVC01")
    assert slow.asked.count(ENGINE) == 1  # the look took the diagnosis that was under way


async def test_a_page_is_diagnosed_before_the_tickets_that_wait(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_DIAGNOSES", 1)
    monkeypatch.setattr(service, "MAX_MESSAGES", 1)
    slow = Slow(full_cache)
    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, slow) as (one, url):
        for number in range(5):
            await post(url, body(alert("LAT01", engine=f"e{number}")))
        await post(url, body(alert("LAT01", severity="page")))
        slow.go.set()
        await there.count(6)
        await settled(one, waiting=0)
    pages = [i for i, (_, _, told) in enumerate(there.came) if told["severity"] == "page"]
    assert pages and pages[0] <= 1


async def test_messages_of_one_engine_make_one_incident(full_cache: Triage, tmp_path: Path) -> None:
    slow: Any = Slow(full_cache)
    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, slow) as (one, url):
        for code in ("LAT01", "LAT03", "KVC01"):
            await post(url, body(alert(code)))
        slow.go.set()
        await there.count(1)
        await settled(one, waiting=0)
        assert (await one.facts()).incidents == 1
