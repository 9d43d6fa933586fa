"""What an operator would look at, and what each program calls it: the lab's own reading of its servers' pages.

A dialect is a list of rows. Where a page has no series of the name, a row is None: the program does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .metrics import Watch

Value = int | float | None


class Measure(Protocol):
    def of(self, seen: Watch) -> Value: ...


@dataclass(frozen=True)
class Gained:
    """What a counter gained."""

    name: str
    labels: Mapping[str, str] | None = None

    def of(self, seen: Watch) -> int | None:
        return int(seen.gained(self.name, **(self.labels or {}))) if seen.says(self.name) else None


@dataclass(frozen=True)
class Mean:
    """A gauge on average."""

    name: str
    labels: Mapping[str, str] | None = None

    def of(self, seen: Watch) -> float | None:
        return round(seen.mean(self.name, **(self.labels or {})), 2) if seen.says(self.name) else None


@dataclass(frozen=True)
class Maximum:
    name: str

    def of(self, seen: Watch) -> float | None:
        return round(seen.maximum(self.name), 2) if seen.says(self.name) else None


@dataclass(frozen=True)
class Per:
    """What one counter gained for each of another's."""

    part: str
    whole: str
    digits: int = 2

    def of(self, seen: Watch) -> float | None:
        whole = seen.gained(self.whole)
        return round(seen.gained(self.part) / whole, self.digits) if whole and seen.says(self.part) else None


@dataclass(frozen=True)
class P99:
    """As PromQL's histogram_quantile would see what a histogram gained."""

    histogram: str

    def of(self, seen: Watch) -> float | None:
        return seen.quantile(self.histogram, 0.99)


def average(histogram: str) -> Per:
    return Per(f"{histogram}_sum", f"{histogram}_count", digits=3)


WAITING = "vllm:num_requests_waiting_by_reason"

VLLM: dict[str, Measure] = {
    "requests": Gained("vllm:request_success_total"),
    "errors": Gained("vllm:request_success_total", {"finished_reason": "error"}),
    "prompt_tokens": Gained("vllm:prompt_tokens_total"),
    "cached_tokens": Gained("vllm:prompt_tokens_cached_total"),
    "hit_ratio": Per("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    "running": Mean("vllm:num_requests_running"),
    "waiting_capacity": Mean(WAITING, {"reason": "capacity"}),
    "waiting_deferred": Mean(WAITING, {"reason": "deferred"}),
    "kv_usage": Mean("vllm:kv_cache_usage_perc"),
    "kv_usage_max": Maximum("vllm:kv_cache_usage_perc"),
    "preemptions": Gained("vllm:num_preemptions_total"),
    "evictions_per_request": Per("vllm:kv_block_lifetime_seconds_count", "vllm:request_success_total"),
    "reuse_gaps": Gained("vllm:kv_block_reuse_gap_seconds_count"),
    "idle_before_evict": Gained("vllm:kv_block_idle_before_evict_seconds_count"),
    "queue_s": average("vllm:request_queue_time_seconds"),
    "prefill_s": average("vllm:request_prefill_time_seconds"),
    "ttft_p99_s": P99("vllm:time_to_first_token_seconds"),
    "itl_p99_s": P99("vllm:inter_token_latency_seconds"),
}

VLLM_NIXL: dict[str, Measure] = VLLM | {
    "kv_transfers": Gained("vllm:nixl_xfer_time_seconds_count"),
    "kv_transfers_failed": Gained("vllm:nixl_num_failed_transfers_total"),
    "kv_leases_expired": Gained("vllm:nixl_num_kv_expired_reqs_total"),
}

SGLANG: dict[str, Measure] = {
    "requests": Gained("sglang:num_requests_total"),
    "errors": Gained("sglang:num_aborted_requests_total"),
    "prompt_tokens": Gained("sglang:prompt_tokens_total"),
    "cached_tokens": Gained("sglang:cached_tokens_total"),
    "hit_ratio": Per("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
    "running": Mean("sglang:num_running_reqs"),
    "waiting": Mean("sglang:num_queue_reqs"),
    "kv_usage": Mean("sglang:token_usage"),
    "kv_usage_max": Maximum("sglang:token_usage"),
    "retracted_max": Maximum("sglang:num_retracted_reqs"),
    "evicted_tokens": Gained("sglang:evicted_tokens_total"),
    "queue_s": average("sglang:queue_time_seconds"),
    "ttft_p99_s": P99("sglang:time_to_first_token_seconds"),
    "itl_p99_s": P99("sglang:inter_token_latency_seconds"),
}

DYNAMO_FRONTEND: dict[str, Measure] = {
    "requests": Gained("dynamo_frontend_requests_total"),
    "errors": Gained("dynamo_frontend_requests_total", {"status": "error"}),
    "prompt_tokens": Gained("dynamo_frontend_input_sequence_tokens_sum"),
    "cached_tokens": Gained("dynamo_frontend_cached_tokens_sum"),
    "hit_ratio": average("dynamo_component_router_kv_hit_rate"),
    "running": Mean("dynamo_frontend_inflight_requests"),
    "waiting": Mean("dynamo_frontend_queued_requests"),
    "ttft_p99_s": P99("dynamo_frontend_time_to_first_token_seconds"),
    "itl_p99_s": P99("dynamo_frontend_inter_token_latency_seconds"),
}

DYNAMO_WORKER: dict[str, Measure] = {
    "requests": Gained("vllm:e2e_request_latency_seconds_count"),
    "running": Mean("vllm:num_requests_running"),
    "waiting": Mean("vllm:num_requests_waiting"),
    "kv_usage": Mean("vllm:kv_cache_usage_perc"),
    "kv_usage_max": Maximum("vllm:kv_cache_usage_perc"),
    "preemptions": Gained("vllm:num_preemptions_total"),
    "ttft_p99_s": P99("vllm:time_to_first_token_seconds"),
    "itl_p99_s": P99("vllm:inter_token_latency_seconds"),
}


def signature(seen: Watch, dialect: Mapping[str, Measure]) -> dict[str, Value]:
    """The numbers by which an operator would know the situation."""
    return {row: measure.of(seen) for row, measure in dialect.items()}
