"""Every case of every rule that has an alert, on the generated rules, by promtool: what fires and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts import promtool

BATCHES = promtool.batches(12)


@pytest.mark.parametrize("codes", BATCHES, ids=lambda codes: f"{codes[0]}-{codes[-1]}")
def test_cases(codes: tuple[str, ...], tmp_path: Path) -> None:
    files = [path for code in codes for path in promtool.write(code, tmp_path)]
    passed, said = promtool.run(files)
    assert passed, said


@pytest.mark.parametrize("code", promtool.codes())
def test_every_alert_has_cases_that_fire_and_that_do_not(code: str) -> None:
    assert {promtool.fires(case) for case in promtool.cases(code)} == {True, False}


def test_a_wrong_rule_is_found(tmp_path: Path) -> None:
    files = promtool.write("LAT01", tmp_path)
    rules = tmp_path / "LAT01.rules.yaml"
    text = rules.read_text()
    turned = text.replace("kvitals:ttft_p99_seconds > kvitals:slo_ttft_seconds", "kvitals:ttft_p99_seconds < 0")
    assert turned != text
    rules.write_text(turned)
    passed, said = promtool.run(files)
    assert not passed
    assert "LAT01-ttft-slo-breach" in said
