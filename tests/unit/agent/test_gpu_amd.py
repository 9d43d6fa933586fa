"""Pages of AMD's Device Metrics Exporter as GPU families.

The pages are made here: names and units are those of its documentation. The labels are those of an MI300X's page that
the sources of silogen/kaiwo quote.
"""

from __future__ import annotations

import pytest

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import Translator
from kvitals.rules.engine_map import load_map, systems
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp
from kvitals.series.window import Window

LABELS = {
    "card_model": "102-G30211-0C", "card_series": "AMD Instinct MI300X OAM", "card_vendor": "AMD",
    "driver_version": "6.12.12", "gpu_compute_partition_type": "spx", "gpu_id": "2",
    "gpu_memory_partition_type": "nps1",
    "gpu_partition_id": "0", "hostname": "tw038", "serial_number": "692409005408", "namespace": "",
    "pod": "", "container": "",
}  # fmt: skip
UUID = "ccff74a1-0000-1000-80e0-c6d49f5b0d86"


def sample(name: str, value: float, **labels: str) -> str:
    inner = ",".join(f'{label}="{text}"' for label, text in (LABELS | labels).items())
    return f"# TYPE {name} gauge\n{name}{{{inner}}} {value:.17g}\n"


def families(page: str) -> dict[str, dict[str, float]]:
    """Family -> labels of its series -> value. Fails where the page is not taken for the exporter's."""
    window = Window(1000.0, 10_000)
    translator = Translator(window, "t", Identity("h:5000", "", {}), [load_map(system) for system in systems()])
    assert translator.good(1000.0, PageParser().parse(page.encode()), 0.01, len(page)).ok
    assert translator.reading is not None
    assert translator.reading.system.system == "amd_exporter"
    assert translator.reading.unknown == translator.reading.missing == []
    found: dict[str, dict[str, float]] = {}
    for frame in window.select([Matcher(METRIC_NAME, MatchOp.RE, "kvitals_gpu_.*")], 1000.0, 1000.0):
        for labels, value in zip(frame.labels, frame.values[-1], strict=True):
            rest = labels.drop(METRIC_NAME)
            found.setdefault(labels.name, {})[",".join(rest[name] for name in rest)] = float(value)
    return found


def test_a_page_in_base_units() -> None:
    page = (
        sample("gpu_gfx_activity", 87, gpu_uuid=UUID) + sample("gpu_used_vram", 180_000, gpu_uuid=UUID)
        + sample("gpu_total_vram", 196_592, gpu_uuid=UUID) + sample("gpu_package_power", 700, gpu_uuid=UUID)
        + sample("gpu_power_usage", 698, gpu_uuid=UUID) + sample("gpu_energy_consumed", 5e12, gpu_uuid=UUID)
        + sample("gpu_clock", 2100, gpu_uuid=UUID, clock_type="system", clock_index="0")
        + sample("gpu_violation_ppt_residency_percentage", 40, gpu_uuid=UUID)
        + sample("gpu_ecc_uncorrect_total", 2, gpu_uuid=UUID)
    )  # fmt: skip
    own = f"{UUID},tw038"
    found = families(page)
    assert {family: series[own] for family, series in found.items() if own in series} == pytest.approx(
        {
            "kvitals_gpu_utilization_ratio": 0.87,
            "kvitals_gpu_memory_used_bytes": 180_000 * 2**20,
            "kvitals_gpu_memory_total_bytes": 196_592 * 2**20,
            "kvitals_gpu_power_watts": 698,
            "kvitals_gpu_energy_joules_total": 5e6,
            "kvitals_gpu_sm_clock_hertz": 2.1e9,
        }
    )
    assert found["kvitals_gpu_throttle"] == {f"{UUID},tw038,power": pytest.approx(0.4)}
    assert found["kvitals_gpu_ecc_errors_total"] == {f"{UUID},uncorrected,tw038": 2}


def test_partitions_of_one_card_are_gpus_of_their_own_also_without_a_uuid() -> None:
    page = "".join(sample("gpu_used_vram", 1000 * n, gpu_partition_id=str(n), gpu_id=str(n)) for n in range(1, 3))
    page = page.replace("# TYPE gpu_used_vram gauge\n", "", 1)
    assert set(families(page)["kvitals_gpu_memory_used_bytes"]) == {"692409005408/1,tw038", "692409005408/2,tw038"}


def test_a_page_of_another_program_with_such_names_is_not_taken_for_it() -> None:
    window = Window(1000.0, 10_000)
    translator = Translator(window, "t", Identity("h:1", "", {}), [load_map(system) for system in systems()])
    page = "# TYPE gpu_jobs gauge\ngpu_jobs 3\n"
    translator.good(1000.0, PageParser().parse(page.encode()), 0.01, len(page))
    assert translator.reading is None or translator.reading.system.system != "amd_exporter"
