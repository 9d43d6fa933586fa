"""The GPU sense: from NVML's structs to families, on what is missing, shared, lost, hanging or not there."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import numpy as np
import pynvml
import pytest
from fake_nvml import GIB, NOT_SUPPORTED, FakeNvml, Gpu

from kvitals.agent.collectors import gpu as gpu_module
from kvitals.agent.collectors import nvml as nvml_module
from kvitals.agent.collectors.gpu import REASONS, GpuSense
from kvitals.agent.collectors.nvml import VALUES
from kvitals.agent.records import GpuProcess, GpuReading, GpuRecord, GpuXid, Record
from kvitals.rules.loader import load
from kvitals.rules.model import SCOPES
from kvitals.series.promql import Vector, evaluate, expand, parse
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

A, B = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52", "GPU-d7cbb0cd-d4bd-c2f7-dfaf-221df5e958ea"
NODE = {"cluster": "c", "node": "n"}
POWER_NS, ENERGY_MJ = pynvml.NVML_FI_DEV_PERF_POLICY_POWER, pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
RX, TX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
"""Fields that some tests set."""


class Sensed:
    """A sense over a fake library, read and fed a second apart, through the form that a capture keeps."""

    def __init__(self, system: Path = Path("/nowhere")) -> None:
        self.window = Window(1000.0, 10_000)
        self.sense = GpuSense(self.window, NODE, system)
        self.t = 1000.0

    def look(self, owners: dict[int, str] | None = None, processes_only: bool = False) -> GpuRecord:
        self.t += 1.0
        record = self.sense.read(self.t, processes_only)
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record)
        assert wire == record
        self.sense.feed(wire, owners or {})
        return record

    def now(self, family: str) -> dict[str, float]:
        """The family's series in the last row, by their labels beside the node's."""
        matchers = [Matcher(METRIC_NAME, MatchOp.EQ, f"kvitals_{family}")]
        found = {}
        for frame in self.window.select(matchers, self.t, self.t):
            for labels, value in zip(frame.labels, frame.values[-1], strict=True):
                assert (labels["cluster"], labels["node"]) == ("c", "n")
                if not is_stale(np.array([value]))[0]:
                    rest = labels.drop(METRIC_NAME, "cluster", "node")
                    found[",".join(rest[name] for name in rest)] = float(value)
        return found


def value(text: str, sensed: Sensed) -> float:
    """What an expression with one result is now."""
    found = evaluate(parse(text), sensed.window, sensed.t)
    assert isinstance(found, Vector)
    ((_, number),) = found
    return number


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch):
    """Puts a fake library where pynvml keeps the loaded one."""

    def install(*gpus: Gpu, missing: tuple[str, ...] = ()) -> FakeNvml:
        fake = FakeNvml(*gpus, missing=missing)
        monkeypatch.setattr(pynvml, "nvmlLib", fake)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return fake

    return install


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", fail)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs are looked for again with every look."""
    monkeypatch.setattr(gpu_module, "FIND_SECONDS", 0.0)


