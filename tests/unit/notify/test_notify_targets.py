"""What each target is sent for a notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvitals.app.notify.incident_tracker import Rules, settle
from kvitals.app.notify.notice import Notice
from kvitals.app.notify.notice_requests import digest, request, wants
from kvitals.config import AlertmanagerTarget, NotifyTarget, PagerDutyTarget, SlackTarget, WebhookTarget
from kvitals.rules.finding import Triage
from kvitals.series.secret_file import SecretError
from tests.unit.notify.notify_stage import AT, ENGINE, alert, diagnosing, message


@pytest.fixture
async def notice(full_cache: Triage) -> Notice:
    settled = await settle(message(alert("LAT01")), AT, (), diagnosing(full_cache), Rules(3600.0))
    return settled.notices[0]


@pytest.fixture
async def resolved(full_cache: Triage) -> Notice:
    first = await settle(message(alert("LAT01")), AT, (), diagnosing(full_cache), Rules(3600.0))
    known = list(first.incidents.values())
    last = await settle(message(alert("LAT01", "resolved")), AT + 300, known, diagnosing(full_cache), Rules(3600.0))
    return last.notices[0]


def secret(folder: Path, text: str) -> Path:
    path = folder / "secret"
    path.write_text(text)
    return path


def sent(target: NotifyTarget, notice: Notice) -> Any:
    return json.loads(request(target, notice).body)


def test_a_webhook_gets_the_notice(notice: Notice, tmp_path: Path) -> None:
    made = request(WebhookTarget(url="http://h/x", bearer_file=secret(tmp_path, "t0ken\n")), notice)
    assert (made.url, made.headers["Authorization"], made.headers["Idempotency-Key"]) == (
        "http://h/x", "Bearer t0ken", notice.id,
    )  # fmt: skip
    assert msgspec.json.decode(made.body, type=Notice) == notice


def test_slack_gets_short_blocks(notice: Notice, tmp_path: Path) -> None:
    made = request(SlackTarget(url_file=secret(tmp_path, "https://hooks.example.org/T/B/x\n")), notice)
    assert made.url == "https://hooks.example.org/T/B/x"
    told = json.loads(made.body)
    text = json.dumps(told, ensure_ascii=False)
    assert told["text"] == f"KV cache full: requests wait for blocks (engine {ENGINE})"
    for part in (
        "KV usage p90 is 100 %",
        "Add replicas",
        "Explains LAT01",
        "confidence high",
        "|Runbook KVC01>",
    ):
        assert part in text
    assert len(told["blocks"]) <= 6 and len(text) < 3000


def test_nothing_in_slack_is_a_link_that_we_did_not_make(notice: Notice, tmp_path: Path) -> None:
    target = SlackTarget(url_file=secret(tmp_path, "https://hooks.example.org/"))
    evil = msgspec.structs.replace(notice, verdict="<!channel> <http://evil|here> & so on", where="<@U1>")
    text = json.dumps(sent(target, evil), ensure_ascii=False)
    assert "&lt;!channel&gt;" in text and "<http://evil" not in text


def test_slack_is_bounded(notice: Notice, tmp_path: Path) -> None:
    target = SlackTarget(url_file=secret(tmp_path, "https://hooks.example.org/"))
    long = msgspec.structs.replace(notice, title="t" * 5000, verdict="v" * 50_000, where="w" * 5000)
    blocks = sent(target, long)["blocks"]
    assert len(blocks[0]["text"]["text"]) == 150
    assert all(len(block["text"]["text"]) <= 3000 for block in blocks if block["type"] == "section" and "text" in block)


def test_pagerduty_opens_and_resolves_one_incident(notice: Notice, resolved: Notice, tmp_path: Path) -> None:
    target = PagerDutyTarget(key_file=secret(tmp_path, "R0UTE"))
    opened, closed = sent(target, notice), sent(target, resolved)
    assert request(target, notice).url == "https://events.pagerduty.com/v2/enqueue"
    assert (opened["event_action"], closed["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == closed["dedup_key"] == f"kvitals-{notice.incident}"
    payload = opened["payload"]
    assert (payload["severity"], payload["class"], payload["component"]) == ("warning", "KVC01", ENGINE)
    assert payload["timestamp"] == "2026-11-21T05:29:30.000Z" and len(payload["summary"]) <= 1024
    do = "Give the KV cache more memory --num-gpu-blocks-override 278 (now 129) (restart)"
    assert payload["custom_details"]["do"][:2] == ["Add replicas", do]
    assert opened["routing_key"] == "R0UTE" and "payload" not in closed


def test_an_alertmanager_gets_one_alert_that_goes_on(notice: Notice, resolved: Notice) -> None:
    target = AlertmanagerTarget(url="http://am:9093/prefix/")
    assert request(target, notice).url == "http://am:9093/prefix/api/v2/alerts"
    first, last = sent(target, notice), sent(target, resolved)
    at, end = "2026-11-21T05:29:50.000Z", "2026-11-21T05:34:50.000Z"
    assert [one["labels"]["severity"] for one in first if one["endsAt"] > at] == ["ticket"]
    assert {one["endsAt"] for one in last} == {end}
    assert [one["labels"] for one in first] == [one["labels"] for one in last]
    assert first[0]["labels"]["kvitals_incident"] == notice.incident and first[0]["labels"]["engine"] == ENGINE
    assert "KVC01" in first[0]["annotations"]["runbook_url"]


def test_the_end_says_how_long_it_was(resolved: Notice, tmp_path: Path) -> None:
    text = json.dumps(sent(SlackTarget(url_file=secret(tmp_path, "https://hooks.example.org/")), resolved))
    assert "resolved: KV cache full" in text and "It lasted 5 min, from 05:29:30 UTC to 05:34:50 UTC." in text


@pytest.mark.parametrize("content", ["", "two\nlines", "x" * 20_000, "naïve"])
def test_a_secret_that_is_none_is_said_and_not_shown(content: str, notice: Notice, tmp_path: Path) -> None:
    with pytest.raises(SecretError) as raised:
        request(PagerDutyTarget(key_file=secret(tmp_path, content)), notice)
    assert str(tmp_path) in str(raised.value) and "two" not in str(raised.value) and "naïve" not in str(raised.value)


def test_who_wants_what(notice: Notice, resolved: Notice) -> None:
    pages = WebhookTarget(url="http://h", severities=("page",))
    assert not wants(pages, notice) and wants(pages, msgspec.structs.replace(notice, severity="page"))
    assert wants(WebhookTarget(url="http://h"), resolved)
    assert not wants(WebhookTarget(url="http://h", resolved=False), resolved)


def test_many_incidents_are_one_message_in_slack(notice: Notice, resolved: Notice, tmp_path: Path) -> None:
    """One message of an Alertmanager with 250 alerts was 200 messages in the channel."""
    target = SlackTarget(url_file=secret(tmp_path, "https://hooks.example.org/"))
    many = [msgspec.structs.replace(notice, incident=f"{n}", where=f"engine <{n}>") for n in range(200)]
    many += [msgspec.structs.replace(notice, incident="0", change="worse", severity="page", where="engine <0>")]
    many += [msgspec.structs.replace(resolved, incident=f"over {n}") for n in range(2)]
    told = json.loads(digest(target, many).body)
    assert told["text"] == "200 incidents, 1 of severity page; 2 resolved"
    shown = json.dumps(told, ensure_ascii=False)
    assert "engine &lt;3&gt;" in shown and "now a page: " in shown and "and 162 more" in shown and "|Runbook" in shown
    assert all(len(block["text"]["text"]) <= 3000 for block in told["blocks"] if block["type"] == "section")
    assert len(told["blocks"]) <= 50
