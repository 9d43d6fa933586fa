"""The GPU sense: reads the GPUs of this node through NVML and turns what they say into families.

    sense = GpuSense(window, {"cluster": "c", "node": "n"})
    record = sense.read(time.time())   # I/O, blocking, done within LOOK_SECONDS; never raises
    sense.feed(record, owners)         # pure; a replay feeds recorded ones

NVML can hang in the kernel when a GPU dies, and nothing can end such a call. So each look is a thread of its
own, which is given up on; while one hangs no other is started.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pynvml

from kvitals.agent.collectors import accelerators
from kvitals.agent.collectors.nvml import MAX_GPUS, THROTTLE, VALUES, Nvml
from kvitals.agent.gauge_writer import KeyedRows
from kvitals.agent.logger import Logger
from kvitals.agent.records import OK, GpuReading, GpuRecord
from kvitals.agent.series_keys import Key, node_series
from kvitals.series.window import Window

log = Logger()

LOOK_SECONDS = 4.0
"""How long a look may take. Without persistence mode a driver needs seconds to start the first time."""

FIND_SECONDS = 60.0
"""How often GPUs are looked for again: after a driver was loaded, a GPU came back, MIG instances changed."""

NOT_APPLICABLE, UNKNOWN, FAILED = "not_applicable", "unknown", "failed"

REASONS: dict[str, tuple[str, str]] = {
    "no_gpu": (NOT_APPLICABLE, "There is no GPU on this machine."),
    "amd": (NOT_APPLICABLE, "The GPUs are AMD's: add the page of AMD's Device Metrics Exporter as a target."),
    "intel": (NOT_APPLICABLE, "The GPUs are Intel's, which kvitals does not read."),
    "driver_not_loaded": (
        UNKNOWN,
        "The driver of an NVIDIA GPU is not loaded. Try nvidia-smi; `dmesg | grep -i nvrm` shows the reason.",
    ),
    "library_missing": (
        UNKNOWN,
        "This machine has an NVIDIA GPU and its driver, but no libnvidia-ml.so.1. In a container, run the container "
        "with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=utility.",
    ),
    "no_permission": (
        FAILED,
        "The driver refuses this user. Give this user access to /dev/nvidiactl and to "
        "/dev/nvidia0 and the other GPU devices.",
    ),
    "version_mismatch": (
        FAILED,
        "The versions of the driver's library and its kernel module differ, as after an update. Restart the machine.",
    ),
    "hanging": (
        FAILED,
        "NVML has not answered for {detail} s. A GPU or its driver hangs: `dmesg | grep -i xid`. Right after a "
        "start this is normal; persistence mode avoids it.",
    ),
    "failed": (FAILED, "NVML failed ({detail}). Compare with nvidia-smi."),
    "internal": (FAILED, "The GPUs were not read because of a fault in kvitals ({detail}). Please report this."),
}
"""Why there are no GPUs to see: the sense's state, and what to do in words."""

MAX_READINGS = MAX_GPUS * 8
MAX_LABEL = 128
MAX_XIDS = 64  # codes of one GPU

_FURTHER = {
    "violation_seconds_total": "reason",
    "ecc_errors_total": "kind",
    "remapped_rows_total": "kind",
    "nvlink_errors_total": "kind",
}  # the label behind the colon in names of values
_NO_FAMILIES = frozenset(("throttle_reasons", "nvlink_rx_bytes", "nvlink_tx_bytes"))


