"""What is told of which alerts, and what is not told again."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from kvitals.app.notify import incident_tracker
from kvitals.app.notify.incident_tracker import (
    Rules,
    SettledMessage,
    asked_about_rules,
    asked_again,
    close_if_over,
    look_again,
    settle,
)
from kvitals.app.notify.incoming import OURS, Alert, IncomingError, read
from kvitals.app.notify.notice import Link, Notice, NoticeAlert, links
from kvitals.app.notify.notice_builder import Diagnosis, incident_title
from kvitals.app.notify.queue import OpenIncident
from kvitals.config import MuteTable
from kvitals.rules.finding import Triage
from tests.unit.notify.notify_stage import AT, ENGINE, alert, diagnosing, message

RULES = Rules(repeat=3600.0, page="https://kvitals.example.org")


class Memory:
    """Messages one after the other, with what is remembered between them."""

    def __init__(self, document: Triage | None) -> None:
        self.diagnose = diagnosing(document)
        self.known: dict[str, OpenIncident] = {}

    async def tell(self, *alerts: Alert, at: float = AT) -> SettledMessage:
        settled = await settle(message(*alerts), at, list(self.known.values()), self.diagnose, RULES)
        self.known |= settled.incidents
        for gone in settled.over:
            del self.known[gone]
        return settled

    async def one(self, *alerts: Alert, at: float = AT) -> Notice:
        (notice,) = (await self.tell(*alerts, at=at)).notices
        return notice


async def test_an_alert_is_told_with_its_cause_numbers_and_lever(full_cache: Triage) -> None:
    notice = await Memory(full_cache).one(alert("LAT01"))
    assert (notice.status, notice.change, notice.severity, notice.code) == ("firing", "new", "ticket", "KVC01")
    assert notice.title == "KV cache full: requests wait for blocks"
    assert "KV usage p90 is 100 %" in notice.verdict
    assert ("KV usage p90", "100 %") in [(n.title, n.text) for n in notice.numbers]
    assert notice.actions[0].title == "Add replicas"  # it needs no restart
    assert notice.actions[1].setting == "--num-gpu-blocks-override 278 (now 129) (restart)"
    assert "LAT01 (ticket) TTFT p99 may be above objective" in notice.explains
    assert notice.where == f"engine {ENGINE}" and notice.finding is not None
    assert not any(evidence.lines for evidence in notice.finding.evidence)
    assert notice.links[0].url == "https://wiki.example.org/KVC01.html"  # the cause's page, beside the alert's
    assert [link.title for link in notice.links] == [
        "Runbook KVC01", "Runbook LAT01", "Board LAT01", "Query", "kvitals", "Alertmanager",
    ]  # fmt: skip
    window = full_cache.window
    page = next(link.url for link in notice.links if link.title == "kvitals")
    assert page == f"{RULES.page}?from={window.start:.3f}&to={window.end:.3f}", "the moment that was judged"


async def test_what_the_cause_explains_is_not_told_again(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    first = await memory.one(alert("LAT01"))
    repeated = await memory.tell(alert("LAT01"), at=AT + 60)
    explained = await memory.tell(alert("LAT01"), alert("LAT03"), alert("KVC01"), at=AT + 120)
    assert repeated.notices == explained.notices == []
    assert (repeated.folded, explained.folded) == (1, 2)
    assert {one.code for one in memory.known[first.incident].open.values()} == {"LAT01", "LAT03", "KVC01"}


async def test_an_engine_is_one_incident_with_and_without_its_pool(full_cache: Triage) -> None:
    """The page for a lost engine has its pool and the ticket has none: they were two incidents."""
    memory = Memory(full_cache)
    first = await memory.one(alert("TEL01"))
    worse = await memory.one(alert("TEL01", severity="page", alertname="TEL01-engine-gone", pool="chat"), at=AT + 30)
    assert (worse.change, worse.incident) == ("worse", first.incident)
    over = await memory.tell(
        alert("TEL01", "resolved"),
        alert("TEL01", "resolved", severity="page", alertname="TEL01-engine-gone", pool="chat"),
        at=AT + 60,
    )
    assert over.over == [first.incident]
    await memory.one(alert("TEL01", pool="chat", engine=""), at=AT + 90)
    await memory.one(alert("TEL01", pool="code", engine=""), at=AT + 90)
    assert len(memory.known) == 2


async def test_what_is_worse_is_told(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    first = await memory.one(alert("LAT01"))
    worse = await memory.one(alert("KVC01", severity="page"), at=AT + 30)
    assert (worse.change, worse.severity, worse.incident) == ("worse", "page", first.incident)


async def test_a_cause_that_is_found_later_is_told(full_cache: Triage) -> None:
    memory = Memory(None)
    first = await memory.one(alert("LAT01"))
    assert (first.code, first.title) == ("", "LAT01 on an engine") and first.judged == "not judged: nobody looks"
    memory.diagnose = diagnosing(full_cache)
    found = await memory.one(alert("KVC01"), at=AT + 30)
    assert (found.change, found.code, found.incident) == ("cause", "KVC01", first.incident)


async def test_a_symptom_is_no_cause_and_its_cause_follows(full_cache: Triage) -> None:
    """An alert's own symptom was told as its cause, and the cause was never looked for again."""
    symptom = msgspec.structs.replace(full_cache, causes=[])
    memory = Memory(symptom)
    first = await memory.one(alert("LAT01"))
    assert (first.change, first.code, first.title) == ("new", "", "TTFT p99 may be above objective")
    assert first.verdict and first.numbers
    (incident,) = memory.known.values()
    assert incident.code == ""  # so it is looked at again
    again = await diagnosing(symptom)(asked_again(incident, AT + 10))
    assert not look_again(incident, again, AT + 10).notices
    found = await diagnosing(full_cache)(asked_again(incident, AT + 20))
    (later,) = look_again(incident, found, AT + 20).notices
    assert (later.change, later.code, later.incident) == ("cause", "KVC01", first.incident)


