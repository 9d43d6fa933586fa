"""Is it fast, is it full, are objectives kept: the board of one model or one engine."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import buckets, engine_signal, percentile, rate, tokens
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import Heat, LinePanel, PanelLine
from kvitals.dashboards.queries import ConditionQuery, ExpressionQuery, SignalQuery

_FAST = BoardRow(
    "Is it fast?",
    (
        LinePanel(
            title="Do first tokens come within the objective?",
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
            title="Do the next tokens come within the objective?",
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

_OBJECTIVES = BoardRow(
    "Are objectives kept?",
    (
        LinePanel(
            title="How often were objectives kept of late?",
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
            note="Share of minutes in a quarter of an hour, not of requests. Too little traffic does not count.",
            highest=1,
        ),
        LinePanel(
            title="How exactly is the 99th percentile known?",
            lines=(
                engine_signal("ttft_p99_at_most", "{{engine}} at most"),
                engine_signal("ttft_p99_at_least", "{{engine}} at least"),
                PanelLine(SignalQuery("slo_ttft_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("TEL03",),
            note="A percentile lies somewhere in a bucket. Where the objective does too, it can not be judged by it.",
        ),
        Heat(
            title="How are first tokens spread?",
            lines=(PanelLine(buckets("kvitals_ttft_seconds"), "{{le}}"),),
            note="All chosen engines together. Two bands are two kinds of requests, as long and short prompts.",
        ),
    ),
)

_WHERE = BoardRow(
    "Where does the time go?",
    (
        LinePanel(
            title="What is the time to first token made of?",
            lines=(
                engine_signal("queue_mean_seconds", "{{engine}} queue"),
                engine_signal("prefill_mean_seconds", "{{engine}} prefill"),
                PanelLine(SignalQuery("ttft_mean_seconds"), "{{engine}} all of it", "faint"),
            ),
            note="Means, which add up where percentiles do not. Queue and prefill are of requests that finished.",
        ),
        LinePanel(
            title="What do slow first tokens have more of?",
            lines=(
                engine_signal("tail_queue_share", "{{engine}} queue"),
                engine_signal("tail_prefill_share", "{{engine}} prefill"),
                engine_signal("tail_gateway_share", "{{engine}} gateway"),
                engine_signal("tail_transfer_share", "{{engine}} transfer"),
            ),
            by=("SCH09",),
            below_zero=True,
        ),
        LinePanel(
            title="How long do whole requests take?",
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
    ),
)

_ENDS = BoardRow(
    "Do requests end well?",
    (
        LinePanel(
            title="How many requests end a second, and how?",
            lines=(
                PanelLine(
                    rate("kvitals_requests_finished_total", "reason"),
                    "{{engine}} {{reason}}",
                ),
            ),
            unit="reqps",
            stacked=True,
        ),
        LinePanel(
            title="What part of the requests fails?",
            lines=(engine_signal("failed_per_request", "{{engine}}"),),
            judged=ConditionQuery("ENG05", "failed_per_request", "failed"),
        ),
        LinePanel(
            title="What part do clients leave before the end?",
            lines=(engine_signal("aborted_per_request"),),
            judged=ConditionQuery("ENG06", "aborted_per_request", "left"),
        ),
    ),
)

_ASKED = BoardRow(
    "What is asked?",
    (
        LinePanel(
            title="How long are prompts?",
            lines=(
                engine_signal("request_prompt_tokens_p50", "{{engine}} median"),
                engine_signal("request_prompt_tokens_p99", "{{engine}} p99"),
            ),
            by=("CAP06",),
        ),
        LinePanel(
            title="How long are answers?",
            lines=(
                engine_signal("output_tokens_p50", "{{engine}} median"),
                engine_signal("output_tokens_p99", "{{engine}} p99"),
            ),
            by=("GRD03",),
        ),
        LinePanel(
            title="How many tokens go in and come out?",
            lines=tokens(),
            unit="suffix:tokens/s",
            drill="kvitals-efficiency",
        ),
    ),
)

BOARD = Board(
    "overview",
    "Overview and SLO",
    "Is it fast, are the objectives kept, where does the time go? For causes, proof and levers ask `kvitals triage`.",
    (_FAST, _OBJECTIVES, _WHERE, _ENDS, _ASKED),
)
