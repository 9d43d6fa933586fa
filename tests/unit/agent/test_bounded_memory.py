"""What the pages of all targets take is bounded, whatever they have, and a good target loses nothing for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kvitals.agent.collectors.scrape import ScrapeSense, ScrapeTarget
from kvitals.agent.memory_limit import MemoryLimit
from kvitals.agent.records import ScrapeRecord
from kvitals.series.types import Labels, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

MB = 1 << 20
BUDGET = 6 * MB
GOOD = "".join(f'vllm:num_requests_running{{model_name="m-{i}",engine="0"}} {i}\n' for i in range(300))


def bounds(number: int) -> str:
    """Buckets with bounds that no page had before."""
    lines = (f'vllm:time_to_first_token_seconds_bucket{{model_name="m",le="{number}.{i:04}"}} {i}' for i in range(4000))
    return "\n".join(lines) + "\n"


def models(number: int) -> str:
    return "".join(
        f'vllm:num_requests_waiting{{model_name="{number}-{i}",engine="{i % 250}"}} 3\n' for i in range(4000)
    )


def long_values(number: int) -> str:
    value = "x" * 480
    return "".join(f'vllm:num_requests_waiting{{model_name="{number}-{i}-{value}"}} 3\n' for i in range(4000))


def unknown_names(number: int) -> str:
    return "".join(f'x{i}{{a="{number}"}} 1\n' for i in range(4900))


KINDS = (bounds, models, long_values, unknown_names)


class Scraped:
    """Targets whose pages are ingested, a cycle at a time, as the agent does."""

    def __init__(self, hostile: int, budget: int | None = BUDGET) -> None:
        self.window = Window(600.0, 200_000, 20_000)
        self.sense = ScrapeSense(self.window)
        self.good, *self.hostile = (
            self.sense.add(ScrapeTarget(url=f"http://h:{port}")) for port in range(1, 2 + hostile)
        )
        self.budget = budget
        self.numbers = itertools.count()
        self.t = 1000.0

    def page(self, key: str, text: str) -> str:
        record = ScrapeRecord(
            t=self.t, target=key, reason="ok", message="", status=200, content_type="", body=text.encode(), duration=0.1
        )
        outcome = self.sense.feed(record)
        assert outcome is not None
        return outcome.reason

    def cycle(self) -> set[str]:
        """The reasons of the hostile pages."""
        self.t += 1.0
        if self.budget is not None:
            self.window.share(self.budget)
            self.window.balance()
            self.sense.page_shares.divide(4 * self.budget, len(self.sense.keys))
        reasons = {self.page(key, KINDS[(n := next(self.numbers)) % len(KINDS)](n)) for key in self.hostile}
        assert self.page(self.good, GOOD) == "ok"
        return reasons

    @property
    def cells(self) -> int:
        return sum(group.held_bytes for group in self.window.groups.values() if group.owner)


def good_samples(scraped: Scraped) -> tuple[int, int]:
    """Series and rows of the good target, all with samples."""
    matchers = [Matcher("__name__", MatchOp.EQ, "kvitals_requests_running"), Matcher("engine", MatchOp.RE, "h:1.*")]
    (frame,) = scraped.window.select(matchers, 0.0, scraped.t)
    assert not is_stale(frame.values).any()
    return len(frame.labels), len(frame.times)


@pytest.mark.parametrize("hostile", [1, pytest.param(5, marks=pytest.mark.system)])
def test_pages_that_change_their_kind_stay_within_the_budget_and_good_ones_are_whole(hostile: int) -> None:
    scraped = Scraped(hostile)
    for _ in range(16):
        scraped.cycle()
        labels = scraped.window.label_shares
        assert sum(labels.held.values()) <= BUDGET // 2
        assert sum(scraped.sense.page_shares.held.values()) <= 4 * BUDGET
    scraped.window.balance()
    newest = len(scraped.hostile) * 8 * 20_000  # the newest row of each stays
    assert scraped.cells + sum(scraped.window.label_shares.held.values()) <= BUDGET + newest
    assert scraped.window.label_shares.refused
    assert good_samples(scraped) == (300, 16)


def test_a_page_beyond_its_share_is_refused_and_says_why() -> None:
    scraped = Scraped(3, MB // 2)
    scraped.cycle()
    assert scraped.page(scraped.hostile[0], long_values(99)) == "memory_share"
    assert scraped.sense.page_shares.refused
    assert "memory_limit" in scraped.sense.translator(scraped.hostile[0]).status.last.message
    assert scraped.page(scraped.hostile[0], GOOD) == "ok"


def test_what_targets_may_take_follows_a_configured_limit_and_never_an_unset_one_beyond_the_least() -> None:
    limit = MemoryLimit(4 << 30, lambda: 0)
    assert limit.shares(28, configured=False)[0] == (64 + 2 * 28) * MB
    assert limit.shares(28, configured=True)[0] == int(0.4 * (4 << 30))
    assert MemoryLimit(100 * MB, lambda: 0).shares(28, configured=False)[0] == 40 * MB


def test_after_a_flood_of_series_rows_are_narrow_again() -> None:
    window = Window(10.0, 100_000)
    group = window.group("target", "target")
    kept = group.column(Labels({"__name__": "kept"}))
    assert kept is not None
    flood = [group.column(Labels({"__name__": "flood", "n": str(n)})) for n in range(5000)]
    group.append(0.0, [kept, *(n for n in flood if n is not None)], np.ones(5001))
    group.end([n for n in flood if n is not None])
    for t in range(1, 30):
        group.append(float(t), [kept], [float(t)])
    group.reclaim()
    group.append(30.0, [kept], [30.0])
    for t in range(31, 50):
        group.append(float(t), [kept], [float(t)])
    group.reclaim()
    assert group.series == 1
    assert group.nbytes < 100_000
    (frame,) = window.select([Matcher("__name__", MatchOp.EQ, "kept")], 0.0, 100.0)
    assert frame.values[:, 0].tolist() == [float(t) for t in range(39, 50)]
    assert sum(window.label_shares.held.values()) < 1000
    again = group.column(Labels({"__name__": "again"}))
    assert again is not None
    group.append(50.0, [again], [1.0])
    found = window.select([Matcher("__name__", MatchOp.EQ, "again")], 0.0, 100.0)
    assert found[0].values.ravel()[-1] == 1.0


def test_fewer_rows_of_one_owner_leave_those_of_others() -> None:
    window = Window(1000.0, 100_000)
    small, large = window.group("small", "small"), window.group("large", "large")
    columns = {
        g: [g.column(Labels({"__name__": "a", "n": str(n)})) for n in range(many)]
        for g, many in ((small, 10), (large, 1000))
    }
    for t in range(200):
        for group, numbers in columns.items():
            group.append(float(t), [n for n in numbers if n is not None], np.full(len(numbers), float(t)))
    window.share(1 * MB)
    window.balance()
    assert small.rows == 200
    assert 1 <= large.rows < 100
    assert window.dropped_rows == 200 - large.rows
    assert large.held_bytes <= MB
    assert large.lost_before > 0
