"""Taken in, kept, handed on: against stand-ins that fail, refuse, redirect and are away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from kvitals.agent.listeners import PROXY_HEADERS
from kvitals.app.escaping import plain
from kvitals.app.notify import intake, queue, sending, service, shares
from kvitals.app.notify.finding_match import DiagnosisRequest
from kvitals.app.notify.intake import PATH, add_notify
from kvitals.app.notify.notice_builder import Diagnosis
from kvitals.app.notify.notify_families import series
from kvitals.app.notify.queue import DEAD, FILE, MessageOutcome, Spool
from kvitals.app.notify.service import Notifier, TargetFacts
from kvitals.app.notify.shares import SenderShares
from kvitals.config import NotifyTable, WebhookTarget
from kvitals.rules.finding import Triage
from kvitals.rules.loader import load
from tests.support.turns import watched_turns
from tests.unit.notify.notify_stage import alert, body, diagnosing, incident, stand

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_RETRY_SECONDS", 0.02)


def table(folder: Path, *targets: WebhookTarget, **more: Any) -> NotifyTable:
    return NotifyTable(directory=folder, webhook=targets, **more)


@asynccontextmanager
async def running(
    of: NotifyTable, document: Triage | None, diagnose: Any = None
) -> AsyncIterator[tuple[Notifier, str]]:
    """A notifier behind its intake, with the address of that."""
    notifier = Notifier(of, diagnose or diagnosing(document))
    app = web.Application()
    add_notify(app, notifier, of.token_file)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield notifier, f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}"
    finally:
        await runner.cleanup()


async def post(url: str, content: bytes | BytesIO, **headers: str) -> int:
    told = {"Content-Type": "application/json", **headers}
    async with aiohttp.ClientSession() as session, session.post(url, data=content, headers=told) as response:
        await response.read()
        return response.status


async def settled(notifier: Notifier, **expected: int) -> TargetFacts:
    """How the first target fares, once it is as expected."""
    async with asyncio.timeout(20):
        while True:
            (target, *_) = (await notifier.facts()).targets.values()
            if all(getattr(target, name) == number for name, number in expected.items()):
                return target
            await asyncio.sleep(0.01)


async def test_a_message_comes_out_with_its_cause(full_cache: Triage, tmp_path: Path) -> None:
    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), full_cache) as (notifier, url):
        assert await post(url, body(alert("LAT01"))) == 200
        await there.count(1)
        await settled(notifier, sent=1, waiting=0)
    ((_, headers, told),) = there.came
    assert told["code"] == "KVC01" and headers["Idempotency-Key"] == told["id"]


async def test_one_target_that_fails_holds_up_no_other(full_cache: Triage, tmp_path: Path) -> None:
    async with stand() as bad, stand() as good:
        bad.answers = [(500, {})] * 3
        targets = WebhookTarget(url=bad.url), WebhookTarget(url=good.url)
        async with running(table(tmp_path, *targets), full_cache) as (notifier, url):
            await post(url, body(alert("LAT01")))
            await good.count(1)
            await bad.count(4)
            assert (await settled(notifier, sent=1)).retried == 3
    assert len({told["id"] for _, _, told in bad.came}) == 1


async def test_messages_of_an_incident_keep_their_order(full_cache: Triage, tmp_path: Path) -> None:
    async with stand() as there:
        there.answers = [(503, {})] * 2
        async with running(table(tmp_path, WebhookTarget(url=there.url)), full_cache) as (notifier, url):
            await post(url, body(alert("LAT01")))
            await post(url, body(alert("LAT01", "resolved")))
            await settled(notifier, sent=2)
    assert [told["status"] for _, _, told in there.came][-2:] == ["firing", "resolved"]
    assert "resolved" not in [told["status"] for _, _, told in there.came][:-1]


@pytest.mark.parametrize(("status", "why"), [(400, "HTTP 400"), (302, "redirects")])
async def test_what_is_refused_is_a_dead_letter(status: int, why: str, full_cache: Triage, tmp_path: Path) -> None:
    async with stand() as there:
        there.answers = [(status, {"Location": "http://127.0.0.1:1/elsewhere"})]
        async with running(table(tmp_path, WebhookTarget(url=there.url)), full_cache) as (notifier, url):
            await post(url, body(alert("LAT01")))
            await settled(notifier, dead=1, waiting=0)
    line = json.loads((tmp_path / DEAD).read_text())
    assert why in line["why"] and line["target"] == "webhook-1" and line["notice"]["code"] == "KVC01"
    assert not plain.ODD.search(line["why"])  # of what the target answered


async def test_what_fails_for_too_long_is_a_dead_letter(full_cache: Triage, tmp_path: Path) -> None:
    times = iter(range(0, 10_000_000, 1000))
    of = table(tmp_path, WebhookTarget(url="http://127.0.0.1:1"), give_up=3600)
    notifier = Notifier(of, diagnosing(full_cache), clock=lambda: float(next(times)))
    await notifier.open()
    await notifier.take(body(alert("LAT01")))
    await settled(notifier, dead=1, waiting=0)
    await notifier.close()
    assert "Connect" in json.loads((tmp_path / DEAD).read_text())["why"]


async def test_what_was_left_is_handed_on_by_the_next_run(full_cache: Triage, tmp_path: Path) -> None:
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), full_cache) as (notifier, url):
        await post(url, body(alert("LAT01")))
        await settled(notifier, waiting=1)
    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None) as (_, _):
        await there.count(1)
    assert there.came[0][2]["code"] == "KVC01"


async def test_a_target_that_is_gone_leaves_dead_letters(full_cache: Triage, tmp_path: Path) -> None:
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), full_cache) as (notifier, url):
        await post(url, body(alert("LAT01")))
        await settled(notifier, waiting=1)
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1", name="other")), None) as (notifier, _):
        assert (await notifier.facts()).targets["other"].waiting == 0
    assert "no longer configured" in json.loads((tmp_path / DEAD).read_text())["why"]


async def test_a_diagnosis_that_fails_or_hangs_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_SECONDS", 0.05)
    broken = [True]

    async def diagnose(_: object) -> Any:
        if broken.pop() if broken else False:
            raise ZeroDivisionError
        await asyncio.sleep(60)

    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, diagnose) as (_, url):
        await post(url, body(alert("LAT01")))
        await post(url, body(alert("LAT01", engine="another")))
        await there.count(2)
    assert ["failed" in told["judged"] or "within" in told["judged"] for _, _, told in there.came] == [True, True]


async def test_who_may_send(full_cache: Triage, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    of = table(tmp_path, WebhookTarget(url="http://127.0.0.1:1"), token_file=tmp_path / "token")
    async with running(of, full_cache) as (_, url):
        assert await post(url, body(alert())) == 401
        assert await post(url, body(alert()), Authorization="Bearer abd") == 401
        assert await post(url, body(alert()), Authorization="Bearer abc") == 200
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), full_cache) as (_, url):
        for name in PROXY_HEADERS:
            for written in {name.replace("*", "For"), name.replace("*", "Host").lower()}:
                assert await post(url, body(alert()), **{written: "10.0.0.1"}) == 403, written


async def test_a_page_in_a_browser_can_not_send(full_cache: Triage, tmp_path: Path) -> None:
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), full_cache) as (_, url):
        assert await post(url, body(alert()), **{"Content-Type": "text/plain"}) == 415
        assert await post(url, body(alert()), Origin="http://evil.example.org") == 403
        assert await post(url, body(alert()), Host="evil.example.org:9479") == 403
        assert await post(url, body(alert()), Host="localhost:9479") == 200


@pytest.mark.parametrize(("secure", "guarded", "taken"), [(True, True, 200), (True, False, 401), (False, True, 401)])
async def test_the_door_for_other_machines_has_asked(
    secure: bool, guarded: bool, taken: int, full_cache: Triage, tmp_path: Path
) -> None:
    of = table(tmp_path, WebhookTarget(url="http://127.0.0.1:1"))
    notifier = Notifier(of, diagnosing(full_cache))
    await notifier.open()
    context = ssl.create_default_context() if secure else None
    request = make_mocked_request("GET", PATH, sslcontext=context)
    intake_ = intake.MessageIntake(notifier, tmp_path / "token", guarded=guarded)
    assert (await intake_.status(request)).status == taken
    await notifier.close()


async def test_a_large_message_leaves_the_loop_to_others(full_cache: Triage, tmp_path: Path) -> None:
    one = b'{"status":"resolved","labels":{}}'
    large = b'{"alerts":[' + b",".join([one] * (intake.MAX_BODY_BYTES // (len(one) + 1) - 1)) + b"]}"
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), full_cache) as (_, url):
        with watched_turns() as turns:
            assert await post(url, large) == 200
        assert turns.longest < 0.1


async def test_bodies_are_bounded(full_cache: Triage, tmp_path: Path) -> None:
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), full_cache) as (_, url):
        assert await post(url, BytesIO(b"x" * (intake.MAX_BODY_BYTES + 1))) == 413
        assert await post(url, b"{") == 400


async def test_a_flood_is_asked_to_try_again(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "BURST", 6.0)
    monkeypatch.setattr(shares, "PER_SECOND", 0.001)
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), full_cache) as (_, url):
        assert [await post(url, body(alert())) for _ in range(4)] == [200, 200, 200, 503]


async def test_the_end_comes_whenever_something_happens_meanwhile(full_cache: Triage, tmp_path: Path) -> None:
    """Whoever waits for messages is woken and ended at about the same turn of the loop: the end must not be lost."""
    for turns in range(16):
        target = WebhookTarget(url="http://127.0.0.1:1")
        notifier = Notifier(table(tmp_path, target), diagnosing(full_cache))
        await notifier.open()
        await asyncio.sleep(0.02)  # now it waits
        ending = asyncio.create_task(notifier.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        notifier._some.set()
        done, _ = await asyncio.wait([ending], timeout=10)
        assert done, f"after {turns} turns"


async def test_a_flood_of_one_sender_leaves_the_others_their_share(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "BURST", 12.0)
    monkeypatch.setattr(shares, "PER_SECOND", 0.001)
    target = WebhookTarget(url="http://127.0.0.1:1")
    async with asyncio.timeout(30), running(table(tmp_path, target), full_cache) as (_, url):
        noisy = [await post(url, body(alert())) for _ in range(20)]
        assert noisy.count(200) == 6
        quiet = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with aiohttp.ClientSession(connector=quiet) as session:
            for _ in range(3):
                async with session.post(
                    url, data=body(alert()), headers={"Content-Type": "application/json"}
                ) as answer:
                    assert answer.status == 200


def test_shares_follow_the_senders_that_are_active() -> None:
    now = [0.0]
    taking = SenderShares(lambda: now[0])

    def taken(sender: str, seconds: int) -> int:
        count = 0
        for _ in range(seconds * 100):
            now[0] += 0.01
            count += taking.take(sender)
        return count

    assert 195 <= taken("one", 10) <= 205  # half of what may come at once, and half of 20 a second
    count = {"one": 0, "two": 0, "three": 0}
    for _ in range(100_000):
        now[0] += 0.001
        for sender in count:
            count[sender] += taking.take(sender)
    assert all(450 <= one <= 620 for one in count.values())
    assert sum(taking.take("four") for _ in range(1000)) >= 30
    for number in range(10_000):
        taking.take(str(number))
    assert len(taking._senders) <= shares.MAX_SENDERS


async def test_no_more_incidents_are_looked_at_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_LOOKS", 2)
    monkeypatch.setattr(service, "AGAIN_SECONDS", (0.0,))
    held, seen = asyncio.Event(), set[str]()

    async def diagnose(about: DiagnosisRequest) -> Diagnosis:
        seen.add(about.entity["engine"])
        await held.wait()
        return Diagnosis("not judged: nobody looks")

    kept = Spool(tmp_path)
    kept.open()
    kept.done(None, MessageOutcome([incident(str(n), str(n)) for n in range(5)]), time.time())
    kept.close()
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), None, diagnose) as (
        notifier,
        _,
    ):
        await asyncio.sleep(0.3)
        assert len(seen) == len(notifier._looking) == 2
        held.set()
        await asyncio.sleep(0.5)
        assert seen == {"0", "1", "2", "3", "4"}


async def test_a_full_queue_asks_to_try_again(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_DELIVERIES", 1)
    async with running(table(tmp_path, WebhookTarget(url="http://127.0.0.1:1")), full_cache) as (notifier, url):
        assert await post(url, body(alert())) == 200
        await settled(notifier, waiting=1)
        assert await post(url, body(alert())) == 503


async def test_what_can_not_be_dealt_with_is_laid_down(full_cache: Triage, tmp_path: Path) -> None:
    kept = Spool(tmp_path)
    kept.open()
    kept.put(b'{"of": "another version"}', 0.0)
    kept.close()
    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), full_cache) as (_, url):
        await post(url, body(alert()))
        await there.count(1)
    assert json.loads((tmp_path / DEAD).read_text())["message"] == '{"of": "another version"}'


RECEIVER = """
import asyncio, sys
from pathlib import Path
from aiohttp import web
from kvitals.app.notify.intake import add_notify
from kvitals.app.notify.service import Notifier
from kvitals.config import NotifyTable, WebhookTarget

