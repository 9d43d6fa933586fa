"""Random expressions, nested and joined, asked of both sides."""

from __future__ import annotations

from hypothesis import given

from tests.oracle.oracle_compare import Oracle
from tests.oracle.oracle_expressions import queries
from tests.oracle.oracle_profile import oracle_profile


@oracle_profile()
@given(drawn=queries())
def test_generated_expressions(oracle: Oracle, drawn: tuple[str, bool]) -> None:
    query, ties = drawn
    oracle.check(query, ties=ties, slack=1e-9)
