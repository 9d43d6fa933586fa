"""How long a message waits before it is sent again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvitals.app.notify import sending
from kvitals.app.notify.incident_tracker import Rules, settle
from kvitals.app.notify.queue import MessageOutcome, Spool
from kvitals.app.notify.sending import Answer, Sender, asked_pause, pause
from kvitals.config import SlackTarget, WebhookTarget
from kvitals.rules.finding import Triage
from tests.unit.notify.notify_stage import AT, alert, diagnosing, message


@pytest.mark.parametrize("seconds", ["7", "7.0", "Sat, 21 Nov 2026 05:30:07 GMT"])
def test_a_pause_that_is_asked_for(seconds: str) -> None:
    assert asked_pause({"Retry-After": seconds}, 1795239000.0) == 7.0


@pytest.mark.parametrize("text", ["", "soon", "-3", "1e9", "99999999"])
def test_a_pause_is_bounded(text: str) -> None:
    assert 0 <= asked_pause({"Retry-After": text}, 0.0) <= 3600


def test_pauses_grow_up_to_a_limit() -> None:
    assert all(pause(n, 0.0) <= 1.25 * sending.LAST_RETRY_SECONDS for n in (0, 5, 50, 5000))
    assert pause(0, 40.0) == 40.0


@pytest.mark.parametrize(("status", "waiting", "most"), [(500, 200, 40), (0, 200, 40), (200, 200, 200)])
async def test_a_target_that_takes_nothing_is_not_asked_for_each_message(
    status: int, waiting: int, most: int, full_cache: Triage, tmp_path: Path
) -> None:
    """A webhook that failed got 4,326 attempts in six minutes from 200 messages."""
    now = AT
    settled = await settle(message(alert("LAT01")), AT, (), diagnosing(full_cache), Rules(3600.0))
    several = [msgspec.structs.replace(settled.notices[0], id=f"{n}", incident=f"{n}") for n in range(waiting)]
    spool = Spool(tmp_path)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(spool.open).result()
        thread.submit(spool.done, None, MessageOutcome(notices=[("hook", one) for one in several]), AT).result()
        sender = Sender("hook", WebhookTarget(url="http://h/x"), spool, thread, 86400.0, lambda: now)
        attempts = 0

        async def send(*_: Any) -> Answer:
            nonlocal attempts
            attempts += 1
            return Answer(status)

        sender._send = send  # type: ignore[method-assign]
        while now < AT + 360:
            if not await sender._one(None):  # type: ignore[arg-type]
                now += 1.0
        thread.submit(spool.close).result()
    assert 10 <= attempts <= most


@pytest.mark.parametrize(
    ("waiting", "answers", "sizes"),
    [
        (10, [], [1] * 10),
        (200, [], [200]),
        (12, [Answer(503)], [12, 12]),  # again together
        (12, [Answer(400)], [12, *[1] * 12]),  # what is refused together is sent one by one
    ],
)
async def test_what_waits_for_a_chat_is_one_message(
    waiting: int, answers: list[Answer], sizes: list[int], full_cache: Triage, tmp_path: Path
) -> None:
    now = AT
    settled = await settle(message(alert("LAT01")), AT, (), diagnosing(full_cache), Rules(3600.0))
    several = [msgspec.structs.replace(settled.notices[0], id=f"{n}", incident=f"{n}") for n in range(waiting)]
    spool = Spool(tmp_path)
    said = iter(answers)
    asked: list[int] = []
    with ThreadPoolExecutor(1) as thread:
        thread.submit(spool.open).result()
        thread.submit(spool.done, None, MessageOutcome(notices=[("chat", one) for one in several]), AT).result()
        sender = Sender("chat", SlackTarget(url_file=tmp_path / "url"), spool, thread, 86400.0, lambda: now)

        async def send(_: Any, deliveries: list[Any]) -> Answer:
            asked.append(len(deliveries))
            return next(said, Answer(200))

        sender._send = send  # type: ignore[assignment,method-assign]
        while now < AT + 60:
            if not await sender._one(None):  # type: ignore[arg-type]
                now += 1.0
        assert thread.submit(spool.counts).result()[2] == {}
        thread.submit(spool.close).result()
    assert asked == sizes
    assert sender.counts["sent"] == waiting
