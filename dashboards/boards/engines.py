"""One engine or many side by side: what it runs, what waits, whether it steps, what its ranks and processes do."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import gauge, mean, of, rate
from kvitals.dashboards.boards.board import Board, Row
from kvitals.dashboards.panels import Line, Question, Table
from kvitals.dashboards.queries import By, Of

_LOAD = Row(
    "How much is asked of it?",
    (
        Question(
            title="How many requests run, and how many could?",
            lines=(of("running_avg", "{{engine}} running"), Line(Of("slots"), "{{engine}} slots", "faint")),
            by=("SCH01",),
        ),
        Question(
            title="Who waits, and for what?",
            lines=(
                of("waiting_capacity_avg", "{{engine}} for room"),
                of("waiting_deferred_avg", "{{engine}} for something else"),
            ),
            judged=By("KVC01", "waiting_capacity_avg", "waiting"),
        ),
        Question(
            title="Does the queue drain within the objective?",
            lines=(
                of("drain_seconds", "{{engine}} to drain"),
                Line(Of("slo_ttft_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("SCH10",),
        ),
    ),
)

_FULL = Row(
    "Is it full?",
    (
        Question(
            title="How much KV do live requests pin?",
            lines=(of("kv_usage_p90"),),
            judged=By("KVC01", "kv_usage_p90", "kv_high"),
            highest=1,
            drill="kvitals-kv",
        ),
        Question(
            title="How often is a running request thrown out?",
            lines=(of("preemptions_per_request"),),
            judged=By("KVC09", "preemptions_per_request", "preemptions"),
            note="Per finished request.",
            drill="kvitals-kv",
        ),
        Question(
            title="How much of the prompts is found?",
            lines=(of("prefix_hit_ratio"),),
            judged=By("PFX01", "prefix_hit_ratio", "hits"),
            highest=1,
            drill="kvitals-kv",
        ),
    ),
)

_STEPS = Row(
    "Does it make progress?",
    (
        Question(
            title="Does the engine step?",
            lines=(of("steps_per_second"),),
            unit="suffix:steps/s",
            by=("ENG01",),
            note="Zero steps while requests run or wait is ENG01.",
        ),
        Question(
            title="How many tokens does a step compute?",
            lines=(of("step_tokens_avg", "{{engine}} on average"), of("step_tokens_p99", "{{engine}} p99")),
            by=("SCH03",),
        ),
        Question(
            title="How much of a step's token budget is used?",
            lines=(of("step_budget_used"),),
            by=("SCH05", "SCH06"),
            highest=1,
        ),
    ),
)

_RANKS = Row(
    "Are ranks alike?",
    (
        Question(
            title="How unlike are ranks' shares of a step?",
            lines=(
                Line(
                    mean("kvitals_dp_token_imbalance", unit="ratio"),
                    "{{engine}}",
                ),
            ),
            unit="none",
        ),
        Question(
            title="How long do ranks wait for one another?",
            lines=(
                Line(
                    mean("kvitals_dp_sync_wait_seconds"),
                    "{{engine}}",
                ),
            ),
        ),
        Question(
            title="How long is the scheduler without work?",
            lines=(Line(rate("kvitals_scheduler_idle_seconds_total", unit="ratio"), "{{engine}}"),),
            highest=1,
        ),
    ),
)

_PROCESSES = Row(
    "Do its processes get what they need?",
    (
        Question(
            title="Is the API server's event loop full?",
            lines=(
                of("api_server_busiest_thread", "{{engine}} API server"),
                of("engine_core_busiest_thread", "{{engine}} engine core"),
            ),
            judged=By("SCH15", "api_server_busiest_thread", "thread"),
            highest=1,
        ),
        Question(
            title="Is it kept from its CPU or its memory?",
            lines=(
                of("engine_run_delay", "{{engine}} ready and not run"),
                of("engine_cpu_throttled", "{{engine}} stopped by its CPU limit"),
                of("engine_memory_pressure", "{{engine}} stalled for memory"),
            ),
            by=("SCH15",),
            highest=1,
        ),
        Question(
            title="How much memory do its processes hold?",
            lines=(
                Line(
                    gauge("kvitals_engine_process_resident_bytes", "part", unit="bytes", of="sum"),
                    "{{engine}} {{part}}",
                ),
            ),
        ),
    ),
)

_CONFIGURED = Row(
    "What is it, and how is it configured?",
    (
        Table(
            title="What runs where?",
            lines=(
                Line(
                    gauge(
                        "kvitals_engine_info",
                        "system",
                        "kind",
                        "role",
                        "version",
                        "model",
                        "connector",
                        unit="count",
                        of="group",
                    ),
                    "there",
                ),
            ),
            units=("none",),
            hidden=("there",),
            drill="kvitals-engines",
            width=24,
            height=6,
        ),
        Table(
            title="With which numbers is it configured?",
            lines=(Line(gauge("kvitals_engine_fact", "fact", unit="count"), "value"),),
            units=("none",),
            matrix=("engine", "fact"),
            note="A setting that is not known has no column. Sources may differ: the largest is shown.",
            width=24,
            height=6,
        ),
    ),
)

BOARD = Board(
    "engines",
    "Engines and ranks",
    "What does each engine and rank run, what waits, does it make progress, and how is it configured?",
    (_LOAD, _FULL, _STEPS, _RANKS, _PROCESSES, _CONFIGURED),
)
