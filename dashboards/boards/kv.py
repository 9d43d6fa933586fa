"""The life of KV blocks: what holds the cache, what is thrown out of it and wanted again, cascades, tiers, reuse."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import buckets, gauge, lost_events, of, rate
from kvitals.dashboards.boards.board import Board, Row
from kvitals.dashboards.panels import Bars, Heat, Line, Question, States
from kvitals.dashboards.queries import By

_HOLDS = Row(
    "What holds the cache?",
    (
        Question(
            title="How full is it, and how much is pinned?",
            lines=(
                of("kv_usage_p90", "{{engine}} pinned by live requests"),
                Line(gauge("kvitals_cache_fill_ratio", unit="ratio"), "{{engine}} filled", "faint"),
            ),
            judged=By("KVC01", "kv_usage_p90", "kv_high"),
            highest=1,
        ),
        Question(
            title="For what are blocks held?",
            lines=(
                Line(
                    gauge("kvitals_cache_resident_tokens", "purpose", unit="tokens", of="sum"), "{{engine}} {{purpose}}"
                ),
            ),
            stacked=True,
            by=("KVC07",),
        ),
        Question(
            title="How much is held by two engines at once?",
            lines=(Line(gauge("kvitals_cache_duplicate_tokens", unit="tokens", of="sum"), "{{engine}}"),),
            by=("PFX03",),
        ),
    ),
)

_LEAVES = Row(
    "What is thrown out, and is it wanted again?",
    (
        Question(
            title="How many blocks does a request push out?",
            lines=(of("block_evictions_per_request"),),
            judged=By("KVC06", "block_evictions_per_request", "evictions"),
            note="vLLM has the numbers only with `--kv-cache-metrics`, or by KV events.",
        ),
        Question(
            title="How much of what comes in was there before?",
            lines=(
                of("refault_share", "{{engine}} of blocks stored"),
                of("refault_prefill_share", "{{engine}} of tokens computed"),
            ),
            judged=By("KVC04", "refault_share", "refaults"),
        ),
        Question(
            title="How idle is a block when it has to go?",
            lines=(
                of("block_idle_mean_seconds", "{{engine}} by the engine"),
                of("evicted_idle_seconds", "{{engine}} by KV events"),
            ),
        ),
        Heat(
            title="How soon is an evicted block wanted again?",
            lines=(
                Line(
                    buckets("kvitals_cache_refault_seconds"),
                    "{{le}}",
                ),
            ),
            note="All chosen engines together. Seconds: the cache is too small. Hours: only a larger tier would help.",
        ),
        Heat(
            title="How old do blocks get?",
            lines=(
                Line(
                    buckets("kvitals_kv_block_lifetime_seconds"),
                    "{{le}}",
                ),
            ),
            note="All chosen engines together.",
        ),
        Heat(
            title="After how long is a cached block used again?",
            lines=(
                Line(
                    buckets("kvitals_kv_block_reuse_gap_seconds"),
                    "{{le}}",
                ),
            ),
            note="All chosen engines together. Gaps near the age at which blocks go are hits about to be lost.",
        ),
    ),
)

_CASCADE = Row(
    "Does one eviction bring the next?",
    (
        States(
            title="To what stage did an eviction cascade come?",
            lines=(of("cascade_stage"),),
            words=(
                (0, "none"),
                (1, "pressure"),
                (2, "evictions of what is wanted"),
                (3, "computed again"),
                (4, "queue and first tokens"),
                (5, "throughput"),
            ),
            judged=By("KVC05", "cascade_stage", "stage"),
            unit="short",
            width=12,
            height=8,
        ),
        Question(
            title="What does it cost?",
            lines=(
                of("cascade_tokens", "{{engine}} tokens in the cascade"),
                of("refaulted_tokens_per_second", "{{engine}} tokens a second now"),
            ),
            by=("KVC05",),
            width=12,
            height=8,
        ),
    ),
)

_REUSE = Row(
    "Would more room help?",
    (
        Bars(
            title="What would the hit ratio be with more or fewer blocks?",
            lines=(
                Line(
                    gauge("kvitals_reuse_hit_ratio", "capacity", unit="ratio"),
                    "{{engine}} with {{capacity}} times the blocks",
                ),
            ),
            by=("EFF05", "KVC02"),
            width=12,
        ),
        Question(
            title="How much is found, and how much could be?",
            lines=(
                of("prefix_hit_ratio", "{{engine}} found"),
                of("attainable_hit_ratio", "{{engine}} with eight times the blocks"),
            ),
            judged=By("PFX01", "prefix_hit_ratio", "hits"),
            highest=1,
            width=12,
        ),
        Question(
            title="Where does the prompts' KV come from?",
            lines=(
                Line(
                    rate("kvitals_prompt_tokens_by_source_total", "source"),
                    "{{engine}} {{source}}",
                ),
            ),
            unit="suffix:tokens/s",
            stacked=True,
        ),
        Question(
            title="From which tier do cached tokens come?",
            lines=(
                Line(
                    rate("kvitals_cached_tokens_by_medium_total", "medium"),
                    "{{engine}} {{medium}}",
                ),
            ),
            unit="suffix:tokens/s",
            stacked=True,
        ),
        Question(
            title="How much is loaded back from host memory?",
            lines=(of("host_loaded_per_second"),),
            unit="Bps",
            by=("KVC12", "KVC13"),
        ),
    ),
)

_BELIEVE = Row(
    "How much of it is known?",
    (
        Question(
            title="How much of what the cache holds can the ledger know?",
            lines=(
                of("cache_confidence", "{{engine}} of blocks"),
                Line(gauge("kvitals_cache_observed_ratio", unit="ratio"), "{{engine}} of look-ups"),
            ),
            highest=1,
            width=12,
            height=8,
        ),
        Question(
            title="Were KV events lost?",
            lines=lost_events(),
            judged=By("TEL04", "kv_event_gaps"),
            drill="kvitals-telemetry",
            width=12,
            height=8,
        ),
    ),
)

BOARD = Board(
    "kv",
    "KV life",
    "What holds the KV cache, what is thrown out and wanted again, does it cascade, and would more room help?",
    (_HOLDS, _LEAVES, _CASCADE, _REUSE, _BELIEVE),
)