async def test_what_leaves_open_why_is_no_cause_and_the_cause_follows_once(full_cache: Triage) -> None:
    """An incident with SCH13 or ENG10 was not looked at again, and the engine's own cause was never told."""
    uneven = msgspec.structs.replace(full_cache.causes[0], code="SCH13", title="Load imbalance")
    blind = ["LOR01 More adapters than slots: not checked, needs the agent"]
    partial = Diagnosis("judged", full_cache, uneven, partial=True, not_judged=blind)
    memory = Memory(None)
    memory.diagnose = lambda _: finished(partial)
    first = await memory.one(alert("LAT01"))
    assert (first.change, first.code, first.title) == ("new", "", "Load imbalance")
    assert first.verdict and first.unknown[0].startswith("the cause: SCH13 states a condition, not its cause")
    assert first.unknown[1:2] == blind
    (incident,) = memory.known.values()
    assert not look_again(incident, partial, AT + 10).notices
    found = await diagnosing(full_cache)(asked_again(incident, AT + 20))
    (later,) = look_again(incident, found, AT + 20).notices
    assert (later.change, later.code, later.incident) == ("cause", "KVC01", first.incident)
    memory.known = dict(look_again(incident, found, AT + 20).incidents)
    worse = await memory.one(alert("LAT01", severity="page"), at=AT + 60)  # a later look names the uneven pool again
    assert (worse.code, worse.verdict) == ("KVC01", "The cause is known already: KVC01.")


async def finished(found: Diagnosis) -> Diagnosis:
    return found


@pytest.mark.parametrize("symptom", [False, True])
async def test_a_known_cause_stays_where_a_later_look_finds_none(full_cache: Triage, *, symptom: bool) -> None:
    memory = Memory(full_cache)
    first = await memory.one(alert("LAT01"))
    left = full_cache.symptoms if symptom else []
    memory.diagnose = diagnosing(msgspec.structs.replace(full_cache, causes=[], symptoms=left))
    worse = await memory.one(alert("LAT01", severity="page"), at=AT + 60)
    assert (worse.change, worse.code, worse.title) == ("worse", "KVC01", first.title)
    assert worse.verdict == "The cause is known already: KVC01."


