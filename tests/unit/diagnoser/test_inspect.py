"""The inspection of pages of real servers, and of pages with one thing wrong."""

import re
from pathlib import Path

import pytest

from kvitals.agent.records import FactsRecord, Record, ScrapeRecord, encode
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import build
from kvitals.diagnoser.inspect import inspect
from kvitals.rules.engine_flags import flag_table
from kvitals.rules.finding import DocumentSource
from kvitals.rules.inspection import InspectedTarget, Inspection
from kvitals.rules.journeys import journeys
from kvitals.rules.loader import load
from kvitals.series.promql import Expr, Vector, evaluate, expand, parse
from kvitals.series.types import SeriesSource

FIXTURES = Path(__file__).parents[2] / "fixtures" / "exposition"
URL = "http://127.0.0.1:8000/metrics"


def look(*pages: str, facts: dict[str, float] | None = None, version: str = "", **config: object) -> Inspection:
    """What is said of a target whose pages come a second apart."""
    pipeline = Pipeline(Setup(load(), build(config)), DocumentSource("live", "test"))
    pipeline.node.expect({"targets": [{"url": URL}]})
    records: list[Record] = []
    for i, page in enumerate(pages):
        ok = bool(page)
        records.append(
            ScrapeRecord(t=1000.0 + i, target=URL, reason="ok" if ok else "refused", body=page.encode(), duration=0.01)
        )
        if i == 0 and facts is not None:
            records.append(FactsRecord(t=1000.5, target=URL, source="command line", facts=facts))
        if i == 0 and version:
            info = {"version": version}
            records.append(FactsRecord(t=1000.5, target=URL, source="version endpoint", info=info))
    pipeline.ingest_recorded(encode(record) for record in records)
    pipeline.observe(1000.0 + len(pages), fast=5.0, cold=True)
    assert pipeline.span is not None
    return inspect(pipeline.judge, pipeline.span, pipeline.source)


def page(name: str) -> str:
    return (FIXTURES / f"{name}.prom").read_text()


def states(target: InspectedTarget) -> dict[str, str]:
    return {family.family: family.state for family in target.families}


@pytest.fixture(scope="module")
def loaded() -> InspectedTarget:
    text = page("vllm-0.32-loaded")
    (target,) = look(text, text, facts={"kv_events": 0.0, "tracing": 1.0, "slots": 16.0}, version="0.32.0").targets
    return target


def test_a_target_is_told(loaded: InspectedTarget) -> None:
    assert (loaded.engine, loaded.system, loaded.kind, loaded.version) == (
        "127.0.0.1:8000/0",
        "vllm",
        "engine",
        "0.32.0",
    )
    assert loaded.up and loaded.state == "ok" and not loaded.untested and loaded.problems == []


def test_families_are_live_at_zero_off_or_newer(loaded: InspectedTarget) -> None:
    found = states(loaded)
    assert found["kvitals_ttft_seconds"] == "live"
    assert found["kvitals_requests_corrupted_total"] == "off"
    assert found["kvitals_transfer_seconds"] == "off"
    zero = [name for name, state in found.items() if state == "zero"]
    assert "kvitals_engine_sleep" not in zero and zero
    assert "missing" not in found.values() and "stale" not in found.values()


def test_an_old_version_lacks_what_came_later() -> None:
    text = page("vllm-0.32-loaded")
    text = re.sub(r"(?m)^.*prompt_tokens_by_source.*\n", "", text)
    (target,) = look(text, text, version="0.15.0").targets
    newer = {family.family: family.why for family in target.families if family.state == "newer"}
    assert newer["kvitals_prompt_tokens_by_source_total"] == "since 0.16"


def test_facts_say_where_they_were_learned(loaded: InspectedTarget) -> None:
    assert ("slots", 16.0, "command line") in {(f.fact, f.value, f.source) for f in loaded.facts}
    assert ("block_tokens", "metrics page") in {(f.fact, f.source) for f in loaded.facts}


def test_flags_are_on_off_or_unknown(loaded: InspectedTarget) -> None:
    switches = {switch.flag.split()[0]: switch.on for switch in loaded.switches}
    assert switches["--otlp-traces-endpoint"] is True
    assert switches["--kv-events-config"] is False
    assert switches["--enable-prompt-tokens-details"] is None


def test_objectives_are_held_against_bucket_bounds(loaded: InspectedTarget) -> None:
    found = {r.objective: r for r in loaded.resolutions}
    assert (found["ttft_p99"].on_edge, found["ttft_p99"].lower, found["ttft_p99"].upper) == (False, 1.0, 2.5)
    assert found["itl_p99"].on_edge


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "exact"), (3000.0, "above the last bucket")])
def test_an_objective_elsewhere(seconds: float, text: str) -> None:
    (target,) = look(page("vllm-0.32-loaded"), slo={"ttft_p99_seconds": seconds}).targets
    assert text in next(r.text for r in target.resolutions if r.objective == "ttft_p99")


def test_journeys_are_scored_by_what_they_need(loaded: InspectedTarget) -> None:
    scores = {score.journey: score for score in loaded.scores}
    assert list(scores) == [journey.name for journey in journeys()]
    traces = scores["traces"]
    assert (traces.have, traces.of) == (3, 3)
    cascade = scores["cascade"]
    assert [lack.what for lack in cascade.lacks] == ["recomputed blocks"]
    assert scores["triage"].have < scores["triage"].of


