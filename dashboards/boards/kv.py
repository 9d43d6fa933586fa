"""The life of KV blocks: what holds the cache, what is thrown out of it and wanted again, cascades, tiers, reuse."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import buckets, engine_signal, gauge, lost_events, rate
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import Bars, Heat, LinePanel, PanelLine, States
from kvitals.dashboards.queries import ConditionQuery

_HOLDS = BoardRow(
    "Occupancy",
    (
        LinePanel(
            title="KV cache usage: pinned and filled",
            question="How full is the KV cache, and how much is pinned?",
            lines=(
                engine_signal("kv_usage_p90", "{{engine}} pinned by live requests"),
                PanelLine(gauge("kvitals_cache_fill_ratio", unit="ratio"), "{{engine}} filled", "faint"),
            ),
            judged=ConditionQuery("KVC01", "kv_usage_p90", "kv_high"),
            highest=1,
        ),
        LinePanel(
            title="KV cache blocks by purpose",
            question="Why are blocks held?",
            lines=(
                PanelLine(
                    gauge("kvitals_cache_resident_tokens", "purpose", unit="tokens", of="sum"), "{{engine}} {{purpose}}"
                ),
            ),
            stacked=True,
            by=("KVC07",),
        ),
        LinePanel(
            title="KV cache duplicates between engines",
            question="How many tokens are cached on two engines at once?",
            lines=(PanelLine(gauge("kvitals_cache_duplicate_tokens", unit="tokens", of="sum"), "{{engine}}"),),
            by=("PFX03",),
        ),
    ),
)

_LEAVES = BoardRow(
    "Evictions and refaults",
    (
        LinePanel(
            title="KV cache evictions per request",
            question="How many blocks does a request evict?",
            lines=(engine_signal("block_evictions_per_request"),),
            judged=ConditionQuery("KVC06", "block_evictions_per_request", "evictions"),
            note="vLLM reports them only with `--kv-cache-metrics` or KV events.",
        ),
        LinePanel(
            title="KV cache refaults (recomputed blocks)",
            question="What share of stored blocks was evicted earlier?",
            lines=(
                engine_signal("refault_share", "{{engine}} of blocks stored"),
                engine_signal("refault_prefill_share", "{{engine}} of tokens computed"),
            ),
            judged=ConditionQuery("KVC04", "refault_share", "refaults"),
        ),
        LinePanel(
            title="Evicted KV blocks: idle time",
            question="How long was a block idle when it was evicted?",
            lines=(
                engine_signal("block_idle_mean_seconds", "{{engine}} by the engine"),
                engine_signal("evicted_idle_seconds", "{{engine}} by KV events"),
            ),
        ),
    ),
)

_AGES = BoardRow(
    "Ages of blocks",
    (
        Heat(
            title="Refault time after eviction heat map",
            question="How soon is an evicted block requested again?",
            lines=(
                PanelLine(
                    buckets("kvitals_cache_refault_seconds"),
                    "{{le}}",
                ),
            ),
            note="All selected engines together. Seconds mean that the cache is too small. Hours mean that only "
            "a larger tier helps.",
        ),
        Heat(
            title="KV block lifetime heat map",
            question="At what age are blocks evicted?",
            lines=(
                PanelLine(
                    buckets("kvitals_kv_block_lifetime_seconds"),
                    "{{le}}",
                ),
            ),
            note="All chosen engines together.",
        ),
        Heat(
            title="KV block reuse gap heat map",
            question="How long is the gap between two uses of a cached block?",
            lines=(
                PanelLine(
                    buckets("kvitals_kv_block_reuse_gap_seconds"),
                    "{{le}}",
                ),
            ),
            note="All chosen engines together. Gaps near the eviction age show the hits that the cache loses next.",
        ),
    ),
    closed=True,
)

_SOURCES = BoardRow(
    "Tokens by source and tier",
    (
        LinePanel(
            title="Prompt tokens by source",
            question="Where does the prompts' KV come from?",
            lines=(
                PanelLine(
                    rate("kvitals_prompt_tokens_by_source_total", "source"),
                    "{{engine}} {{source}}",
                ),
            ),
            unit="suffix:tokens/s",
            stacked=True,
        ),
        LinePanel(
            title="Cached tokens by tier (GPU, host, store)",
            question="From which tier do cached tokens come?",
            lines=(
                PanelLine(
                    rate("kvitals_cached_tokens_by_medium_total", "medium"),
                    "{{engine}} {{medium}}",
                ),
            ),
            unit="suffix:tokens/s",
            stacked=True,
        ),
    ),
    closed=True,
)

_CASCADE = BoardRow(
    "Eviction cascade",
    (
        States(
            title="Eviction cascade stage",
            question="Which stage did an eviction cascade reach?",
            lines=(engine_signal("cascade_stage"),),
            words=(
                (0, "none"),
                (1, "pressure"),
                (2, "evictions of reused blocks"),
                (3, "computed again"),
                (4, "queue and first tokens"),
                (5, "throughput"),
            ),
            judged=ConditionQuery("KVC05", "cascade_stage", "stage"),
            unit="short",
            width=12,
            height=8,
        ),
        LinePanel(
            title="Eviction cascade cost: recomputed tokens",
            question="What does it cost?",
            lines=(
                engine_signal("cascade_tokens", "{{engine}} tokens in the cascade"),
                engine_signal("refaulted_tokens_per_second", "{{engine}} tokens a second now"),
            ),
            by=("KVC05",),
            width=12,
            height=8,
        ),
    ),
)

_REUSE = BoardRow(
    "Reuse and tiers",
    (
        Bars(
            title="Prefix cache hit rate by cache size (reuse curve)",
            question="What would the hit rate be with more or fewer blocks?",
            lines=(
                PanelLine(
                    gauge("kvitals_reuse_hit_ratio", "capacity", unit="ratio"),
                    "{{engine}} with {{capacity}} times the blocks",
                ),
            ),
            by=("EFF05", "KVC02"),
            width=12,
        ),
        LinePanel(
            title="Prefix cache hit rate and attainable hit rate",
            question="What hit rate does the cache have, and what hit rate is attainable?",
            lines=(
                engine_signal("prefix_hit_ratio", "{{engine}} found"),
                engine_signal("attainable_hit_ratio", "{{engine}} with eight times the blocks"),
            ),
            judged=ConditionQuery("PFX01", "prefix_hit_ratio", "hits"),
            highest=1,
            width=12,
        ),
        LinePanel(
            title="KV offload: bytes loaded from host memory",
            question="How many bytes are loaded from host memory?",
            lines=(engine_signal("host_loaded_per_second"),),
            unit="Bps",
            by=("KVC12", "KVC13"),
        ),
    ),
)

_BELIEVE = BoardRow(
    "KV events",
    (
        LinePanel(
            title="KV ledger confidence",
            question="What share of the cache contents is known?",
            lines=(
                engine_signal("cache_confidence", "{{engine}} of blocks"),
                PanelLine(gauge("kvitals_cache_observed_ratio", unit="ratio"), "{{engine}} of lookups"),
            ),
            highest=1,
            width=12,
            height=8,
        ),
        LinePanel(
            title="KV events lost",
            question="Were KV events lost?",
            lines=lost_events(),
            judged=ConditionQuery("TEL04", "kv_event_gaps"),
            drill="kvitals-telemetry",
            width=12,
            height=8,
        ),
    ),
)

BOARD = Board(
    "kv",
    "KV life",
    "What does the KV cache hold, what is evicted and recomputed, does it cascade, and would more blocks help?",
    (_HOLDS, _LEAVES, _CASCADE, _REUSE, _BELIEVE, _SOURCES, _AGES),
)
