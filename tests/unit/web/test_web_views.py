"""Every page of the app on what ships, on an agent that knows little, and on sources that do not answer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kvitals.app.page_settings import PageSettings
from kvitals.ui.web import source_registry
from kvitals.ui.web.sources.base import PageWindow
from tests.unit.web import documents
from tests.unit.web.looking import again, run, sound, words
from tests.unit.web.stub import stub_api

PAGES = (
    *("", "timeline", "tenants", "cache", "cascades", "requests", "fleet", "engine", "efficiency"),
    *("what-if", "size", "rules", "sources"),
)
CASCADE, HEAVY = "demo:eviction_cascade", "demo:heavy_tenant"


def test_triage_of_a_recording_is_that_of_the_terminal() -> None:
    said = words(run(source=CASCADE))
    assert "Noisy tenant evicts the prefixes of other tenants, with " in said
    assert "## 1. Noisy tenant evicts the prefixes of other tenants" in said
    assert "caused 94.5 % of" in said
    assert "explains `PFX01`" in said
    assert "`KVC06` **KV cache too small for the reused prefixes**" in said  # a note: no first token is late
    assert "`KVC05` **Eviction cascade in progress** on engine: cascade stage is 0, below 3" in said
    assert "recording `eviction_cascade.kvcap`" in said


def test_the_timeline_has_findings_stages_and_signals() -> None:
    app = run("timeline", source=CASCADE)
    said = words(app)
    assert "Select a window, and every page shows it" in said
    assert "`KVC05` **Eviction cascade in progress** on engine" in said
    assert "ttft p99" in said
    assert app.multiselect[0].value[0] == "ttft_p99_seconds"
    assert len(app.slider) >= 1


def test_a_window_that_is_picked_is_judged_as_the_terminal_judges_it() -> None:
    there = source_registry.open_source(HEAVY).extent()
    early = run(source=HEAVY, **{"from": str(there.start + 20), "to": str(there.start + 60)})
    assert "No trouble found" in words(early)
    late = run(source=HEAVY)
    assert "KV cache full: requests wait for blocks." in words(late)


def test_moving_the_slider_moves_every_page() -> None:
    app = run("timeline", source=HEAVY)
    slider = next(s for s in app.slider if "timeline" in str(s.key))
    first, last = slider.value
    slider.set_value((first - timedelta(seconds=20), first))
    sound(app.run())
    window = app.session_state["look"]
    assert isinstance(window, PageWindow)
    assert window.end == pytest.approx(first.timestamp())
    assert app.query_params["to"] == f"{first.timestamp():.3f}"
    assert last.timestamp() > window.end
    back = next(b for b in app.button if b.key == "timeline-back")
    back.click()
    sound(app.run())
    assert app.session_state["look"] is None


def test_tenants_are_compared() -> None:
    app = run("tenants", source=CASCADE)
    said = words(app)
    for text in (
        "Jain",
        "### Hit rate, and attainable hit rate",
        "### Who paid for whom",
        "### Time to first token, p99",
    ):
        assert text in said, text
    table = app.dataframe[0].value
    assert next(iter(table["tenant"])) == "t-us5rs6vatl"
    assert table["cost others"].max() == pytest.approx(28_655.5, rel=0.01)
    assert "**Culprit** t-us5rs6vatl: 94% of all recomputed tokens" in said
    assert "**Victims** t-7t3xmotuqe 20.5 k (72%)" in said
    app.selectbox(key="tenant-tail").set_value("t-7t3xmotuqe")
    assert "slowest requests of t-7t3xmotuqe" in words(sound(app.run()))


def test_tenants_follow_the_time_range() -> None:
    there = source_registry.open_source(CASCADE).extent()
    app = run("tenants", source=CASCADE, **{"from": str(there.start), "to": str(there.start + 20.0)})
    early = app.dataframe[0].value
    assert "t-us5rs6vatl" not in set(early["tenant"]), "this tenant comes later"
    assert early["cost others"].max() == 0
    assert "No rule about tenants fires" in words(app)
    whole = run("tenants", source=CASCADE, **{"from": str(there.start), "to": str(there.end)}).dataframe[0].value
    total = run("tenants", source=CASCADE).dataframe[0].value
    for name in ("looked up", "recomputed", "cost others"):
        assert list(whole[name]) == pytest.approx(list(total[name]), rel=0.02), name
    assert (total["hit rate"] <= total["attainable hit rate"]).all()


def test_the_cache_says_what_another_size_would_find() -> None:
    app = run("cache", source=CASCADE)
    said = words(app)
    assert "hit rate since start\n50.0%" in said and "30.3 k tokens" in said
    assert "today: 191 blocks, modelled hit rate 49.8%" in said
    assert "100% of lookups observed · confidence 100% · 1,005 lookups" in said
    slider = app.select_slider(key="size-engine-engine")
    slider.set_value(len(slider.options) - 1)
    moved = words(sound(app.run()))
    assert "today: 191 blocks" in moved
    found = source_registry.open_source(CASCADE).blocks().cache["engines"][0]["curve"]
    assert f"{found['token_hit_rate'][-1]:.1%}" in moved


def test_a_cascade_is_told_with_its_stages() -> None:
    said = words(run("cascades", source=CASCADE))
    for text in ("## Stage 4 of 5 on engine", "30.3 k tokens computed again", "**trigger** t-us5rs6vatl went from 0"):
        assert text in said, text


def test_requests_slow_newest_and_by_id() -> None:
    app = run("requests", source=CASCADE)
    assert "The slowest 50 of 1005 requests took 247 ms" in words(app)
    name = "85c6b39cf10c48a797803c762ad05e92"
    app.text_input(key="request-id").set_value(name)
    found = words(sound(app.run()))
    assert name in found and "tokens: prompt 488, cached 320, output 24" in found
    app.text_input(key="request-id").set_value("<script>nobody</script>")
    assert "No request <script>nobody</script> is stored" in words(sound(app.run()))


def test_the_fleet_has_its_engines() -> None:
    app = run("fleet", source=CASCADE)
    table = app.dataframe[0].value
    assert list(table["engine"]) == ["engine"]
    assert list(table["worst"]) == ["ticket"]


def test_what_if_says_what_the_command_says() -> None:
    app = run("what-if", source=CASCADE)
    assert "1,005 requests in 71 s" in words(app)
    next(b for b in app.button if b.label == "Replay").click()
    said = words(sound(app.run()))
    assert "Hit rate when recorded: **50.0%**" in said
    table = app.dataframe[0].value
    assert list(table["blocks"]) == ["191", "382", "764", "endless"]
    assert next(iter(table[""])) == "base"
    tiles = {m.label: m.value for m in app.metric}
    best = list(table["hit rate"]).index(max(table["hit rate"], key=lambda text: float(text.rstrip("%"))))
    assert list(table["prefill work"])[best] == tiles["prefill work"], "tile and table have one sign"
    assert tiles["prefill work"].startswith("-")


@pytest.mark.parametrize("capacities", ["0", "1e99", ",", "nonsense", ",".join(map(str, range(1, 70))), "-5t"])
def test_what_if_refuses_what_can_not_be(capacities: str) -> None:
    app = run("what-if", source=CASCADE)
    app.text_input(key="what-if-capacities").set_value(capacities)
    next(b for b in app.button if b.label == "Replay").click()
    assert "Replay failed" in words(sound(app.run()))


def test_a_rule_is_read_and_tried() -> None:
    app = run("rules", source=CASCADE)
    said = words(app)
    for text in ("`TEN02`", "### What it sees", "fired on engine", "kvitals:blame_share_worst"):
        assert text in said, text
    trial = next(n for n in app.number_input if n.label == "$share")
    trial.set_value(1.0)
    assert "With these thresholds the condition holds nowhere" in words(sound(app.run()))


def test_a_rule_that_did_not_fire_is_read_too() -> None:
    app = run("rules", source=CASCADE)
    app.selectbox(key="rule-all").set_value("SCH01")
    assert "`SCH01`" in words(sound(app.run()))


def test_sources_can_be_switched() -> None:
    app = run("sources", source=CASCADE)
    assert "82 s, from 2026-11-21 10:40:25 UTC" in words(app)
    next(b for b in app.button if b.key == "choose-heavy_tenant").click()
    app = sound(app.run())
    assert app.session_state["place"] == HEAVY
    assert app.query_params["source"] == HEAVY


@pytest.mark.parametrize("page", PAGES)
def test_a_recording_without_blocks_and_requests(page: str) -> None:
    said = words(run(page, source=HEAVY))
    wanted = {
        "tenants": "No tenant is known",
        "cache": "No engine has reported its blocks",
        "cascades": "No engine has reported its blocks",
        "requests": "No requests are known",
        "what-if": "No cache lookups are known",
    }
    assert wanted.get(page, "") in said


@pytest.mark.parametrize("page", PAGES)
def test_without_an_agent_every_page_says_what_to_do(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVITALS_API", "http://127.0.0.1:1")
    said = words(run(page))
    wanted = {
        "rules": "### What it sees",
        "efficiency": "Nothing was reviewed yet.",
        "size": "No result yet.",
    }
    assert wanted.get(page, "no agent answers").lower() in said.lower()


@pytest.mark.parametrize("page", PAGES)
def test_an_agent_that_answers_strangely_breaks_no_page(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document on the first page, and the same bytes where other pages expect something else."""
    with stub_api(documents.unhealthy()) as stub:
        monkeypatch.setenv("KVITALS_API", stub.url)
        app = run(page)
        stub.status = 503
        again(app)