def test_what_a_page_lacks_lowers_the_score_of_triage() -> None:
    text = page("vllm-0.32-loaded")
    without = re.sub(r"(?m)^.*vllm:kv_cache_usage_perc.*\n", "", text)
    before, after = (look(p, p, version="0.32.0").targets[0] for p in (text, without))
    assert (
        next(s for s in after.scores if s.journey == "triage").have
        < next(s for s in before.scores if s.journey == "triage").have
    )
    assert states(after)["kvitals_kv_usage_ratio"] == "missing"
    assert [p.defect for p in after.problems if "missing" in p.what] == [True]


def test_an_old_name_is_a_defect() -> None:
    text = page("vllm-0.32-loaded").replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    inspection = look(text, text, version="0.32.0")
    assert inspection.ok is False
    assert any(
        "names from another version" in p.what and "gpu_cache_usage_perc" in p.what
        for p in inspection.targets[0].problems
    )


def test_an_unknown_name_is_said_and_no_defect() -> None:
    text = page("vllm-0.32-loaded") + "vllm:brand_new_thing 4\n"
    inspection = look(text, text, version="0.32.0")
    assert inspection.ok is True
    assert [p.what for p in inspection.targets[0].problems] == [
        "names that kvitals does not know: vllm:brand_new_thing"
    ]


def test_a_version_newer_than_the_map_is_said() -> None:
    inspection = look(page("vllm-0.32-loaded"), page("vllm-0.32-loaded"), version="0.99.0")
    (target,) = inspection.targets
    assert target.untested and any("newer than the versions" in p.what for p in target.problems)


def test_a_version_newer_than_the_flags_is_reported() -> None:
    table = flag_table("vllm")
    assert table is not None
    newest = table.newest
    (target,) = look(page("vllm-0.32-loaded"), page("vllm-0.32-loaded"), version="0.99.0").targets
    assert [p.what for p in target.problems if "flags" in p.what] == [
        f"0.99.0 is newer than the flags that this kvitals knows (to {newest})"
    ]


def test_an_unknown_version_is_reported() -> None:
    (target,) = look(page("vllm-0.32-loaded"), page("vllm-0.32-loaded"), version="0.1.dev9999+gabc").targets
    assert any(p.what.startswith("the version is not reported, so levers name the flags") for p in target.problems)


def test_a_ratio_in_percent_is_a_defect() -> None:
    text = re.sub(r"(?m)^(vllm:kv_cache_usage_perc\{.*\}) .*$", r"\1 41", page("vllm-0.32-loaded"))
    inspection = look(text, text)
    assert inspection.ok is False
    told = [p.what for p in inspection.targets[0].problems if p.defect]
    assert "values that cannot be true, which are not used: kv_cache_usage_perc (a share above 1)" in told


def test_a_sum_below_zero_of_a_real_engine_is_seen() -> None:
    text = page("captured/vllm-0.32-nixl-decode-after-failed-transfer")
    (target,) = look(text, text, version="0.32.0").targets
    assert any("kvitals_queue_seconds_sum is -" in p.what for p in target.problems)


def test_a_target_that_went_away_has_stale_families() -> None:
    text = page("vllm-0.32-loaded")
    inspection = look(text, *[""] * 20)
    (target,) = inspection.targets
    assert not target.up and target.state == "refused"
    assert states(target)["kvitals_ttft_seconds"] == "stale"
    assert inspection.ok is False


def test_nothing_is_known_of_a_target_that_never_answered() -> None:
    inspection = look("", "")
    (target,) = inspection.targets
    assert (target.system, target.families) == ("", [])
    assert inspection.ok is False


def test_fewer_ranks_than_configured_are_said() -> None:
    text = page("vllm-0.32-loaded")
    (target,) = look(text, text, facts={"data_parallel": 4.0}, version="0.32.0").targets
    assert any("4 data-parallel ranks are configured, but this page shows 1" in p.what for p in target.problems)


def test_needs_of_journeys_are_promql_over_known_families() -> None:
    families = load().families
    for journey in journeys():
        for need in journey.needs:
            expr = parse(expand(need.expr, {"scope": "cluster, node, engine", "window": "1m"}))
            names = re.findall(r"kvitals_[a-z_]+", str(expr))
            assert names
            assert all(n in families or n.removesuffix("_count") in families for n in names), need.what


def test_a_query_of_journeys_is_evaluated_once_for_all_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand targets took a fifth of a second each."""
    asked: list[str] = []

    def counted(expr: Expr, source: SeriesSource, at: float) -> Vector | float:
        asked.append(str(expr))
        return evaluate(expr, source, at)

    monkeypatch.setattr("kvitals.diagnoser.inspect.evaluate", counted)
    text = page("vllm-0.32-loaded")
    ranks = [line.replace('engine="0"', 'engine="1"') for line in text.splitlines() if not line.startswith("#")]
    both = "\n".join([*text.splitlines(), *ranks]) + "\n"
    assert len(look(both, both, version="0.32.0").targets) == 2
    assert asked.count("kvitals_target_up") == 1
    assert {one for one in asked if asked.count(one) > 1} == set()