def test_numbers_come_in_base_units(nvml):
    gpm = {pynvml.NVML_GPM_METRIC_SM_UTIL: 37.5, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 2.0}
    fields = {
        POWER_NS: 2_500_000_000,
        ENERGY_MJ: 48_287_135,
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: 3,
        pynvml.NVML_FI_DEV_REMAPPED_FAILURE: 0,
    }
    nvml(Gpu(A, gpm=gpm, fields=fields, throttle=pynvml.nvmlClocksEventReasonSwPowerCap))
    sensed = Sensed()
    sensed.look()
    sensed.look()
    expected = {
        "gpu_up": 1,
        "gpu_utilization_ratio": 0.9,
        "gpu_memory_utilization_ratio": 0.4,
        "gpu_memory_used_bytes": 60 * GIB,
        "gpu_memory_free_bytes": 19 * GIB,
        "gpu_memory_reserved_bytes": GIB,
        "gpu_memory_total_bytes": 80 * GIB,
        "gpu_power_watts": 412.5,
        "gpu_power_limit_watts": 700,
        "gpu_energy_joules_total": 48_287.135,
        "gpu_temperature_celsius": 61,
        "gpu_sm_clock_hertz": 1.755e9,
        "gpu_sm_clock_max_hertz": 1.98e9,
        "gpu_memory_clock_hertz": 2.619e9,
        "gpu_row_remap_failure": 0,
        "gpu_sm_active_ratio": 0.375,
        "gpu_pcie_rx_bytes_per_second": 2 * 1024 * 1024,
    }
    assert {family: sensed.now(family) for family in expected} == {
        family: {A: pytest.approx(value)} for family, value in expected.items()
    }
    assert sensed.now("gpu_violation_seconds_total") == {f"{A},power": pytest.approx(2.5)}
    assert sensed.now("gpu_ecc_errors_total") == {f"{A},uncorrected": 3}
    throttled = {name for name, value in sensed.now("gpu_throttle").items() if value}
    assert throttled == {f"{A},power"}
    assert sensed.now("gpu_info") == {f"580.105.08,{A},NVIDIA H100 80GB HBM3,0": 1}
    assert sensed.now("sense_state") == {"ok,gpu,ok": 1}
    assert sensed.now("sense_duration_seconds")["gpu"] > 0


def test_a_gpu_that_has_everything_is_asked_for_everything(nvml):
    fields = {one.number: 1 for one in nvml_module._FIELDS}
    nvml(Gpu(A, fields=fields, gpm={number: 1.0 for number, _, _ in nvml_module._PERFORMANCE}))
    sensed = Sensed()
    sensed.look()
    assert set(sensed.look().gpus[0].values) == VALUES


def test_what_is_not_supported_is_absent_and_asked_once(nvml):
    gpu = Gpu(A, gpm=None, errors=dict.fromkeys(("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"), NOT_SUPPORTED))
    fake = nvml(gpu)
    sensed = Sensed()
    for _ in range(3):
        sensed.look()
    assert sensed.now("gpu_power_watts") == sensed.now("gpu_energy_joules_total") == {}
    assert sensed.now("gpu_utilization_ratio") == {A: 0.9}
    assert fake.calls["nvmlDeviceGetPowerUsage"] == fake.calls["nvmlDeviceGetFieldValues"] == 1
    assert fake.calls["nvmlDeviceGetUtilizationRates"] == 3


def test_fields_that_a_gpu_lacks_are_left_out_of_the_next_batch(nvml, monkeypatch):
    nvml(Gpu(A, fields={ENERGY_MJ: 1000}))
    asked: list[int] = []
    real = pynvml.nvmlDeviceGetFieldValues
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda h, ids: asked.append(len(ids)) or real(h, ids))
    sensed = Sensed()
    sensed.look()
    sensed.look()
    assert asked[0] > 20
    assert asked[1] == 1
    assert sensed.now("gpu_energy_joules_total") == {A: 1.0}


def test_a_passing_error_is_a_gap_and_asked_again(nvml):
    gpu = Gpu(A)
    nvml(gpu)
    sensed = Sensed()
    sensed.look()
    gpu.errors["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_UNKNOWN
    sensed.look()
    assert sensed.now("gpu_power_watts") == {}
    assert sensed.now("gpu_up") == {A: 1}
    gpu.errors.clear()
    sensed.look()
    assert sensed.now("gpu_power_watts") == {A: 412.5}


def test_an_old_driver_has_older_functions(nvml):
    new = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlGpmQueryDeviceSupport",
        "nvmlDeviceGetMigMode",
    )
    nvml(Gpu(A, processes=[(7, GIB)], throttle=pynvml.nvmlClocksEventReasonHwSlowdown), missing=new)
    sensed = Sensed()
    sensed.look()
    assert sensed.look().state == "ok"
    assert sensed.now("gpu_memory_used_bytes") == {A: 61 * GIB}
    assert sensed.now("gpu_memory_reserved_bytes") == {}
    assert sensed.now("gpu_temperature_celsius") == {A: 62}
    assert sensed.now("gpu_throttle")[f"{A},hw_slowdown"] == 1
    assert sensed.now("gpu_process_memory_bytes") == {A: GIB}
    assert sensed.now("gpu_pcie_rx_bytes_per_second") == {A: 2_000_000}  # without GPM, a short sample


