"""What vLLM's map says of versions, flags and defaults."""

import pytest

from kvitals.rules.engine_map import EngineMap, load_map, usable


@pytest.fixture(scope="module")
def vllm() -> EngineMap:
    return load_map("vllm")


VERSIONS = ["0.4.3", "0.5.4", "0.6.3", "0.8.5", "0.9.0.1", "0.10.2", "0.11.2", "0.15.0", "0.24.0", "0.32.0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_rules_live_on_is_mapped_in_every_version(vllm, version):
    fed = {metric.family for metric in vllm.metrics if metric.known_in(version)}
    core = """ttft_seconds itl_seconds e2e_seconds requests_running requests_waiting kv_usage_ratio
        requests_finished_total preemptions_total prompt_tokens_total generation_tokens_total"""
    assert {f"kvitals_{name}" for name in core.split()} <= fed


class Flags(dict):
    """The flags of a command line as a FlagReader."""

    def number(self, name: str) -> float | None:
        value = self.get(name)
        return float(value) if isinstance(value, bool | int | float) else None

    def text(self, name: str) -> str:
        value = self.get(name)
        return value if isinstance(value, str) else ""


def test_flags_tell_facts(vllm):
    given = {"max-num-seqs": 64, "kv-cache-metrics": True, "otlp-traces-endpoint": "http://x", "quantization": "fp8"}
    facts, info = vllm.learn(Flags(given), "0.32.0")
    assert (facts["slots"], facts["kv_cache_metrics"], facts["tracing"]) == (64.0, 1.0, 1.0)
    assert info["quantization"] == "fp8"
    assert (facts["kv_metrics_sample"], facts["kv_events"], facts["tensor_parallel"]) == (0.01, 0.0, 1.0)
    assert "token_budget" not in facts  # its default depends on the hardware


def test_without_a_version_no_default_applies(vllm):
    assert vllm.learn(Flags(), "") == ({}, {})


def test_defaults_only_where_the_flag_exists(vllm):
    assert "kv_cache_metrics" not in vllm.learn(Flags(), "0.11.0")[0]


@pytest.mark.parametrize(
    ("version", "says"),
    [("0.32.0", True), ("v0.9.1", True), ("0.11.0rc2", True), ("0.1.dev1+gabc", False), ("dev", False), ("", False)],
)
def test_versions_that_say_something(version, says):
    assert usable(version) == says


def test_newer_minor_releases_are_untested(vllm):
    assert not vllm.untested("0.33.7") and not vllm.untested("0.32.0")
    assert vllm.untested("0.34.0") and vllm.untested("1.0.0")


def test_the_first_versions_have_fewer_counters(vllm):
    fed = {metric.family for metric in vllm.metrics if metric.known_in("0.4.0")}
    assert {"kvitals_ttft_seconds", "kvitals_itl_seconds", "kvitals_kv_usage_ratio", "kvitals_requests_running"} <= fed
    assert not {"kvitals_preemptions_total", "kvitals_requests_finished_total", "kvitals_prefix_hit_ratio"} & fed


def test_the_limit_of_admission_bounds_the_slots(vllm):
    """An engine with three active sequences of 16 "had 18.8 % of its slots in use", and no queue for slots."""
    slots = {
        (("max-num-seqs", 16), ("max-num-active-seqs", 3)): 3.0,
        (("max-num-active-seqs", 3),): 3.0,
        (("max-num-seqs", 2), ("max-num-active-seqs", 3)): 2.0,
        (("max-num-seqs", 16),): 16.0,
        (): None,
    }
    assert {flags: vllm.learn(Flags(flags), "0.32.0")[0].get("slots") for flags in slots} == slots
