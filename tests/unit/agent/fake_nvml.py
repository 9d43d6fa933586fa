"""A stand-in for libnvidia-ml: what `ctypes` would have loaded, below pynvml, whose structs are really filled.

The shapes (which function, which arguments, which errors) are those of pynvml 13.615.71 and NVIDIA's NVML
reference. The numbers are made up. Nothing here was recorded from a GPU.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

GIB = 1 << 30

SUCCESS = pynvml.NVML_SUCCESS
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


@dataclass
class Gpu:
    """One whole GPU, or a MIG instance of one (`instance` is its id then)."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    instance: int | None = None
    slices: int = 0  # of a MIG instance
    parent: Gpu | None = None
    instances: list[Gpu] = field(default_factory=list)
    mig: bool = False
    utilization: tuple[int, int] = (90, 40)
    memory: tuple[int, int, int] = (80 * GIB, 1 * GIB, 60 * GIB)  # total, reserved, used
    throttle: int = 0
    clocks: dict[int, int] = field(default_factory=lambda: {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 2619})
    fields: dict[int, int] = field(default_factory=dict)  # others are not supported
    gpm: dict[int, float] | None = field(default_factory=dict)  # None: no performance monitoring
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)  # function -> what it returns
    struct: Any = field(default_factory=pynvml.struct_c_nvmlDevice_t)  # what handles point to


class FakeNvml:
    """The library. `calls` counts its functions; one in `missing` is not in it, one in `hang` waits for `release`."""

    def __init__(self, *gpus: Gpu, missing: tuple[str, ...] = ()) -> None:
        self.gpus = list(gpus)
        self.calls: dict[str, int] = {}
        self.init_result = SUCCESS
        self.hang: set[str] = set()
        self.release = threading.Event()
        self.events: list[tuple[Gpu, int]] = []
        self.registered: set[str] = set()
        self.samples = 0  # allocated and not given back
        for name, function in _FUNCTIONS.items():
            if name not in missing:
                setattr(self, name, self._bound(name, function))

    def _bound(self, name: str, function: Callable[..., int | None]) -> Callable[..., int]:
        def call(*args: Any) -> int:
            self.calls[name] = self.calls.get(name, 0) + 1
            if name in self.hang:
                self.release.wait(30)
            return function(self, *args) or SUCCESS

        return call

    def find(self, handle: Any) -> Gpu:
        address = ctypes.addressof(handle.contents)
        every = [*self.gpus, *(one for gpu in self.gpus for one in gpu.instances)]
        return next(gpu for gpu in every if ctypes.addressof(gpu.struct) == address)


_FUNCTIONS: dict[str, Callable[..., int | None]] = {}


def library(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """A function of the library as a whole."""
    _FUNCTIONS[function.__name__] = function
    return function


def device(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """A function of one device, which may fail as the device is told to."""
    name = function.__name__

    def call(lib: FakeNvml, handle: Any, *args: Any) -> int | None:
        gpu = lib.find(handle)
        error = gpu.errors.get(name, gpu.errors.get("*", SUCCESS))
        return error or function(gpu, *args)

    _FUNCTIONS[name] = call
    return call


@library
def nvmlInitWithFlags(lib, flags):
    return lib.init_result


@library
def nvmlShutdown(lib):
    lib.registered.clear()


@library
def nvmlErrorString(lib, result):
    return b"an error"


@library
def nvmlSystemGetDriverVersion(lib, buffer, size):
    buffer.value = b"580.105.08"


@library
def nvmlDeviceGetCount_v2(lib, count):
    count._obj.value = len(lib.gpus)


@library
def nvmlDeviceGetHandleByIndex_v2(lib, index, handle):
    gpu = lib.gpus[index.value]
    error = gpu.errors.get("nvmlDeviceGetHandleByIndex_v2", gpu.errors.get("*", SUCCESS))
    handle._obj.contents = gpu.struct
    return error


@device
def nvmlDeviceGetUUID(gpu, buffer, size):
    buffer.value = gpu.uuid.encode()


@device
def nvmlDeviceGetName(gpu, buffer, size):
    buffer.value = gpu.name.encode("latin-1")


@device
def nvmlDeviceGetMigMode(gpu, current, pending):
    current._obj.value = pending._obj.value = int(gpu.mig)


@device
def nvmlDeviceGetMaxMigDeviceCount(gpu, count):
    count._obj.value = 7


@device
def nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, handle):
    if index.value >= len(gpu.instances):
        return pynvml.NVML_ERROR_NOT_FOUND
    handle._obj.contents = gpu.instances[index.value].struct
    return None


@device
def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu, handle):
    handle._obj.contents = gpu.parent.struct


@device
def nvmlDeviceGetGpuInstanceId(gpu, number):
    number._obj.value = gpu.instance


@device
def nvmlDeviceGetAttributes_v2(gpu, attributes):
    attributes._obj.gpuInstanceSliceCount = gpu.slices


