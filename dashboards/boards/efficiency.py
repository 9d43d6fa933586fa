"""What is got for the GPUs, what work is for nothing, and where more load brings no more."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import engine_signal, gauge, rate, share, tokens
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import LinePanel, PanelLine
from kvitals.dashboards.queries import ConditionQuery, ExpressionQuery

_YIELD = BoardRow(
    "Throughput",
    (
        LinePanel(
            title="Tokens per GPU-hour",
            question="How many tokens does a GPU generate per hour?",
            lines=(engine_signal("tokens_per_gpu_hour"),),
            note="Generated tokens at the current rate. Needs the agent on the node; no value if engines share a GPU.",
        ),
        LinePanel(
            title="Token throughput: prompt and generation",
            question="How many prompt and output tokens per second?",
            lines=tokens(),
            unit="suffix:tokens/s",
        ),
        LinePanel(
            title="Energy per generated token",
            question="How much energy does a generated token need?",
            lines=(
                PanelLine(
                    share(
                        "kvitals_gpu_energy_joules_total", "kvitals_generation_tokens_total", unit="count", scope="node"
                    ),
                    "{{node}}",
                ),
            ),
            unit="joule",
            note="Energy of all GPUs of a node, including idle ones, divided by the tokens of its engines.",
        ),
    ),
)

_WASTE = BoardRow(
    "Wasted work",
    (
        LinePanel(
            title="Recomputed tokens (refaults)",
            question="How many tokens are computed a second time?",
            lines=(
                engine_signal("refaulted_tokens_per_second", "{{engine}} after eviction"),
                PanelLine(
                    rate("kvitals_preempted_tokens_total"),
                    "{{engine}} after being thrown out",
                ),
                PanelLine(
                    rate("kvitals_prompt_tokens_recomputed_total"),
                    "{{engine}} though cached",
                ),
            ),
            unit="suffix:tokens/s",
            stacked=True,
            by=("KVC04", "KVC09"),
        ),
        LinePanel(
            title="Speculative decoding: rejected draft tokens",
            question="How many drafted tokens are rejected?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "sum by ($scope) (rate(kvitals_draft_tokens_total[$window]))"
                        " - sum by ($scope) (rate(kvitals_draft_accepted_tokens_total[$window]))",
                        "per_second",
                    ),
                    "{{engine}}",
                ),
            ),
            unit="suffix:tokens/s",
            by=("SPC01",),
            note="Only for engines that speculate.",
        ),
        LinePanel(
            title="Aborted and failed requests",
            question="How many requests were computed after their client disconnected?",
            lines=(
                engine_signal("aborted_per_request", "{{engine}} left by clients"),
                engine_signal("failed_per_request", "{{engine}} failed"),
                engine_signal("transfer_expired", "{{engine}} transfers given up"),
            ),
            unit="short",
            by=("ENG06", "ENG05", "PDX07"),
        ),
        LinePanel(
            title="Prefix cache hits missed",
            question="What share of attainable hits is missed?",
            lines=(engine_signal("hits_to_win"),),
            unit="percentunit",
            by=("PFX01",),
        ),
        LinePanel(
            title="GPU time saved by twice the KV blocks",
            question="How much GPU time would twice the KV blocks save?",
            lines=(engine_signal("doubled_saving"),),
            judged=ConditionQuery("EFF05", "doubled_saving", "saving"),
        ),
        LinePanel(
            title="Prefill share of request time",
            question="What share of request time is prefill?",
            lines=(engine_signal("prefill_time_share"),),
            highest=1,
        ),
    ),
)

_KNEE = BoardRow(
    "Saturation",
    (
        LinePanel(
            title="Load and throughput change",
            question="How do load and throughput change?",
            lines=(
                engine_signal("running_change", "{{engine}} running"),
                engine_signal("finished_change", "{{engine}} finished a second"),
                engine_signal("ttft_drift", "{{engine}} p99 of first tokens"),
            ),
            unit="suffix:times",
            by=("CAP01",),
            note="The last 10 minutes divided by the 20 before. Past the knee, load grows but throughput does not.",
        ),
        LinePanel(
            title="Little's law: counted and calculated requests",
            question="Does the engine run requests that it does not count?",
            lines=(
                engine_signal("measured_concurrency", "{{engine}} counted"),
                engine_signal("residence_concurrency", "{{engine}} by Little's law"),
            ),
            by=("CAP03",),
        ),
        LinePanel(
            title="Batch size: requests per step",
            question="How many requests share a step?",
            lines=(
                engine_signal("running_avg", "{{engine}} running"),
                engine_signal("step_tokens_avg", "{{engine}} tokens a step"),
            ),
            unit="short",
            by=("SCH03", "SCH04"),
        ),
        LinePanel(
            title="Slot and KV cache usage",
            question="What share of slots and KV blocks is used?",
            lines=(
                engine_signal("running_per_slot", "{{engine}} slots"),
                engine_signal("kv_usage_avg", "{{engine}} KV"),
            ),
            by=("EFF11", "KVC02"),
            highest=1,
        ),
        LinePanel(
            title="Estimated FLOPs per GPU (MFU)",
            question="How much compute does the engine report?",
            lines=(
                PanelLine(
                    rate("kvitals_estimated_flops_per_gpu_total", unit="count"),
                    "{{engine}}",
                ),
            ),
            unit="flops",
        ),
        LinePanel(
            title="Forward pass occupancy",
            question="For what share of the time do forward passes run?",
            lines=(PanelLine(gauge("kvitals_forward_occupancy_ratio", unit="ratio"), "{{engine}}"),),
            highest=1,
        ),
    ),
)

BOARD = Board(
    "efficiency",
    "Efficiency",
    "What do the GPUs deliver, what work is wasted, and does more load still increase throughput?",
    (_YIELD, _WASTE, _KNEE),
)
