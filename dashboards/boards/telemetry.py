"""Whether the other boards can be believed: what is read, how old it is, what is lacking, how the agent fares."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import gauge, lost_events, of, rate, rise
from kvitals.dashboards.boards.board import Board, Row
from kvitals.dashboards.panels import Line, Question, States, Table
from kvitals.dashboards.queries import By, From, Of

_READ = Row(
    "Is everything read?",
    (
        States(
            title="Can every target be read?",
            lines=(of("target_up"),),
            words=((0, "not readable"), (1, "readable")),
            judged=By("TEL01", "target_up"),
            unit="bool_yes_no",
        ),
        States(
            title="What did the last look at it come to?",
            lines=(Line(From("max by ($scope, reason) (kvitals_target_state) == 1", "bool"), "{{engine}} {{reason}}"),),
            words=((1, "now"),),
            unit="bool_yes_no",
        ),
        Question(
            title="How old is what we see?",
            lines=(Line(gauge("kvitals_scrape_age_seconds", unit="seconds"), "{{engine}}"),),
            note="A target that does not answer grows old here, while its last values are shown nowhere.",
        ),
        Question(
            title="How long does a look at a page take?",
            lines=(Line(gauge("kvitals_scrape_duration_seconds", unit="seconds"), "{{engine}}"),),
        ),
        Question(
            title="How large are pages?",
            lines=(Line(gauge("kvitals_scrape_size_bytes", unit="bytes"), "{{engine}}"),),
        ),
        Question(
            title="What is left out?",
            lines=(
                Line(
                    rise("kvitals_scrape_dropped_total", "reason", over="15m"),
                    "{{engine}} {{reason}}",
                ),
            ),
            note="Series and samples in a quarter of an hour.",
        ),
    ),
)

_LACKS = Row(
    "What is lacking, off or old?",
    (
        Question(
            title="Does it lack metrics that it should have?",
            lines=(of("families_missing"),),
            judged=By("TEL02", "families_missing"),
            height=7,
        ),
        Question(
            title="How many blind spots would a flag end?",
            lines=(of("telemetry_flags_off"),),
            judged=By("TEL10", "telemetry_flags_off"),
            note="`kvitals check` names the flags.",
            height=7,
        ),
        Question(
            title="How many names on the pages are unknown?",
            lines=(Line(gauge("kvitals_scrape_unknown_names", unit="count"), "{{engine}}"),),
            height=7,
        ),
        Table(
            title="Which families are missing or of an older version?",
            lines=(
                Line(
                    From(
                        "max by ($scope, family, raw) (kvitals_family_missing)"
                        " or max by ($scope, family, raw) (kvitals_family_outdated)",
                        "count",
                    ),
                    "lacking",
                ),
            ),
            hidden=("lacking",),
            by=("TEL02",),
            note="Empty where nothing is lacking.",
            width=24,
            height=6,
        ),
    ),
)

_SENSES = Row(
    "Do the agent's other senses work?",
    (
        States(
            title="How does each sense of a node fare?",
            lines=(
                Line(
                    gauge("kvitals_sense_state", "sense", "state", "reason", unit="bool", scope="node"),
                    "{{node}} {{sense}}: {{state}} {{reason}}",
                ),
            ),
            words=((1, "now"),),
            unit="bool_yes_no",
            width=12,
        ),
        States(
            title="How does listening to KV events go?",
            lines=(
                Line(
                    gauge("kvitals_kv_event_state", "state", "reason", unit="bool"),
                    "{{engine}} {{state}} {{reason}}",
                ),
            ),
            words=((1, "now"),),
            unit="bool_yes_no",
            width=12,
        ),
        Question(
            title="Were KV events lost?",
            lines=lost_events(),
            judged=By("TEL04", "kv_event_gaps"),
        ),
        Question(
            title="From whom come observations of requests?",
            lines=(
                Line(
                    rate("kvitals_parts_total", "source", scope="node"),
                    "{{node}} {{source}}",
                ),
            ),
            unit="suffix:/s",
        ),
        Question(
            title="Are requests put together whole?",
            lines=(
                Line(
                    rate("kvitals_requests_stitched_total", "state", scope="node"),
                    "{{node}} {{state}}",
                ),
                Line(
                    rate("kvitals_request_parts_dropped_total", "reason", scope="node"),
                    "{{node}} parts dropped: {{reason}}",
                ),
            ),
            unit="suffix:/s",
        ),
        Question(
            title="Do requests and the engine count alike?",
            lines=(of("requests_seen_ratio", "{{engine}} requests"), of("tokens_seen_ratio", "{{engine}} tokens")),
            unit="percentunit",
            by=("TEL06",),
        ),
        Question(
            title="Is what is seen written down?",
            lines=(Line(Of("history_written"), "{{node}}"),),
            highest=1,
        ),
        Question(
            title="How large is the history?",
            lines=(Line(gauge("kvitals_history_bytes", unit="bytes", scope="node"), "{{node}}"),),
        ),
        Question(
            title="Does what is exported arrive?",
            lines=(
                Line(
                    rate("kvitals_export_dropped_total", "export", "reason", scope="node"),
                    "{{node}} {{export}} dropped: {{reason}}",
                ),
                Line(
                    gauge("kvitals_export_waiting", "export", unit="count", scope="node", of="sum"),
                    "{{node}} {{export}} waiting",
                ),
            ),
            unit="short",
        ),
    ),
)

_HOST = Row(
    "Has the agent's host what it needs?",
    (
        Question(
            title="How much CPU do the node's programs get?",
            lines=(
                Line(Of("host_cpu_used"), "{{node}} used"),
                Line(Of("host_cpu_stolen"), "{{node}} taken by the hypervisor"),
                Line(Of("host_cpu_pressure"), "{{node}} waited for"),
            ),
            by=("GPU13",),
            highest=1,
        ),
        Question(
            title="How much memory can still be had?",
            lines=(Line(Of("host_memory_available"), "{{node}}"),),
            judged=By("GPU13", "host_memory_available", "memory"),
            highest=1,
        ),
        Question(
            title="How much room have the file systems?",
            lines=(Line(Of("host_disk_available"), "{{node}} fullest"),),
            by=("GPU13",),
            highest=1,
        ),
    ),
)

BOARD = Board(
    "telemetry",
    "Agent and telemetry health",
    "Can the other boards be believed: is everything read, what is lacking or off, do the agent's senses work?",
    (_READ, _LACKS, _SENSES, _HOST),
)
