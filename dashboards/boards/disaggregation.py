"""Prefill and decode on different engines, and the KV that goes between them."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import buckets, engine_signal, gauge, percentile, rise, share
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import Heat, LinePanel, PanelLine, TablePanel
from kvitals.dashboards.queries import ConditionQuery, ExpressionQuery, SignalQuery

_PHASES = (
    "sum by ($scope, phase) (rate(kvitals_request_phase_seconds_sum[$window])) / on ($scope) group_left"
    ' sum by ($scope) (rate(kvitals_request_phase_seconds_count{phase="decode"}[$window]))'
)


def _by_role(signal: str, unit: str) -> ExpressionQuery:
    """A signal of each engine, with the engine's part."""
    return ExpressionQuery(
        f"max by ($scope, role) (kvitals_engine_info) * on ($scope) group_left kvitals:{signal}", unit
    )


_SIDES = BoardRow(
    "Balance of prefill and decode",
    (
        TablePanel(
            title="Prefill and decode engines: role and load",
            question="Which role does each engine have, and how busy is it?",
            width=10,
            lines=(
                PanelLine(gauge("kvitals_engine_info", "role", unit="count"), "there"),
                PanelLine(
                    _by_role("running_avg", "requests"),
                    "running",
                ),
                PanelLine(
                    _by_role("waiting_avg", "requests"),
                    "waiting",
                ),
                PanelLine(
                    _by_role("kv_usage_avg", "ratio"),
                    "KV pinned",
                ),
            ),
            by=("PDX10",),
            drill="kvitals-engines",
            hidden=("there",),
        ),
        LinePanel(
            title="Queue by pool (prefill, decode)",
            question="On which side do requests wait?",
            width=7,
            lines=(
                PanelLine(SignalQuery("pd_prefill_wait_seconds"), "{{pool}} prefill"),
                PanelLine(SignalQuery("pd_decode_wait_seconds"), "{{pool}} decode"),
            ),
            judged=ConditionQuery("PDX03", "pd_prefill_wait_seconds", "wait"),
        ),
        LinePanel(
            title="Request latency by phase",
            question="How is a request's time divided?",
            width=7,
            lines=(
                PanelLine(
                    ExpressionQuery(_PHASES, "seconds", "fleet"),
                    "{{phase}}",
                ),
            ),
            stacked=True,
            note="Mean seconds per request that decodes, over all selected engines. Time that no observer explains is"
            " `unattributed`.",
            exemplars=True,
        ),
    ),
)

_TRANSFER = BoardRow(
    "KV transfers",
    (
        LinePanel(
            title="KV transfer throughput",
            question="How many bytes per second do transfers move?",
            lines=(
                engine_signal("transfer_bytes_per_second", "{{engine}} moved"),
                engine_signal("transfer_speed", "{{engine}} within a transfer"),
            ),
            unit="Bps",
            by=("PDX05",),
        ),
        LinePanel(
            title="KV transfers in flight",
            question="How many transfers run at the same time?",
            lines=(engine_signal("transfers_in_flight"),),
            judged=ConditionQuery("PDX05", "transfers_in_flight", "busy"),
        ),
        LinePanel(
            title="KV transfer failures",
            question="Do transfers fail?",
            lines=(
                engine_signal("transfer_failures", "{{engine}} failed"),
                PanelLine(
                    rise("kvitals_transfer_notification_failures_total"),
                    "{{engine}} notifications failed",
                ),
            ),
            judged=ConditionQuery("PDX06", "transfer_failures", "failures"),
        ),
        LinePanel(
            title="KV transfers expired",
            question="Is KV dropped because no engine fetched it?",
            lines=(
                engine_signal("transfer_expired", "{{engine}} requests"),
                PanelLine(
                    rise("kvitals_transfer_late_notifications_total"),
                    "{{engine}} fetched too late",
                ),
            ),
            judged=ConditionQuery("PDX07", "transfer_expired", "expired"),
        ),
        LinePanel(
            title="KV cache usage while idle",
            question="How much KV is pinned while nothing runs?",
            lines=(engine_signal("kv_stranded_ratio"),),
            highest=1,
        ),
        LinePanel(
            title="KV transfer time and size: p99 to p50",
            question="Are slow transfers slow because they are large?",
            lines=(
                engine_signal("transfer_tail", "{{engine}} time, p99 over median"),
                engine_signal("transfer_size_spread", "{{engine}} size, p99 over median"),
            ),
            judged=ConditionQuery("PDX11", "transfer_tail", "tail"),
            unit="none",
        ),
        LinePanel(
            title="TTFT share of KV transfer",
            question="What share of TTFT is transfer?",
            lines=(engine_signal("request_transfer_share"),),
            judged=ConditionQuery("PDX09", "request_transfer_share", "most"),
            highest=1,
        ),
    ),
)

_DECODE = BoardRow(
    "Decode",
    (
        LinePanel(
            title="External prefix cache hit rate",
            question="What share of prompt tokens came from another engine or store?",
            lines=(
                PanelLine(
                    share("kvitals_external_prefix_hit_tokens_total", "kvitals_external_prefix_query_tokens_total"),
                    "{{engine}}",
                ),
            ),
            highest=1,
        ),
        LinePanel(
            title="Requests waiting for KV by stage",
            question="How many requests wait for KV, at which stage?",
            lines=(
                PanelLine(
                    gauge("kvitals_requests_kv_fetch", "stage", unit="requests", of="sum"), "{{engine}} {{stage}}"
                ),
                PanelLine(
                    gauge("kvitals_requests_kv_send", "stage", unit="requests", of="sum"), "{{engine}} {{stage}}"
                ),
            ),
        ),
        LinePanel(
            title="Decode preemptions per request",
            question="Does decode preempt requests?",
            lines=(engine_signal("preemptions_per_request"),),
            judged=ConditionQuery("PDX08", "preemptions_per_request", "preemptions"),
            note="Per finished request.",
            drill="kvitals-kv",
        ),
    ),
)

_SIZES = BoardRow(
    "KV transfer time and size",
    (
        LinePanel(
            title="KV transfer time",
            question="How long does a transfer take?",
            lines=(
                PanelLine(percentile(0.99, "kvitals_transfer_seconds"), "{{engine}} p99"),
                engine_signal("transfer_mean_seconds", "{{engine}} mean"),
                PanelLine(SignalQuery("transfer_recompute_seconds"), "{{engine}} to compute it anew", "faint"),
            ),
            by=("PDX04",),
        ),
        Heat(
            title="KV transfer size heat map",
            question="How are transfer sizes distributed?",
            lines=(PanelLine(buckets("kvitals_transfer_size_bytes", "bytes"), "{{le}}"),),
            note="All chosen engines together.",
        ),
    ),
    closed=True,
)

BOARD = Board(
    "disaggregation",
    "Prefill, decode and transfer",
    "Are prefill and decode equally busy? Does KV reach decode? How long does the transfer take per request?",
    (_SIDES, _TRANSFER, _DECODE, _SIZES),
)