def test_links_are_rates_between_looks_and_nothing_after_a_reset(nvml):
    gpu = Gpu(A, fields={RX: 1000, TX: 500})
    nvml(gpu)
    sensed = Sensed()
    sensed.look()
    assert sensed.now("gpu_nvlink_bytes_per_second") == {}
    gpu.fields = {RX: 3000, TX: 500}
    sensed.look()
    assert sensed.now("gpu_nvlink_rx_bytes_per_second") == {A: 2000 * 1024}
    assert sensed.now("gpu_nvlink_tx_bytes_per_second") == {A: 0}
    assert sensed.now("gpu_nvlink_bytes_per_second") == {A: 2000 * 1024}
    gpu.fields = {RX: 10, TX: 600}
    sensed.look()
    assert sensed.now("gpu_nvlink_bytes_per_second") == {}


def test_links_are_asked_for_all_together(nvml, monkeypatch):
    nvml(Gpu(A))
    asked: list[tuple[int, int]] = []
    real = pynvml.nvmlDeviceGetFieldValues
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda h, ids: asked.extend(ids) or real(h, ids))
    Sensed().look()
    assert {scope for number, scope in asked if number in (RX, TX)} == {0xFFFFFFFF}


def test_engines_and_their_gpus(nvml):
    nvml(Gpu(A, processes=[(10, 50 * GIB), (11, None)]), Gpu(B, processes=[(12, 40 * GIB), (99, GIB)]))
    sensed = Sensed()
    sensed.look({10: "e1", 11: "e1", 12: "e1"})
    assert sensed.now("gpu_engine") == {f"e1,{A}": 1, f"e1,{B}": 1}
    assert sensed.now("gpu_process_memory_bytes") == {f"e1,{A}": 50 * GIB, f"e1,{B}": 40 * GIB, B: GIB}
    assert sensed.now("engine_gpus") == {"e1": 2}
    assert sensed.now("gpu_shared") == {}


def test_a_gpu_of_two_engines_is_marked_and_not_shared_out(nvml):
    nvml(Gpu(A, processes=[(10, 30 * GIB), (20, 30 * GIB)]), Gpu(B, processes=[(21, GIB), (30, GIB)]), Gpu("GPU-c"))
    sensed = Sensed()
    sensed.look({10: "e1", 20: "e2", 21: "e2"})
    assert sensed.now("gpu_shared") == {A: 2}
    assert sensed.now("engine_gpus") == {}  # e2 has one of its own too, but how much of the other is unknown
    sensed.look({20: "e2", 21: "e2"})  # e1 went away
    assert sensed.now("gpu_shared") == {}
    assert sensed.now("engine_gpus") == {"e2": 2}


def test_process_ids_of_another_namespace_belong_to_nobody(nvml):
    nvml(Gpu(A, processes=[(123456, GIB)]))
    sensed = Sensed()
    sensed.look({7: "e1"})
    assert sensed.now("gpu_engine") == sensed.now("engine_gpus") == {}
    assert sensed.now("gpu_process_memory_bytes") == {A: GIB}


def test_processes_that_may_not_be_listed_are_not_none(nvml):
    gpu = Gpu(A, errors=dict.fromkeys(("nvmlDeviceGetComputeRunningProcesses_v3",), pynvml.NVML_ERROR_NO_PERMISSION))
    gpu.errors["nvmlDeviceGetComputeRunningProcesses_v2"] = pynvml.NVML_ERROR_NO_PERMISSION
    nvml(gpu)
    sensed = Sensed()
    assert [sensed.look().gpus[0].processes for _ in range(3)] == [None, None, None]
    nvml(Gpu(A))
    assert Sensed().look().gpus[0].processes == []


