"""How requests are routed, and how tenants fare on the same engines."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import engine_signal, gauge, mean, percentile, rate, share
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import Bars, LinePanel, PanelLine, TablePanel
from kvitals.dashboards.queries import ConditionQuery, ExpressionQuery, SignalQuery

_ROUTER = BoardRow(
    "Routing",
    (
        LinePanel(
            title="Router: active blocks by worker",
            question="How many requests does each worker have?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "sum by ($scope, worker) (kvitals_router_worker_active_blocks)"
                        " or sum by ($scope, worker) (kvitals_router_worker_requests)",
                        "count",
                        "fleet",
                    ),
                    "{{worker}}",
                ),
            ),
            note="Blocks in use if the router counts them, else requests.",
        ),
        LinePanel(
            title="Router: predicted and actual prefix hits",
            question="Does the router's index match the workers' caches?",
            lines=(
                PanelLine(
                    rate("kvitals_router_best_prefix_tokens_total"),
                    "{{engine}} on the best worker",
                ),
                PanelLine(
                    rate("kvitals_router_chosen_prefix_tokens_total"),
                    "{{engine}} on the chosen one",
                ),
                PanelLine(
                    rate("kvitals_router_reused_tokens_total"),
                    "{{engine}} reused",
                ),
            ),
            unit="suffix:tokens/s",
        ),
        LinePanel(
            title="Router latency (overhead)",
            question="How much time does a router add?",
            lines=(engine_signal("routing_mean_seconds"),),
            by=("EFF09",),
        ),
        LinePanel(
            title="Router retries and rejections",
            question="Do requests reach an engine at the first attempt?",
            lines=(
                PanelLine(
                    rate("kvitals_router_admissions_refused_total", "by", "reason"),
                    "{{engine}} refused, {{reason}}",
                ),
                PanelLine(
                    rate("kvitals_router_retries_total"),
                    "{{engine}} tried again",
                ),
                PanelLine(
                    rate("kvitals_router_errors_total", "reason"),
                    "{{engine}} {{reason}}",
                ),
            ),
            unit="reqps",
        ),
        LinePanel(
            title="Request rate by engine",
            question="How many requests does each engine get?",
            lines=(engine_signal("finished_per_second"),),
            unit="reqps",
            stacked=True,
        ),
        LinePanel(
            title="Prefix cache hit rate of one shared cache",
            question="What hit rate would one cache for all engines have?",
            lines=(
                PanelLine(SignalQuery("node_prefix_hit_ratio"), "{{node}} found"),
                PanelLine(SignalQuery("node_pooled_hit_ratio"), "{{node}} with one cache"),
            ),
            by=("PFX03",),
            highest=1,
        ),
    ),
)

_TENANTS = BoardRow(
    "Tenants",
    (
        LinePanel(
            title="Token throughput by tenant",
            question="For which tenants does an engine compute tokens?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "sum by ($scope, tenant) (rate(kvitals_tenant_prompt_tokens_total[$window]))"
                        " - sum by ($scope, tenant) (rate(kvitals_tenant_cached_tokens_total[$window]))"
                        " + sum by ($scope, tenant) (rate(kvitals_tenant_output_tokens_total[$window]))",
                        "per_second",
                        "fleet",
                    ),
                    "{{tenant}}",
                ),
            ),
            unit="suffix:tokens/s",
            stacked=True,
            by=("TEN04",),
            note="Prompt tokens that were not cached, and output tokens.",
        ),
        LinePanel(
            title="Finished requests by tenant and outcome",
            question="How do a tenant's requests end?",
            lines=(
                PanelLine(
                    rate("kvitals_tenant_requests_total", "tenant", "outcome", scope="fleet"),
                    "{{tenant}} {{outcome}}",
                ),
            ),
            unit="reqps",
            stacked=True,
        ),
        LinePanel(
            title="Queue time by tenant",
            question="How long does a tenant wait in the queue?",
            lines=(
                PanelLine(
                    mean("kvitals_tenant_queue_seconds", "tenant", scope="fleet"),
                    "{{tenant}}",
                ),
            ),
            by=("TEN03",),
        ),
        LinePanel(
            title="Prefix cache hit rate by tenant",
            question="What share of a tenant's prompt tokens is cached?",
            lines=(
                PanelLine(
                    share(
                        "kvitals_tenant_cached_tokens_total",
                        "kvitals_tenant_cache_told_tokens_total",
                        "tenant",
                        scope="fleet",
                    ),
                    "{{tenant}}",
                ),
            ),
            by=("TEN07", "TEN08"),
            highest=1,
        ),
    ),
)

_FAIR = BoardRow(
    "Fairness and noisy tenants",
    (
        TablePanel(
            title="Noisy tenants: tokens recomputed, by evicting tenant",
            question="How many tokens did each tenant lose to the blocks of another?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "sum by (tenant, by) (increase(kvitals_cache_blame_tokens_total[15m]))", "tokens", "fleet"
                    ),
                    "tokens",
                ),
            ),
            matrix=("tenant", "by"),
            by=("TEN02",),
            note="The tenant of a row lost the tokens to the tenants of the columns, in the last 15 minutes. "
            "The darker, the more.",
            width=12,
        ),
        Bars(
            title="Tenant share of attainable prefix cache hits",
            question="What share of attainable hits does each tenant get?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "sum by (tenant) (increase(kvitals_cache_tenant_hit_tokens_total[15m]))"
                        " / sum by (tenant) (increase(kvitals_cache_tenant_attainable_tokens_total[15m]))",
                        "ratio",
                        "fleet",
                    ),
                    "{{tenant}}",
                ),
            ),
            by=("TEN01",),
            width=12,
        ),
        LinePanel(
            title="Fairness index of tenants",
            question="How evenly are cache hits spread over tenants?",
            lines=(
                PanelLine(
                    gauge("kvitals_cache_fairness", "index", unit="ratio", scope="node"),
                    "{{node}} {{index}}",
                ),
            ),
            by=("TEN01",),
            highest=1,
        ),
        LinePanel(
            title="KV cache tokens by tenant",
            question="How much of the cache does a tenant use?",
            lines=(
                PanelLine(
                    gauge("kvitals_cache_tenant_resident_tokens", "tenant", unit="tokens", scope="fleet", of="sum"),
                    "{{tenant}}",
                ),
            ),
            stacked=True,
        ),
        LinePanel(
            title="Largest tenant's share of tokens",
            question="What share of the tokens does one tenant cause?",
            lines=(
                engine_signal("tenant_token_share", "{{engine}} of the largest"),
                engine_signal("tenant_unknown_ratio", "{{engine}} of nobody known"),
            ),
            judged=ConditionQuery("TEN04", "tenant_token_share", "share"),
            highest=1,
        ),
    ),
)

_LATENCY = BoardRow(
    "Latency by tenant",
    (
        LinePanel(
            title="TTFT p99 by tenant",
            question="How long do a tenant's first tokens take?",
            lines=(
                PanelLine(
                    percentile(0.99, "kvitals_tenant_ttft_seconds", "tenant", scope="fleet"),
                    "{{tenant}} p99",
                ),
            ),
            by=("TEN03",),
            exemplars=True,
        ),
        LinePanel(
            title="ITL p99 by tenant",
            question="What is each tenant's ITL?",
            lines=(
                PanelLine(
                    percentile(0.99, "kvitals_tenant_itl_seconds", "tenant", scope="fleet"),
                    "{{tenant}} p99",
                ),
            ),
        ),
    ),
    closed=True,
)

BOARD = Board(
    "tenants",
    "Routing and tenants",
    "Does routing send requests to the caches that hold their prefix? Which tenants wait, which have no hits, "
    "and which tenant causes it?",
    (_ROUTER, _TENANTS, _FAIR, _LATENCY),
)
