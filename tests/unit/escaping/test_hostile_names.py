"""Names from outside in every format: what was markup of somebody else's is text."""

from __future__ import annotations

import pytest

from kvitals.series.csv_cells import cell
from tests.fuzz import texts
from tests.support.loops import for_each


@pytest.mark.parametrize("check", texts.CHECKS.values(), ids=texts.CHECKS)
@for_each("name", texts.HOSTILE, ids=repr)
def test_a_name_is_a_name(check: texts.TextCheck, name: str) -> None:
    check(name)
    check(f"a {name} b")
    check(f"{name}{name}")


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3", "@SUM(1)", "\t=1", "\n=1", " =1", "＝1+1", "\r=1"]
)
def test_no_cell_is_a_formula(name: str) -> None:
    assert cell(name) == f"'{name}"


@pytest.mark.parametrize("name", ["+Inf", "-1", "1e9", "-1.5", "llama-3", "a=b", "", "127.0.0.1:8000/0"])
def test_numbers_and_names_stay(name: str) -> None:
    assert cell(name) == name
