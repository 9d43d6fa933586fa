"""Recorded engines that go on for twenty minutes: healthy ones set nothing off, and those with a fault do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvitals.dashboards.alerts_files import Groups
from kvitals.dashboards.alerts_yaml import dump
from kvitals.series.types import METRIC_NAME, Floats, Labels, escape
from tests.alerts import promtool
from tests.fleet.loops import Loop, families, is_clock, pages

ROOT = Path(__file__).parents[2]
HEALTHY = (
    "app/demo/healthy.kvcap",
    "tests/captures/others/sglang_healthy.kvcap",
    "tests/captures/others/pd_healthy.kvcap",
    "tests/captures/others/dynamo_healthy.kvcap",
)
FAULTS = (
    ("app/demo/heavy_tenant.kvcap", "KVC01"),
    ("app/demo/few_slots.kvcap", "SCH01"),
    ("app/demo/caching_off.kvcap", "PFX02"),
)
SECONDS, STEP = 1200.0, 5.0
STARTED = -3 * 86400.0
"""When the processes began, in promtool's time."""


def loop(path: str) -> Loop:
    read = frozenset(
        name if family.type != "histogram" else f"{name}{part}"
        for name, family in promtool.knowledge().families.items()
        for part in ("_bucket", "_sum", "_count")
    )
    return families(ROOT / path, read, promtool.knowledge())


def page(path: str) -> Loop:
    """An engine's own metrics, as a Prometheus has them that scrapes it."""
    found = pages(ROOT / path)
    where = {"instance": "10.0.0.7:8000", "job": "engines"}
    courses = [replace(course, labels=course.labels.with_(**where)) for course in found.courses]
    return replace(found, courses=courses)


def series(of: Loop, seconds: float) -> list[dict[str, str]]:
    times = np.arange(0.0, seconds + STEP, STEP)
    found = []
    for course in of.courses:
        values = np.full(len(times), STARTED) if is_clock(course.labels.name) else course.at(times)
        found.append({"series": written(course.labels), "values": told(values)})
    return found


def written(labels: Labels) -> str:
    inside = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items() if name != METRIC_NAME)
    return f"{labels.name}{{{inside}}}"


def told(values: Floats) -> str:
    if len(set(values.tolist())) == 1:
        return f"{float(values[0]):.12g}+0x{len(values) - 1}"
    return " ".join("_" if value != value else f"{value:.12g}" for value in values.tolist())


def run(
    of: Loop, rules: tuple[Groups, Groups], expected: list[dict[str, Any]], asked: str, folder: Path
) -> tuple[bool, str]:
    recording, alerting = rules
    raw = rules is promtool.shipped_raw()
    seconds = RAW_SECONDS if raw else SECONDS
    groups = [*recording["groups"], *alerting["groups"]]
    (folder / "rules.yaml").write_text(dump({"groups": groups}))
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": RAW_EVALUATION if raw else "15s",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [
            {
                "interval": f"{STEP:g}s",
                "input_series": series(of, seconds),
                "promql_expr_test": [{"expr": asked, "eval_time": f"{seconds:g}s", "exp_samples": expected}],
            }
        ],
    }
    path = folder / "healthy.test.yaml"
    path.write_text(dump(test))
    return promtool.run([path])


EVER = f'count by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{SECONDS:g}s]))'
RAW_SECONDS, RAW_EVALUATION = 480.0, "30s"
"""Expressions in raw names take longer."""


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: Path(path).stem)
def test_health_sets_nothing_off(path: str, tmp_path: Path) -> None:
    passed, said = run(loop(path), promtool.shipped(), [], EVER, tmp_path)
    assert passed, said


@pytest.mark.parametrize(("path", "code"), FAULTS, ids=lambda value: Path(value).stem)
def test_a_fault_sets_its_alert_off(path: str, code: str, tmp_path: Path) -> None:
    expected = [{"labels": "{}", "value": 1}]
    passed, said = run(
        loop(path), promtool.shipped(), expected, f'count(ALERTS{{alertstate="firing",code="{code}"}})', tmp_path
    )
    assert passed, said


@pytest.mark.parametrize("path", HEALTHY[:2], ids=lambda path: Path(path).stem)
def test_health_sets_nothing_off_without_agents(path: str, tmp_path: Path) -> None:
    passed, said = run(page(path), promtool.shipped_raw(), [], EVER, tmp_path)
    assert passed, said


@pytest.mark.parametrize(("path", "code"), FAULTS[:2], ids=lambda value: Path(value).stem)
def test_a_fault_sets_its_alert_off_without_agents(path: str, code: str, tmp_path: Path) -> None:
    expected = [{"labels": "{}", "value": 1}]
    asked = f'count(ALERTS{{alertstate="firing",code="{code}"}})'
    passed, said = run(page(path), promtool.shipped_raw(), expected, asked, tmp_path)
    assert passed, said