class GpuSense:
    """Reads this node's GPUs into a window. `read` is for one thread at a time, `feed` for one too."""

    def __init__(self, window: Window, labels: Mapping[str, str], system: Path = Path("/sys")) -> None:
        """`labels` are the node's, `system` is where sysfs is."""
        self._reader = _Reader(system)
        self._rows: KeyedRows[Key] = KeyedRows(window, "gpu", node_series(labels))
        self._xids = _XidCounts()
        self._links: dict[str, tuple[float, float, float]] = {}  # GPU -> time, bytes received, bytes sent

    def read(self, t: float, processes_only: bool = False) -> GpuRecord:
        """Look at the GPUs.

        `processes_only`: an exporter on this node says the rest; only processes and what lowers the clocks are read.
        """
        return self._reader.read(t, processes_only)

    def feed(self, record: GpuRecord, owners: Mapping[int, str]) -> None:
        """Take a record over into the window. `owners`: process id -> the engine that it belongs to."""
        sense = ("sense", "gpu")
        told = ("state", record.state[:MAX_LABEL]), ("reason", record.reason[:MAX_LABEL])
        said: dict[Key, float] = {
            ("kvitals_sense_state", (sense, *told)): 1.0,
            ("kvitals_sense_duration_seconds", (sense,)): record.duration,
        }
        if record.state == OK:
            self._xids.add((one.gpu[:MAX_LABEL], one.xid) for one in record.xids)
            readings = record.gpus[:MAX_READINGS]
            for reading in readings:
                said |= _of_gpu(reading, record.driver)
            said |= self._link_rates(record.t, readings)
            said |= _of_engines(readings, owners)
            said |= self._xids.series()
        self._rows.write(record.t, {key: number for key, number in said.items() if math.isfinite(number)})

    def _link_rates(self, t: float, readings: Iterable[GpuReading]) -> dict[Key, float]:
        """What went over the NVLinks since the record before; nothing after a counter fell."""
        before, self._links = self._links, {}
        said: dict[Key, float] = {}
        for reading in readings:
            rx, tx = reading.values.get("nvlink_rx_bytes"), reading.values.get("nvlink_tx_bytes")
            if rx is None or tx is None:
                continue
            self._links[reading.gpu] = t, rx, tx
            t0, rx0, tx0 = before.get(reading.gpu, (t, rx, tx))
            if t > t0 and rx >= rx0 and tx >= tx0:
                gpu = ("gpu", reading.gpu[:MAX_LABEL])
                received, sent = (rx - rx0) / (t - t0), (tx - tx0) / (t - t0)
                said["kvitals_gpu_nvlink_rx_bytes_per_second", (gpu,)] = received
                said["kvitals_gpu_nvlink_tx_bytes_per_second", (gpu,)] = sent
                said["kvitals_gpu_nvlink_bytes_per_second", (gpu,)] = received + sent
        return said


class _Reader:
    """Looks at the GPUs in threads that may hang."""

    def __init__(self, system: Path) -> None:
        self._system = system
        self._nvml = Nvml()
        self._hanging: threading.Thread | None = None
        self._hangs_since = 0.0
        self._find_at = 0.0  # monotonic; not before it are GPUs looked for again
        self._absent: GpuRecord | None = None  # what opening NVML came to, where it failed

    def read(self, t: float, processes_only: bool) -> GpuRecord:
        started = time.monotonic()
        if self._hanging is None:
            box: list[GpuRecord] = []
            thread = threading.Thread(
                target=lambda: box.append(self._look(t, processes_only)), name="kvitals-gpu", daemon=True
            )
            thread.start()
            thread.join(LOOK_SECONDS)
            if box:
                return msgspec.structs.replace(box[0], duration=time.monotonic() - started)
            self._hanging, self._hangs_since = thread, started
        if not self._hanging.is_alive():
            self._hanging = None  # the next look is a real one; what this one brought is too old
        return _unseen(t, "hanging", f"{time.monotonic() - self._hangs_since:.0f}", time.monotonic() - started)

    def _look(self, t: float, processes_only: bool) -> GpuRecord:
        try:
            absent = self._find(t)
            if absent is not None:
                return msgspec.structs.replace(absent, t=t)
            gpus = self._nvml.look(processes_only)
            return GpuRecord(t=t, driver=self._nvml.driver, gpus=gpus, xids=self._nvml.take_xids())
        except pynvml.NVMLError as error:
            self._nvml.close()
            self._absent = self._why(t, error)
            return self._absent
        except Exception as error:  # a driver's oddity must not end the agent
            log.exception("GPUs not read")
            self._nvml.close()
            self._absent = _unseen(t, "internal", repr(error)[:200])
            return self._absent

    def _find(self, t: float) -> GpuRecord | None:
        """Open NVML, now and then anew. Returns why there is nothing to look at. Raises NVMLError."""
        now = time.monotonic()
        if now < self._find_at:
            return self._absent
        self._find_at = now + FIND_SECONDS
        self._absent = None
        if self._nvml.is_open:
            self._nvml.refresh()
        else:
            self._nvml.open()
        if not self._nvml.devices:
            self._nvml.close()
            self._absent = _unseen(t, "no_gpu")
        return self._absent

    def _why(self, t: float, error: pynvml.NVMLError) -> GpuRecord:
        """What an error of the library as a whole means on this machine."""
        reasons = {
            pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "version_mismatch",
        }
        if error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            found = accelerators.vendors(self._system)
            if accelerators.NVIDIA not in found:
                return _unseen(t, next(iter(sorted(found)), "no_gpu"))
            missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND and accelerators.has_driver(self._system)
            return _unseen(t, "library_missing" if missing else "driver_not_loaded")
        return _unseen(t, reasons.get(error.value, "failed"), str(error))


