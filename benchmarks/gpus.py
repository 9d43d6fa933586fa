"""The page of a DCGM exporter that watches the GPUs of one node, going on changing.

Names, types and help are those of the exporter's counter files (NVIDIA/dcgm-exporter at 00d6d34: default-counters.csv
and the profiling metrics of dcp-metrics-included.csv), labels those of a page of version 4. The values are made
up: what a page costs depends on how many lines there are and which of them change, not on what they say.
"""

from __future__ import annotations

import random
from typing import NamedTuple


class _Field(NamedTuple):
    name: str
    type: str
    help: str
    low: float  # a gauge is between the two; a counter rises by as much a second
    high: float


_FIELDS = (
    _Field("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", 1200, 1980),
    _Field("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", 3201, 3201),
    _Field("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", 50, 65),
    _Field("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", 45, 60),
    _Field("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", 300.0, 690.0),
    _Field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).", 3e5, 7e5),
    _Field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", 0, 0),
    _Field("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", 60, 100),
    _Field("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", 20, 60),
    _Field("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).", 0, 0),
    _Field("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).", 0, 0),
    _Field("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", 0, 0),
    _Field("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", 7000, 7200),
    _Field("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", 136000, 136200),
    _Field("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "Total number of NVLink bandwidth counters.", 1e5, 9e5),
    _Field("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU License status", 0, 0),
    _Field("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows, uncorrectable errors", 0, 0),
    _Field("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows, correctable errors", 0, 0),
    _Field("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed", 0, 0),
    _Field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.", 0.6, 1.0),
    _Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active.", 0.1, 0.6),
    _Field("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles the device memory interface is active.", 0.2, 0.8),
    _Field("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "The rate of data transmitted over the PCIe bus.", 1e6, 9e8),
    _Field("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "The rate of data received over the PCIe bus.", 1e6, 9e8),
)


class Exporter:
    """The exporter's page. `advance()` lets a second pass, `page()` is its text now."""

    def __init__(self, gpus: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._labels = [
            f'gpu="{i}",UUID="GPU-{self._random.getrandbits(64):016x}",pci_bus_id="00000000:{i + 1:02x}:00.0",'
            f'device="nvidia{i}",modelName="NVIDIA H200",hostname="gpu-1",DCGM_FI_DRIVER_VERSION="580.105.08"'
            for i in range(gpus)
        ]
        self._values = [[f.low if f.type == "gauge" else 0.0 for _ in range(gpus)] for f in _FIELDS]

    def advance(self) -> None:
        """Let a second pass."""
        for field, values in zip(_FIELDS, self._values, strict=True):
            for gpu, before in enumerate(values):
                step = self._random.uniform(field.low, field.high)
                value = before + step if field.type == "counter" else step
                values[gpu] = float(round(value)) if field.high > 1000 or isinstance(field.low, int) else value

    def page(self) -> bytes:
        """The page as the exporter would serve it now."""
        lines = []
        for field, values in zip(_FIELDS, self._values, strict=True):
            lines += [f"# HELP {field.name} {field.help}", f"# TYPE {field.name} {field.type}"]
            for labels, value in zip(self._labels, values, strict=True):
                lines.append(
                    f"{field.name}{{{labels}}} {value:.6f}" if value % 1 else f"{field.name}{{{labels}}} {value:.0f}"
                )
        return ("\n".join(lines) + "\n").encode()
