"""What it costs, who pays, and what the cache is worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.diagnoser.review.chargeback import UNNAMED, apportion, chargeback
from kvitals.diagnoser.review.efficiency import cache_money, trap
from kvitals.diagnoser.review.money import GpuPrices, default_prices, price_engines
from kvitals.diagnoser.review.review_steps import LedgerTokens, ReviewArrays
from kvitals.diagnoser.review.work import groups, work
from tests.unit.review.stage import engine, seen, week

H100, L40S, BARE = (
    engine("a", hardware="NVIDIA H100 80GB HBM3"),
    engine("b", hardware="NVIDIA L40S"),
    engine("c"),
)
HOURS = np.array([10.0, 10.0, 10.0])


def test_the_users_price_comes_before_defaults_and_a_name_before_all() -> None:
    prices = price_engines((H100, L40S, BARE), HOURS, GpuPrices(every=1.0, by_name={"h100": 3.0}))
    assert prices.usd.tolist() == [3.0, 1.0, 1.0]
    assert prices.cost(HOURS) == 50.0


def test_a_default_is_dated_and_has_its_span() -> None:
    prices = price_engines((H100,), HOURS[:1], GpuPrices())
    (used,) = prices.used
    assert used.low is not None and used.high is not None and used.usd_per_hour is not None
    assert used.low < used.usd_per_hour < used.high
    assert used.as_of and "defaults" in used.basis
    assert len(default_prices("NVIDIA H100 80GB HBM3")) > 1
    assert not default_prices("NVIDIA A10") and not default_prices("")


def test_without_a_price_money_is_unknown_and_not_nothing() -> None:
    one = week(seen((H100, BARE), 1, output=5.0), GpuPrices(by_name={"H100": 2.0}))
    assert work(one).usd is None
    assert work(one).usd_per_million_output is None
    tiers = {group.name: group.work.usd for group in groups(one) if group.kind == "tier"}
    assert tiers == {"NVIDIA H100 80GB HBM3": 2.0, "not told": None}


def test_cost_of_a_token_is_not_divided_by_utilisation_again() -> None:
    one = week(seen((H100,), 10, output=1e6, busy=0.4), GpuPrices(every=3.0))
    total = work(one)
    assert total.usd_per_million_output == pytest.approx(3.0)
    found = trap(one, total)
    assert found.used == pytest.approx(0.4)
    assert found.usd_at_target == pytest.approx(3.0 * 0.4 / 0.7)  # 1.75 times less


def test_utilisation_is_of_what_engines_can_do_where_that_was_measured() -> None:
    one = week(seen((H100,), 1, output=3.6e5, usable=1000.0, busy=0.9))
    found = trap(one, work(one))
    assert found.used == pytest.approx(0.1) and found.trapped
    assert "C_max" in found.of


@given(st.integers(0, 10**9), st.lists(st.floats(0.0, 1e6), min_size=1, max_size=30))
def test_cents_add_up(total: int, weights: list[float]) -> None:
    all_ = sum(weights)
    shares = [one / all_ for one in weights] if all_ > 0 else [1.0 / len(weights)] * len(weights)
    cents = apportion(total, shares)
    assert sum(cents) == total
    assert all(abs(cent - total * share) < 1.0 + 1e-6 * total for cent, share in zip(cents, shares, strict=True))


def _with_tenants(one: ReviewArrays, tenants: dict[str, dict[str, float]]) -> ReviewArrays:
    return ReviewArrays(**{**vars(one), "tenants": tenants})


def test_tenants_pay_all_of_it_by_the_work_that_they_caused() -> None:
    one = seen(
        (H100,), 1, busy=1.0, prefill=50.0, decode=50.0, looked_up=1000.0, hit=500.0, prompt=1000.0, output=100.0,
        finished=10.0,
    )  # fmt: skip
    tenants = {
        "all found": {"prompt": 500.0, "cached": 500.0, "output": 50.0},
        "nothing found": {"prompt": 500.0, "cached": 0.0, "output": 50.0},
    }
    found = chargeback(week(_with_tenants(one, tenants), GpuPrices(every=1.01)), 1.0, 1.01)
    shares = {row.tenant: row.share for row in found.rows}
    assert shares["nothing found"] == pytest.approx(0.75)  # half of the time is prefill, and all of that is theirs
    assert sum(row.usd_cents or 0 for row in found.rows) == found.total_cents == 101
    assert sum(row.gpu_hours for row in found.rows) == pytest.approx(1.0)


def test_what_only_engines_saw_is_a_row_and_so_is_an_unnamed_tenant() -> None:
    one = seen((H100,), 1, busy=1.0, prompt=1000.0, looked_up=1000.0, hit=0.0, output=1000.0, finished=10.0)
    found = chargeback(week(_with_tenants(one, {"": {"prompt": 500.0, "output": 500.0}})), 1.0, 2.0)
    assert {row.tenant: row.share for row in found.rows} == {
        UNNAMED: pytest.approx(0.5), "(seen by engines only)": pytest.approx(0.5)
    }  # fmt: skip
    assert "counts 1" in found.method  # no phases: by tokens


def test_no_tenants_no_table() -> None:
    found = chargeback(week(seen((H100,), 1, output=1.0)), 1.0, 2.0)
    assert not found.rows and found.missing.startswith("no requests with tenants")


def test_tenants_without_token_counts_are_not_said_to_be_none() -> None:
    """22,000 requests of tenants were "no requests with tenants"."""
    one = seen((H100,), 1, output=1.0)
    found = chargeback(week(_with_tenants(one, {"chat": {"requests": 22_000.0}})), 1.0, 2.0)
    assert not found.rows and "include_usage" in found.missing


def test_hits_are_worth_prefill_that_was_not_done() -> None:
    one = seen(
        (H100,), 1, busy=1.0, prefill=50.0, decode=50.0, looked_up=1000.0, hit=800.0, output=1.0
    )  # fmt: skip
    found = cache_money(week(ReviewArrays(**{**vars(one), "lookups": LedgerTokens(500.0, 400.0, 450.0)})))
    assert found.saved_gpu_hours == pytest.approx(0.5 * 0.8 / 0.2)
    # 80 to 90 %: half of what prefill is left, of the half of the look-ups that are known
    assert found.attainable_gpu_hours == pytest.approx(0.5 * 0.5 * 0.1 / 0.2)
    assert found.attainable_usd == pytest.approx(0.25)
    assert not found.missing


def test_without_phases_hits_have_no_price() -> None:
    found = cache_money(week(seen((H100,), 1, looked_up=10.0, hit=5.0)))
    assert found.hit_ratio == 0.5 and found.saved_gpu_hours is None
    assert len(found.missing) == 2


def test_more_found_than_looked_up_is_no_share() -> None:
    """ "104 % of prompt tokens were found in a cache" stood in a review."""
    found = cache_money(week(seen((H100,), 1, busy=1.0, prefill=50.0, looked_up=1000.0, hit=1040.0)))
    assert found.hit_ratio is None and found.saved_gpu_hours is None
    assert "more prompt tokens found than looked up" in found.missing[0]
