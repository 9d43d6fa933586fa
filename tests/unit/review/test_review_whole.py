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
from kvitals.diagnoser.review.result import Review
from kvitals.diagnoser.review.review_steps import _drop_uncounted, steps_within
from kvitals.rules.loader import Knowledge
from kvitals.series.types import Frame
from kvitals.ui.review.markdown import markdown
from kvitals.ui.review.page import page
from kvitals.ui.review.write import write
from tests.support.fortnight import BEGIN, DAY, ENGINES, HOSTILE, TOKENS, Source, asked, fortnight, reviewed


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return Knowledge()


@pytest.fixture(scope="module", name="asked")
def the_second_week() -> ReviewRequest:
    return asked()


@pytest.fixture(scope="module")
def made(knowledge: Knowledge) -> Review:
    return reviewed(knowledge)


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
    assert "Only observed time is counted: 50 %" in " ".join(found.story)


def test_nothing_seen_is_refused(asked: ReviewRequest, knowledge: Knowledge) -> None:
    early = replace(asked, start=BEGIN - 7 * DAY, since=BEGIN - 7 * DAY, end=BEGIN - DAY)
    with pytest.raises(NothingSeenError, match="no engine was watched"):
        review(ask_source(fortnight()), early, knowledge)


def test_a_step_whose_tokens_can_not_be_counted_is_no_idle_time() -> None:
    """One row beside a gap: the step had no tokens, and the GPU time was "100 % idle"."""
    data = {"seen": np.array([[24.0, 24.0], [6.0, 24.0]]), "output": np.array([[70.0, np.nan], [np.nan, np.nan]])}
    _drop_uncounted(data)
    assert data["seen"].tolist() == [[24.0, 24.0], [0.0, 24.0]]  # the second engine reports no tokens


def test_the_tokens_of_a_gap_are_counted_no_more_than_its_time(asked: ReviewRequest, knowledge: Knowledge) -> None:
    """An agent that was killed for 20 s: the tokens of the gap made 3.7 million tokens per GPU-hour of 1.4 million."""
    source = fortnight()
    noon = BEGIN + 12 * DAY + 12 * 3600.0
    there = (source.frame.times < noon + 900.0) | (source.frame.times > noon + 2700.0)
    gap = Source(Frame(source.frame.times[there], source.frame.values[there], source.frame.labels))
    day = replace(asked, start=noon - DAY / 2, since=noon - DAY / 2, end=noon + DAY / 2)
    of_whole, of_gap = (review(ask_source(one), day, knowledge) for one in (source, gap))
    whole, with_gap = of_whole.total, of_gap.total
    lost = whole.gpu_hours - with_gap.gpu_hours
    assert lost > 0.3 * ENGINES
    assert whole.output_tokens - with_gap.output_tokens == pytest.approx(lost * 3600.0 * TOKENS["now"], rel=0.02)
    kept = with_gap.output_tokens / whole.output_tokens
    assert kept < 0.98
    tenants = [sum(row.output_tokens for row in one.chargeback.rows) for one in (of_whole, of_gap)]
    observed = [one.goodput.objectives[0].observations for one in (of_whole, of_gap)]
    assert tenants[1] / tenants[0] == pytest.approx(kept, rel=1e-3)
    assert observed[1] / observed[0] == pytest.approx(kept, rel=1e-3)


@pytest.mark.parametrize("seconds", [31, 112, 600, 3601, 7200, 90_000, 7 * DAY])
@pytest.mark.parametrize("gap", [1.0, 5.0, 6.0, 60.0, 300.0])
def test_steps_hold_nearly_all_of_a_time(seconds: float, gap: float) -> None:
    start, step = steps_within(BEGIN + 0.37, BEGIN + 0.37 + seconds, gap)
    count = int((BEGIN + 0.37 + seconds - start) / step + 1e-6)
    slot = step / 4 if step < 240 else 60.0
    assert start >= BEGIN + 0.36
    assert count == 0 or gap > 60 or (start / slot) % 1 == pytest.approx(0.0, abs=1e-6) or step >= 3600
    assert count * step >= 0.79 * seconds or seconds < 1.25 * 4 * gap or gap >= 60


def test_questions_do_not_depend_on_the_number_of_engines(asked: ReviewRequest, knowledge: Knowledge) -> None:
    counts = []
    for only in ("e0", ""):
        source, asked_for = fortnight(), 0
        if only:
            frame = source.frame
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
