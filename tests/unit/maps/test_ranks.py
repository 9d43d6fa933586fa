"""Data-parallel ranks are engines of their own, copies of a rank count once, and what is the page's own stays its own.

The pages of several ranks are generated from captured pages of one: each rank's series is the captured one, its value
times the rank's number, so that whatever is lost, doubled or mixed up shows as a wrong multiple.
"""

import math
from collections.abc import Mapping

import pytest

from kvitals.series.types import Labels
from tests.unit.maps.pages import Read, relabelled, stored

Rewritten = list[tuple[dict[str, str], float]]

ABOUT = ("kvitals_engine_", "kvitals_family_", "kvitals_name_", "kvitals_target_")
"""What is said of an engine, rather than told by a series."""


def told(read: Read) -> dict[Labels, float]:
    facts = "kvitals_engine_fact"
    found = {labels: value for labels, value in read.series().items() if not math.isnan(value)}
    return {
        labels: value
        for labels, value in found.items()
        if not labels.name.startswith(ABOUT) or (labels.name == facts and "model" in labels)
    }


def sglang_ranks(name: str, labels: Mapping[str, str], value: float) -> Rewritten:
    """What `--dp-size 3` makes of a page: schedulers have a rank, the API server's series have none."""
    if "tp_rank" not in labels:
        return [(dict(labels), value)]
    return [({**labels, "dp_rank": str(rank)}, value / (rank + 1)) for rank in range(3)]


def vllm_ranks(name: str, labels: Mapping[str, str], value: float) -> Rewritten:
    if "engine" not in labels:
        return [(dict(labels), value)]
    return [({**labels, "engine": str(rank)}, value / (rank + 1)) for rank in range(3)]


@pytest.mark.parametrize(
    ("page", "ranks", "of_ranks", "of_page"),
    [
        ("sglang-0.5.23-loaded", sglang_ranks, "kvitals_kv_usage_ratio", "kvitals_ttft_seconds_sum"),
        ("sglang-0.5.23-after", sglang_ranks, "kvitals_queue_seconds_sum", "kvitals_http_requests_total"),
        ("vllm-0.32-loaded", vllm_ranks, "kvitals_ttft_seconds_sum", "kvitals_process_cpu_seconds_total"),
    ],
)
def test_each_rank_has_its_own_numbers_once(page, ranks, of_ranks, of_page):
    text = stored(page)
    one, several = told(Read().page(text)), told(Read().page(relabelled(text, ranks)))
    assert len(one) > 100
    seen = set()
    for labels, value in one.items():
        own = labels.with_(engine="h:1")
        if own in several:
            assert several[own] == pytest.approx(value), labels
            seen.add(own)
            continue
        for rank in range(3):
            copy = labels.with_(engine=f"h:1/{rank}")
            assert several[copy] == pytest.approx(value / (rank + 1)), labels
            seen.add(copy)
    assert several.keys() == seen
    assert {labels["engine"] for labels in several if labels.name == of_ranks} == {"h:1/0", "h:1/1", "h:1/2"}
    assert {labels["engine"] for labels in several if labels.name == of_page} == {"h:1"}


@pytest.mark.parametrize("label", ["tp_rank", "pp_rank", "moe_ep_rank"])
def test_copies_of_a_rank_count_once(label):
    def copies(name: str, labels: Mapping[str, str], value: float) -> Rewritten:
        if "tp_rank" not in labels:
            return [(dict(labels), value)]
        return [({**labels, label: str(copy)}, value) for copy in range(12)]

    text = stored("sglang-0.5.23-loaded")
    assert told(Read().page(relabelled(text, copies))) == told(Read().page(text))


def test_the_first_copy_counts_and_bytes_of_shards_are_added_up():
    def shards(name: str, labels: Mapping[str, str], value: float) -> Rewritten:
        if "tp_rank" not in labels:
            return [(dict(labels), value)]
        return [({**labels, "tp_rank": str(shard)}, value * (shard + 1)) for shard in range(4)]

    text = stored("sglang-0.5.23-colocated")
    one, sharded = told(Read().page(text)), told(Read().page(relabelled(text, shards)))
    summed = {"kvitals_offload_load_bytes_total", "kvitals_offload_store_bytes_total"}
    assert sharded == {k: v * 10 if k.name in summed else v for k, v in one.items()}
    assert summed <= {labels.name for labels in one}


def test_ranks_of_data_parallel_attention_are_tensor_ranks_too():
    def attention(name: str, labels: Mapping[str, str], value: float) -> Rewritten:
        if "tp_rank" not in labels:
            return [(dict(labels), value)]
        return [({**labels, "dp_rank": str(r), "tp_rank": str(4 * r)}, value * (r + 1)) for r in range(2)]

    read = Read().page(relabelled(stored("sglang-0.5.23-loaded"), attention))
    assert read.now("kvitals_requests_running") == {"h:1/0": 8.0, "h:1/1": 16.0}
    assert read.now("kvitals_kv_tokens", state="used") == {"h:1/0": 3614.0, "h:1/1": 7228.0}


def test_the_server_of_several_ranks_is_an_entity_of_its_own():
    read = Read().page(relabelled(stored("sglang-0.5.23-loaded"), sglang_ranks))
    kinds = {labels["engine"]: labels["kind"] for labels in read.series() if labels.name == "kvitals_engine_info"}
    assert kinds == {"h:1": "frontend", "h:1/0": "scheduler", "h:1/1": "scheduler", "h:1/2": "scheduler"}
    assert set(read.now("kvitals_target_up")) == set(kinds)
    assert read.now("kvitals_ttft_seconds_count") == {"h:1": 157.0}
    assert set(read.now("kvitals_preemptions_total").values()) == {0.0}


def test_two_api_servers_of_a_real_page_count_together():
    """vLLM with --data-parallel-size 2 has two API servers: no start time, and counters that both have added to."""
    text = stored("vllm-0.32-dp2-ngram")
    assert "process_start_time_seconds" not in text
    read = Read().page(text)
    assert read.now("kvitals_prompt_tokens_total") == {"h:1/0": 580.0, "h:1/1": 870.0}
    assert read.now("kvitals_engine_restarts_total") == {"h:1/0": 0.0, "h:1/1": 0.0}
    again = relabelled(text, lambda name, labels, value: [(dict(labels), value + 1 if "_total" in name else value)])
    assert read.page(again).now("kvitals_engine_restarts_total") == {"h:1/0": 0.0, "h:1/1": 0.0}
    restarted = relabelled(text, lambda name, labels, value: [(dict(labels), 0.0 if "_total" in name else value)])
    assert read.page(restarted).now("kvitals_engine_restarts_total") == {"h:1/0": 1.0, "h:1/1": 1.0}
