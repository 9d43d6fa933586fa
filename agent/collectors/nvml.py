"""NVIDIA's management library (NVML): its GPUs, asked in turn, with numbers in base units.

What a GPU or a driver does not have is asked once and then no more. A GPU that is lost says so and does not
disturb the others. NVML may hang in the kernel, which is the business of the caller.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pynvml

from kvitals.agent.records import GpuProcess, GpuReading, GpuXid

Question = Callable[[Any], dict[str, float]]
"""Asks a device, by its handle, for numbers by the names of `VALUES`. Raises NVMLError."""

MAX_GPUS = 64
MAX_PROCESSES = 1024
MAX_EVENTS = 64
MAX_TEXT = 96

_ALL_LINKS = 0xFFFFFFFF
_KIB, _MIB, _MHZ = 1024.0, 1048576.0, 1e6
_NONE_SUCH = frozenset(
    (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    )
)
_LOST = frozenset((pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND))
_CLOSED = frozenset(
    (
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )
)


@dataclass(frozen=True)
class _Field:
    """A number that NVML gives in a batch."""

    number: int
    value: str  # its name here
    scale: float = 1.0
    scope: int = 0


def _violation(number: int, reason: str) -> _Field:
    return _Field(number, f"violation_seconds_total:{reason}", 1e-9)


_FIELDS = (
    _Field(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, "energy_joules_total", 1e-3),
    _Field(pynvml.NVML_FI_DEV_MEMORY_TEMP, "memory_temperature_celsius"),
    _Field(pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, "pcie_replays_total"),
    _Field(pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, "ecc_errors_total:corrected"),
    _Field(pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, "ecc_errors_total:uncorrected"),
    _Field(pynvml.NVML_FI_DEV_REMAPPED_COR, "remapped_rows_total:correctable"),
    _Field(pynvml.NVML_FI_DEV_REMAPPED_UNC, "remapped_rows_total:uncorrectable"),
    _Field(pynvml.NVML_FI_DEV_REMAPPED_PENDING, "row_remap_pending"),
    _Field(pynvml.NVML_FI_DEV_REMAPPED_FAILURE, "row_remap_failure"),
    _violation(pynvml.NVML_FI_DEV_PERF_POLICY_POWER, "power"),
    _violation(pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, "thermal"),
    _violation(pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, "sync_boost"),
    _violation(pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, "board_limit"),
    _violation(pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, "low_utilization"),
    _violation(pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY, "reliability"),
    _violation(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, "thermal_sw"),
    _violation(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, "thermal_hw"),
    _violation(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, "power_brake"),
    _Field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, "nvlink_rx_bytes", _KIB, _ALL_LINKS),
    _Field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "nvlink_tx_bytes", _KIB, _ALL_LINKS),
    _Field(pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "nvlink_errors_total:crc_flit"),
    _Field(pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, "nvlink_errors_total:crc_data"),
    _Field(pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "nvlink_errors_total:replay"),
    _Field(pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "nvlink_errors_total:recovery"),
)
_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
_PERFORMANCE = (
    (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, "graphics_engine_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_SM_UTIL, "sm_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, "tensor_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, "dram_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, "pcie_rx_bytes_per_second", _MIB),
    (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, "pcie_tx_bytes_per_second", _MIB),
)
THROTTLE = {
    "idle": pynvml.nvmlClocksEventReasonGpuIdle,
    "clock_setting": pynvml.nvmlClocksEventReasonApplicationsClocksSetting,
    "power": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
    "thermal_sw": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "thermal_hw": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    "display": pynvml.nvmlClocksEventReasonDisplayClockSetting,
}
VALUES = frozenset(
    (
        *(one.value for one in _FIELDS),
        *(value for _, value, _ in _PERFORMANCE),
        *("utilization_ratio", "memory_utilization_ratio"),
        *(f"memory_{what}_bytes" for what in ("used", "free", "reserved", "total")),
        *("power_watts", "power_limit_watts", "temperature_celsius", "throttle_reasons"),
        *("sm_clock_hertz", "memory_clock_hertz", "sm_clock_max_hertz", "memory_clock_max_hertz"),
    )
)
"""Everything that a GPU can be asked for: families without their prefix, with the value of a further label behind a
colon. Three are not families: `throttle_reasons` is NVML's bit mask, `nvlink_*_bytes` are counters."""


