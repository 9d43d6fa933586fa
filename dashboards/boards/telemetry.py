"""Whether the other boards can be believed: what is read, how old it is, what is lacking, how the agent fares."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import engine_signal, gauge, lost_events, rate, rise
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import LinePanel, PanelLine, States, TablePanel
from kvitals.dashboards.queries import ConditionQuery, ExpressionQuery, SignalQuery

_READ = BoardRow(
    "Scrapes",
    (
        States(
            title="Scrape target up",
            question="Can every target be read?",
            lines=(engine_signal("target_up"),),
            words=((0, "not readable"), (1, "readable")),
            judged=ConditionQuery("TEL01", "target_up"),
            unit="bool_yes_no",
        ),
        States(
            title="Scrape result by target",
            question="What was the result of the last scrape?",
            lines=(
                PanelLine(
                    ExpressionQuery("max by ($scope, reason) (kvitals_target_state) == 1", "bool"),
                    "{{engine}} {{reason}}",
                ),
            ),
            words=((1, "now"),),
            unit="bool_yes_no",
        ),
        LinePanel(
            title="Scrape age",
            question="How old is the data?",
            lines=(PanelLine(gauge("kvitals_scrape_age_seconds", unit="seconds"), "{{engine}}"),),
            note="This shows the age of a target that does not answer; its last values are not shown.",
        ),
        LinePanel(
            title="Scrape duration",
            question="How long does a scrape take?",
            lines=(PanelLine(gauge("kvitals_scrape_duration_seconds", unit="seconds"), "{{engine}}"),),
        ),
        LinePanel(
            title="Scrape size",
            question="How large are pages?",
            lines=(PanelLine(gauge("kvitals_scrape_size_bytes", unit="bytes"), "{{engine}}"),),
        ),
        LinePanel(
            title="Scraped series dropped",
            question="What is left out?",
            lines=(
                PanelLine(
                    rise("kvitals_scrape_dropped_total", "reason", over="15m"),
                    "{{engine}} {{reason}}",
                ),
            ),
            note="Series and samples in 15 minutes.",
        ),
    ),
)

_LACKS = BoardRow(
    "Missing metrics",
    (
        LinePanel(
            title="Missing metrics by engine",
            question="Which expected metrics are missing?",
            lines=(engine_signal("families_missing"),),
            judged=ConditionQuery("TEL02", "families_missing"),
            height=7,
        ),
        LinePanel(
            title="Missing telemetry that a flag would add",
            question="How much missing telemetry would a flag add?",
            lines=(engine_signal("telemetry_flags_off"),),
            judged=ConditionQuery("TEL10", "telemetry_flags_off"),
            note="`kvitals check` names the flags.",
            height=7,
        ),
        LinePanel(
            title="Unknown metric names",
            question="How many names on the pages are unknown?",
            lines=(PanelLine(gauge("kvitals_scrape_unknown_names", unit="count"), "{{engine}}"),),
            height=7,
        ),
        TablePanel(
            title="Missing and old metric families",
            question="Which families are missing or from an older version?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "max by ($scope, family, raw) (kvitals_family_missing)"
                        " or max by ($scope, family, raw) (kvitals_family_outdated)",
                        "count",
                    ),
                    "lacking",
                ),
            ),
            hidden=("lacking",),
            by=("TEL02",),
            note="Empty where no metric is missing.",
            width=24,
            height=6,
        ),
    ),
)

_SENSES = BoardRow(
    "Collectors and exports",
    (
        States(
            title="Collector state",
            question="What is the state of each collector of a node?",
            lines=(
                PanelLine(
                    gauge("kvitals_sense_state", "sense", "state", "reason", unit="bool", scope="node"),
                    "{{node}} {{sense}}: {{state}} {{reason}}",
                ),
            ),
            words=((1, "now"),),
            unit="bool_yes_no",
            width=12,
        ),
        States(
            title="KV event subscription state",
            question="Does the agent receive all KV events?",
            lines=(
                PanelLine(
                    gauge("kvitals_kv_event_state", "state", "reason", unit="bool"),
                    "{{engine}} {{state}} {{reason}}",
                ),
            ),
            words=((1, "now"),),
            unit="bool_yes_no",
            width=12,
        ),
        LinePanel(
            title="KV events lost",
            question="Were KV events lost?",
            lines=lost_events(),
            judged=ConditionQuery("TEL04", "kv_event_gaps"),
        ),
        LinePanel(
            title="Request observations by source",
            question="Which sources report requests?",
            lines=(
                PanelLine(
                    rate("kvitals_parts_total", "source", scope="node"),
                    "{{node}} {{source}}",
                ),
            ),
            unit="suffix:/s",
        ),
        LinePanel(
            title="Requests correlated by completeness",
            question="Are requests correlated completely?",
            lines=(
                PanelLine(
                    rate("kvitals_requests_stitched_total", "state", scope="node"),
                    "{{node}} {{state}}",
                ),
                PanelLine(
                    rate("kvitals_request_parts_dropped_total", "reason", scope="node"),
                    "{{node}} parts dropped: {{reason}}",
                ),
            ),
            unit="suffix:/s",
        ),
        LinePanel(
            title="Observed and counted requests and tokens",
            question="Do request records and engine counters agree?",
            lines=(
                engine_signal("requests_seen_ratio", "{{engine}} requests"),
                engine_signal("tokens_seen_ratio", "{{engine}} tokens"),
            ),
            unit="percentunit",
            by=("TEL06",),
        ),
        LinePanel(
            title="History state",
            question="Does the agent store what it observes?",
            lines=(PanelLine(SignalQuery("history_written"), "{{node}}"),),
            highest=1,
        ),
        LinePanel(
            title="History size",
            question="How large is the history?",
            lines=(PanelLine(gauge("kvitals_history_bytes", unit="bytes", scope="node"), "{{node}}"),),
        ),
        LinePanel(
            title="Export drops",
            question="Does all exported data arrive?",
            lines=(
                PanelLine(
                    rate("kvitals_export_dropped_total", "export", "reason", scope="node"),
                    "{{node}} {{export}} dropped: {{reason}}",
                ),
                PanelLine(
                    gauge("kvitals_export_waiting", "export", unit="count", scope="node", of="sum"),
                    "{{node}} {{export}} waiting",
                ),
            ),
            unit="short",
        ),
    ),
)

_HOST = BoardRow(
    "Host",
    (
        LinePanel(
            title="Host CPU usage and pressure",
            question="How much CPU do the node's programs get?",
            lines=(
                PanelLine(SignalQuery("host_cpu_used"), "{{node}} used"),
                PanelLine(SignalQuery("host_cpu_stolen"), "{{node}} taken by the hypervisor"),
                PanelLine(SignalQuery("host_cpu_pressure"), "{{node}} waited for"),
            ),
            by=("GPU13",),
            highest=1,
        ),
        LinePanel(
            title="Host memory available",
            question="How much memory is still available?",
            lines=(PanelLine(SignalQuery("host_memory_available"), "{{node}}"),),
            judged=ConditionQuery("GPU13", "host_memory_available", "memory"),
            highest=1,
        ),
        LinePanel(
            title="Host disk space available",
            question="How much free space do the file systems have?",
            lines=(PanelLine(SignalQuery("host_disk_available"), "{{node}} fullest"),),
            by=("GPU13",),
            highest=1,
        ),
    ),
)

BOARD = Board(
    "telemetry",
    "Agent and telemetry health",
    "Can you trust the other boards: are all targets scraped, which metrics are missing, do the collectors work?",
    (_READ, _LACKS, _SENSES, _HOST),
)
