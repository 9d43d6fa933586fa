"""A storm of messages is one look at the server, also while that look is under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvitals.app.identity import KnownEngine, known_engine, without_rank
from kvitals.app.notify import diagnosis, fleet_looks
from kvitals.app.notify.diagnosis import OfFleet
from kvitals.app.notify.finding_match import DiagnosisRequest, diagnosis_request
from kvitals.app.notify.fleet_looks import FleetLooks, LookBudget
from kvitals.app.notify.incident_tracker import Rules, settle
from kvitals.app.notify.incoming import Alert
from kvitals.app.pipeline import Setup
from kvitals.config import Config
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.rules.finding import Triage
from kvitals.rules.loader import load
from tests.unit.notify.notify_stage import AT, ENGINE, alert, message

SETUP = Setup(load(), Config())


class Judged:
    def __init__(self, document: Triage, engines: Sequence[KnownEngine] = (), *, agents: bool = True) -> None:
        self.document = document
        self.engines = engines or [known_engine({"engine": ENGINE})]
        self.survey = SimpleNamespace(agents=agents)
        self.merged: dict[tuple[str, ...], list[str]] = {}


async def test_messages_of_one_moment_share_a_look(full_cache: Triage, monkeypatch: pytest.MonkeyPatch) -> None:
    moments: list[float] = []
    go = threading.Event()

    def judge(access: Any, setup: Any, at: float, *, place: Any) -> Judged:
        moments.append(at)
        assert go.wait(20)
        return Judged(full_cache)

    monkeypatch.setattr(diagnosis, "judge_server", judge)
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    about = [diagnosis_request([alert()], alert().entity, AT + i / 10) for i in range(8)]
    several = [asyncio.create_task(fleet(one)) for one in about]
    await asyncio.sleep(0)
    go.set()
    found = await asyncio.gather(*several)
    assert moments == [AT]
    assert all(one.lead is not None and one.lead.code == "KVC01" for one in found)


async def test_a_look_that_failed_is_not_taken_again(full_cache: Triage, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ServerError("the server is away"), Judged(full_cache)]

    def judge(access: Any, setup: Any, at: float, *, place: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(diagnosis, "judge_server", judge)
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
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
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_, **__: Judged(document, engines))
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    first = await settle(message(alert("ENG01")), AT, (), fleet, Rules(3600.0))
    known = list(first.incidents.values())
    last = await settle(message(alert("ENG01", "resolved")), AT + 60, known, fleet, Rules(3600.0))
    for notice in (*first.notices, *last.notices):
        assert notice.where == f"engine {ENGINE} · pool chat"
        assert notice.entity == {**alert("ENG01").entity, "pool": "chat"}
    assert len(first.notices) == len(last.notices) == 1


async def test_what_the_server_does_not_know_is_said(full_cache: Triage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message was "No known cause matches", as if it had been judged."""
    engines = [known_engine({"engine": "team-a/chat-1", "cluster": "a"})]
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_, **__: Judged(full_cache, engines))
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    for labels in ({"namespace": "team-a", "pod": "nosuch"}, {"pool": "nosuch"}):
        fired = Alert("firing", {"alertname": "X", **labels})
        (notice,) = (await settle(message(fired), AT, (), fleet, Rules(3600.0))).notices
        assert notice.judged.startswith("not diagnosed: http://127.0.0.1:1 has no engine with these labels: po")
        assert (notice.title, notice.verdict) == ("X", "")