async def main():
    async def diagnose(about):
        await asyncio.sleep(3600)
    of = NotifyTable(directory=Path(sys.argv[1]), webhook=(WebhookTarget(url="http://127.0.0.1:1"),))
    notifier = Notifier(of, diagnose)
    app = web.Application()
    add_notify(app, notifier, None)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_nothing_that_was_acknowledged_is_lost_by_a_kill(full_cache: Triage, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RECEIVER, str(tmp_path), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    acknowledged: list[int] = []

    async def flood() -> None:
        for number in range(90):
            try:
                status = await post(f"http://127.0.0.1:{port}{PATH}", body(alert(engine=f"e{number}")))
            except (aiohttp.ClientError, OSError):
                return
            acknowledged.extend([number] if status == 200 else [])
            if number == 20:
                os.kill(process.pid, signal.SIGKILL)

    await asyncio.gather(flood(), flood())
    await process.wait()
    with sqlite3.connect(tmp_path / FILE) as db:
        (kept,) = db.execute("SELECT count(*) FROM message").fetchone()
    db.close()
    assert len(acknowledged) >= 21 and kept >= len(acknowledged)
    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), full_cache) as (_, _):
        await there.count(len(set(acknowledged)))
    assert {f"e{number}" for number in acknowledged} <= {told["entity"]["engine"] for _, _, told in there.came}


