"""Pages of a DCGM exporter as GPU families. The short pages here are made up in the form of the recorded ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import Translator
from kvitals.rules.engine_map import load_map, systems
from kvitals.series.promql import Vector, evaluate
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

PAGES = Path(__file__).parents[2] / "fixtures" / "exposition" / "captured"
A, B = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52", "GPU-d7cbb0cd-d4bd-c2f7-dfaf-221df5e958ea"
T4 = "GPU-d7cbb0cd-d4bd-c2f7-dfaf-221df5e958ea"


class Scraped:
    """An exporter whose pages are fed a second apart."""

    def __init__(self, **labels: str) -> None:
        self.window = Window(1000.0, 10_000)
        maps = [load_map(system) for system in systems()]
        self.translator = Translator(self.window, "t", Identity("h:9400", "", labels), maps)
        self.parser = PageParser()
        self.t = 1000.0

    def feed(self, text: str) -> None:
        self.t += 1.0
        assert self.translator.good(self.t, self.parser.parse(text.encode()), 0.01, len(text)).ok

    def now(self, family: str) -> dict[str, float]:
        """The family's series in the last row, by their labels."""
        found = {}
        for frame in self.window.select([Matcher(METRIC_NAME, MatchOp.EQ, f"kvitals_{family}")], self.t, self.t):
            for labels, value in zip(frame.labels, frame.values[-1], strict=True):
                if not is_stale(np.array([value]))[0]:
                    rest = labels.drop(METRIC_NAME)
                    found[",".join(rest[name] for name in rest)] = float(value)
        return found


def sample(name: str, value: float, gpu: str = A, **labels: str) -> str:
    told = {"gpu": "0", "UUID": gpu, "device": "nvidia0", "modelName": "NVIDIA H100", "Hostname": "n1"} | labels
    inner = ",".join(f'{name}="{text}"' for name, text in told.items())
    return f"{name}{{{inner}}} {value:.17g}\n"


def test_a_recorded_page_in_base_units():
    scraped = Scraped()
    scraped.feed((PAGES / "dcgm-exporter-tesla-t4.prom").read_text())
    assert scraped.translator.reading is not None
    assert scraped.translator.reading.system.kind == "exporter"
    assert scraped.translator.reading.unknown == scraped.translator.reading.missing == []
    own = f"{T4},ip-10-200-3-41"
    expected = {
        "gpu_memory_free_bytes": 14912 * 1024 * 1024,
        "gpu_power_watts": 14.512,
        "gpu_energy_joules_total": 48287.135,
        "gpu_sm_clock_hertz": 300e6,
        "gpu_pcie_tx_bytes_per_second": 29285,
        "gpu_dram_active_ratio": 1e-6,
        "gpu_utilization_ratio": 0,
    }
    assert {family: scraped.now(family) for family in expected} == {
        family: {own: pytest.approx(value)} for family, value in expected.items()
    }


def test_the_configured_node_holds_against_the_exporters_host_name():
    scraped = Scraped(cluster="c", node="n")
    scraped.feed((PAGES / "dcgm-exporter-tesla-t4.prom").read_text())
    assert set(scraped.now("gpu_power_watts")) == {f"c,{T4},n"}


def test_a_blank_is_no_value():
    scraped = Scraped()
    scraped.feed((PAGES / "dcgm-exporter-readme.prom").read_text())
    assert scraped.now("gpu_sm_clock_hertz") == {A: 139e6}
    assert scraped.now("gpu_memory_temperature_celsius") == {}


def test_the_new_label_of_the_host_name():
    scraped = Scraped()
    scraped.feed(sample("DCGM_FI_DEV_GPU_TEMP", 40).replace("Hostname", "hostname"))
    assert scraped.now("gpu_temperature_celsius") == {f"{A},n1": 40}