async def test_what_nobody_spoke_of_is_told(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    await memory.one(alert("LAT01"))
    more = await memory.one(alert("GPU07"), at=AT + 30)
    assert more.change in ("more", "new")


@pytest.mark.parametrize("labels", [{"kvitals_code": "NOPE<"}, {"kvitals_code": "ZZZ99"}, {"kvitals_code": "LAT01"}])
@pytest.mark.parametrize("entity", [{"engine": ENGINE}, {"engine": "", "instance": "10.0.0.1:8000"}])
async def test_without_a_cause_each_alert_goes_out(labels: dict[str, str], entity: dict[str, str]) -> None:
    memory = Memory(None)
    await memory.one(*(alert("", alertname=f"first {i}", **labels, **entity) for i in range(3)))
    for i in range(4):
        fresh = alert("", alertname=f"later {i}", **labels, **entity)
        notice = await memory.one(fresh, at=AT + 1 + i)
        assert fresh.name in [one.name for one in notice.alerts]
        assert (await memory.tell(fresh, at=AT + 1.5 + i)).folded == 1  # the same fingerprint again


async def test_a_known_cause_folds_only_what_it_explains(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    await memory.one(alert("LAT01"))
    for i in range(2):  # the second has the code of an alert that is open, and still is not explained
        notice = await memory.one(alert("", alertname=f"other {i}", kvitals_code="ZZZ99"), at=AT + 1 + i)
        assert f"other {i}" in [one.name for one in notice.alerts]
    assert (await memory.tell(alert("LAT03"), at=AT + 5)).folded == 1


async def test_it_is_told_again_only_after_a_while(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    await memory.one(alert("LAT01"))
    assert (await memory.tell(alert("LAT01"), at=AT + 3599)).notices == []
    again = await memory.one(alert("LAT01"), at=AT + 3601)
    assert again.change == "again" and again.code == "KVC01"
    assert (await memory.tell(alert("LAT01"), at=AT + 3700)).notices == []


async def test_it_is_over_when_all_of_it_is(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    first = await memory.one(alert("LAT01"))
    await memory.tell(alert("LAT03"))
    assert (await memory.tell(alert("LAT01", "resolved"), at=AT + 60)).notices == []
    last = await memory.one(alert("LAT03", "resolved"), at=AT + 90)
    assert (last.status, last.incident, last.code) == ("resolved", first.incident, "KVC01")
    assert memory.known == {}
    assert (await memory.tell(alert("LAT03", "resolved"), at=AT + 95)).notices == []


async def test_an_alert_that_ends_does_not_seem_to_end_another_symptom(full_cache: Triage) -> None:
    """The queue's alert was told as "TTFT p99 above objective", its only finding. When the queue was gone, the message
    said that TTFT was within its objective again, while it was at 20 s."""
    memory = Memory(msgspec.structs.replace(full_cache, causes=[]))
    queue = await memory.one(alert("SCH10"))
    assert queue.title == "SCH10 on an engine" and "TTFT p99" in queue.verdict
    late = await memory.one(alert("LAT01"))
    assert late.incident != queue.incident
    over = await memory.one(alert("SCH10", "resolved"), at=AT + 60)
    assert (over.status, over.title) == ("resolved", "SCH10 on an engine")
    assert over.judged == "all of its alerts are resolved; still open here: TTFT p99 may be above objective"
    last = await memory.one(alert("LAT01", "resolved"), at=AT + 90)
    assert last.judged == "all of its alerts are resolved"


def test_a_title_does_not_repeat_whose_it_is() -> None:
    ours = NoticeAlert("SCH10-queue-growing", "SCH10", "ticket", "Queue growing: engine 10.0.0.1:8000/0", "", AT)
    assert incident_title(ours, None) == "Queue growing"
    others = NoticeAlert("QueueHigh", "", "ticket", "Queue high: engine 10.0.0.1:8000/0", "", AT)
    assert incident_title(others, None) == "Queue high: engine 10.0.0.1:8000/0"


async def test_one_that_comes_back_is_another_incident(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    first = await memory.one(alert("LAT01"))
    await memory.one(alert("LAT01", "resolved"), at=AT + 60)
    assert (await memory.one(alert("LAT01"), at=AT + 600)).incident != first.incident


async def test_one_that_began_anew_is_another_incident_though_its_end_was_never_sent(full_cache: Triage) -> None:
    """An Alertmanager sends no "resolved" of an alert that another one inhibits. The next incident of that engine had
    the same alert, and no message at all."""
    memory = Memory(full_cache)
    first = await memory.one(alert("LAT01"))
    anew = msgspec.structs.replace(alert("LAT01"), starts="2026-11-21T05:45:00Z")
    told = (await memory.tell(anew, at=AT + 900)).notices
    assert [(one.status, one.incident == first.incident) for one in told] == [("resolved", True), ("firing", False)]
    a_little_later = msgspec.structs.replace(alert("LAT01"), starts="2026-11-21T05:45:30Z")
    assert (await memory.tell(a_little_later, at=AT + 960)).notices == [], "another replica of Prometheus"


async def test_what_is_left_of_an_incident_ends_when_a_diagnosis_shows_none_of_it(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    await memory.tell(alert("LAT01"), alert("KVC01"))
    (whole,) = memory.known.values()
    assert not whole.may_be_over, "none of its alerts was resolved yet"
    await memory.tell(alert("KVC01", "resolved"), at=AT + 60)
    (left,) = memory.known.values()
    assert left.may_be_over
    about = asked_about_rules(left, AT + 200)
    assert about.codes == {"LAT01"} and not about.symptomatic
    still = await memory.diagnose(about)
    assert close_if_over(left, still, AT + 200) == SettledMessage()
    assert close_if_over(left, Diagnosis("not judged: nobody looks"), AT + 200) == SettledMessage()
    healthy = msgspec.structs.replace(full_cache, causes=[], symptoms=[], notes=[], healthy=True)
    closed = close_if_over(left, Diagnosis("judged at 12:00", healthy), AT + 200)
    (last,) = closed.notices
    assert (closed.over, last.status, last.incident) == ([left.id], "resolved", left.id)
    assert last.judged == "its alerts are no longer true, and no message resolved them: judged at 12:00"


async def test_an_incident_that_gets_another_alert_may_be_over_all_the_same(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    await memory.tell(alert("LAT01"), alert("KVC01"))
    await memory.tell(alert("KVC01", "resolved"), at=AT + 60)
    await memory.tell(alert("LAT03"), at=AT + 70)
    (left,) = memory.known.values()
    assert {one.code for one in left.open.values()} == {"LAT01", "LAT03"} and left.may_be_over


async def test_end_and_begin_in_one_message(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    await memory.one(alert("LAT01"))
    settled = await memory.tell(alert("LAT01", "resolved"), alert("TEL01", kind="telemetry"), at=AT + 60)
    assert [one.status for one in settled.notices] == ["resolved", "firing"]
    assert len(memory.known) == 1


async def test_engines_are_told_apart(full_cache: Triage) -> None:
    memory = Memory(full_cache)
    settled = await memory.tell(alert("LAT01"), alert("LAT01", engine="127.0.0.1:9999/0"))
    assert [one.code for one in settled.notices] == ["KVC01", ""]
    assert len(memory.known) == 2


async def test_others_alerts_find_the_engine_by_its_instance(full_cache: Triage) -> None:
    theirs = Alert("firing", {"alertname": "HighTTFT", "severity": "critical", "instance": "127.0.0.1:8201"})
    notice = await Memory(full_cache).one(theirs)
    assert (notice.code, notice.severity) == ("KVC01", "page")
    elsewhere = Alert("firing", {"alertname": "HighTTFT", "severity": "critical", "instance": "127.0.0.1:8202"})
    assert (await Memory(full_cache).one(elsewhere)).code == ""


async def test_a_rule_that_is_no_symptom_gets_no_foreign_cause(full_cache: Triage) -> None:
    notice = await Memory(full_cache).one(alert("GPU07", kind="cause"))
    assert notice.code == "" and notice.title == "GPU07 on an engine"


async def test_what_is_muted_is_not_told(full_cache: Triage) -> None:
    mutes = (MuteTable(rule="LAT01", reason="known", entity={"engine": ENGINE}),)
    several = message(alert("LAT01"), alert("LAT01", engine="another"), alert("LAT03"))
    settled = await settle(several, AT, (), diagnosing(full_cache), Rules(3600.0, mutes=mutes))
    assert settled.muted == 1
    assert [[one.code for one in notice.alerts] for notice in settled.notices] == [["LAT01"], ["LAT03"]]
    over = Rules(3600.0, mutes=(msgspec.structs.replace(mutes[0], until=datetime(2026, 1, 1, tzinfo=UTC)),))
    assert len((await settle(message(alert("LAT01")), AT, (), diagnosing(full_cache), over)).notices) == 1


async def test_what_we_handed_on_is_not_taken_back(full_cache: Triage) -> None:
    settled = await Memory(full_cache).tell(alert("LAT01", **{OURS: "abc"}))
    assert settled == SettledMessage()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"alerts": 1}', b'{"alerts": [{"status": "maybe"}]}', b"[" * 100_000])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(IncomingError, match="not a message from Alertmanager"):
        read(body)


def test_a_message_is_bounded() -> None:
    many = {"status": "firing", "labels": {f"l{n}": "x" * (3000 if n == 0 else 3) for n in range(80)}}
    found = read(msgspec.json.encode({"alerts": [many] * 500, "truncatedAlerts": 3}))
    assert (len(found.alerts), found.truncated) == (200, 303)
    assert len(found.alerts[0].labels) == 64 and max(map(len, found.alerts[0].labels.values())) == 2000


@pytest.mark.parametrize(
    ("text", "severity"),
    [("page", "page"), ("CRITICAL", "page"), ("warning", "ticket"), ("?", "ticket"), ("info", "info")],
)
def test_severities_of_others(text: str, severity: str) -> None:
    assert Alert("firing", {"severity": text}).severity == severity


async def test_an_incident_remembers_a_bounded_number_of_alerts(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_tracker, "MAX_INCIDENT_ALERTS", 3)
    memory = Memory(full_cache)
    for number in range(5):
        await memory.tell(alert("LAT01", number=str(number)))
    (known,) = memory.known.values()
    assert len(known.open) == 3


def test_a_link_has_no_character_that_turns_the_line_around() -> None:
    bad = Alert("firing", {}, {"runbook_url": "https://a/\u202egpj"})
    assert links([bad], "", "https://b/\x7f", "https://c") == [Link("kvitals", "https://c")]


@pytest.mark.parametrize("starts", ["0001-01-01T00:00:00Z", "", "yesterday"])
def test_an_alert_without_a_start_began_when_it_came(starts: str) -> None:
    """Go writes the year 1 for no time: the incident had begun 62 billion seconds before 1970."""
    assert msgspec.structs.replace(alert(), starts=starts).began(AT) == AT