async def test_a_cause_that_shows_later_is_told(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "AGAIN_SECONDS", (0.01, 0.02, 0.03))
    documents = iter([None, None, full_cache])

    async def diagnose(about: DiagnosisRequest) -> Diagnosis:
        return await diagnosing(next(documents))(about)  # type: ignore[no-any-return]

    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, diagnose) as (_, url):
        await post(url, body(alert("LAT01")))
        await there.count(2)
    (_, _, first), (_, _, second) = there.came
    assert (first["change"], first["code"]) == ("new", "")
    assert (second["change"], second["code"], second["incident"]) == ("cause", "KVC01", first["incident"])
    assert second["links"] and second["explains"]


async def test_an_incident_whose_last_alert_is_never_resolved_ends(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cause's alert inhibited it when it was resolved: for days it stood as open."""
    monkeypatch.setattr(service, "OVER_SECONDS", 0.01)
    healthy = msgspec.structs.replace(full_cache, causes=[], symptoms=[], notes=[], healthy=True)
    documents = [full_cache, full_cache, healthy]

    async def diagnose(about: DiagnosisRequest) -> Diagnosis:
        document = documents.pop(0) if len(documents) > 1 else documents[0]
        return await diagnosing(document)(about)  # type: ignore[no-any-return]

    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, diagnose) as (_, url):
        await post(url, body(alert("LAT01"), alert("KVC01")))
        await there.count(1)
        await post(url, body(alert("KVC01", "resolved")))
        await there.count(2)
    (_, _, first), (_, _, last) = there.came
    assert (last["change"], last["incident"]) == ("resolved", first["incident"])


