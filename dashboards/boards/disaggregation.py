"""Prefill and decode on different engines, and the KV that goes between them."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import buckets, gauge, of, percentile, rise, share
from kvitals.dashboards.boards.board import Board, Row
from kvitals.dashboards.panels import Heat, Line, Question, Table
from kvitals.dashboards.queries import By, From, Of

_PHASES = (
    "sum by ($scope, phase) (rate(kvitals_request_phase_seconds_sum[$window])) / on ($scope) group_left"
    ' sum by ($scope) (rate(kvitals_request_phase_seconds_count{phase="decode"}[$window]))'
)


def _by_role(signal: str, unit: str) -> From:
    """A signal of each engine, with the engine's part."""
    return From(f"max by ($scope, role) (kvitals_engine_info) * on ($scope) group_left kvitals:{signal}", unit)


_SIDES = Row(
    "Are both sides as busy?",
    (
        Table(
            title="Which side is each engine, how busy?",
            width=10,
            lines=(
                Line(gauge("kvitals_engine_info", "role", unit="count"), "there"),
                Line(
                    _by_role("running_avg", "requests"),
                    "running",
                ),
                Line(
                    _by_role("waiting_avg", "requests"),
                    "waiting",
                ),
                Line(
                    _by_role("kv_usage_avg", "ratio"),
                    "KV pinned",
                ),
            ),
            by=("PDX10",),
            drill="kvitals-engines",
            hidden=("there",),
        ),
        Question(
            title="On which side do requests wait?",
            width=7,
            lines=(
                Line(Of("pd_prefill_wait_seconds"), "{{pool}} prefill"),
                Line(Of("pd_decode_wait_seconds"), "{{pool}} decode"),
            ),
            judged=By("PDX03", "pd_prefill_wait_seconds", "wait"),
        ),
        Question(
            title="What is a request's time made of?",
            width=7,
            lines=(
                Line(
                    From(_PHASES, "seconds", "fleet"),
                    "{{phase}}",
                ),
            ),
            stacked=True,
            note="Mean seconds of a request that decoded, all chosen engines together. Time that nobody accounts for is"
            " `unattributed`.",
            exemplars=True,
        ),
    ),
)

_TRANSFER = Row(
    "Does the KV get there?",
    (
        Question(
            title="How long does a transfer take?",
            lines=(
                Line(percentile(0.99, "kvitals_transfer_seconds"), "{{engine}} p99"),
                of("transfer_mean_seconds", "{{engine}} mean"),
                Line(Of("transfer_recompute_seconds"), "{{engine}} to compute it anew", "faint"),
            ),
            by=("PDX04",),
        ),
        Question(
            title="How many bytes a second are moved?",
            lines=(
                of("transfer_bytes_per_second", "{{engine}} moved"),
                of("transfer_speed", "{{engine}} within a transfer"),
            ),
            unit="Bps",
            by=("PDX05",),
        ),
        Question(
            title="How many transfers are under way at once?",
            lines=(of("transfers_in_flight"),),
            judged=By("PDX05", "transfers_in_flight", "busy"),
        ),
        Question(
            title="Do transfers fail?",
            lines=(
                of("transfer_failures", "{{engine}} failed"),
                Line(
                    rise("kvitals_transfer_notification_failures_total"),
                    "{{engine}} notifications failed",
                ),
            ),
            judged=By("PDX06", "transfer_failures", "failures"),
        ),
        Question(
            title="Is KV given up because nobody fetched it?",
            lines=(
                of("transfer_expired", "{{engine}} requests"),
                Line(
                    rise("kvitals_transfer_late_notifications_total"),
                    "{{engine}} fetched too late",
                ),
            ),
            judged=By("PDX07", "transfer_expired", "expired"),
        ),
        Question(
            title="How much KV is pinned while nothing runs?",
            lines=(of("kv_stranded_ratio"),),
            highest=1,
        ),
        Heat(
            title="How are transfers' sizes spread?",
            lines=(Line(buckets("kvitals_transfer_size_bytes", "bytes"), "{{le}}"),),
            note="All chosen engines together.",
        ),
        Question(
            title="Is the tail longer than that of sizes?",
            lines=(
                of("transfer_tail", "{{engine}} time, p99 over median"),
                of("transfer_size_spread", "{{engine}} size, p99 over median"),
            ),
            judged=By("PDX11", "transfer_tail", "tail"),
            unit="none",
        ),
        Question(
            title="How much of a first token is transfer?",
            lines=(of("request_transfer_share"),),
            judged=By("PDX09", "request_transfer_share", "most"),
            highest=1,
        ),
    ),
)

_DECODE = Row(
    "What does the decode side do with it?",
    (
        Question(
            title="What part of the prompts came from elsewhere?",
            lines=(
                Line(
                    share("kvitals_external_prefix_hit_tokens_total", "kvitals_external_prefix_query_tokens_total"),
                    "{{engine}}",
                ),
            ),
            highest=1,
        ),
        Question(
            title="Who waits for KV, and where?",
            lines=(
                Line(gauge("kvitals_requests_kv_fetch", "stage", unit="requests", of="sum"), "{{engine}} {{stage}}"),
                Line(gauge("kvitals_requests_kv_send", "stage", unit="requests", of="sum"), "{{engine}} {{stage}}"),
            ),
        ),
        Question(
            title="Does decode throw requests out?",
            lines=(of("preemptions_per_request"),),
            judged=By("PDX08", "preemptions_per_request", "preemptions"),
            note="Per finished request.",
            drill="kvitals-kv",
        ),
    ),
)

BOARD = Board(
    "disaggregation",
    "Prefill, decode and transfer",
    "Are prefill and decode as busy, does the KV get from one to the other, and what does that cost?",
    (_SIDES, _TRANSFER, _DECODE),
)
