"""What SGLang's map says of versions, roles, labels of callers, /server_info and flags."""

import json
import re

import pytest

from kvitals.agent.command_line import LAUNCHERS, parse
from kvitals.agent.families import SERVER_INFO
from kvitals.rules.engine_map import EngineMap, load_map
from tests.unit.maps.pages import ROOT, Read, relabelled, stored


@pytest.fixture(scope="module")
def sglang() -> EngineMap:
    return load_map("sglang")


def learn(m: EngineMap, command: str, version: str = "0.5.23") -> tuple[dict[str, float], dict[str, str]]:
    launcher = next(launcher for launcher in LAUNCHERS if launcher.system == "sglang")
    return m.learn(parse(launcher, command.split()), version)


# Versions


@pytest.mark.parametrize("version", ["0.4.0", "0.4.4", "0.4.10", "0.5.2", "0.5.6", "0.5.9", "0.5.17", "0.5.23"])
def test_what_rules_live_on_is_mapped_in_every_version(sglang, version):
    fed = {metric.family for metric in sglang.metrics if metric.known_in(version)}
    core = "ttft_seconds itl_seconds e2e_seconds requests_running requests_waiting kv_usage_ratio prompt_tokens_total"
    assert {f"kvitals_{name}" for name in core.split()} <= fed
    assert {"kvitals_generation_tokens_total", "kvitals_prefix_query_tokens_total"} <= fed


@pytest.mark.parametrize(
    ("version", "queries", "hits"),
    [
        ("0.4.4", "prompt_tokens_total", "cached_tokens_total"),
        ("0.5.6", "prompt_tokens_total", "cached_tokens_total"),
        ("0.5.7", "realtime_tokens_total", "realtime_tokens_total"),
        ("0.5.18", "prefill_effective_tokens_total", "prefill_effective_tokens_total"),
    ],
)
def test_the_prefix_counters_come_from_the_best_that_the_version_has(sglang, version, queries, hits):
    known = [metric for metric in sglang.metrics if metric.known_in(version)]
    assert {m.raw for m in known if m.family == "kvitals_prefix_query_tokens_total"} == {queries}
    assert {m.raw for m in known if m.family == "kvitals_prefix_hit_tokens_total"} == {hits}


def test_hits_and_lookups_of_a_loaded_engine():
    read = Read().page(stored("sglang-0.5.23-loaded"))
    assert read.now("kvitals_prefix_query_tokens_total") == {"h:1/0": 44375.0 + 8641.0}
    assert read.now("kvitals_prefix_hit_tokens_total") == {"h:1/0": 8641.0}
    assert read.now("kvitals_cached_tokens_by_medium_total", medium="host") == {"h:1/0": 0.0}


def test_what_sums_to_what_on_a_real_page():
    """Relations that hold only if units and parts are read right."""
    read = Read().page(stored("sglang-0.5.23-after"))
    [used], [free], [evictable] = (
        read.now("kvitals_kv_tokens", state=s).values() for s in ("used", "free", "evictable")
    )
    [capacity] = read.now("kvitals_engine_fact", fact="kv_capacity_tokens").values()
    assert used + free + evictable == capacity == 4096.0
    [computed], [cached] = (
        read.now("kvitals_computed_tokens_total").values(),
        read.now("kvitals_prefix_hit_tokens_total").values(),
    )
    assert computed + cached == next(iter(read.now("kvitals_prefix_query_tokens_total").values()))
    [prompt] = read.now("kvitals_prompt_tokens_total").values()
    assert read.now("kvitals_request_prompt_tokens_sum") == {"h:1/0": prompt}
    requests = read.now("kvitals_ttft_seconds_count")
    assert requests == read.now("kvitals_queue_seconds_count") == read.now("kvitals_prefill_seconds_count")