def _utilization(handle: Any) -> dict[str, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization_ratio": rates.gpu / 100, "memory_utilization_ratio": rates.memory / 100}


def _memory(handle: Any) -> dict[str, float]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    return {f"memory_{what}_bytes": getattr(memory, what) for what in ("used", "free", "reserved", "total")}


def _memory_v1(handle: Any) -> dict[str, float]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {f"memory_{what}_bytes": getattr(memory, what) for what in ("used", "free", "total")}


def _power(handle: Any) -> dict[str, float]:
    return {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _power_limit(handle: Any) -> dict[str, float]:
    return {"power_limit_watts": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000}


def _temperature(handle: Any) -> dict[str, float]:
    return {"temperature_celsius": pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)}


def _temperature_v0(handle: Any) -> dict[str, float]:
    return {"temperature_celsius": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)}


def _sm_clock(handle: Any) -> dict[str, float]:
    return {"sm_clock_hertz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * _MHZ}


def _memory_clock(handle: Any) -> dict[str, float]:
    return {"memory_clock_hertz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) * _MHZ}


def _sm_clock_max(handle: Any) -> dict[str, float]:
    return {"sm_clock_max_hertz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) * _MHZ}


def _memory_clock_max(handle: Any) -> dict[str, float]:
    return {"memory_clock_max_hertz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM) * _MHZ}


def _throttle(handle: Any) -> dict[str, float]:
    return {"throttle_reasons": float(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))}


def _throttle_v0(handle: Any) -> dict[str, float]:
    return {"throttle_reasons": float(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))}


def _pcie(handle: Any) -> dict[str, float]:
    """A sample of 20 ms each, in KB/s; NVML waits for it, so it is asked only where there is nothing better."""
    rx, tx = pynvml.NVML_PCIE_UTIL_RX_BYTES, pynvml.NVML_PCIE_UTIL_TX_BYTES
    return {
        "pcie_rx_bytes_per_second": pynvml.nvmlDeviceGetPcieThroughput(handle, rx) * 1000.0,
        "pcie_tx_bytes_per_second": pynvml.nvmlDeviceGetPcieThroughput(handle, tx) * 1000.0,
    }


_STATIC: tuple[Question, ...] = (_sm_clock_max, _memory_clock_max)
_EACH_LOOK: tuple[Question, ...] = (
    _utilization,
    _memory,
    _power,
    _power_limit,
    _temperature,
    _sm_clock,
    _memory_clock,
    _throttle,
)
_OF_INSTANCE: tuple[Question, ...] = (_memory,)
_OLDER: dict[Question, Question] = {
    _memory: _memory_v1,
    _temperature: _temperature_v0,
    _throttle: _throttle_v0,
}  # what older drivers have in their place


class LostError(Exception):
    """The GPU is off the bus or needs a reset."""


class Performance:
    """Performance monitoring (GPM) of Hopper and newer: averages between two samples."""

    def __init__(self, handle: Any, instance: int | None) -> None:
        """`instance` is the id of a MIG instance of the GPU. Raises NVMLError."""
        self._handle, self._instance = handle, instance
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_PERFORMANCE)
        for i, (number, _, _) in enumerate(_PERFORMANCE):
            self._request.metrics[i].metricId = number
        self._before, self._now = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._begun = False

    def read(self, _: Any = None) -> dict[str, float]:
        """What happened since the last read, so nothing the first time. Raises NVMLError."""
        self._before, self._now = self._now, self._before
        self._sample()
        if not self._begun:
            self._begun = True
            return {}
        self._request.sample1, self._request.sample2 = self._before, self._now
        pynvml.nvmlGpmMetricsGet(self._request)
        found = zip(self._request.metrics, _PERFORMANCE, strict=False)
        return {name: one.value * scale for one, (_, name, scale) in found if one.nvmlReturn == pynvml.NVML_SUCCESS}

    def free(self) -> None:
        """Give the samples back; the object can not be used again."""
        for sample in (self._before, self._now):
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)

    def _sample(self) -> None:
        if self._instance is None:
            pynvml.nvmlGpmSampleGet(self._handle, self._now)
        else:
            pynvml.nvmlGpmMigSampleGet(self._handle, self._instance, self._now)