@pytest.mark.parametrize("page", PAGES)
def test_a_prometheus_that_is_not_there(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVITALS_WEB", PageSettings(prometheus="http://127.0.0.1:1").encode())
    said = words(run(page))
    if page in ("", "timeline", "fleet", "what-if"):
        assert "The Prometheus cannot be diagnosed" in said
    if page in ("cache", "requests"):
        assert "A Prometheus has series, but no data about single blocks or requests." in said


def test_a_link_names_only_what_everybody_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_api(documents.document()) as stub, stub_api(documents.unhealthy()) as other:
        monkeypatch.setenv("KVITALS_API", stub.url)
        app = run(source=f"agent:{other.url}")
        assert other.asked == [], "a link made the page ask a server"
        assert "Healthy" in words(app)


@pytest.mark.parametrize(("start", "end"), [("1", "0"), ("nan", "inf"), ("x", "y"), ("-5", "5"), ("1e300", "2e300")])
def test_a_link_with_a_window_that_is_none(start: str, end: str) -> None:
    app = run(source=HEAVY, **{"from": start, "to": end})
    assert app.session_state["look"] is None


def test_a_window_before_the_recording_says_so() -> None:
    said = words(run(source=HEAVY, **{"from": "1000", "to": "2000"}))
    assert "This window cannot be diagnosed" in said


def test_a_link_to_a_page_that_is_none() -> None:
    assert "KV cache full: requests wait for blocks." in words(run("nonsense", source=HEAVY))