def test_gpus_are_not_counted_while_the_processes_of_one_are_unknown(nvml):
    second = Gpu(B, processes=[(11, GIB)])
    nvml(Gpu(A, processes=[(10, GIB)]), second)
    sensed = Sensed()
    owners = {10: "e1", 11: "e1"}
    sensed.look(owners)
    second.errors["nvmlDeviceGetComputeRunningProcesses_v3"] = pynvml.NVML_ERROR_UNKNOWN
    sensed.look(owners)
    assert sensed.now("gpu_engine") == {f"e1,{A}": 1}
    assert sensed.now("engine_gpus") == {}
    second.errors.clear()
    sensed.look(owners)
    assert sensed.now("engine_gpus") == {"e1": 2}


def split_gpu() -> Gpu:
    whole = Gpu(A, mig=True, errors={"nvmlDeviceGetUtilizationRates": NOT_SUPPORTED}, processes=[(10, GIB)])
    whole.gpm = {pynvml.NVML_GPM_METRIC_SM_UTIL: 50.0}
    for number, slices, pid in ((1, 3, 10), (2, 4, 20)):
        name = f"{whole.name} MIG {slices}g.40gb"
        memory = (40 * GIB, 0, 30 * GIB)
        one = Gpu(f"MIG-{number}", name, number, slices, whole, memory=memory, processes=[(pid, 30 * GIB)])
        one.errors = dict.fromkeys(("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"), NOT_SUPPORTED)
        whole.instances.append(one)
    return whole


def test_mig_instances_stand_beside_their_gpu(nvml):
    nvml(split_gpu())
    sensed = Sensed()
    owners = {10: "e1", 20: "e2"}
    sensed.look(owners)
    sensed.look(owners)
    one, two = f"{A}/1", f"{A}/2"
    assert sensed.now("gpu_memory_used_bytes") == {A: 60 * GIB, one: 30 * GIB, two: 30 * GIB}
    assert sensed.now("gpu_power_watts") == {A: 412.5}
    assert sensed.now("gpu_utilization_ratio") == {}
    assert set(sensed.now("gpu_sm_active_ratio")) == {A, one, two}
    assert sensed.now("gpu_engine") == {f"e1,{one}": 1, f"e2,{two}": 1}
    assert sensed.now("engine_gpus") == {"e1": pytest.approx(3 / 7), "e2": pytest.approx(4 / 7)}
    assert f"580.105.08,{one},NVIDIA H100 80GB HBM3,0,3g.40gb" in sensed.now("gpu_info")


def test_mig_instances_come_and_go(nvml, soon):
    whole = split_gpu()
    fake = nvml(whole)
    sensed = Sensed()
    sensed.look()
    samples = fake.samples
    del whole.instances[1]
    sensed.look()
    assert set(sensed.now("gpu_memory_used_bytes")) == {A, f"{A}/1"}
    assert fake.samples == samples - 2
    sensed.look()
    assert set(sensed.now("gpu_sm_active_ratio")) == {A, f"{A}/1"}  # the others' samples went on


def test_a_gpu_that_falls_off_the_bus_leaves_the_others_alone(nvml, soon):
    first, second = Gpu(A, gpm=None, processes=[(10, GIB)]), Gpu(B, processes=[(20, GIB)])
    nvml(first, second)
    sensed = Sensed()
    owners = {10: "e1", 20: "e2"}
    sensed.look(owners)
    first.errors["*"] = pynvml.NVML_ERROR_GPU_IS_LOST
    for _ in range(3):  # seen by the first look, then by finding no handle
        assert sensed.look(owners).state == "ok"
        assert sensed.now("gpu_up") == {A: 0, B: 1}
        assert sensed.now("gpu_utilization_ratio") == {B: 0.9}
        assert sensed.now("gpu_engine") == {f"e2,{B}": 1}
    first.errors.clear()
    sensed.look(owners)
    assert sensed.now("gpu_up") == {A: 1, B: 1}
    assert sensed.now("gpu_utilization_ratio") == {A: 0.9, B: 0.9}


