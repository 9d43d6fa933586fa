"""Is it fast, is it full, are objectives kept: the board of one model or one engine."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import buckets, engine_signal, percentile, rate, tokens
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import Heat, LinePanel, PanelLine, TablePanel, Tile
from kvitals.dashboards.queries import ConditionQuery, ExpressionQuery, RuleLimit, SignalQuery

_OVER = "5m"
_UNREACHABLE = 1e6  # what the harm of an engine that cannot be read counts, so that it comes first

_FIRST_TOKENS = "sum by ($scope) (rate(kvitals_ttft_seconds_count[$window]))"
_IN_TIME = f"sum(kvitals:ttft_in_time_ratio * {_FIRST_TOKENS})"

_STEPWISE = (
    "The share is known in steps of 50, 90, 95, 99 and 99.9 %; the true share is at least the value shown. Each "
    "engine has its own objective for TTFT."
)

_GLANCE = BoardRow(
    "At a glance",
    (
        Tile(
            title="SLO: requests within TTFT objective",
            question="What share of the requests is within objectives?",
            lines=(
                PanelLine(
                    ExpressionQuery(f"{_IN_TIME} / sum({_FIRST_TOKENS})", "ratio"),
                    "in time, at least",
                ),
            ),
            judged=RuleLimit("LAT01", "<", 0.99, "objective of the 99th percentile"),
            note=f"All selected engines together. {_STEPWISE}",
            height=4,
        ),
        Tile(
            title="Goodput: requests/s within TTFT objective",
            question="How many requests per second are within objectives?",
            lines=(PanelLine(ExpressionQuery(_IN_TIME, "per_second"), "in time"),),
            unit="reqps",
            note=f"All selected engines together. {_STEPWISE}",
            height=4,
        ),
        Tile(
            title="Engines unreachable",
            question="How many engines are unreachable?",
            lines=(PanelLine(ExpressionQuery("sum(kvitals_target_up == bool 0)", "count"), "unreachable"),),
            judged=RuleLimit("TEL01", ">", 0, "each of them"),
            note="An engine that was never seen is not counted.",
            height=4,
        ),
        Tile(
            title="KV cache usage: highest of an engine",
            question="How much KV cache is pinned on the fullest engine?",
            lines=(PanelLine(ExpressionQuery("max(kvitals:kv_usage_p90)", "ratio"), "pinned at most"),),
            judged=ConditionQuery("KVC01", "kv_usage_p90", "kv_high"),
            height=4,
        ),
        Tile(
            title="Queue: most waiting requests of an engine",
            question="How long is the longest queue?",
            lines=(PanelLine(ExpressionQuery("max(kvitals:waiting_capacity_avg)", "requests"), "waiting at most"),),
            judged=ConditionQuery("SCH01", "waiting_capacity_avg", "waiting"),
            height=4,
        ),
        Tile(
            title="Tokens per GPU-hour",
            question="How many tokens does a GPU generate per hour?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        f"3600 * sum(sum by ($scope) (rate(kvitals_generation_tokens_total[{_OVER}]))"
                        " and max by ($scope) (kvitals_engine_gpus)) / sum(max by ($scope) (kvitals_engine_gpus))",
                        "tokens",
                    ),
                    "generated",
                ),
            ),
            note=f"Generated tokens over {_OVER}, of engines whose GPUs are known.",
            height=4,
        ),
    ),
)

_HARM = BoardRow(
    "Engines by harm",
    (
        TablePanel(
            title="Engines by harm: late requests/s, TTFT, ITL, queue, KV cache usage, preemptions",
            question="Which engine harms users most?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        f"{_UNREACHABLE:g} * (max by ($scope) (kvitals_target_up == bool 0) > 0)"
                        f" or (1 - kvitals:ttft_in_time_ratio) * {_FIRST_TOKENS}",
                        "per_second",
                    ),
                    "late/s",
                ),
                PanelLine(SignalQuery("ttft_p99_seconds"), "TTFT p99"),
                PanelLine(SignalQuery("itl_p99_seconds"), "ITL p99"),
                PanelLine(SignalQuery("waiting_avg"), "queue"),
                PanelLine(SignalQuery("running_avg"), "running"),
                PanelLine(SignalQuery("kv_usage_p90"), "KV usage"),
                PanelLine(SignalQuery("prefix_hit_ratio"), "prefix hits"),
                PanelLine(SignalQuery("preemptions_per_request"), "preemptions"),
            ),
            judges=(
                RuleLimit("TEL01", ">=", _UNREACHABLE, "unreachable"),
                None,
                None,
                None,
                None,
                ConditionQuery("KVC01", "kv_usage_p90", "kv_high"),
                None,
                ConditionQuery("KVC09", "preemptions_per_request", "preemptions"),
            ),
            by=("LAT01", "LAT02"),
            note="Requests per second whose first token is later than the objective; unreachable engines come "
            f"first. Click on an engine to open its board. {_STEPWISE}",
            worst_first=True,
            words=((_UNREACHABLE, "unreachable"),),
            drill="kvitals-engines",
            width=24,
            height=8,
        ),
    ),
)

_FAST = BoardRow(
    "Latency",
    (
        LinePanel(
            title="TTFT (time to first token) p99 and objective",
            question="Is TTFT within the objective?",
            lines=(
                engine_signal("ttft_p99_seconds", "{{engine}} p99"),
                PanelLine(SignalQuery("ttft_p50_seconds"), "{{engine}} median", "faint"),
                PanelLine(SignalQuery("slo_ttft_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("LAT01",),
            exemplars=True,
            drill="kvitals-engines",
            width=12,
        ),
        LinePanel(
            title="ITL (inter-token latency) p99 and objective",
            question="Is ITL within the objective?",
            lines=(
                engine_signal("itl_p99_seconds", "{{engine}} p99"),
                PanelLine(SignalQuery("itl_p50_seconds"), "{{engine}} median", "faint"),
                PanelLine(SignalQuery("slo_itl_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("LAT02",),
            exemplars=True,
            drill="kvitals-engines",
            width=12,
        ),
    ),
)

_WHERE = BoardRow(
    "Latency by phase",
    (
        LinePanel(
            title="TTFT by phase: queue time, prefill time",
            question="Which phases make up TTFT?",
            lines=(
                engine_signal("queue_mean_seconds", "{{engine}} queue"),
                engine_signal("prefill_mean_seconds", "{{engine}} prefill"),
                PanelLine(SignalQuery("ttft_mean_seconds"), "{{engine}} all of it", "faint"),
            ),
            note="Means: they add up, percentiles do not. Queue and prefill count finished requests.",
        ),
        LinePanel(
            title="TTFT tail by phase",
            question="Which phase makes slow requests slow?",
            lines=(
                engine_signal("tail_queue_share", "{{engine}} queue"),
                engine_signal("tail_prefill_share", "{{engine}} prefill"),
                engine_signal("tail_gateway_share", "{{engine}} gateway"),
                engine_signal("tail_transfer_share", "{{engine}} transfer"),
            ),
            by=("SCH09",),
            below_zero=True,
        ),
    ),
)

_ENDS = BoardRow(
    "Errors and aborted requests",
    (
        LinePanel(
            title="Request error rate",
            question="What share of requests fails?",
            lines=(engine_signal("failed_per_request", "{{engine}}"),),
            judged=ConditionQuery("ENG05", "failed_per_request", "failed"),
        ),
        LinePanel(
            title="Aborted requests (client disconnects)",
            question="What share do clients abort?",
            lines=(engine_signal("aborted_per_request"),),
            judged=ConditionQuery("ENG06", "aborted_per_request", "left"),
        ),
    ),
)

_ASKED = BoardRow(
    "Workload",
    (
        LinePanel(
            title="Prompt tokens per request (input length)",
            question="How long are prompts?",
            lines=(
                engine_signal("request_prompt_tokens_p50", "{{engine}} median"),
                engine_signal("request_prompt_tokens_p99", "{{engine}} p99"),
            ),
            by=("CAP06",),
        ),
        LinePanel(
            title="Output tokens per request (output length)",
            question="How long are answers?",
            lines=(
                engine_signal("output_tokens_p50", "{{engine}} median"),
                engine_signal("output_tokens_p99", "{{engine}} p99"),
            ),
            by=("GRD03",),
        ),
        LinePanel(
            title="Token throughput: prompt and generation",
            question="How many prompt and output tokens per second?",
            lines=tokens(),
            unit="suffix:tokens/s",
            drill="kvitals-efficiency",
        ),
    ),
)

_DETAILS = BoardRow(
    "Objectives, distributions, finish reasons",
    (
        LinePanel(
            title="SLO attainment: share of minutes",
            question="How often were objectives met recently?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "avg_over_time((kvitals:ttft_p99_seconds <= bool kvitals:slo_ttft_seconds)[15m:1m])", "ratio"
                    ),
                    "{{engine}} first tokens",
                ),
                PanelLine(
                    ExpressionQuery(
                        "avg_over_time((kvitals:itl_p99_seconds <= bool kvitals:slo_itl_seconds)[15m:1m])", "ratio"
                    ),
                    "{{engine}} next tokens",
                ),
            ),
            by=("LAT01", "LAT02"),
            note="Share of minutes in 15 minutes, not of requests. Minutes with too little traffic do not count.",
            highest=1,
        ),
        LinePanel(
            title="TTFT p99: bounds of its bucket",
            question="How precise is the 99th percentile?",
            lines=(
                engine_signal("ttft_p99_at_most", "{{engine}} at most"),
                engine_signal("ttft_p99_at_least", "{{engine}} at least"),
                PanelLine(SignalQuery("slo_ttft_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("TEL03",),
            note="A percentile lies somewhere in a bucket. An objective in the same bucket cannot be judged.",
        ),
        Heat(
            title="TTFT heat map",
            question="How is TTFT distributed?",
            lines=(PanelLine(buckets("kvitals_ttft_seconds"), "{{le}}"),),
            note="All chosen engines together. Two bands show two kinds of requests, such as long and short prompts.",
        ),
        LinePanel(
            title="E2E request latency",
            question="How long do requests take end to end?",
            lines=(
                PanelLine(
                    percentile(0.99, "kvitals_e2e_seconds"),
                    "{{engine}} p99",
                ),
                PanelLine(
                    percentile(0.5, "kvitals_e2e_seconds"),
                    "{{engine}} median",
                    "faint",
                ),
            ),
            exemplars=True,
        ),
        LinePanel(
            title="Finished requests by reason",
            question="How many requests end a second, and how?",
            lines=(
                PanelLine(
                    rate("kvitals_requests_finished_total", "reason"),
                    "{{engine}} {{reason}}",
                ),
            ),
            unit="reqps",
            stacked=True,
        ),
    ),
    closed=True,
)

BOARD = Board(
    "overview",
    "Overview and SLO",
    "How fast are requests, are objectives met, where does the time go? `kvitals triage` has causes and levers.",
    (_GLANCE, _HARM, _FAST, _WHERE, _ENDS, _ASKED, _DETAILS),
)
