"""What GPUs really do: activity beside utilisation, power, heat, memory, links, errors."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import gauge, of, rate, rise
from kvitals.dashboards.boards.board import Board, Row
from kvitals.dashboards.panels import Line, Now, Question, States, Style
from kvitals.dashboards.queries import By, From, Of


def _gpu(family: str, unit: str, legend: str = "{{gpu}}", style: Style = "data") -> Line:
    """A gauge of each GPU."""
    return Line(gauge(f"kvitals_gpu_{family}", "gpu", unit=unit, scope="node"), legend, style)


def _both_ways(link: str, legend: str) -> Line:
    """What goes over a link, sent and received."""
    sent, received = (f"sum by ($scope, gpu) (kvitals_gpu_{link}_{way}_bytes_per_second)" for way in ("tx", "rx"))
    return Line(From(f"{received} + {sent}", "bytes", "node"), legend)


_WORK = Row(
    "Is a busy GPU at work?",
    (
        Question(
            title="In what share of time does any kernel run?",
            lines=(_gpu("utilization_ratio", "ratio"),),
            by=("GPU03",),
            note="One thread on one multiprocessor all the time is 100 %: look how much of the GPU is at work.",
            highest=1,
        ),
        Question(
            title="How much of the GPU is at work?",
            lines=(
                _gpu("sm_active_ratio", "ratio", "multiprocessors {{gpu}}"),
                _gpu("tensor_active_ratio", "ratio", "tensor cores {{gpu}}"),
                _gpu("dram_active_ratio", "ratio", "memory {{gpu}}"),
            ),
            by=("GPU03", "GPU04"),
            highest=1,
        ),
        Question(
            title="What do an engine's GPUs do?",
            lines=(
                of("gpu_utilization", "{{engine}} any kernel"),
                of("gpu_sm_active", "{{engine}} multiprocessors"),
                of("gpu_tensor_active", "{{engine}} tensor cores"),
                of("gpu_dram_active", "{{engine}} memory"),
            ),
            judged=By("GPU03", "gpu_utilization", "busy"),
            highest=1,
            drill="kvitals-engines",
        ),
    ),
)

_POWER = Row(
    "Is it held back?",
    (
        Question(
            title="How much power does it draw?",
            lines=(
                _gpu("power_watts", "count"),
                _gpu("power_limit_watts", "count", "limit {{gpu}}", "faint"),
            ),
            unit="watt",
        ),
        Question(
            title="How hot is it?",
            lines=(
                _gpu("temperature_celsius", "count", "GPU {{gpu}}"),
                _gpu("memory_temperature_celsius", "count", "memory {{gpu}}"),
            ),
            unit="celsius",
        ),
        Question(
            title="How fast are its clocks?",
            lines=(
                Line(
                    From(
                        "max by ($scope, gpu) (kvitals_gpu_sm_clock_hertz)"
                        " / max by ($scope, gpu) (kvitals_gpu_sm_clock_max_hertz)",
                        "ratio",
                        "node",
                    ),
                    "{{gpu}}",
                ),
            ),
            by=("GPU06",),
            highest=1,
        ),
        Question(
            title="How much time is lost to lowered clocks?",
            lines=(
                Line(Of("gpu_held_back"), "{{node}} worst GPU"),
                Line(
                    rate("kvitals_gpu_violation_seconds_total", "gpu", "reason", unit="ratio", scope="node"),
                    "{{reason}} {{gpu}}",
                ),
            ),
            judged=By("GPU06", "gpu_held_back", "held"),
            highest=1,
        ),
        States(
            title="What lowers its clocks now?",
            lines=(
                Line(gauge("kvitals_gpu_throttle", "gpu", "reason", unit="bool", scope="node"), "{{reason}} {{gpu}}"),
            ),
            words=((0, "no"), (1, "now")),
            by=("GPU06",),
            unit="bool_yes_no",
        ),
        Question(
            title="How much energy is used?",
            lines=(
                Line(
                    rate("kvitals_gpu_energy_joules_total", unit="count", scope="node"),
                    "{{node}}",
                ),
            ),
            unit="watt",
            note="Measured energy over time, so power without its sampling.",
        ),
    ),
)

_MEMORY = Row(
    "Is there room, and do the links keep up?",
    (
        Question(
            title="How much of its memory is taken?",
            lines=(
                _gpu("memory_used_bytes", "bytes", "used {{gpu}}"),
                _gpu("memory_total_bytes", "bytes", "all {{gpu}}", "faint"),
            ),
            by=("GPU01", "GPU02"),
            note="Engines take most of it at start; it is no measure of load.",
        ),
        Question(
            title="Who has the memory?",
            lines=(
                Line(
                    From("sum by (cluster, node, engine, gpu) (kvitals_gpu_process_memory_bytes)", "bytes", "engine"),
                    "{{engine}} on {{gpu}}",
                ),
            ),
            stacked=True,
        ),
        Question(
            title="How much goes over PCIe and NVLink?",
            lines=(
                _both_ways("pcie", "PCIe {{gpu}}"),
                _both_ways("nvlink", "NVLink {{gpu}}"),
            ),
            unit="Bps",
            by=("GPU07",),
        ),
    ),
)

_ERRORS = Row(
    "Is it broken?",
    (
        Now(
            title="How many GPUs were lost?",
            lines=(Line(Of("gpus_lost"), "{{node}}"),),
            by=("GPU05",),
            judged=By("GPU05", "gpus_lost"),
            width=6,
            height=8,
        ),
        Question(
            title="Did the driver report XID errors?",
            lines=(
                Line(Of("gpu_xids"), "{{node}}"),
                Line(
                    rise("kvitals_gpu_xid_events_total", "gpu", "xid", scope="node", over="15m"),
                    "XID {{xid}} {{gpu}}",
                ),
            ),
            judged=By("GPU05", "gpu_xids"),
            note="Events and not the last code, which never clears.",
            width=9,
            height=8,
        ),
        Question(
            title="Does its memory fail?",
            lines=(
                Line(
                    rise("kvitals_gpu_ecc_errors_total", "gpu", "kind", scope="node", over="15m"),
                    "ECC {{kind}} {{gpu}}",
                ),
                _gpu("row_remap_pending", "count", "remapping waits for a reset {{gpu}}"),
                _gpu("row_remap_failure", "count", "remapping failed {{gpu}}"),
            ),
            width=9,
            height=8,
        ),
    ),
)

BOARD = Board(
    "gpu",
    "GPU truth",
    "Is a busy GPU at work, is it held back, is there room, is it broken? Needs the agent or a DCGM exporter.",
    (_WORK, _POWER, _MEMORY, _ERRORS),
)
