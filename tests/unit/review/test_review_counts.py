"""What is counted in a short range of few rows is what the counters grew by, however long the range is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvitals.app.derived_metrics.operating_families import ask_source
from kvitals.diagnoser.review.assemble import review
from kvitals.diagnoser.review.result import Review
from kvitals.diagnoser.review.review_steps import MANY_ROWS, grown
from kvitals.rules.expressions import expression
from kvitals.rules.loader import Knowledge
from kvitals.series.types import METRIC_NAME, Frame, Labels
from kvitals.ui.review.sections import sections
from tests.support.fortnight import Source, asked

BEGIN = 1_767_225_600.0
ROW = 5.0
ENGINE = {"engine": "e", "node": "n", "pool": "chat", "model": "m"}


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return Knowledge()


def bursts(seconds: float, seed: int = 1, *, reset_at: float | None = None, late: float = 0.3) -> Source:
    """An engine with requests in bursts of two tenants, one of which comes later. Rows are a little early or late."""
    random = np.random.default_rng(seed)
    count = int(seconds / ROW) + 1
    times = BEGIN + ROW * np.arange(count) + random.uniform(-late, late, count)
    came = random.poisson(np.where(random.random(count) < 0.3, 60, 2)).astype(float)
    of_a = random.binomial(came.astype(int), 0.6).astype(float)
    of_b = np.where(times >= BEGIN + 40, came - of_a, 0.0)
    came = of_a + of_b
    running = random.integers(0, 9, count).astype(float)
    first, a, b = 10_000 + np.cumsum(came), np.cumsum(of_a), np.cumsum(of_b)
    finished = np.maximum.accumulate(first - running)
    running = first - finished  # which have no end
    if reset_at is not None:
        again = times >= BEGIN + reset_at
        first[again], finished[again] = first[again] - first[~again][-1], finished[again] - first[~again][-1]
        finished = np.maximum(finished, 0.0)
    columns = {
        ("kvitals_requests_running", ""): running,
        ("kvitals_ttft_seconds_count", ""): first,
        ("kvitals_requests_finished_total", ""): finished,
        ("kvitals_prompt_tokens_total", ""): 100 * first,
        ("kvitals_prefix_query_tokens_total", ""): 100 * first,
        ("kvitals_prefix_hit_tokens_total", ""): 27 * first,
        ("kvitals_generation_tokens_total", ""): 10 * first,
    }
    for tenant, requests in (("a", a), ("b", np.where(times < BEGIN + 40, np.nan, b))):
        columns[("kvitals_tenant_requests_total", tenant)] = requests
        columns[("kvitals_tenant_prompt_tokens_total", tenant)] = 100 * requests
        columns[("kvitals_tenant_output_tokens_total", tenant)] = 10 * requests
    columns[("kvitals_tenant_cached_tokens_total", "a")] = 27 * a / 2  # half of the records have the cached tokens
    columns[("kvitals_tenant_cache_told_tokens_total", "a")] = 100 * a / 2
    labels = [
        Labels({METRIC_NAME: name, **ENGINE, **({"tenant": tenant} if tenant else {})}) for name, tenant in columns
    ]
    return Source(Frame(times, np.array(list(columns.values())).T, labels))


def reviewed(knowledge: Knowledge, source: Source, since: float, end: float) -> Review:
    request = replace(asked(), start=since, since=since, end=end, first=BEGIN, gap=ROW)
    return review(ask_source(source), request, knowledge)


def growth(source: Source, name: str, start: float, end: float, tenant: str = "") -> float:
    """From the last row before the start to the last one before the end."""
    frame = source.frame
    column = next(
        i for i, one in enumerate(frame.labels) if one.name == name and one.get("tenant", "") == tenant
    )  # fmt: skip
    rows = [int(np.searchsorted(frame.times, t, "right")) - 1 for t in (start, end)]
    values = np.nan_to_num(frame.values[:, column])
    return float(values[rows[1]] - values[rows[0]])


@pytest.mark.parametrize("seconds", [120.0, 180.0, 240.0, 300.0, 900.0, 3600.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_counts_are_the_growth_of_the_counters(knowledge: Knowledge, seconds: float, seed: int) -> None:
    """Of 883 requests 894.6 were counted, and tenants' requests were off by -41 to +35 %: increase() extrapolates."""
    source = bursts(4000.0, seed)
    end = BEGIN + 3990.0
    made = reviewed(knowledge, source, end - seconds, end)
    total, span = made.total, (made.start, made.end)
    ends = [growth(source, f"kvitals_{name}", *span) for name in ("ttft_seconds_count", "requests_finished_total")]
    assert total.requests == pytest.approx(max(ends))
    assert total.prompt_tokens == pytest.approx(growth(source, "kvitals_prompt_tokens_total", *span))
    assert total.output_tokens == pytest.approx(growth(source, "kvitals_generation_tokens_total", *span))
    assert made.cache.hit_ratio == pytest.approx(0.27)
    rows = {row.tenant: row for row in made.chargeback.rows}
    assert set(rows) == {"a", "b"}
    for name, row in rows.items():
        assert row.requests == pytest.approx(growth(source, "kvitals_tenant_requests_total", *span, tenant=name))


