"""What is got for the GPUs, what work is for nothing, and where more load brings no more."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import gauge, of, rate, share, tokens
from kvitals.dashboards.boards.board import Board, Row
from kvitals.dashboards.panels import Line, Question
from kvitals.dashboards.queries import By, From

_YIELD = Row(
    "What do we get for it?",
    (
        Question(
            title="How many tokens does an hour of a GPU give?",
            lines=(of("tokens_per_gpu_hour"),),
            note="Generated tokens at the present pace. Needs the agent on the node; absent where engines share a GPU.",
        ),
        Question(
            title="How many tokens go in and come out?",
            lines=tokens(),
            unit="suffix:tokens/s",
        ),
        Question(
            title="How much power does a generated token take?",
            lines=(
                Line(
                    share(
                        "kvitals_gpu_energy_joules_total", "kvitals_generation_tokens_total", unit="count", scope="node"
                    ),
                    "{{node}}",
                ),
            ),
            unit="joule",
            note="All GPUs of a node over all tokens of its engines, idle GPUs included.",
        ),
    ),
)

_WASTE = Row(
    "What work was for nothing?",
    (
        Question(
            title="How many tokens are computed a second time?",
            lines=(
                of("refaulted_tokens_per_second", "{{engine}} after eviction"),
                Line(
                    rate("kvitals_preempted_tokens_total"),
                    "{{engine}} after being thrown out",
                ),
                Line(
                    rate("kvitals_prompt_tokens_recomputed_total"),
                    "{{engine}} though cached",
                ),
            ),
            unit="suffix:tokens/s",
            stacked=True,
            by=("KVC04", "KVC09"),
        ),
        Question(
            title="How many drafted tokens are thrown away?",
            lines=(
                Line(
                    From(
                        "sum by ($scope) (rate(kvitals_draft_tokens_total[$window]))"
                        " - sum by ($scope) (rate(kvitals_draft_accepted_tokens_total[$window]))",
                        "per_second",
                    ),
                    "{{engine}}",
                ),
            ),
            unit="suffix:tokens/s",
            by=("SPC01",),
            note="Only where the engine speculates.",
        ),
        Question(
            title="How many requests were worked on for nobody?",
            lines=(
                of("aborted_per_request", "{{engine}} left by clients"),
                of("failed_per_request", "{{engine}} failed"),
                of("transfer_expired", "{{engine}} transfers given up"),
            ),
            unit="short",
            by=("ENG06", "ENG05", "PDX07"),
        ),
        Question(
            title="How much of what could be found is not found?",
            lines=(of("hits_to_win"),),
            unit="percentunit",
            by=("PFX01",),
        ),
        Question(
            title="What GPU time would twice the blocks save?",
            lines=(of("doubled_saving"),),
            judged=By("EFF05", "doubled_saving", "saving"),
        ),
        Question(
            title="What part of requests' time is prefill?",
            lines=(of("prefill_time_share"),),
            highest=1,
        ),
    ),
)

_KNEE = Row(
    "Does more load still bring more?",
    (
        Question(
            title="How do load and throughput change?",
            lines=(
                of("running_change", "{{engine}} running"),
                of("finished_change", "{{engine}} finished a second"),
                of("ttft_drift", "{{engine}} p99 of first tokens"),
            ),
            unit="suffix:times",
            by=("CAP01",),
            note="The last ten minutes over twenty minutes before. Load that grows alone is past the knee.",
        ),
        Question(
            title="Is anything in it that it does not count?",
            lines=(
                of("measured_concurrency", "{{engine}} counted"),
                of("residence_concurrency", "{{engine}} by Little's law"),
            ),
            by=("CAP03",),
        ),
        Question(
            title="How many requests share a step?",
            lines=(of("running_avg", "{{engine}} running"), of("step_tokens_avg", "{{engine}} tokens a step")),
            unit="short",
            by=("SCH03", "SCH04"),
        ),
        Question(
            title="How much of slots and cache is used?",
            lines=(of("running_per_slot", "{{engine}} slots"), of("kv_usage_avg", "{{engine}} KV")),
            by=("EFF11", "KVC02"),
            highest=1,
        ),
        Question(
            title="How much does the engine say to compute?",
            lines=(
                Line(
                    rate("kvitals_estimated_flops_per_gpu_total", unit="count"),
                    "{{engine}}",
                ),
            ),
            unit="flops",
        ),
        Question(
            title="How much of the time do forward passes run?",
            lines=(Line(gauge("kvitals_forward_occupancy_ratio", unit="ratio"), "{{engine}}"),),
            highest=1,
        ),
    ),
)

BOARD = Board(
    "efficiency",
    "Efficiency",
    "What is got for the GPUs, what work was for nothing, and does more load still bring more?",
    (_YIELD, _WASTE, _KNEE),
)
