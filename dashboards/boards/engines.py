"""One engine or many side by side: what it runs, what waits, whether it steps, what its ranks and processes do."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import engine_signal, gauge, mean, rate
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import LinePanel, PanelLine, TablePanel
from kvitals.dashboards.queries import ConditionQuery, SignalQuery

_LOAD = BoardRow(
    "Load and queue",
    (
        LinePanel(
            title="Running requests and slots (max_num_seqs)",
            question="How many requests run, of how many slots?",
            lines=(
                engine_signal("running_avg", "{{engine}} running"),
                PanelLine(SignalQuery("slots"), "{{engine}} slots", "faint"),
            ),
            by=("SCH01",),
        ),
        LinePanel(
            title="Waiting requests (queue) by reason",
            question="How many requests wait, and for what?",
            lines=(
                engine_signal("waiting_capacity_avg", "{{engine}} for room"),
                engine_signal("waiting_deferred_avg", "{{engine}} for something else"),
            ),
            judged=ConditionQuery("KVC01", "waiting_capacity_avg", "waiting"),
        ),
        LinePanel(
            title="Queue drain time",
            question="Can the queue drain within the objective?",
            lines=(
                engine_signal("drain_seconds", "{{engine}} to drain"),
                PanelLine(SignalQuery("slo_ttft_seconds"), "{{engine}} objective", "objective"),
            ),
            by=("SCH10",),
        ),
    ),
)

_FULL = BoardRow(
    "KV cache, preemptions, prefix cache",
    (
        LinePanel(
            title="KV cache usage",
            question="How much KV do live requests pin?",
            lines=(engine_signal("kv_usage_p90"),),
            judged=ConditionQuery("KVC01", "kv_usage_p90", "kv_high"),
            highest=1,
            drill="kvitals-kv",
        ),
        LinePanel(
            title="Preemptions (retractions) per request",
            question="How often is a running request preempted?",
            lines=(engine_signal("preemptions_per_request"),),
            judged=ConditionQuery("KVC09", "preemptions_per_request", "preemptions"),
            note="Per finished request.",
            drill="kvitals-kv",
        ),
        LinePanel(
            title="Prefix cache hit rate",
            question="What share of prompt tokens hits the cache?",
            lines=(engine_signal("prefix_hit_ratio"),),
            judged=ConditionQuery("PFX01", "prefix_hit_ratio", "hits"),
            highest=1,
            drill="kvitals-kv",
        ),
    ),
)

_STEPS = BoardRow(
    "Steps and batches",
    (
        LinePanel(
            title="Engine steps per second",
            question="Does the engine step?",
            lines=(engine_signal("steps_per_second"),),
            unit="suffix:steps/s",
            by=("ENG01",),
            note="Zero steps while requests run or wait is ENG01.",
        ),
        LinePanel(
            title="Batch size: tokens per step",
            question="How many tokens does a step compute?",
            lines=(
                engine_signal("step_tokens_avg", "{{engine}} on average"),
                engine_signal("step_tokens_p99", "{{engine}} p99"),
            ),
            by=("SCH03",),
        ),
        LinePanel(
            title="Step token budget usage",
            question="What share of a step's token budget is used?",
            lines=(engine_signal("step_budget_used"),),
            by=("SCH05", "SCH06"),
            highest=1,
        ),
    ),
)

_RANKS = BoardRow(
    "Ranks",
    (
        LinePanel(
            title="DP rank token imbalance",
            question="How unequal are the ranks' shares of a step?",
            lines=(
                PanelLine(
                    mean("kvitals_dp_token_imbalance", unit="ratio"),
                    "{{engine}}",
                ),
            ),
            unit="none",
        ),
        LinePanel(
            title="DP rank sync wait time",
            question="How long do ranks wait for each other?",
            lines=(
                PanelLine(
                    mean("kvitals_dp_sync_wait_seconds"),
                    "{{engine}}",
                ),
            ),
        ),
        LinePanel(
            title="Scheduler idle time",
            question="How long does the scheduler have no work?",
            lines=(PanelLine(rate("kvitals_scheduler_idle_seconds_total", unit="ratio"), "{{engine}}"),),
            highest=1,
        ),
    ),
)

_PROCESSES = BoardRow(
    "Processes",
    (
        LinePanel(
            title="API server and engine core CPU (thread)",
            question="Is the API server's event loop full?",
            lines=(
                engine_signal("api_server_busiest_thread", "{{engine}} API server"),
                engine_signal("engine_core_busiest_thread", "{{engine}} engine core"),
            ),
            judged=ConditionQuery("SCH15", "api_server_busiest_thread", "thread"),
            highest=1,
        ),
        LinePanel(
            title="CPU throttling and memory pressure",
            question="Does the engine wait for CPU or memory?",
            lines=(
                engine_signal("engine_run_delay", "{{engine}} ready and not run"),
                engine_signal("engine_cpu_throttled", "{{engine}} stopped by its CPU limit"),
                engine_signal("engine_memory_pressure", "{{engine}} stalled for memory"),
            ),
            by=("SCH15",),
            highest=1,
        ),
        LinePanel(
            title="Process memory (RSS)",
            question="How much memory do the engine's processes hold?",
            lines=(
                PanelLine(
                    gauge("kvitals_engine_process_resident_bytes", "part", unit="bytes", of="sum"),
                    "{{engine}} {{part}}",
                ),
            ),
        ),
    ),
)

_CONFIGURED = BoardRow(
    "Versions and configuration",
    (
        TablePanel(
            title="Engine versions and models",
            question="What runs where?",
            lines=(
                PanelLine(
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
        TablePanel(
            title="Engine configuration",
            question="What is its configuration?",
            lines=(PanelLine(gauge("kvitals_engine_fact", "fact", unit="count"), "value"),),
            units=("none",),
            matrix=("engine", "fact"),
            note="An unknown setting has no column. If sources differ, the largest value is shown.",
            width=24,
            height=6,
        ),
    ),
)

BOARD = Board(
    "engines",
    "Engines and ranks",
    "What does each engine and rank run, how many requests wait, does it make progress, and how is it configured?",
    (_LOAD, _FULL, _STEPS, _RANKS, _PROCESSES, _CONFIGURED),
)