def test_a_longer_range_has_no_fewer_tokens(knowledge: Knowledge) -> None:
    source, end = bursts(400.0), BEGIN + 390.0
    tokens = [reviewed(knowledge, source, end - seconds, end).total.output_tokens for seconds in range(60, 390, 15)]
    lost = 2 * 10 * 75  # the steps end up to a quarter of one before the end
    assert all(later >= max(tokens[: i + 1]) - lost for i, later in enumerate(tokens))
    assert tokens[-1] > 3 * tokens[0]


def test_a_tenant_that_comes_in_the_range_counts_from_its_first_request(knowledge: Knowledge) -> None:
    source = bursts(200.0)
    made = reviewed(knowledge, source, BEGIN + 20.0, BEGIN + 190.0)
    (row,) = [row for row in made.chargeback.rows if row.tenant == "b"]
    true = growth(source, "kvitals_tenant_requests_total", made.start, made.end, "b")
    assert 0.8 * true <= row.requests <= true + 1e-6


def test_a_restart_loses_little(knowledge: Knowledge) -> None:
    """The counters fall in a step; the others count as before."""
    end = BEGIN + 390.0
    whole, again = (reviewed(knowledge, bursts(400.0, reset_at=at), end - 300.0, end) for at in (None, 200.0))
    assert again.total.requests == pytest.approx(whole.total.requests, rel=0.1)


def test_the_row_of_all_is_what_the_engines_counted(knowledge: Knowledge) -> None:
    """It was the sum of the tenants' records: 16.9 % were cached there, and 27 % in "The cache"."""
    end = BEGIN + 390.0
    made = reviewed(knowledge, bursts(400.0), end - 300.0, end)
    rows = {row.tenant: row for row in made.chargeback.rows}
    assert rows["a"].cached_tokens == pytest.approx(0.27 * rows["a"].prompt_tokens)
    assert rows["b"].cached_tokens is None
    paid = next(one for one in sections(made) if one.title == "Who pays").blocks[0]
    all_ = paid.rows[-1]  # type: ignore[union-attr]
    assert all_[0] == "all" and all_[3] == "27 %"
    assert sum(row.share for row in made.chargeback.rows) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_requests_that_run_at_the_end_are_no_disconnects(knowledge: Knowledge, seed: int) -> None:
    end = BEGIN + 390.0
    made = reviewed(knowledge, bursts(400.0, seed), end - 120.0, end)
    (part,) = [one for one in made.ledger if one.part == "aborted"]
    assert part.gpu_hours == 0.0


def test_the_limit_is_stated(knowledge: Knowledge) -> None:
    made = reviewed(knowledge, bursts(400.0), BEGIN + 90.0, BEGIN + 390.0)
    assert any("Rows are 5 s apart" in one for one in made.story)


def test_a_step_of_many_rows_is_one_increase() -> None:
    assert grown("m", MANY_ROWS * ROW, ROW) == "increase(m[300s])"
    expression(f"sum({grown('m', 20.0, ROW)})")
