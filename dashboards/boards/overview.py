"""Is it fast, is it full, are objectives kept: the board of one model or one engine."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import buckets, of, percentile, rate, tokens
from kvitals.dashboards.boards.board import Board, Row
from kvitals.dashboards.panels import Heat, Line, Question
from kvitals.dashboards.queries import By, From, Of

_FAST = Row(
    "Is it fast?",
    (
        Question(
            title="Do first tokens come within the objective?",
            lines=(
                of("ttft_p99_seconds", "{{engine}} p99"),
                Line(Of("ttft_p50_seconds"), "{{engine}} median", "faint"),
                Line(Of("slo_ttft_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("LAT01",),
            exemplars=True,
            drill="kvitals-engines",
            width=12,
        ),
        Question(
            title="Do the next tokens come within the objective?",
            lines=(
                of("itl_p99_seconds", "{{engine}} p99"),
                Line(Of("itl_p50_seconds"), "{{engine}} median", "faint"),
                Line(Of("slo_itl_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("LAT02",),
            exemplars=True,
            drill="kvitals-engines",
            width=12,
        ),
    ),
)

_OBJECTIVES = Row(
    "Are objectives kept?",
    (
        Question(
            title="How often were objectives kept of late?",
            lines=(
                Line(
                    From("avg_over_time((kvitals:ttft_p99_seconds <= bool kvitals:slo_ttft_seconds)[15m:1m])", "ratio"),
                    "{{engine}} first tokens",
                ),
                Line(
                    From("avg_over_time((kvitals:itl_p99_seconds <= bool kvitals:slo_itl_seconds)[15m:1m])", "ratio"),
                    "{{engine}} next tokens",
                ),
            ),
            by=("LAT01", "LAT02"),
            note="Share of minutes in a quarter of an hour, not of requests. Too little traffic does not count.",
            highest=1,
        ),
        Question(
            title="How exactly is the 99th percentile known?",
            lines=(
                of("ttft_p99_at_most", "{{engine}} at most"),
                of("ttft_p99_at_least", "{{engine}} at least"),
                Line(Of("slo_ttft_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("TEL03",),
            note="A percentile lies somewhere in a bucket. Where the objective does too, it can not be judged by it.",
        ),
        Heat(
            title="How are first tokens spread?",
            lines=(Line(buckets("kvitals_ttft_seconds"), "{{le}}"),),
            note="All chosen engines together. Two bands are two kinds of requests, as long and short prompts.",
        ),
    ),
)

_WHERE = Row(
    "Where does the time go?",
    (
        Question(
            title="What is the time to first token made of?",
            lines=(
                of("queue_mean_seconds", "{{engine}} queue"),
                of("prefill_mean_seconds", "{{engine}} prefill"),
                Line(Of("ttft_mean_seconds"), "{{engine}} all of it", "faint"),
            ),
            note="Means, which add up where percentiles do not. Queue and prefill are of requests that finished.",
        ),
        Question(
            title="What do slow first tokens have more of?",
            lines=(
                of("tail_queue_share", "{{engine}} queue"),
                of("tail_prefill_share", "{{engine}} prefill"),
                of("tail_gateway_share", "{{engine}} gateway"),
                of("tail_transfer_share", "{{engine}} transfer"),
            ),
            by=("SCH09",),
            below_zero=True,
        ),
        Question(
            title="How long do whole requests take?",
            lines=(
                Line(
                    percentile(0.99, "kvitals_e2e_seconds"),
                    "{{engine}} p99",
                ),
                Line(
                    percentile(0.5, "kvitals_e2e_seconds"),
                    "{{engine}} median",
                    "faint",
                ),
            ),
            exemplars=True,
        ),
    ),
)

_ENDS = Row(
    "Do requests end well?",
    (
        Question(
            title="How many requests end a second, and how?",
            lines=(
                Line(
                    rate("kvitals_requests_finished_total", "reason"),
                    "{{engine}} {{reason}}",
                ),
            ),
            unit="reqps",
            stacked=True,
        ),
        Question(
            title="What part of the requests fails?",
            lines=(of("failed_per_request", "{{engine}}"),),
            judged=By("ENG05", "failed_per_request", "failed"),
        ),
        Question(
            title="What part do clients leave before the end?",
            lines=(of("aborted_per_request"),),
            judged=By("ENG06", "aborted_per_request", "left"),
        ),
    ),
)

_ASKED = Row(
    "What is asked?",
    (
        Question(
            title="How long are prompts?",
            lines=(
                of("request_prompt_tokens_p50", "{{engine}} median"),
                of("request_prompt_tokens_p99", "{{engine}} p99"),
            ),
            by=("CAP06",),
        ),
        Question(
            title="How long are answers?",
            lines=(of("output_tokens_p50", "{{engine}} median"), of("output_tokens_p99", "{{engine}} p99")),
            by=("GRD03",),
        ),
        Question(
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