@dataclass
class Device:
    """A GPU or a MIG instance, and what it can be asked."""

    gpu: str
    index: int
    handle: Any  # None where NVML gives none, the GPU being lost
    hardware: str = ""
    instance: int | None = None  # id of a MIG instance
    mig_profile: str = ""
    share: float = 1.0
    split: bool = False  # into MIG instances, which then have the processes
    questions: list[Question] = field(default_factory=list)
    fields: list[_Field] = field(default_factory=list)
    static: dict[str, float] = field(default_factory=dict)
    performance: Performance | None = None
    list_processes: Callable[[Any], list[Any]] | None = pynvml.nvmlDeviceGetComputeRunningProcesses_v3
    lost: bool = False

    @property
    def identity(self) -> tuple[str, str, bool]:
        """The same for as long as it can be asked the same."""
        return self.gpu, self.mig_profile, self.split

    def look(self, processes_only: bool) -> GpuReading:
        """Ask it. `processes_only`: its processes and what lowers its clocks. Raises NVMLError where NVML is gone."""
        values: dict[str, float] = {}
        processes: list[GpuProcess] | None = None
        try:
            if self.lost:
                raise LostError
            if not processes_only:
                values |= self.static
                values |= self._ask_fields()
            for question in list(self.questions):
                if not processes_only or question in (_throttle, _throttle_v0):
                    values |= self._ask(question)
            processes = [] if self.split else self._ask_processes()
        except LostError:
            self.lost = True
        return GpuReading(
            gpu=self.gpu,
            index=self.index,
            hardware=self.hardware,
            mig_profile=self.mig_profile,
            share=self.share,
            up=not self.lost,
            values={} if self.lost else {name: float(v) for name, v in values.items() if math.isfinite(v)},
            processes=None if self.lost else processes,
        )

    def learn(self) -> None:
        """Ask for what does not change."""
        for question in _STATIC:
            try:
                self.static |= question(self.handle)
            except pynvml.NVMLError as error:
                _judge(error)

    def free(self) -> None:
        """Give back what NVML allocated for it."""
        if self.performance is not None:
            self.performance.free()
            self.performance = None

    def _ask(self, question: Question) -> dict[str, float]:
        try:
            return question(self.handle)
        except pynvml.NVMLError as error:
            if _judge(error):
                self._replace(question)
            return {}

    def _replace(self, question: Question) -> None:
        """Never ask that again, but what an older driver has in its place."""
        older = _OLDER.get(question)
        at = self.questions.index(question)
        self.questions[at : at + 1] = [older] if older is not None else []

    def _ask_fields(self) -> dict[str, float]:
        if not self.fields:
            return {}
        try:
            answers = pynvml.nvmlDeviceGetFieldValues(self.handle, [(one.number, one.scope) for one in self.fields])
        except pynvml.NVMLError as error:
            if _judge(error):
                self.fields = []
            return {}
        answered = list(zip(self.fields, answers, strict=True))
        self.fields = [one for one, answer in answered if answer.nvmlReturn not in _NONE_SUCH]
        return {
            one.value: getattr(answer.value, _MEMBERS[answer.valueType]) * one.scale
            for one, answer in answered
            if answer.nvmlReturn == pynvml.NVML_SUCCESS and answer.valueType in _MEMBERS
        }

    def _ask_processes(self) -> list[GpuProcess] | None:
        if self.list_processes is None:
            return None
        try:
            found = self.list_processes(self.handle)[:MAX_PROCESSES]
        except pynvml.NVMLError as error:
            if _judge(error):
                older = self.list_processes is pynvml.nvmlDeviceGetComputeRunningProcesses_v3
                self.list_processes = pynvml.nvmlDeviceGetComputeRunningProcesses_v2 if older else None
            return None
        return [
            GpuProcess(pid=one.pid, memory=None if one.usedGpuMemory is None else float(one.usedGpuMemory))
            for one in found
        ]