def test_units_of_transfers():
    read = Read().page(stored("sglang-0.5.23-prefill"))
    assert read.now("kvitals_transfer_seconds_sum") == {"h:1/0": pytest.approx(0.035)}
    assert read.now("kvitals_transfer_size_bytes_sum") == {"h:1/0": 512.0 * 2**20}
    speed = read.now("kvitals_transfer_speed_bytes_per_second_sum")["h:1/0"]
    assert speed == pytest.approx(512.0 * 2**20 / 0.035)
    assert read.now("kvitals_transfer_seconds_bucket", le="0.001") == {"h:1/0": 0.0}


def test_an_old_gauge_is_no_histogram():
    text = '# TYPE sglang:kv_transfer_latency_ms gauge\nsglang:kv_transfer_latency_ms{model_name="m"} 35.0\n'
    read = Read()
    read.translator.learn(SERVER_INFO, {}, {"version": "0.5.5"})
    assert read.page(text).now("kvitals_transfer_last_seconds", step="transfer") == {"h:1/0": pytest.approx(0.035)}
    assert read.now("kvitals_transfer_seconds") == {}


def test_a_counter_that_has_not_counted_is_zero_from_the_version_on_that_has_it():
    running = '# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{model_name="m"} 1.0\n'
    for version, expected in (("0.5.7", {"h:1/0": 0.0}), ("0.5.6", {})):
        read = Read()
        read.translator.learn(SERVER_INFO, {}, {"version": version})
        assert read.page(running).now("kvitals_preemptions_total") == expected


@pytest.mark.parametrize(
    ("page", "failures"), [("prefill", {"h:1/0": 0.0}), ("decode", {"h:1/0": 0.0}), ("colocated", {})]
)
def test_a_pair_without_a_failed_transfer_has_none(page, failures):
    text = stored(f"sglang-0.5.23-{page}")
    without = "".join(line for line in text.splitlines(keepends=True) if "_failed_reqs" not in line)
    read = Read().page(without)
    assert read.now("kvitals_transfer_failures_total") == failures
    assert read.now("kvitals_transfer_bootstrap_failures_total") == failures
    assert Read().page(text).now("kvitals_transfer_failures_total") == {"h:1/0": 1.0}


# Spellings, labels


@pytest.mark.parametrize("prefix", ["sglang_", "ray_sglang_", "ray_sglang:"])
def test_ray_serves_other_names(prefix):
    text = stored("sglang-0.5.23-loaded")
    one, other = (Read().page(t).series() for t in (text, text.replace("sglang:", prefix)))
    assert {k: repr(v) for k, v in one.items()} == {k: repr(v) for k, v in other.items()}  # one is not a number


def test_priorities_are_not_counted_beside_their_sum():
    def by_priority(name, labels, value):
        if name not in ("sglang:num_running_reqs", "sglang:num_queue_reqs"):
            return [(dict(labels), value)]
        return [({**labels, "priority": p}, value / share) for p, share in (("", 1), ("0", 2), ("7", 2))]

    read = Read().page(relabelled(stored("sglang-0.5.23-loaded"), by_priority))
    assert read.now("kvitals_requests_running") == {"h:1/0": 8.0}
    assert len(read.now("kvitals_requests_waiting_by_reason", reason="capacity")) == 1


def test_labels_of_callers_are_summed_over():
    read = Read().page(stored("sglang-0.5.23-tokenizer"))
    assert read.now("kvitals_prompt_tokens_total") == {"h:1/0": 9020.0}
    assert read.now("kvitals_ttft_seconds_count") == {"h:1/0": 10.0}
    assert not [labels for labels in read.series() if "tenant" in labels or "cluster" in labels]


@pytest.mark.parametrize(("page", "role"), [("colocated", "unified"), ("prefill", "prefill"), ("decode", "decode")])
def test_roles(page, role):
    read = Read().page(stored(f"sglang-0.5.23-{page}"))
    assert {labels["role"] for labels in read.series() if labels.name == "kvitals_engine_info"} == {role}


@pytest.mark.parametrize(("mode", "role"), [("", None), ("prefill", "prefill"), ("null", "unified")])
def test_a_server_that_calls_itself_unified_in_an_old_version_may_be_half_of_a_pair(mode, role):
    text = '# TYPE sglang:token_usage gauge\nsglang:token_usage{engine_type="unified",model_name="m"} 0.5\n'
    read = Read()
    read.translator.learn(SERVER_INFO, {}, {"version": "0.5.6", "kv_role": mode})
    [info] = [labels for labels in read.page(text).series() if labels.name == "kvitals_engine_info"]
    assert info.get("role") == role