def test_a_gpu_that_is_lost_from_the_start_has_its_index_for_a_name(nvml):
    nvml(Gpu(A), Gpu(B, errors={"*": pynvml.NVML_ERROR_GPU_IS_LOST}))
    sensed = Sensed()
    sensed.look()
    assert sensed.now("gpu_up") == {A: 1, "index:1": 0}


def test_a_gpu_that_the_container_was_not_given_is_not_there(nvml):
    nvml(Gpu(A, errors={"nvmlDeviceGetHandleByIndex_v2": pynvml.NVML_ERROR_NO_PERMISSION}), Gpu(B))
    sensed = Sensed()
    sensed.look()
    assert sensed.now("gpu_up") == {B: 1}


def test_xid_errors_are_events_from_the_first_look_on(nvml):
    gpu = Gpu(A)
    fake = nvml(gpu, Gpu(B))
    sensed = Sensed()
    sensed.look()
    assert sensed.now("gpu_xid_events_total") == sensed.now("gpu_last_xid") == {}
    fake.events = [(gpu, 31), (gpu, 31), (gpu, 79)]
    assert sensed.look().xids == [GpuXid(gpu=A, xid=31), GpuXid(gpu=A, xid=31), GpuXid(gpu=A, xid=79)]
    assert sensed.now("gpu_xid_events_total") == {f"{A},31": 0, f"{A},79": 0}
    assert sensed.now("gpu_last_xid") == {A: 79}
    sensed.look()
    assert sensed.now("gpu_xid_events_total") == {f"{A},31": 2, f"{A},79": 1}
    fake.events = [(gpu, 31)]
    gpu.errors["*"] = pynvml.NVML_ERROR_GPU_IS_LOST
    sensed.look()
    assert sensed.now("gpu_xid_events_total") == {f"{A},31": 3, f"{A},79": 1}
    assert value("sum(increase(kvitals_gpu_xid_events_total[10s]))", sensed) > 3


def test_beside_an_exporter_only_processes_and_throttling_are_read(nvml):
    fake = nvml(Gpu(A, processes=[(10, GIB)], throttle=pynvml.nvmlClocksEventReasonHwThermalSlowdown))
    sensed = Sensed()
    sensed.look({10: "e1"})
    assert fake.registered == {A}
    calls = dict(fake.calls)
    fake.events = [(fake.gpus[0], 79)]
    record = sensed.look({10: "e1"}, processes_only=True)
    assert set(record.gpus[0].values) == {"throttle_reasons"}
    assert record.xids == []
    assert fake.registered == set()
    for name in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues", "nvmlGpmSampleGet"):
        assert fake.calls[name] == calls[name]
    assert sensed.now("gpu_utilization_ratio") == sensed.now("gpu_power_watts") == {}
    assert sensed.now("engine_gpus") == {"e1": 1}
    assert sensed.now("gpu_throttle")[f"{A},thermal_hw"] == 1
    assert set(sensed.now("gpu_info")) == {f"580.105.08,{A},NVIDIA H100 80GB HBM3,0"}


def test_static_things_are_asked_once(nvml):
    fake = nvml(*(Gpu(f"GPU-{i}") for i in range(8)))
    sensed = Sensed()
    for _ in range(5):
        sensed.look()
    for name in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName"):
        assert fake.calls[name] == 8
    assert fake.calls["nvmlInitWithFlags"] == fake.calls["nvmlSystemGetDriverVersion"] == 1


def test_a_call_that_hangs_is_given_up_on_and_no_other_is_made(nvml, monkeypatch):
    monkeypatch.setattr(gpu_module, "LOOK_SECONDS", 0.2)
    fake = nvml(Gpu(A))
    sensed = Sensed()
    sensed.look()
    fake.hang.add("nvmlDeviceGetPowerUsage")
    before = set(threading.enumerate())
    for _ in range(3):
        record = sensed.look()
        assert (record.state, record.reason) == ("failed", "hanging")
        assert "dmesg" in record.message
        assert sensed.now("sense_state") == {"hanging,gpu,failed": 1}
        assert sensed.now("gpu_power_watts") == sensed.now("gpu_up") == {}
    assert fake.calls["nvmlDeviceGetPowerUsage"] == 2
    (hanging,) = set(threading.enumerate()) - before
    fake.hang.clear()
    fake.release.set()
    hanging.join(5)
    assert sensed.look().reason == "hanging"  # what it brought is too old
    assert sensed.look().state == "ok"
    assert sensed.now("gpu_power_watts") == {A: 412.5}


