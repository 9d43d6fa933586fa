"""Two weeks of two engines, written down by hand, and the review of the second one."""

from __future__ import annotations

import numpy as np

from kvitals.app.derived_metrics.operating_families import ask_source
from kvitals.diagnoser.review.assemble import ReviewRequest, review
from kvitals.diagnoser.review.money import GpuPrices
from kvitals.diagnoser.review.result import Incidents, Review, ReviewEvent
from kvitals.rules.loader import Knowledge
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher

DAY, GAP = 86400.0, 600.0
BEGIN = 1_767_225_600.0
ENGINES = 2
TOKENS = {"before": 40.0, "now": 30.0}  # a second, by day
HOSTILE = "<script>alert(1)</script>|=cmd"
NOTHING = Incidents(rows=[], not_listed=0, detected=None, source="findings", missing="")


class Source:
    """Series in memory."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def select(self, matchers: list[Matcher], start: float, end: float) -> list[Frame]:
        of = self.frame
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


def asked() -> ReviewRequest:
    """What the review of the second week asks for."""
    end = BEGIN + 14 * DAY
    return ReviewRequest(
        source="two weeks by hand", start=end - 7 * DAY, since=BEGIN, end=end, first=BEGIN, gap=GAP,
        objectives={"ttft_p99": 0.5, "itl_p99": 0.2}, objectives_from="default", given=GpuPrices(every=2.0),
        incidents=lambda start, end: NOTHING, noted=lambda start, end: [ReviewEvent(end - 60.0, "config", "n", HOSTILE)],
    )  # fmt: skip


def reviewed(knowledge: Knowledge) -> Review:
    """The review of the second week."""
    return review(ask_source(fortnight()), asked(), knowledge)
