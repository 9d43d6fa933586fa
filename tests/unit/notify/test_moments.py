"""When it began, which engine it is, and on what the links of a message open."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kvitals.app.identity import known_engine
from kvitals.app.notify import diagnosis
from kvitals.app.notify.incident_tracker import Rules, look_again, settle
from kvitals.app.notify.incoming import Alert
from kvitals.app.notify.notice import Link, Notice, links_at, numbers
from kvitals.app.notify.notice_text import foot, lines
from kvitals.rules.finding import Entity, Triage
from kvitals.rules.loader import load
from tests.unit.notify.notify_stage import AT, ENGINE, alert, message

RULES = Rules(3600.0, page="https://kvitals.example.org/?source=x")
BOARD = "https://grafana.example.org/d/kvitals-overview?var-engine=a"
QUERY = "http://prometheus.example.org/graph?g0.expr=up%20%3D%3D%200&g0.tab=1"
NOTICE = Notice(
    id="1", incident="1", status="firing", change="new", severity="page", title="", where="", entity={},
    began=AT - 60.0, at=AT, judged="diagnosed by the agent",
)  # fmt: skip
DAY = 86400.0


def judging(document: Triage, *engines: str) -> Any:
    known = [known_engine({"engine": name, "pool": "chat"}) for name in engines]

    async def diagnose(about: Any) -> Any:
        return diagnosis._diagnosis("judged", document, about, known, load(), elsewhere="")

    return diagnose


async def told(fired: Alert, diagnose: Any) -> Notice:
    (notice,) = (await settle(message(fired), AT, (), diagnose, RULES)).notices
    return notice


@pytest.mark.parametrize(
    ("since", "at_least", "text"),
    [
        (AT - 90.0, False, "KVC01 since 05:28:20 UTC · alert since 05:28:50 UTC"),
        (AT - 90.0, True, "KVC01 since 05:28:20 UTC or earlier · alert since 05:28:50 UTC"),
        (AT - DAY, False, "KVC01 since 2026-11-20 05:29:50 UTC · alert since"),
    ],
)
def test_a_start_has_its_date_and_whether_it_was_observed(
    since: float, at_least: bool, text: str, full_cache: Triage
) -> None:
    finding = replace(full_cache.causes[0], since=since, since_at_least=at_least)
    assert foot(replace(NOTICE, finding=finding)).startswith(text)


async def test_an_alert_without_a_start_began_then_or_earlier(full_cache: Triage) -> None:
    notice = await told(replace(alert(), starts=""), judging(full_cache, ENGINE))
    assert "alert since 05:29:50 UTC or earlier" in foot(notice)
    assert "or earlier" not in foot(await told(alert(), judging(full_cache, ENGINE))).partition("alert since")[2]


def test_the_end_states_the_start_with_its_date() -> None:
    ended = replace(NOTICE, status="resolved", change="resolved", began=AT - DAY)
    assert lines(ended) == ["It lasted 24.0 h, from 2026-11-20 05:29:50 UTC to 05:29:50 UTC."]
    assert lines(replace(ended, began_at_least=True)) == [
        "It lasted at least 24.0 h, from 2026-11-20 05:29:50 UTC or earlier to 05:29:50 UTC."
    ]


async def test_a_message_of_a_pool_names_the_engine(full_cache: Triage) -> None:
    fired = alert(pool="chat", engine="")
    settled = await settle(message(fired), AT, (), judging(full_cache, ENGINE, "another"), RULES)
    (notice,) = settled.notices
    assert notice.code == "KVC01" and notice.where == f"engine {ENGINE} · pool chat"
    assert notice.entity == {"pool": "chat"}, "the labels for another Alertmanager stay the same"
    known = list(settled.incidents.values())
    over = await settle(message(replace(fired, status="resolved")), AT + 60, known, judging(full_cache), RULES)
    assert over.notices[0].where == notice.where


async def test_links_open_on_the_moment_of_the_verdict(full_cache: Triage) -> None:
    fired = replace(
        alert(),
        url=QUERY,
        annotations={"summary": "", "dashboard_url": BOARD, "runbook_url": "https://wiki/LAT01.html"},
    )
    window = full_cache.window
    settled = await settle(message(fired), AT, (), judging(full_cache, ENGINE), RULES)
    links = {one.title: one.url for one in settled.notices[0].links}
    assert links["Board LAT01"] == f"{BOARD}&from={(window.end - 1800) * 1000:.0f}&to={window.end * 1000:.0f}"
    assert links["Query"].startswith(f"{QUERY}&g0.end_input=2026-11-21%2005%3A29%3A")
    assert links["kvitals"] == f"{RULES.page}&from={window.start:.3f}&to={window.end:.3f}"
    assert links["Runbook LAT01"] == "https://wiki/LAT01.html"
    later = replace(full_cache, window=replace(window, start=window.start + 600, end=window.end + 600))
    (incident,) = settled.incidents.values()
    found = diagnosis.Diagnosis("judged", later, full_cache.causes[0])
    (cause,) = look_again(replace(incident, code=""), found, AT + 600).notices
    assert f"to={window.end + 600:.3f}" in {one.title: one.url for one in cause.links}["kvitals"]


@pytest.mark.parametrize(
    "link",
    [
        Link("Board", f"{BOARD}&from=now-1h&to=now"),
        Link("Board", "https://wiki.example.org/board"),
        Link("Query", "https://grafana.example.org/alerting/grafana/x/view"),
        Link("Query", f"{QUERY}&g0.end_input=2026-11-21"),
        Link("Query", "http://[broken/graph?g0.expr=up"),
        Link("Alertmanager", "http://alertmanager.example.org"),
    ],
)
def test_other_links_stay_as_they_are(link: Link) -> None:
    assert links_at([link], AT - 60, AT) == [link]


def test_the_page_of_an_earlier_version_opens_on_the_new_moment() -> None:
    (page,) = links_at([Link("kvitals", "https://k/?from=1.000&to=2.000")], 3.0, 4.0)
    assert page.url == "https://k/?from=3.000&to=4.000"


@pytest.mark.parametrize("first", ["another", ENGINE])
async def test_the_page_opens_on_the_engine_where_the_verdict_is_anothers(first: str, full_cache: Triage) -> None:
    row = full_cache.engines[0]
    entity = Entity("engine", {"engine": "another"}, "another")
    others = [msgspec.structs.replace(full_cache.causes[0], entity=entity, id="x")] if first == "another" else []
    document = replace(full_cache, causes=[*others, *full_cache.causes], engines=[row, replace(row, entity=entity)])
    notice = await told(alert(), judging(document, ENGINE, "another"))
    (page,) = (one.url for one in notice.links if one.title == "kvitals")
    assert page.endswith("&page=engine&engine=127.0.0.1%3A8201%2F0") is (first == "another")


def test_a_number_that_is_not_known_is_left_out(full_cache: Triage) -> None:
    """Slack showed "Slots in use, p90: unknown"."""
    cause = full_cache.causes[0]
    unknown = replace(cause.evidence[0], title="Preemptions of now", text="unknown")
    shown = [one.title for one in numbers(replace(cause, evidence=[unknown, *cause.evidence]))]
    assert shown and shown == [one.title for one in numbers(cause)]