# /server_info


@pytest.fixture(scope="module")
def answer() -> dict[str, object]:
    return json.loads((ROOT / "captured" / "sglang-0.5.23-server_info.json").read_text(encoding="utf-8"))


def test_facts_of_a_real_server(sglang, answer):
    facts, info = sglang.endpoint.learn(answer)
    assert (facts["slots"], facts["kv_capacity_tokens"], facts["block_tokens"]) == (2048.0, 4096.0, 1.0)
    assert (facts["prefix_caching"], facts["kv_events"], facts["tracing"], facts["data_parallel"]) == (1.0, 0, 0, 1.0)
    assert facts["gpu_memory_utilization"] == 0.719 and "queue_limit_requests" not in facts
    assert info["version"] == "0.5.23" and info["kv_role"] == "null" and "speculation_method" not in info


def test_every_field_that_is_looked_at_exists_on_a_real_server(sglang, answer):
    endpoint = sglang.endpoint
    paths = [
        *endpoint.numbers.values(),
        *endpoint.strings.values(),
        *endpoint.given.values(),
        *endpoint.absent.values(),
    ]
    for path in paths:
        found = answer
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]


def test_no_secret_of_the_answer_is_kept(sglang, answer):
    secrets = [key for key in answer if re.search(r"api_key|password|watermark|_file$|ssl_", key)]
    assert len(secrets) > 5
    said = json.dumps(sglang.endpoint.learn({**answer, **dict.fromkeys(secrets, "s3cret")}))
    assert "s3cret" not in said and "--model-path" not in said


# Flags


def test_flags_tell_facts(sglang):
    facts, info = learn(
        sglang,
        "--model m --tp 8 --dp-size 4 --max-running-requests 256 --disable-radix-cache --enable-cache-report"
        " --disaggregation-mode decode --schedule-policy lpm --mem-fraction-static 0.85",
    )
    assert (facts["tensor_parallel"], facts["data_parallel"], facts["slots"]) == (8.0, 4.0, 64.0)
    assert (facts["prefix_caching"], facts["prompt_tokens_details"], facts["kv_events"]) == (0.0, 1.0, 0.0)
    assert (info["kv_role"], info["scheduling_policy"], facts["gpu_memory_utilization"]) == ("decode", "lpm", 0.85)


def test_flags_and_the_server_tell_the_same_facts_under_the_same_names(sglang, answer):
    told, _ = learn(sglang, str(answer["launch_command"]))
    known, _ = sglang.endpoint.learn(answer)
    both = told.keys() & known.keys()
    assert len(both) > 8
    assert {fact: told[fact] for fact in both} == {fact: known[fact] for fact in both}


@pytest.mark.parametrize(
    ("short", "fact"),
    [
        ("--tp", "tensor_parallel"),
        ("--tp-size", "tensor_parallel"),
        ("--tensor-parallel-size", "tensor_parallel"),
        ("--pp", "pipeline_parallel"),
        ("--pp-size", "pipeline_parallel"),
        ("--dp", "data_parallel"),
        ("--data-parallel-size", "data_parallel"),
        ("--ep", "expert_parallel"),
        ("--ep-size", "expert_parallel"),
        ("--dcp-size", "decode_context_parallel"),
        ("--enable-hicache --hicache-ratio", "offload_ratio"),
        ("--context-length", "max_context_tokens"),
    ],
)
def test_short_flags(sglang, short, fact):
    assert learn(sglang, f"{short} 8")[0][fact] == learn(sglang, f"{short}=8")[0][fact] == 8.0


def test_without_prefix_caching_switched_off_nothing_is_said_of_it(sglang):
    assert "prefix_caching" not in learn(sglang, "--model-path m")[0]
    assert learn(sglang, "", version="") == ({}, {})
