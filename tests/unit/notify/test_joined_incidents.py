"""Alerts of one engine that nobody could judge are one incident; incidents with one cause join."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kvitals.app.notify import service
from kvitals.app.notify.finding_match import DiagnosisRequest
from kvitals.app.notify.incident_tracker import asked_again, look_again
from kvitals.app.notify.incoming import Alert
from kvitals.app.notify.notice import Notice
from kvitals.app.notify.notice_builder import Diagnosis
from kvitals.app.notify.notice_requests import digest, request
from kvitals.app.notify.notice_text import headline, lines
from kvitals.app.notify.queue import FILE, MessageOutcome, OpenIncident, Spool
from kvitals.config import PagerDutyTarget, SlackTarget, WebhookTarget
from kvitals.rules.finding import Triage
from tests.unit.notify.notify_stage import AT, ENGINE, alert, body, diagnosing, stand
from tests.unit.notify.test_notify_incidents import Memory, finished
from tests.unit.notify.test_notify_service import post, running, table

CODES = ("LAT01", "LAT03", "KVC01", "SCH10", "LAT05", "KVC09", "LAT16")


async def test_alerts_of_an_engine_that_nobody_could_judge_are_one_incident(full_cache: Triage) -> None:
    """Seven alerts of one full cache were seven incidents."""
    memory = Memory(None)
    told = [await memory.one(alert(code), at=AT + i) for i, code in enumerate(CODES)]
    assert len({one.incident for one in told}) == len(memory.known) == 1
    assert [one.change for one in told] == ["new", *["more"] * 6]
    other = await memory.one(alert("LAT01", engine="another"), at=AT + 20)
    assert other.incident != told[0].incident
    (incident,) = (one for one in memory.known.values() if one.entity["engine"] == ENGINE)
    found = await diagnosing(full_cache)(asked_again(incident, AT + 30))
    (cause,) = look_again(incident, found, AT + 30).notices
    assert (cause.change, cause.code, cause.incident) == ("cause", "KVC01", told[0].incident)


async def test_an_alert_that_was_judged_does_not_join_one_that_was_not(full_cache: Triage) -> None:
    memory = Memory(None)
    first = await memory.one(alert("GPU07"))
    memory.diagnose = diagnosing(msgspec.structs.replace(full_cache, causes=[], symptoms=[]))
    assert (await memory.one(alert("LAT05"), at=AT + 1)).incident != first.incident


@pytest.mark.parametrize(
    "labels",
    [{}, {"instance": "10.0.0.9:9100"}, {"node": "n1"}, {"target": "https://example.org"}, {"cluster": "eu"}],
)
async def test_alerts_of_what_is_no_engine_do_not_join(labels: dict[str, str]) -> None:
    memory = Memory(None)
    disk = Alert("firing", {"alertname": "DiskFull", **labels})
    certificate = Alert("firing", {"alertname": "CertExpires", **labels})
    told = [await memory.one(one, at=AT + i) for i, one in enumerate((disk, certificate))]
    assert [one.change for one in told] == ["new", "new"] and len(memory.known) == 2


async def two(memory: Memory, full_cache: Triage) -> tuple[OpenIncident, OpenIncident]:
    """An incident of an engine with a cause, and an older one that was not judged."""
    await memory.one(alert("GPU07", severity="ticket"))
    memory.diagnose = diagnosing(full_cache)
    await memory.one(alert("LAT01"), at=AT + 20)
    without, known = memory.known.values()
    assert (without.code, known.code) == ("", "KVC01")
    return without, known


async def test_incidents_that_get_the_same_cause_join(full_cache: Triage) -> None:
    memory = Memory(None)
    without, known = await two(memory, full_cache)
    found = Diagnosis("judged", full_cache, full_cache.causes[0])
    settled = look_again(without, found, AT + 30, [known])
    (last,) = settled.notices
    assert (last.change, last.status, last.incident, last.joined) == ("joined", "resolved", without.id, known.id)
    assert last.judged == f"it has the cause of incident {known.id}, which goes on: {known.title}"
    assert settled.over == [without.id] and list(settled.incidents) == [known.id]
    memory.known = dict(settled.incidents)
    assert {one.code for one in memory.known[known.id].open.values()} == {"GPU07", "LAT01"}
    assert not (await memory.tell(alert("GPU07", "resolved"), at=AT + 60)).notices, "the other alert goes on"
    end = await memory.one(alert("LAT01", "resolved"), at=AT + 90)
    assert (end.change, end.incident) == ("resolved", known.id)


@pytest.mark.parametrize(("code", "reason"), [("KVC14", "explains the known one"), ("LAT01", "is explained")])
async def test_incidents_join_where_one_cause_explains_the_other(code: str, reason: str, full_cache: Triage) -> None:
    memory = Memory(None)
    without, known = await two(memory, full_cache)
    explains = ["KVC01"] if code == "KVC14" else []
    cause = msgspec.structs.replace(full_cache.causes[0], code=code, id=code, explains=explains, explained=[])
    settled = look_again(without, Diagnosis("judged", full_cache, cause), AT + 30, [known])
    expected = [("joined", without.id), *([("cause", known.id)] if code == "KVC14" else [])]
    assert [(one.change, one.incident) for one in settled.notices] == expected, reason
    assert settled.incidents[known.id].code == ("KVC14" if code == "KVC14" else "KVC01")
    unrelated = msgspec.structs.replace(cause, code="HOT01", explains=[])
    apart = look_again(without, Diagnosis("judged", full_cache, unrelated), AT + 30, [known])
    assert [(one.change, one.incident) for one in apart.notices] == [("cause", without.id)]


async def test_a_page_that_joins_a_ticket_stays_a_page(full_cache: Triage) -> None:
    memory = Memory(None)
    without, known = await two(memory, full_cache)
    page = msgspec.structs.replace(without, severity="page")
    settled = look_again(page, Diagnosis("judged", full_cache, full_cache.causes[0]), AT + 30, [known])
    assert [(one.change, one.severity, one.incident) for one in settled.notices] == [
        ("joined", "page", without.id), ("worse", "page", known.id),
    ]  # fmt: skip


async def test_a_fresh_alert_joins_the_incident_of_its_cause_and_those_that_this_explains(full_cache: Triage) -> None:
    memory = Memory(None)
    memory.diagnose = diagnosing(msgspec.structs.replace(full_cache, causes=[], symptoms=[]))
    queue = await memory.one(alert("SCH10"))
    slow = await memory.one(alert("LAT03"), at=AT + 1)
    assert len(memory.known) == 2
    own = msgspec.structs.replace(full_cache.causes[0], explains=["SCH10", "LAT03", "LAT01"])
    memory.diagnose = lambda _: finished(Diagnosis("judged", full_cache, own))
    settled = await memory.tell(alert("LAT01"), at=AT + 2)
    assert [(one.change, one.incident) for one in settled.notices] == [
        ("joined", slow.incident), ("cause", queue.incident),
    ]  # fmt: skip
    assert list(memory.known) == [queue.incident]


async def test_how_a_joined_incident_is_told(full_cache: Triage, tmp_path: Path) -> None:
    memory = Memory(None)
    without, known = await two(memory, full_cache)
    (last,) = look_again(without, Diagnosis("judged", full_cache, full_cache.causes[0]), AT + 30, [known]).notices
    assert headline(last).startswith("joined another incident: ")
    assert lines(last) == [f"It goes on in incident {known.id}."]
    (tmp_path / "secret").write_text("https://hooks.example.org/x")
    event = msgspec.json.decode(request(PagerDutyTarget(key_file=tmp_path / "secret"), last).body)
    assert (event["event_action"], event["dedup_key"]) == ("resolve", f"kvitals-{without.id}")
    several: list[Notice] = [last, msgspec.structs.replace(last, incident="2", change="resolved")]
    text = msgspec.json.decode(digest(SlackTarget(url_file=tmp_path / "secret"), several).body)["text"]
    assert text == "1 joined another incident; 1 resolved"


async def test_incidents_of_one_engine_join_in_the_service(
    full_cache: Triage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one with the pool of the engine, the other without it."""
    monkeypatch.setattr(service, "AGAIN_SECONDS", (0.0,))
    asked: list[DiagnosisRequest] = []
    go = asyncio.Event()

    async def diagnose(about: DiagnosisRequest) -> Diagnosis:
        asked.append(about)
        if len(asked) == 1:
            return Diagnosis("not judged: nobody looks")
        if "GPU07" in about.codes:
            await go.wait()
        return Diagnosis("judged", full_cache, full_cache.causes[0])

    async with stand() as there, running(table(tmp_path, WebhookTarget(url=there.url)), None, diagnose) as (one, url):
        await post(url, body(alert("GPU07", pool="chat")))
        await there.count(1)
        await post(url, body(alert("LAT01")))
        await there.count(2)
        go.set()
        await there.count(3)
        assert (await one.facts()).incidents == 1
    (_, _, first), (_, _, second), (_, _, last) = there.came
    assert [one["change"] for one in (first, second, last)] == ["new", "new", "joined"]
    assert (last["incident"], last["joined"]) == (first["incident"], second["incident"])


def test_incidents_of_an_earlier_version_are_of_their_engine(tmp_path: Path) -> None:
    incident = OpenIncident(
        id="1", entity={"engine": "a", "pool": "p"}, code="", title="", severity="page", began=1.0, told=1.0,
        explains=[], open={},
    )  # fmt: skip
    kept = Spool(tmp_path)
    kept.open()
    kept.done(None, MessageOutcome([incident]), 1.0)
    kept.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as file:
        file.execute("UPDATE incident SET entity = ?", ('[["engine","a"],["pool","p"]]',))
        file.commit()
    kept.open()
    assert [one.id for one in kept.incidents([(("engine", "a"),)])] == ["1"]
    kept.close()
