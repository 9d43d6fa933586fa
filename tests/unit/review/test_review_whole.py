"""A review from series to documents, over two weeks that are written down by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvitals.app.derived_metrics.operating_families import ask_source
from kvitals.diagnoser.review.assemble import NothingSeenError, ReviewRequest, review
from kvitals.diagnoser.review.money import GpuPrices
from kvitals.diagnoser.review.result import Incidents, Review, ReviewEvent
from kvitals.rules.loader import Knowledge
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher
from kvitals.ui.review.markdown import markdown
from kvitals.ui.review.page import page
from kvitals.ui.review.write import write

DAY, GAP = 86400.0, 600.0
BEGIN = 1_767_225_600.0
ENGINES = 2
TOKENS = {"before": 40.0, "now": 30.0}  # a second, by day
HOSTILE = "<script>alert(1)</script>|=cmd"
NOTHING = Incidents(rows=[], not_listed=0, detected=None, source="findings", missing="")


class Source:
    """Series in memory."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def select(self, matchers: list[Matcher], start: float, end: float) -> list[Frame]:
        of = self._frame
        rows = slice(*np.searchsorted(of.times, [start, end + 1e-6]).tolist())
        columns = [i for i, one in enumerate(of.labels) if all(m.matches(one) for m in matchers)]
        there = of.times[rows]
        return [Frame(there, of.values[rows][:, columns], [of.labels[i] for i in columns])] if columns else []


def fortnight() -> Source:
    """Two engines: work from 06:00 to 18:00, in the second week a quarter less, because half as much is found."""
    times = np.arange(BEGIN, BEGIN + 14 * DAY + 1.0, GAP)
    hour = (times - BEGIN) % DAY / 3600.0
    work = (hour >= 6.0) & (hour < 18.0)
    second = times > BEGIN + 7 * DAY
    tokens = np.where(second, TOKENS["now"], TOKENS["before"]) * work

    def total(rate: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(rate[:-1] * GAP)])

    columns: dict[str, np.ndarray] = {
        "kvitals_requests_running": np.where(work, 3.0, 0.0),
        "kvitals_generation_tokens_total": total(tokens),
        "kvitals_prompt_tokens_total": total(10 * tokens),
        "kvitals_prefix_query_tokens_total": total(10 * tokens),
        "kvitals_prefix_hit_tokens_total": total(np.where(second, 4.0, 8.0) * tokens),
        "kvitals_prefill_seconds_sum": total(np.where(second, 0.06, 0.02) * tokens),
        "kvitals_decode_seconds_sum": total(0.1 * tokens),
        "kvitals_requests_finished_total": total(tokens / 100),
        "kvitals_ttft_seconds_count": total(tokens / 100),
    }
    labels, values = [], []
    for number in range(ENGINES):
        own = {"engine": f"e{number}", "node": "n", "pool": HOSTILE, "model": "m", "hardware": "NVIDIA L40S"}
        for name, column in columns.items():
            labels.append(Labels({METRIC_NAME: name, **own}))
            values.append(column)
        for bound, share in (("0.5", 0.9), ("+Inf", 1.0)):
            named = {METRIC_NAME: "kvitals_ttft_seconds_bucket", **own, "le": bound}
            labels.append(Labels(named))
            values.append(share * columns["kvitals_ttft_seconds_count"])
        for tenant, part in (("acme", 0.75), (HOSTILE, 0.25)):
            for what, name in (("prompt", "prompt"), ("output", "generation")):
                metric = f"kvitals_tenant_{what}_tokens_total"
                labels.append(Labels({METRIC_NAME: metric, **own, "tenant": tenant}))
                values.append(part * columns[f"kvitals_{name}_tokens_total"])
    return Source(Frame(times, np.array(values).T, labels))


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return Knowledge()


