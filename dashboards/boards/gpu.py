"""What GPUs really do: activity beside utilisation, power, heat, memory, links, errors."""

from __future__ import annotations

from kvitals.dashboards.boards.asks import engine_signal, gauge, rate, rise
from kvitals.dashboards.boards.board import Board, BoardRow
from kvitals.dashboards.panels import LinePanel, Now, PanelLine, States, Style
from kvitals.dashboards.queries import ConditionQuery, ExpressionQuery, SignalQuery


def _gpu(family: str, unit: str, legend: str = "{{gpu}}", style: Style = "data") -> PanelLine:
    """A gauge of each GPU."""
    return PanelLine(gauge(f"kvitals_gpu_{family}", "gpu", unit=unit, scope="node"), legend, style)


def _both_ways(link: str, legend: str) -> PanelLine:
    """What goes over a link, sent and received."""
    sent, received = (f"sum by ($scope, gpu) (kvitals_gpu_{link}_{way}_bytes_per_second)" for way in ("tx", "rx"))
    return PanelLine(ExpressionQuery(f"{received} + {sent}", "bytes", "node"), legend)


_WORK = BoardRow(
    "Utilization",
    (
        LinePanel(
            title="GPU utilization",
            question="For what share of the time does a kernel run?",
            lines=(_gpu("utilization_ratio", "ratio"),),
            by=("GPU03",),
            note="A single thread on one multiprocessor counts as 100 %: compare with the share of the GPU that works.",
            highest=1,
        ),
        LinePanel(
            title="GPU SM, tensor and DRAM activity",
            question="What share of the GPU works?",
            lines=(
                _gpu("sm_active_ratio", "ratio", "multiprocessors {{gpu}}"),
                _gpu("tensor_active_ratio", "ratio", "tensor cores {{gpu}}"),
                _gpu("dram_active_ratio", "ratio", "memory {{gpu}}"),
            ),
            by=("GPU03", "GPU04"),
            highest=1,
        ),
        LinePanel(
            title="GPU activity by engine",
            question="What do an engine's GPUs do?",
            lines=(
                engine_signal("gpu_utilization", "{{engine}} any kernel"),
                engine_signal("gpu_sm_active", "{{engine}} multiprocessors"),
                engine_signal("gpu_tensor_active", "{{engine}} tensor cores"),
                engine_signal("gpu_dram_active", "{{engine}} memory"),
            ),
            judged=ConditionQuery("GPU03", "gpu_utilization", "busy"),
            highest=1,
            drill="kvitals-engines",
        ),
    ),
)

_POWER = BoardRow(
    "Power, temperature, clocks",
    (
        LinePanel(
            title="GPU power",
            question="How much power does the GPU draw?",
            lines=(
                _gpu("power_watts", "count"),
                _gpu("power_limit_watts", "count", "limit {{gpu}}", "faint"),
            ),
            unit="watt",
        ),
        LinePanel(
            title="GPU temperature",
            question="How hot is it?",
            lines=(
                _gpu("temperature_celsius", "count", "GPU {{gpu}}"),
                _gpu("memory_temperature_celsius", "count", "memory {{gpu}}"),
            ),
            unit="celsius",
        ),
        LinePanel(
            title="GPU clocks",
            question="How fast are the GPU's clocks?",
            lines=(
                PanelLine(
                    ExpressionQuery(
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
        LinePanel(
            title="GPU throttling: time lost",
            question="How much time is lost to lowered clocks?",
            lines=(
                PanelLine(SignalQuery("gpu_held_back"), "{{node}} worst GPU"),
                PanelLine(
                    rate("kvitals_gpu_violation_seconds_total", "gpu", "reason", unit="ratio", scope="node"),
                    "{{reason}} {{gpu}}",
                ),
            ),
            judged=ConditionQuery("GPU06", "gpu_held_back", "held"),
            highest=1,
        ),
        States(
            title="GPU throttle reasons",
            question="Why are the clocks lowered now?",
            lines=(
                PanelLine(
                    gauge("kvitals_gpu_throttle", "gpu", "reason", unit="bool", scope="node"), "{{reason}} {{gpu}}"
                ),
            ),
            words=((0, "no"), (1, "now")),
            by=("GPU06",),
            unit="bool_yes_no",
        ),
        LinePanel(
            title="GPU power, by the energy counter",
            question="How much energy is used?",
            lines=(
                PanelLine(
                    rate("kvitals_gpu_energy_joules_total", unit="count", scope="node"),
                    "{{node}}",
                ),
            ),
            unit="watt",
            note="Change of the energy counter per second: exact mean power.",
        ),
    ),
)

_MEMORY = BoardRow(
    "Memory and links",
    (
        LinePanel(
            title="GPU memory used",
            question="How much GPU memory is allocated?",
            lines=(
                _gpu("memory_used_bytes", "bytes", "used {{gpu}}"),
                _gpu("memory_total_bytes", "bytes", "all {{gpu}}", "faint"),
            ),
            by=("GPU01", "GPU02"),
            note="Engines allocate most of it at start: it does not measure load.",
        ),
        LinePanel(
            title="GPU memory by process",
            question="Who has the memory?",
            lines=(
                PanelLine(
                    ExpressionQuery(
                        "sum by (cluster, node, engine, gpu) (kvitals_gpu_process_memory_bytes)", "bytes", "engine"
                    ),
                    "{{engine}} on {{gpu}}",
                ),
            ),
            stacked=True,
        ),
        LinePanel(
            title="PCIe and NVLink throughput",
            question="How many bytes do PCIe and NVLink transfer?",
            lines=(
                _both_ways("pcie", "PCIe {{gpu}}"),
                _both_ways("nvlink", "NVLink {{gpu}}"),
            ),
            unit="Bps",
            by=("GPU07",),
        ),
    ),
)

_ERRORS = BoardRow(
    "Errors",
    (
        Now(
            title="GPUs lost",
            question="How many GPUs were lost?",
            lines=(PanelLine(SignalQuery("gpus_lost"), "{{node}}"),),
            by=("GPU05",),
            judged=ConditionQuery("GPU05", "gpus_lost"),
            width=6,
            height=8,
        ),
        LinePanel(
            title="GPU XID errors",
            question="Did the driver report XID errors?",
            lines=(
                PanelLine(SignalQuery("gpu_xids"), "{{node}}"),
                PanelLine(
                    rise("kvitals_gpu_xid_events_total", "gpu", "xid", scope="node", over="15m"),
                    "XID {{xid}} {{gpu}}",
                ),
            ),
            judged=ConditionQuery("GPU05", "gpu_xids"),
            note="Counts events: the last code never clears.",
            width=9,
            height=8,
        ),
        LinePanel(
            title="GPU ECC errors and row remaps",
            question="Does its memory fail?",
            lines=(
                PanelLine(
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
    "Does a busy GPU compute, is it throttled, is memory free, is it faulty? Needs the agent or a DCGM exporter.",
    (_WORK, _POWER, _MEMORY, _ERRORS),
)
