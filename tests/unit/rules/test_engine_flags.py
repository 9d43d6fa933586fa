"""The tables of flags: what they hold, and how they answer for a release that was not read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from kvitals.rules.engine_flags import (
    FlagState,
    FlagTable,
    flag_table,
    read_table,
    spans_of,
    systems_with_flags,
    with_release,
    write_table,
)
from kvitals.rules.versions import release


def table(system: str) -> FlagTable:
    found = flag_table(system)
    assert found is not None
    return found


def test_the_tables_reach_from_the_first_release_to_the_newest() -> None:
    assert systems_with_flags() == ["sglang", "vllm"]
    assert release(table("vllm").oldest) == (0, 5, 0, 0)
    assert release(table("sglang").oldest) == (0, 4, 0, 0)
    assert len(table("vllm").releases) > 50
    assert len(table("sglang").releases) > 30
    assert flag_table("llamacpp") is None


def test_a_default_that_changed_is_known_on_both_sides() -> None:
    key = "--kv-transfer-config.kv_load_failure_policy"
    assert table("vllm").at("0.16.0")[key].default == "recompute"
    assert table("vllm").at("0.17.0")[key].default == "fail"
    assert table("sglang").at("0.4.3")["--schedule-policy"].default == "lpm"
    assert table("sglang").at("0.5.23")["--schedule-policy"].default == "fcfs"


def test_a_short_form_and_a_negation_are_spellings_of_the_flag() -> None:
    known = table("vllm").at("0.33.0")
    assert known["-tp"].flag == "--tensor-parallel-size"
    assert known["--no-enable-prefix-caching"].flag == "--enable-prefix-caching"


def test_a_deprecated_flag_names_what_replaces_it() -> None:
    assert table("sglang").at("0.5.14")["--cuda-graph-max-bs"].deprecated == "--cuda-graph-max-bs-decode"
    assert "--cuda-graph-max-bs" not in table("sglang").at("0.5.23")


def test_a_release_that_was_not_read_is_as_the_one_before() -> None:
    assert "0.15.0" not in table("vllm").releases  # it has no source distribution
    assert table("vllm").nearest("0.15.0") == "0.14.1"
    assert table("vllm").nearest("0.11.0.post1") == "0.11.0"


def test_a_release_outside_the_table_is_reported_as_such() -> None:
    vllm = table("vllm")
    assert vllm.is_newer("0.99.0")
    assert not vllm.is_newer(vllm.newest)
    assert vllm.is_older("0.4.3")
    with pytest.raises(ValueError, match=r"known from version 0\.5\.0 on, not for 0\.4\.3"):
        vllm.at("0.4.3")


@pytest.mark.parametrize("system", systems_with_flags())
def test_no_two_ranges_of_a_flag_overlap(system: str) -> None:
    by_flag: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for span in table(system).spans:
        assert {span.first, span.last} <= set(table(system).releases)
        by_flag.setdefault(span.state.flag, []).append((release(span.first), release(span.last)))
    for ranges in by_flag.values():
        assert all(one[1] < next_[0] for one, next_ in pairwise(ranges))


def test_a_table_reads_as_it_was_written(tmp_path: Path) -> None:
    for system in systems_with_flags():
        write_table(table(system), tmp_path / f"{system}.csv")
        assert read_table(tmp_path / f"{system}.csv") == table(system)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("flag,first\n")
    with pytest.raises(ValueError, match="expected a line `# releases:"):
        read_table(tmp_path / "x.csv")


def test_a_flag_that_goes_and_comes_back_has_two_ranges() -> None:
    on = {"--a": FlagState("--a")}
    spans = spans_of({"1.0": on, "1.1": {}, "1.2": on, "1.10": on})
    assert [(span.first, span.last) for span in spans] == [("1.0", "1.0"), ("1.2", "1.10")]


def test_one_release_more_extends_the_ranges() -> None:
    before = FlagTable("x", ("1.0",), tuple(spans_of({"1.0": {"--a": FlagState("--a", default="1")}})))
    after = with_release(before, "1.1", {"--a": FlagState("--a", default="2"), "--b": FlagState("--b")})
    assert after.releases == ("1.0", "1.1")
    assert after.at("1.0")["--a"].default == "1"
    assert after.at("1.1")["--a"].default == "2"
    assert after.having("--b") == ["1.1"]