@device
def nvmlDeviceGetUtilizationRates(gpu, rates):
    rates._obj.gpu, rates._obj.memory = gpu.utilization


@device
def nvmlDeviceGetMemoryInfo_v2(gpu, memory):
    total, reserved, used = gpu.memory
    memory = memory._obj
    assert memory.version == pynvml.nvmlMemory_v2
    memory.total, memory.reserved, memory.used, memory.free = total, reserved, used, total - reserved - used


@device
def nvmlDeviceGetMemoryInfo(gpu, memory):
    total, reserved, used = gpu.memory
    memory = memory._obj
    memory.total, memory.used, memory.free = total, used + reserved, total - reserved - used


@device
def nvmlDeviceGetPowerUsage(gpu, milliwatts):
    milliwatts._obj.value = 412_500


@device
def nvmlDeviceGetEnforcedPowerLimit(gpu, milliwatts):
    milliwatts._obj.value = 700_000


@device
def nvmlDeviceGetTemperatureV(gpu, temperature):
    temperature._obj.temperature = 61


@device
def nvmlDeviceGetTemperature(gpu, sensor, temperature):
    temperature._obj.value = 62


@device
def nvmlDeviceGetClockInfo(gpu, kind, clock):
    clock._obj.value = gpu.clocks[kind.value]


@device
def nvmlDeviceGetMaxClockInfo(gpu, kind, clock):
    clock._obj.value = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[kind.value]


@device
def nvmlDeviceGetCurrentClocksEventReasons(gpu, reasons):
    reasons._obj.value = gpu.throttle


@device
def nvmlDeviceGetCurrentClocksThrottleReasons(gpu, reasons):
    reasons._obj.value = gpu.throttle


@device
def nvmlDeviceGetPcieThroughput(gpu, counter, kilobytes):
    kilobytes._obj.value = {pynvml.NVML_PCIE_UTIL_RX_BYTES: 2000, pynvml.NVML_PCIE_UTIL_TX_BYTES: 1000}[counter.value]


@device
def nvmlDeviceGetFieldValues(gpu, count, values):
    for one in values._obj:
        known = one.fieldId in gpu.fields
        one.nvmlReturn = SUCCESS if known else NOT_SUPPORTED
        if known:
            one.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            one.value.ullVal = gpu.fields[one.fieldId]
    assert len(values._obj) == count.value


@device
def nvmlDeviceGetComputeRunningProcesses_v3(gpu, count, infos):
    return _list_processes(gpu, count, infos)


@device
def nvmlDeviceGetComputeRunningProcesses_v2(gpu, count, infos):
    return _list_processes(gpu, count, infos)


def _list_processes(gpu: Gpu, count: Any, infos: Any) -> int | None:
    room, count._obj.value = count._obj.value, len(gpu.processes)
    if not gpu.processes:
        return None
    if infos is None or room < len(gpu.processes):
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for info, (pid, memory) in zip(infos, gpu.processes, strict=False):
        info.pid = pid
        info.usedGpuMemory = 2**64 - 1 if memory is None else memory
    return None


@library
def nvmlGpmQueryDeviceSupport(lib, handle, support):
    support._obj.isSupportedDevice = int(lib.find(handle).gpm is not None)


@library
def nvmlGpmSampleAlloc(lib, sample):
    sample._obj.contents = pynvml.struct_c_nvmlGpmSample_t()
    lib.samples += 1


@library
def nvmlGpmSampleFree(lib, sample):
    lib.samples -= 1


@device
def nvmlGpmSampleGet(gpu, sample):
    return None


@device
def nvmlGpmMigSampleGet(gpu, instance, sample):
    assert instance in [one.instance for one in gpu.instances]


@library
def nvmlGpmMetricsGet(lib, request):
    asked = request._obj
    gpu = next(gpu for gpu in lib.gpus if gpu.gpm is not None)
    for one in asked.metrics[: asked.numMetrics]:
        known = one.metricId in gpu.gpm
        one.nvmlReturn = SUCCESS if known else NOT_SUPPORTED
        one.value = gpu.gpm.get(one.metricId, 0.0)


@library
def nvmlEventSetCreate(lib, events):
    events._obj.contents = pynvml.struct_c_nvmlEventSet_t()


@library
def nvmlEventSetFree(lib, events):
    lib.registered.clear()


@library
def nvmlDeviceRegisterEvents(lib, handle, types, events):
    gpu = lib.find(handle)
    lib.registered.add(gpu.uuid)
    return gpu.errors.get("nvmlDeviceRegisterEvents", SUCCESS)


@library
def nvmlEventSetWait_v2(lib, events, data, milliseconds):
    assert milliseconds.value == 0
    if not lib.events:
        return pynvml.NVML_ERROR_TIMEOUT
    gpu, xid = lib.events.pop(0)
    data._obj.device.contents = gpu.struct
    data._obj.eventType, data._obj.eventData = pynvml.nvmlEventTypeXidCriticalError, xid
    return None
