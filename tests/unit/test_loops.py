"""A loop over cases reports every failure, and fails without cases; of alike cases some are system tests."""

from __future__ import annotations

import pytest

from tests.support.loops import for_each, some_of


def test_every_failure_is_in_the_report(tmp_path: object) -> None:
    @for_each("number, limit", [(1, 3), (4, 3), (5, 3)])
    def body(number: int, limit: int) -> None:
        assert number < limit

    with pytest.raises(AssertionError, match="2 of 3 cases failed") as caught:
        body()
    assert "4, 3" in str(caught.value)
    assert "5, 3" in str(caught.value)


def test_no_cases_is_a_failure() -> None:
    @for_each("number", [])
    def body(number: int) -> None:
        raise AssertionError

    with pytest.raises(AssertionError, match="no cases"):
        body()


@for_each("number", [1, 2], ids=str)
def test_fixtures_reach_the_body(number: int, tmp_path: object) -> None:
    assert number
    assert tmp_path


def test_an_exception_that_does_not_come_is_a_failure_of_its_case() -> None:
    @for_each("number", [1, 2])
    def body(number: int) -> None:
        with pytest.raises(ValueError, match="never raised"):
            pass

    with pytest.raises(AssertionError, match="2 of 2 cases failed"):
        body()


def test_of_alike_cases_each_nth_is_not_a_system_test() -> None:
    cases = some_of("abcdefg", 3)
    assert [case.id for case in cases] == list("abcdefg")
    assert [case.id for case in cases if not case.marks] == ["a", "d", "g"]
    assert {case.marks[0].name for case in cases if case.marks} == {"system"}
    with pytest.raises(AssertionError, match="one or none"):
        some_of("ab", 3)