class Nvml:
    """The library with its devices. One thread at a time; nothing is loaded before `open`."""

    def __init__(self) -> None:
        self.driver = ""
        self.devices: list[Device] = []
        self._opened = False
        self._seen: dict[int, Device] = {}  # by index: who a GPU was, should it be lost
        self._events: Any = None  # the set in which the driver lays XID errors down
        self._xids: list[GpuXid] = []

    @property
    def is_open(self) -> bool:
        return self._opened

    def open(self) -> None:
        """Load the library and find the GPUs. Raises NVMLError where there is no library or no driver."""
        pynvml.nvmlInit()
        self._opened = True
        self.driver = _text(pynvml.nvmlSystemGetDriverVersion)
        self._find()

    def close(self) -> None:
        """Let go of everything; `open` begins anew."""
        if not self._opened:
            return
        for device in self.devices:
            device.free()
        self.devices = []
        self._stop_listening()
        self._opened = False
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def refresh(self) -> None:
        """Find the GPUs again: MIG instances come and go, and a lost GPU is found only by a library opened anew."""
        if any(device.lost for device in self.devices):
            self.close()
            self.open()
        else:
            self._find()

    def look(self, processes_only: bool) -> list[GpuReading]:
        """Ask every GPU in turn. Raises NVMLError where the library or the driver is gone."""
        readings = [device.look(processes_only) for device in self.devices]
        self._listen(not processes_only)
        return readings

    def take_xids(self) -> list[GpuXid]:
        """The XID errors since the last call."""
        taken, self._xids = self._xids, []
        return taken

    def _find(self) -> None:
        found = [one for index in range(min(pynvml.nvmlDeviceGetCount(), MAX_GPUS)) for one in self._at(index)]
        known = {device.identity: device for device in self.devices}
        for identity in known.keys() - {one.identity for one in found}:
            known.pop(identity).free()
        self.devices = [known.get(one.identity, one) for one in found]
        for device in self.devices:
            if device.identity not in known and not device.lost:
                _prepare(device)

    def _at(self, index: int) -> list[Device]:
        """The GPU at an index, and its MIG instances."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _text(pynvml.nvmlDeviceGetUUID, handle)
            hardware = _text(pynvml.nvmlDeviceGetName, handle)
            whole = Device(gpu, index, handle, hardware, split=_is_split(handle))
            self._seen[index] = whole
            return [whole, *(_instances(whole) if whole.split else ())]
        except pynvml.NVMLError as error:
            if error.value in _CLOSED:
                raise
            if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                return []  # a container has not been given it
            was = self._seen.get(index)
            name, hardware = (was.gpu, was.hardware) if was else (f"index:{index}", "")
            return [Device(name, index, None, hardware, lost=True)]

    def _listen(self, wanted: bool) -> None:
        """Take the XID errors that the driver has reported. Without a set nothing piles up."""
        try:
            if not wanted:
                self._stop_listening()
                return
            if self._events is None:
                self._events = _registered(self.devices)
            names = {_address(device.handle): device.gpu for device in self.devices if device.handle is not None}
            for _ in range(MAX_EVENTS):
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                gpu = names.get(_address(event.device), "")
                if gpu and event.eventType == pynvml.nvmlEventTypeXidCriticalError and len(self._xids) < MAX_EVENTS:
                    self._xids.append(GpuXid(gpu=gpu, xid=event.eventData))
        except pynvml.NVMLError as error:
            if error.value in _CLOSED:
                raise

    def _stop_listening(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)


def _prepare(device: Device) -> None:
    """Work out what a device can be asked."""
    whole = device.instance is None
    device.questions = list(_EACH_LOOK if whole else _OF_INSTANCE)
    device.fields = list(_FIELDS if whole else ())
    try:
        if whole:
            device.learn()
        device.performance = _performance(device.handle, device.instance)
    except LostError:
        device.lost = True
    if device.performance is not None:
        device.questions.append(device.performance.read)
    elif whole:
        device.questions.append(_pcie)


def _performance(handle: Any, instance: int | None) -> Performance | None:
    try:
        whole = handle if instance is None else pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        if not pynvml.nvmlGpmQueryDeviceSupport(whole).isSupportedDevice:
            return None
        return Performance(whole, instance)
    except pynvml.NVMLError as error:
        _judge(error)
        return None


def _is_split(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError as error:
        if error.value in _NONE_SUCH:
            return False
        raise


def _instances(whole: Device) -> list[Device]:
    """The MIG instances of a GPU. Compute instances of one GPU instance share its memory, so they are one here."""
    found: dict[str, Device] = {}
    slots = pynvml.nvmlDeviceGetMaxMigDeviceCount(whole.handle)
    for slot in range(min(slots, MAX_GPUS)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.handle, slot)
            instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
            name = _text(pynvml.nvmlDeviceGetName, handle)
            slices = pynvml.nvmlDeviceGetAttributes(handle).gpuInstanceSliceCount
        except pynvml.NVMLError as error:
            if error.value in (*_NONE_SUCH, pynvml.NVML_ERROR_NOT_FOUND):
                continue
            raise
        gpu, profile = f"{whole.gpu}/{instance}", name.rpartition(" MIG ")[2]
        found.setdefault(gpu, Device(gpu, whole.index, handle, whole.hardware, instance, profile, slices / slots))
    return list(found.values())


def _registered(devices: Iterable[Device]) -> Any:
    """A set of events in which XID errors of the whole GPUs will lie, from now on."""
    events = pynvml.nvmlEventSetCreate()
    for device in devices:
        if device.handle is None or device.instance is not None:
            continue
        try:
            pynvml.nvmlDeviceRegisterEvents(device.handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError as error:
            if error.value in _CLOSED:
                raise
    return events


def _judge(error: Any) -> bool:
    """Whether the GPU has no such thing, now and later. Raises LostError, and NVMLError where NVML is gone."""
    if error.value in _LOST:
        raise LostError
    if error.value in _CLOSED:
        raise error
    return error.value in _NONE_SUCH


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(ask: Callable[..., Any], *args: Any) -> str:
    """A name or version as text, whatever bytes came in."""
    try:
        return str(ask(*args))[:MAX_TEXT]
    except UnicodeDecodeError:
        return ""