async def test_an_engine_that_is_gone_by_now_is_judged_when_the_alert_began(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message was "has no engine with these labels", 20 s after it was there."""
    began = AT - diagnosis.FRESH_SECONDS + 10.0

    def judge(access: Any, setup: Any, at: float, *, place: Any) -> Judged:
        return Judged(full_cache, [known_engine({"engine": ENGINE if at <= began else "another"})])

    monkeypatch.setattr(diagnosis, "judge_server", judge)
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    about = replace(diagnosis_request([alert()], alert().entity, AT), began=began)
    found = await fleet(about)
    assert found.lead is not None and found.lead.code == "KVC01", found.how


async def test_an_engine_that_stands_for_several_gets_no_diagnosis(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Judged(full_cache, [known_engine({"engine": ENGINE, "cluster": "a"})])
    judged.merged = {("a", "", without_rank(ENGINE)): ["tenant"]}
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_, **__: judged)
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    (notice,) = (await settle(message(alert()), AT, (), fleet, Rules(3600.0))).notices
    assert notice.judged.startswith(f"not diagnosed: no verdict on a/{without_rank(ENGINE)}: this server has several")
    assert "The sources differ only in tenant" in notice.judged
    assert not notice.verdict and notice.finding is None


async def test_an_alert_that_names_no_engine_gets_no_pool(full_cache: Triage, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [known_engine({"engine": ENGINE, "pool": "chat"})]
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_, **__: Judged(full_cache, engines))
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    about = diagnosis_request([alert()], {"cluster": "a"}, AT)
    assert (await fleet(about)).pool == ""


CHAT, CODE = "10.0.0.1:8000/0", "10.0.0.2:8000/0"
BESIDE = "10.0.0.3:8000/0"  # in the pool of CHAT
KNOWN = [
    known_engine({"engine": CHAT, "pool": "chat", "cluster": "a"}),
    known_engine({"engine": BESIDE, "pool": "chat", "cluster": "a"}),
    known_engine({"engine": CODE, "pool": "code", "cluster": "a"}),
]


class Server:
    """Stands for a Prometheus: notes which place is judged at which moment."""

    def __init__(self, document: Triage, monkeypatch: pytest.MonkeyPatch, known: Sequence[KnownEngine] = KNOWN) -> None:
        self.document, self.known = document, known
        self.judged: list[tuple[dict[str, str], float]] = []
        self.lists = self.now = self.most = 0
        self.go = threading.Event()
        self.go.set()
        monkeypatch.setattr(diagnosis, "judge_server", self.judge)
        monkeypatch.setattr(diagnosis, "server_engines", self.engines)

    def judge(self, access: Any, setup: Any, at: float, *, place: dict[str, str]) -> Judged:
        self.judged.append((dict(place), at))
        self.now += 1
        self.most = max(self.most, self.now)
        assert self.go.wait(20)
        self.now -= 1
        return Judged(self.document, self.known)

    def engines(self, access: Any, setup: Any, at: float) -> list[KnownEngine]:
        self.lists += 1
        return list(self.known)

    @property
    def fleet(self) -> OfFleet:
        return OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)


@pytest.mark.parametrize(
    ("entity", "place"),
    [
        ({"engine": CHAT}, {"pool": "chat", "cluster": "a"}),
        ({"pool": "chat"}, {"pool": "chat", "cluster": "a"}),
        ({"instance": "10.0.0.2:8000"}, {"pool": "code", "cluster": "a"}),
        ({"cluster": "a"}, {}),  # two pools
    ],
)
async def test_the_pool_of_an_alert_is_judged_alone(
    entity: dict[str, str], place: dict[str, str], full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(full_cache, monkeypatch)
    await server.fleet(diagnosis_request([alert()], entity, AT))
    assert server.judged[0] == (place, AT)
    assert server.lists == 1


async def test_a_fleet_without_pools_is_judged_whole(full_cache: Triage, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(full_cache, monkeypatch, [known_engine({"engine": CHAT})])
    await server.fleet(diagnosis_request([alert()], {"engine": CHAT}, AT))
    assert server.judged[0] == ({}, AT)


async def test_a_later_alert_of_a_pool_takes_the_answer_with_a_cause(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [known_engine({"engine": ENGINE, "pool": "chat"}), *KNOWN[2:]]
    server = Server(full_cache, monkeypatch, known)
    fleet = server.fleet
    for later in (0.0, 10.0, 25.0):
        found = await fleet(diagnosis_request([alert()], {"engine": ENGINE}, AT + later))
        assert found.lead is not None
    assert server.judged == [({"pool": "chat"}, AT)]
    await fleet(diagnosis_request([alert()], {"engine": ENGINE}, AT + 31.0))
    assert server.judged == [({"pool": "chat"}, AT), ({"pool": "chat"}, AT + 31.0)]


async def test_without_a_cause_the_next_alert_of_a_pool_is_a_look_of_its_own(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(full_cache, monkeypatch)
    fleet = server.fleet
    for later in (0.0, 2.0, 10.0):
        about = DiagnosisRequest({"engine": CHAT}, frozenset(), symptomatic=True, began=AT + later, received=AT + later)
        assert (await fleet(about)).lead is None
    assert [at for _, at in server.judged] == [AT, AT + 10.0]


async def test_few_looks_are_under_way_and_the_latest_begins_first(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_looks, "LOOKS_AT_ONCE", 1)
    known = [known_engine({"engine": f"e{i}", "pool": f"p{i}"}) for i in range(6)]
    server = Server(full_cache, monkeypatch, known)
    server.go.clear()
    looks: FleetLooks[Any] = FleetLooks(lambda place, at: server.judge(None, None, at, place=dict(place)))
    several = [looks.at(AT + i, {"pool": f"p{i}"}, 30.0) for i in range(6)]
    assert looks.at(AT + 9.0, {"pool": "p3"}, 30.0) is several[3]  # it waits, and judges what is newest
    server.go.set()
    await asyncio.gather(*(one.answer for one in several))
    assert [place["pool"] for place, _ in server.judged] == ["p0", "p3", "p5", "p4", "p2", "p1"]
    assert server.judged[1] == ({"pool": "p3"}, AT + 9.0)
    assert server.most == 1


def test_looks_have_a_share_of_the_cpu_time() -> None:
    """200 entities, each with an alert of another moment, took 64 s of CPU time."""
    now = 1000.0
    budget = LookBudget(lambda: now)
    spent = 0.0
    for _ in range(6000):  # ten minutes, a look of 1.5 s whenever it may begin
        if budget.wait_seconds() == 0.0:
            budget.spend(1.5)
            spent += 1.5
        now += 0.1
    assert spent <= fleet_looks.BURST_SECONDS + fleet_looks.CPU_SHARE * 600 + 1.5
    assert spent >= fleet_looks.CPU_SHARE * 600


async def test_a_look_beyond_the_share_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_looks, "CPU_SHARE", 40.0)
    spent = 0.0
    looks = FleetLooks(lambda _, at: at, LookBudget(), cost=lambda: spent)
    looks.budget.spend(fleet_looks.BURST_SECONDS + 8.0)
    begun = asyncio.get_running_loop().time()
    assert await looks.at(AT, {}, 5.0).answer == AT
    assert asyncio.get_running_loop().time() - begun > 0.1


def test_a_look_under_way_does_not_hold_up_the_end() -> None:
    """With a slow Prometheus the process ended by force, 4.5 s after SIGTERM."""
    begun, go = threading.Event(), threading.Event()

    def judge(place: Any, at: float) -> float:
        begun.set()
        go.wait(60)
        return at

    async def ask() -> None:
        FleetLooks(judge).at(AT, {}, 5.0)
        while not begun.is_set():  # noqa: ASYNC110 (it has no event of the loop)
            await asyncio.sleep(0.01)

    ending = threading.Thread(target=asyncio.run, args=(ask(),), daemon=True)
    ending.start()
    ending.join(20)
    late = ending.is_alive()
    go.set()
    assert not late


async def test_looks_that_nobody_can_still_wait_for_are_dropped() -> None:
    looks: FleetLooks[float] = FleetLooks(lambda _, at: at)
    looks.budget.spend(1e6)
    asked = [looks.at(AT + 100.0 * i, {}, 5.0) for i in range(fleet_looks.MAX_WAITING + 3)]
    assert [one.failed for one in asked] == [True] * 3 + [False] * fleet_looks.MAX_WAITING
    with pytest.raises(fleet_looks.TooManyLooksError, match="newer ones are done first"):
        await asked[0].answer


async def test_an_engines_alert_gets_no_cause_from_its_pool_and_hears_what_was_not_checked(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred = msgspec.structs.replace(full_cache.causes[0], code="SCH12")
    document = msgspec.structs.replace(full_cache, causes=[deferred], symptoms=[], telemetry=[], unknown=[])
    engines = [known_engine({"engine": ENGINE})]
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_, **__: Judged(document, engines, agents=False))
    monkeypatch.setattr(diagnosis, "server_engines", lambda *_, **__: engines)
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    found = await fleet(diagnosis_request([alert()], alert().entity, AT))
    assert found.lead == deferred and found.partial and found.cause is None
    assert [one.partition(" ")[0] for one in found.not_judged] == ["LOR01"]
    assert found.not_judged[0].endswith("not checked, kvitals_lora_adapters_active needs the agent")


async def test_a_comparison_that_explains_another_cause_is_the_cause(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = full_cache.causes[0]
    slower = msgspec.structs.replace(own, code="ENG10", explains=[own.code, "LAT01"], conclusion="Peers are faster.")
    document = msgspec.structs.replace(full_cache, causes=[slower, own])
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_, **__: Judged(document))
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    (notice,) = (await settle(message(alert()), AT, (), fleet, Rules(3600.0))).notices
    assert (notice.code, notice.verdict) == ("ENG10", "Peers are faster.")


@pytest.mark.parametrize("agents", [False, True])
async def test_a_symptom_without_a_cause_lists_what_is_not_checked_without_agents(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch, *, agents: bool
) -> None:
    document = msgspec.structs.replace(full_cache, causes=[], unknown=[])
    monkeypatch.setattr(diagnosis, "judge_server", lambda *_, **__: Judged(document, agents=agents))
    fleet = OfFleet(diagnosis.PrometheusAccess("http://127.0.0.1:1"), SETUP)
    (notice,) = (await settle(message(alert()), AT, (), fleet, Rules(3600.0))).notices
    listed = [text for text in notice.unknown if text.startswith("causes that are not checked without agents")]
    assert not notice.code and bool(listed) is not agents
    assert agents or "LOR01" in listed[0]