def device(system: Path, name: str, vendor: int, kind: int, mapped: int = 0) -> None:
    folder = system / "bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"0x{vendor:04x}\n")
    (folder / "class").write_text(f"0x{kind:04x}00\n")
    (folder / "resource").write_text(
        f"0x0 0x0 0x0\n0x{1 << 40:016x} 0x{(1 << 40) + max(mapped, 1) - 1:016x} 0x14220c\n"
    )


MACHINES = {
    "nothing": ([], "not_applicable", "no_gpu"),
    "a server's console": ([(0x1A03, 0x0300)], "not_applicable", "no_gpu"),
    "an Intel iGPU": ([(0x8086, 0x0300, 256 << 20)], "not_applicable", "no_gpu"),
    "an Intel card": ([(0x8086, 0x0300, 16 << 30)], "not_applicable", "intel"),
    "an Intel data centre GPU": ([(0x8086, 0x0380)], "not_applicable", "intel"),
    "an AMD MI300": ([(0x1002, 0x1200)], "not_applicable", "amd"),
    "an AMD APU": ([(0x1002, 0x0300, 256 << 20)], "not_applicable", "no_gpu"),
    "NVIDIA without a driver": ([(0x10DE, 0x0302)], "unknown", "driver_not_loaded"),
    "NVIDIA beside an iGPU": ([(0x8086, 0x0300, 256 << 20), (0x10DE, 0x0300)], "unknown", "driver_not_loaded"),
    "an NVSwitch only": ([(0x10DE, 0x0680)], "not_applicable", "no_gpu"),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_without_a_library_the_bus_tells_why(no_library, tmp_path, machine):
    devices, state, reason = MACHINES[machine]
    for i, one in enumerate(devices):
        device(tmp_path, f"0000:0{i}:00.0", *one)
    sensed = Sensed(tmp_path)
    record = sensed.look()
    assert (record.state, record.reason) == (state, reason)
    assert record.message
    assert sensed.now("sense_state") == {f"{reason},gpu,{state}": 1}
    assert sensed.look().reason == reason


def test_a_driver_without_its_library(no_library, tmp_path):
    device(tmp_path, "0000:01:00.0", 0x10DE, 0x0302)
    (tmp_path / "module/nvidia").mkdir(parents=True)
    record = Sensed(tmp_path).look()
    assert (record.state, record.reason) == ("unknown", "library_missing")
    assert "NVIDIA_DRIVER_CAPABILITIES" in record.message


def test_broken_files_of_the_bus_are_nothing(no_library, tmp_path):
    device(tmp_path, "0000:01:00.0", 0x10DE, 0x0302)
    folder = tmp_path / "bus/pci/devices/0000:01:00.0"
    (folder / "vendor").write_bytes(b"\xff" * 10_000)
    (folder / "class").unlink()
    assert Sensed(tmp_path).look().reason == "no_gpu"


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, "failed", "no_permission"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "failed", "version_mismatch"),
        (pynvml.NVML_ERROR_UNKNOWN, "failed", "failed"),
        (1234, "failed", "failed"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not_applicable", "no_gpu"),
    ],
)
def test_a_library_that_does_not_start(nvml, tmp_path, code, state, reason):
    nvml(Gpu(A)).init_result = code
    record = Sensed(tmp_path).look()
    assert (record.state, record.reason) == (state, reason)


def test_a_library_without_gpus(nvml):
    nvml()
    assert Sensed().look().reason == "no_gpu"