@pytest.fixture(scope="module")
def asked() -> ReviewRequest:
    end = BEGIN + 14 * DAY
    return ReviewRequest(
        source="two weeks by hand", start=end - 7 * DAY, since=BEGIN, end=end, first=BEGIN, gap=GAP,
        objectives={"ttft_p99": 0.5, "itl_p99": 0.2}, objectives_from="default", given=GpuPrices(every=2.0),
        incidents=lambda start, end: NOTHING, noted=lambda start, end: [ReviewEvent(end - 60.0, "config", "n", HOSTILE)],
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(asked: ReviewRequest, knowledge: Knowledge) -> Review:
    return review(ask_source(fortnight()), asked, knowledge)


def test_totals_are_those_of_the_numbers(made: Review) -> None:
    tokens = ENGINES * TOKENS["now"] * 12 * 3600 * 7
    assert made.total.gpu_hours == pytest.approx(ENGINES * 7 * 24, rel=1e-3)
    assert made.total.output_tokens == pytest.approx(tokens, rel=1e-3)
    assert made.total.usd == pytest.approx(2.0 * made.total.gpu_hours)
    assert made.total.busy_share == pytest.approx(0.5, abs=0.01)
    assert made.coverage.seen_share == pytest.approx(1.0)
    assert len(made.days) == 7
    assert made.goodput.objectives[0].within == pytest.approx(0.9, abs=1e-3)


def test_it_is_held_against_the_week_before_and_says_why(made: Review) -> None:
    one = made.compared
    assert one.best == 1 and one.before is not None and one.now is not None
    assert one.now / one.before == pytest.approx(0.75, rel=1e-2)
    assert sum(factor.tokens_per_gpu_hour for factor in one.factors) == pytest.approx(one.now - one.before)
    by_name = {factor.name: factor.share for factor in one.factors}
    assert min(by_name, key=lambda name: by_name[name]) == "hits"
    assert "25 % less" in made.story[1] and "cache hits" in made.story[1]


def test_the_bill_adds_up(made: Review) -> None:
    rows = made.chargeback.rows
    assert sum(row.usd_cents or 0 for row in rows) == made.chargeback.total_cents
    assert [row.tenant for row in rows] == ["acme", HOSTILE]
    assert sum(part.gpu_hours for part in made.ledger) == pytest.approx(made.total.gpu_hours)


def test_the_nights_are_told(made: Review) -> None:
    assert any("from 18:00 to 06:00 UTC" in sentence for sentence in made.story)


def test_gaps_are_said_and_not_counted(asked: ReviewRequest, knowledge: Knowledge) -> None:
    longer = replace(asked, start=asked.end - 28 * DAY)
    found = review(ask_source(fortnight()), longer, knowledge)
    assert found.coverage.seen_share == pytest.approx(0.5, abs=0.01)
    assert found.total.gpu_hours == pytest.approx(ENGINES * 14 * 24, rel=1e-3)
    assert "Only what was seen is counted: 50 %" in " ".join(found.story)


def test_nothing_seen_is_refused(asked: ReviewRequest, knowledge: Knowledge) -> None:
    early = replace(asked, start=BEGIN - 7 * DAY, since=BEGIN - 7 * DAY, end=BEGIN - DAY)
    with pytest.raises(NothingSeenError, match="no engine was watched"):
        review(ask_source(fortnight()), early, knowledge)


def test_questions_do_not_depend_on_the_number_of_engines(asked: ReviewRequest, knowledge: Knowledge) -> None:
    counts = []
    for only in ("e0", ""):
        source, asked_for = fortnight(), 0
        if only:
            frame = source._frame
            chosen = [i for i, labels in enumerate(frame.labels) if labels["engine"] == only]
            source = Source(Frame(frame.times, frame.values[:, chosen], [frame.labels[i] for i in chosen]))
        answer = ask_source(source)

        def ask(*question: object, answer: Callable[..., list[object]] = answer) -> list[object]:
            nonlocal asked_for
            asked_for += 1
            return answer(*question)

        review(ask, asked, knowledge)  # type: ignore[arg-type]
        counts.append(asked_for)
    assert counts[0] == counts[1]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_page_holds_all_it_needs_and_names_are_only_text(made: Review) -> None:
    html = page(made)
    tags = _Tags()
    tags.feed(html)
    assert "script" not in tags.tags and not tags.links and "url(" not in html
    assert "&lt;script&gt;" in html and {"svg", "table"} <= tags.tags


def test_markdown_has_whole_tables(made: Review) -> None:
    lines = [line for line in markdown(made).splitlines() if line.startswith("|")]
    assert "<script" not in "\n".join(lines)
    columns = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    for i, line in enumerate(lines):
        if re.fullmatch(r"\|( :?-+:? \|)+", line):
            assert columns[i - 1] == columns[i] == columns[i + 1]


def test_all_documents_are_written_and_an_earlier_review_is_replaced(
    made: Review, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvitals.ui.review.tables.has_parquet", lambda: False)  # to import it takes seconds
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "old.csv").write_text("old")
    write(made, tmp_path)
    assert msgspec.json.decode((tmp_path / "review.json").read_bytes(), type=Review) == made
    assert json.loads((tmp_path / "review.json").read_text())["version"] == "1"
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert {"steps.csv", "tenants.csv", "groups.csv", "parts.csv", "factors.csv"} <= names and "old.csv" not in names
    assert "\n'=" not in (tmp_path / "tables" / "tenants.csv").read_text()
    assert not list(tmp_path.glob(".review-*"))