async def test_what_leaves_open_why_is_looked_at_until_the_cause_is_known(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "AGAIN_SECONDS", (0.01, 0.02))
    own, looks = full_cache.causes[0], []
    slower = msgspec.structs.replace(own, code="ENG10")

    async def diagnose(about: DiagnosisRequest) -> Diagnosis:
        looks.append(about)
        known = len(looks) > 6
        return Diagnosis("judged", full_cache, own if known else slower, partial=not known)

    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, diagnose) as (_, url):
        await post(url, body(alert("LAT01")))
        await there.count(2)
        await asyncio.sleep(0.2)
    assert [told["code"] for _, _, told in there.came] == ["", "KVC01"]
    assert len(looks) == 7


async def test_it_is_not_looked_at_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "AGAIN_SECONDS", (0.0, 0.0, 0.0))
    looks = []

    async def diagnose(about: DiagnosisRequest) -> Diagnosis:
        looks.append(about)
        return Diagnosis("not judged: nobody looks")

    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, diagnose) as (_, url):
        await post(url, body(alert("LAT01")))
        await there.count(1)
        await asyncio.sleep(0.3)
    assert len(looks) == 4 and looks[-1].codes == {"LAT01"} and looks[-1].symptomatic


async def test_how_it_fares_is_told_as_families(full_cache: Triage, tmp_path: Path) -> None:
    targets = WebhookTarget(url="http://127.0.0.1:1"), WebhookTarget(url="http://127.0.0.1:1", severities=("page",))
    async with running(table(tmp_path, *targets), full_cache) as (notifier, url):
        await post(url, body(alert("LAT01")))
        await settled(notifier, waiting=1, ok=False)
        told = series(await notifier.facts(), {"node": "n"})
    shown = {
        f"{one.name.removeprefix('kvitals_notify_')} {one.get('target', '')}".strip(): v for one, v in told.items()
    }
    assert {one["node"] for one in told} == {"n"}
    assert (shown["messages_total"], shown["incidents"], shown["undiagnosed"]) == (1, 1, 0)
    assert (shown["waiting webhook-1"], shown["waiting webhook-2"], shown["target_ok webhook-1"]) == (1, 0, 0)
    assert "target_ok webhook-2" not in shown
    assert {one.name for one in told} <= load().families.keys()


async def test_what_is_being_sent_when_it_ends_is_not_sent_again(full_cache: Triage, tmp_path: Path) -> None:
    came, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await request.read()
        came.set()
        await go_on.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/", slow)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    target = WebhookTarget(url=f"http://127.0.0.1:{runner.addresses[0][1]}/")
    notifier = Notifier(table(tmp_path, target), diagnosing(full_cache))
    await notifier.open()
    await notifier.take(body(alert("LAT01")))
    await came.wait()
    closing = asyncio.create_task(notifier.close())
    await asyncio.sleep(0.05)
    go_on.set()
    await closing
    await runner.cleanup()
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("SELECT count(*) FROM delivery").fetchone() == (0,)
    db.close()


async def test_a_certificate_that_is_none_is_said(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CLOSE_SECONDS", 0.2)
    target = WebhookTarget(url="https://127.0.0.1:1/", ca_file=tmp_path / "none.pem")
    async with running(table(tmp_path, target), full_cache) as (notifier, url):
        await post(url, body(alert("LAT01")))
        told = await settled(notifier, waiting=1)
        assert "none.pem cannot be used" in told.last_error
