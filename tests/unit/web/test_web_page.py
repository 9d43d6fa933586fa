"""The page on documents as the diagnoser makes them, and on everything that an agent can answer instead."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from kvitals.rules.finding import DocumentSource, DocumentWindow, Entity, RuledOut
from tests.unit.web import documents
from tests.unit.web.looking import again, run, words
from tests.unit.web.stub import Stub, stub_api


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    with stub_api(documents.document()) as stub:
        monkeypatch.setenv("KVITALS_API", stub.url)
        yield stub


def test_a_healthy_engine_is_said_to_be_healthy(api: Stub) -> None:
    app = run()
    assert "**:material/check_circle: Healthy**" in words(app)
    assert "No trouble found: 7 core checks clear or not applicable." in words(app)
    assert "few-slots.kvcap" in words(app)
    assert "time to first token p99 ≤ 2 s (default) · gap between tokens p99 ≤ 200 ms (default)" in words(app)
    assert "22 rules: 0 fired, 18 clear, 2 not applicable, 2 not checked" in words(app)
    assert api.asked == ["/api/v1/findings"]


def test_a_cause_comes_with_its_proof_what_it_explains_and_what_to_do(api: Stub) -> None:
    api.say(documents.unhealthy())
    said = words(run())
    assert ":material/error: Unhealthy" in said
    for text in (
        "Live requests pin 97 % of the KV blocks (p90)",
        "since 2025-12-31 14:02:40 UTC",
        "explains `LAT01 (page)` **TTFT p99 above objective**: 99 % of requests",
        "explains `KVC09 (ticket)`",
        "confidence high (0.90)",
        "--kv-cache-dtype fp8",
        "now auto · needs a restart · cost low · needs a GPU with FP8",
        "**Will not fix:** A client that never reads",
        "**Risk:** Half the bits",
        "not an engine flag: it is applied outside of the engine",
        "not known: slots: no endpoint tells it",
        "kvitals:kv_usage_p90",
        "Problems of the telemetry",
        "muted: adapter roll-out until Friday",
        "KV usage p90 is 97 %, not below 50 %",
        "1 check without **a tracked cache**",
        "to get it: --kv-cache-metrics",
    ):
        assert text in said, text


def test_what_a_cause_explains_has_no_card_of_its_own(api: Stub) -> None:
    api.say(documents.unhealthy())
    titles = [m.value.partition("\n")[0] for m in run().markdown if m.value.startswith("## ")]
    assert titles == [
        "## Triage",
        "## KV cache full\\: requests wait for blocks",
        "## Problems of the telemetry",
        "## Metrics expected from this engine version are missing",
    ]


def test_the_same_symptom_under_two_causes_is_shown_under_both(api: Stub) -> None:
    other = documents.finding("SCH12", "waiting-deferred", "Held back", "3 wait.", explains=["LAT01"])
    document = documents.unhealthy()
    api.say(replace(document, causes=[*document.causes, other]))
    said = words(run())
    assert said.count("explains `LAT01 (page)`") == 2
    assert "## 1. KV cache full: requests wait for blocks" in said
    assert "## 2. Held back" in said


def test_an_unexplained_symptom_and_a_circle_of_causes_are_not_lost(api: Stub) -> None:
    one = documents.finding("KVC01", "a", "First", "a.", explains=["KVC09"], explained_by=["KVC09"])
    two = documents.finding("KVC09", "b", "Second", "b.", explains=["KVC01"], explained_by=["KVC01"])
    symptom = replace(documents.ttft_breach(), explained_by=[])
    api.say(documents.document(healthy=False, causes=[one, two], symptoms=[symptom]))
    said = words(run())
    for title in ("## 1. First", "## 2. Second", "## TTFT p99 above objective"):
        assert title in said


def test_a_symptom_of_another_engine_is_not_explained_here(api: Stub) -> None:
    elsewhere = Entity(kind="engine", labels={"engine": "b"}, title="b")
    document = documents.unhealthy()
    api.say(replace(document, symptoms=[replace(documents.ttft_breach(), id="b", entity=elsewhere)]))
    said = words(run())
    assert "explains `LAT01" not in said
    assert "Symptoms without a known cause" in said


def test_not_knowing_is_neither_health_nor_trouble(api: Stub) -> None:
    api.say(documents.could_not_tell())
    app = run()
    said = words(app)
    assert ":material/help: Unknown" in said
    assert "window of 12 s up to 2025-12-31 14:03:20 UTC, little or no data before it" in said
    assert "only 7 of 20 requests in 12 s" in said
    assert "2 checks without **requests to judge by**" in said
    assert "to get it: a longer window, or more traffic" in said
    assert not app.expander[0].proto.expanded


def test_a_rule_that_failed_is_named(api: Stub) -> None:
    document = documents.could_not_tell()
    api.say(replace(document, coverage=replace(document.coverage, crashed={"KVC01": "ValueError: <x>"})))
    assert "rule `KVC01` failed, the others were evaluated: ValueError: <x>" in words(run())


def test_an_old_answer_of_a_running_agent_is_said_to_be_old(api: Stub) -> None:
    old = DocumentWindow(documents.END - 60, documents.END, 60.0, False)
    api.say(documents.document(source=DocumentSource("agent", "this node"), window=old))
    app = run()
    assert "The agent has stopped scraping." in words(app)
    api.say(documents.document(source=DocumentSource("capture", "a.kvcap"), window=old))
    assert "The agent has stopped scraping." not in words(again(app))


def test_without_an_agent_it_says_where_it_asked_and_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVITALS_API", "http://127.0.0.1:1")
    said = words(run())
    assert "No agent answers" in said
    assert "no agent answers at http://127.0.0.1:1: connection refused." in said
    assert "kvitals run http://HOST:8000" in said


def test_when_the_agent_goes_away_the_last_answer_stays_and_is_marked(api: Stub) -> None:
    api.say(documents.unhealthy())
    app = run()
    api.status, api.body = 503, b'{"status":"error","errorType":"unavailable","error":"no findings yet"}'
    said = words(again(app))
    assert "The agent has no verdict yet" in said
    assert "Below is the last answer, from 2025-12-31 14:03:20 UTC." in said
    assert "KV cache full: requests wait for blocks." in said
    api.say(documents.document())
    said = words(again(app))
    assert "last answer" not in said
    assert "No trouble found" in said


@pytest.mark.parametrize(
    ("status", "body", "title"),
    [
        (404, b"not found", "The program at this address is not a kvitals agent"),
        (302, b"", "The program at this address is not a kvitals agent"),
        (200, b"<html>", "The program at this address is not a kvitals agent"),
        (200, b'{"status": "ok"}', "The program at this address is not a kvitals agent"),
        (200, b"\xff\xfe", "The program at this address is not a kvitals agent"),
        (200, b'{"version": "7.0", "findings": []}', "The agent and this page have different versions"),
    ],
)
def test_an_answer_that_is_no_document(api: Stub, status: int, body: bytes, title: str) -> None:
    api.status, api.body = status, body
    assert title in words(run())


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://127.0.0.1:x", "http://"])
def test_an_address_that_is_no_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("KVITALS_API", url)
    assert "The agent's address is not a URL" in words(run())


def test_an_answer_without_end_is_cut_off(api: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvitals.app.agent_client.MAX_BYTES", 1 << 20)
    api.body = b" " * (2 << 20)
    assert "larger than 1 MB" in words(run())


def test_hostile_names_do_not_break_the_page(api: Stub) -> None:
    """How they look is for the browser test; here nothing raises and nothing special is left unescaped."""
    causes = [documents.hostile(name, i) for i, name in enumerate(documents.HOSTILE)]
    ruled_out = [RuledOut(name, name, name, name) for name in documents.HOSTILE]
    api.say(documents.document(healthy=False, verdict=causes[0].title, causes=causes, ruled_out=ruled_out))
    app = run()
    assert all(not m.allow_html for m in app.markdown)
    text = "".join(re.sub(r"(`+).*?\1", "", str(m.value)) for m in app.markdown)
    assert not re.search(r"(?<!\\)[<\[$*]", text.replace("**", "").replace("-badge[", ""))


def test_an_engine_that_cannot_be_read_stands_before_causes(api: Stub) -> None:
    """A dead engine was listed below the causes, as a problem of the telemetry."""
    lost = documents.finding("TEL01", "target-down", "Engine metrics page cannot be read", "It cannot be read.")
    document = documents.unhealthy()
    api.say(replace(document, telemetry=[replace(lost, severity="page", kind="telemetry"), *document.telemetry]))
    titles = [m.value.partition("\n")[0] for m in run().markdown if m.value.startswith("## ")]
    assert titles[1:5] == [
        "## Engines that cannot be read",
        "## Engine metrics page cannot be read",
        "## KV cache full\\: requests wait for blocks",
        "## Problems of the telemetry",
    ]
