"""Random expressions, nested and joined, asked of both sides."""

from __future__ import annotations

from conftest import oracle_profile
from hypothesis import given
from oracle_compare import Oracle
from oracle_expressions import queries


@oracle_profile()
@given(drawn=queries())
def test_generated_expressions(oracle: Oracle, drawn: tuple[str, bool]) -> None:
    query, ties = drawn
    oracle.check(query, ties=ties, slack=1e-9)