def test_a_driver_that_comes_later_and_goes_away(nvml, soon, tmp_path):
    device(tmp_path, "0000:01:00.0", 0x10DE, 0x0302)
    fake = nvml(Gpu(A))
    fake.init_result = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    sensed = Sensed(tmp_path)
    assert sensed.look().reason == "driver_not_loaded"
    fake.init_result = 0
    assert sensed.look().state == "ok"
    assert sensed.now("gpu_up") == {A: 1}
    fake.gpus[0].errors["*"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    fake.init_result = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert sensed.look().reason == "driver_not_loaded"
    assert sensed.now("gpu_up") == {}
    assert fake.samples == 0


def test_an_oddity_of_the_driver_is_a_fault_that_is_said(nvml, monkeypatch):
    nvml(Gpu(A))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: None)
    record = Sensed().look()
    assert (record.state, record.reason) == ("failed", "internal")


def test_a_name_that_is_no_text(nvml):
    nvml(Gpu(A, name="NVIDIA \xff"))
    assert Sensed().look().gpus[0].hardware == ""


def test_a_hostile_record_is_bounded():
    sensed = Sensed()
    values = {"utilization_ratio": float("nan"), "power_watts": float("inf"), "no_such": 1.0, "throttle_reasons": -1.0}
    for i in range(2000):
        values[f"violation_seconds_total:{i}"] = 1.0
    gpus = [
        GpuReading(gpu=f"{i}" * 1000, index=i, hardware="x" * 10_000, values=values, processes=[GpuProcess(pid=i)])
        for i in range(3000)
    ]
    xids = [GpuXid(gpu=f"g{i % 100}", xid=i) for i in range(20_000)]
    sensed.sense.feed(GpuRecord(t=1.0, gpus=gpus, xids=xids, driver="d" * 10_000), {})
    assert sensed.window.series < 10_000
    longest = max(len(v) for f in sensed.window.select([], 0, 2) for labels in f.labels for v in labels.values())
    assert longest <= gpu_module.MAX_LABEL


def test_every_value_is_a_family_and_every_reason_says_what_to_do():
    families = load().families
    names = {f"kvitals_gpu_{value.partition(':')[0]}" for value in VALUES}
    not_families = {f"kvitals_gpu_{name}" for name in ("throttle_reasons", "nvlink_rx_bytes", "nvlink_tx_bytes")}
    assert names - families.keys() == not_families
    for value in VALUES:
        family, _, further = value.partition(":")
        if further:
            assert families[f"kvitals_gpu_{family}"].labels == ("gpu", gpu_module._FURTHER[family])
    for state, message in REASONS.values():
        assert state in ("not_applicable", "unknown", "failed")
        assert message.endswith(".")


def test_series_have_the_labels_that_the_families_say(nvml):
    fake = nvml(Gpu(A, processes=[(10, GIB), (20, GIB)], fields={RX: 1, TX: 1}), split_gpu())
    fake.gpus[1].uuid = B
    sensed = Sensed()
    for _ in range(3):
        fake.events = [(fake.gpus[0], 31)]
        sensed.look({10: "e1", 20: "e2"})
    families = load().families
    for frame in sensed.window.select([], 0, 2000):
        for labels in frame.labels:
            rest = set(labels) - {METRIC_NAME, "cluster", "node"}
            assert rest <= set(families[labels.name].labels), labels


def test_tokens_per_gpu_hour(nvml):
    nvml(Gpu(A, processes=[(10, GIB)]), Gpu(B, processes=[(11, GIB)]))
    sensed = Sensed()
    tokens = sensed.window.group("engine")
    column = tokens.column(Labels({METRIC_NAME: "kvitals_generation_tokens_total", **NODE, "engine": "e1"}))
    for i in range(60):
        sensed.look({10: "e1", 11: "e1"})
        tokens.append(sensed.t, [column], [1000.0 * i])
    knowledge = load()
    for name, expected in (("gpus_per_engine", 2.0), ("tokens_per_gpu_hour", 1000 * 3600 / 2)):
        text = expand(knowledge.signals[name].expr, {"window": "30s", "scope": ", ".join(SCOPES["engine"])})
        assert value(text, sensed) == pytest.approx(expected)