def _unseen(t: float, reason: str, detail: str = "", duration: float = 0.0) -> GpuRecord:
    state, message = REASONS[reason]
    return GpuRecord(t=t, state=state, reason=reason, message=message.format(detail=detail), duration=duration)


def _of_gpu(reading: GpuReading, driver: str) -> dict[Key, float]:
    """The series of one GPU that need nothing but its reading."""
    gpu = ("gpu", reading.gpu[:MAX_LABEL])
    info = {"index": str(reading.index), "hardware": reading.hardware, "driver": driver}
    info["mig_profile"] = reading.mig_profile
    said: dict[Key, float] = {
        ("kvitals_gpu_up", (gpu,)): float(reading.up),
        ("kvitals_gpu_info", (gpu, *((name, text[:MAX_LABEL]) for name, text in info.items()))): 1.0,
    }
    for value, number in reading.values.items():
        if value in VALUES and value not in _NO_FAMILIES:
            family, _, further = value.partition(":")
            labels = (gpu, (_FURTHER[family], further)) if further else (gpu,)
            said[f"kvitals_gpu_{family}", labels] = number
    mask = reading.values.get("throttle_reasons")
    if mask is not None and 0 <= mask < 2**53:
        for reason, bit in THROTTLE.items():
            said["kvitals_gpu_throttle", (gpu, ("reason", reason))] = float(bool(int(mask) & bit))
    return said


def _of_engines(readings: Iterable[GpuReading], owners: Mapping[int, str]) -> dict[Key, float]:
    """Which engine has which GPU. A shared one is marked, and how much of it is whose is not made up.

    While the processes of one GPU are not known, no engine's GPUs can be counted.
    """
    readings = list(readings)
    counted = all(reading.processes is not None for reading in readings if reading.up)
    said: dict[Key, float] = {}
    whole: dict[str, float] = {}  # engine -> GPUs that it has
    sharing: set[str] = set()
    for reading in readings:
        gpu = ("gpu", reading.gpu[:MAX_LABEL])
        memory: dict[str, float] = {}
        engines: set[str] = set()
        for process in reading.processes or ():
            engine = owners.get(process.pid, "")
            engines |= {engine} - {""}
            if process.memory is not None:
                memory[engine] = memory.get(engine, 0.0) + process.memory
        for engine, amount in memory.items():
            said["kvitals_gpu_process_memory_bytes", (gpu, ("engine", engine))] = amount
        for engine in engines:
            said["kvitals_gpu_engine", (gpu, ("engine", engine))] = 1.0
            whole[engine] = whole.get(engine, 0.0) + reading.share
        if len(engines) > 1:
            said["kvitals_gpu_shared", (gpu,)] = float(len(engines))
            sharing |= engines
    for engine in whole.keys() - sharing if counted else ():
        said["kvitals_engine_gpus", (("engine", engine),)] = whole[engine]
    return said


@dataclass
class _XidCounts:
    """Counts XID errors. A code's counter begins at 0, and the first error counts in the next row: a counter
    that began at 1 would have no increase."""

    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    due: dict[tuple[str, int], int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)

    def add(self, events: Iterable[tuple[str, int]]) -> None:
        for key, count in self.due.items():
            self.counts[key] += count
        self.due = {}
        for key in events:
            gpu, xid = key
            known = key in self.counts and key not in self.due
            if not known and not self._room(gpu):
                continue
            self.last[gpu] = xid
            if known:
                self.counts[key] += 1
            else:
                self.counts[key] = 0
                self.due[key] = self.due.get(key, 0) + 1

    def series(self) -> dict[Key, float]:
        said: dict[Key, float] = {("kvitals_gpu_last_xid", (("gpu", gpu),)): float(x) for gpu, x in self.last.items()}
        for (gpu, xid), count in self.counts.items():
            said["kvitals_gpu_xid_events_total", (("gpu", gpu), ("xid", str(xid)))] = float(count)
        return said

    def _room(self, gpu: str) -> bool:
        return len(self.counts) < MAX_GPUS * MAX_XIDS and sum(g == gpu for g, _ in self.counts) < MAX_XIDS