def test_the_last_xid_is_no_event_until_it_changes():
    scraped = Scraped()
    scraped.feed(sample("DCGM_FI_DEV_XID_ERRORS", 31) + sample("DCGM_FI_DEV_XID_ERRORS", 0, B))
    assert scraped.now("gpu_xid_events_total") == {f"{A},n1": 0, f"{B},n1": 0}
    for code in (31, 79, 79, 0, 31):
        scraped.feed(sample("DCGM_FI_DEV_XID_ERRORS", code) + sample("DCGM_FI_DEV_XID_ERRORS", 0, B))
    assert scraped.now("gpu_xid_events_total") == {f"{A},n1": 2, f"{B},n1": 0}
    assert scraped.now("gpu_last_xid") == {f"{A},n1": 31, f"{B},n1": 0}
    found = evaluate("increase(kvitals_gpu_xid_events_total[10s]) > 0", scraped.window, scraped.t)
    assert isinstance(found, Vector)
    assert [labels["gpu"] for labels, _ in found] == [A]


def test_pods_that_share_a_gpu_are_users_and_not_added_up():
    pods = ({"namespace": "ml", "pod": "a", "container": "c"}, {"namespace": "ml", "pod": "b", "container": "c"})
    scraped = Scraped()
    scraped.feed("".join(sample("DCGM_FI_DEV_POWER_USAGE", 400, **pod) for pod in pods))
    scraped.feed("".join(sample("DCGM_FI_DEV_POWER_USAGE", 410, **pod) for pod in pods))
    assert scraped.now("gpu_power_watts") == {f"{A},n1": 410}
    assert scraped.now("gpu_user") == {f"{A},n1,ml/a/c": 1, f"{A},n1,ml/b/c": 1}


def test_mig_instances_have_the_names_that_nvml_gives_them():
    scraped = Scraped()
    instance = {"GPU_I_PROFILE": "3g.40gb", "GPU_I_ID": "2"}
    scraped.feed(sample("DCGM_FI_DEV_FB_USED", 100, **instance) + sample("DCGM_FI_DEV_POWER_USAGE", 300))
    assert scraped.now("gpu_memory_used_bytes") == {f"{A}/2,n1": 100 * 1024 * 1024}
    assert scraped.now("gpu_power_watts") == {f"{A},n1": 300}


def test_violations_are_nanoseconds_and_reasons_have_one_name():
    scraped = Scraped()
    scraped.feed(
        sample("DCGM_FI_DEV_POWER_VIOLATION", 2.5e9)
        + sample("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", 2.5e9)
        + sample("DCGM_EXP_CLOCK_EVENTS_COUNT", 3, clock_event="sw_thermal", window_size_in_ms="300000")
        + sample("DCGM_EXP_CLOCK_EVENTS_COUNT", 9, clock_event="gpu_idle", window_size_in_ms="300000")
        + sample("DCGM_EXP_XID_ERRORS_COUNT", 1, xid="79", window_size_in_ms="300000")
    )
    assert scraped.now("gpu_violation_seconds_total") == {f"{A},n1,power": 2.5}
    assert scraped.now("gpu_throttle_recent_events") == {f"{A},n1,thermal_sw": 3, f"{A},n1,idle": 9}
    assert scraped.now("gpu_xid_recent_events") == {f"{A},n1,79": 1}


def test_the_nvlink_counter_is_a_rate_that_may_fall():
    scraped = Scraped()
    scraped.feed(
        "# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL counter\n" + sample("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 201777)
    )
    scraped.feed(
        "# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL counter\n" + sample("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 12129)
    )
    assert scraped.now("gpu_nvlink_bytes_per_second") == {f"{A},n1": 12129 * 1024 * 1000}
    assert scraped.now("engine_restarts_total") in ({}, {"h:9400": 0})


def test_an_exporter_is_no_engine():
    scraped = Scraped()
    scraped.feed(sample("DCGM_FI_DEV_POWER_USAGE", 300))
    assert set(scraped.now("target_up")) == {"h:9400"}
    (info,) = scraped.now("engine_info")
    assert "exporter" in info
