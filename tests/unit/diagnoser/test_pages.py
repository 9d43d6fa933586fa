"""Families from engines' own metrics by rewritten queries, beside what the agent makes of the same pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import Translator
from kvitals.agent.records import ScrapeRecord, decode
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.sources.engine_pages import LOCAL, OBJECTIVE, STATE, Pages, read_pages
from kvitals.diagnoser.sources.prometheus import PrometheusQuery, PrometheusSeries
from kvitals.diagnoser.sources.served import ServedFamilies
from kvitals.diagnoser.unusable import UNUSABLE
from kvitals.rules.engine_map import load_map, systems
from kvitals.rules.loader import SIGNAL_PREFIX, load
from kvitals.series.promql import PromQLError, Selector, evaluate, expand, parse, selectors
from kvitals.series.recordings import CaptureReader
from kvitals.series.types import METRIC_NAME, STALE, Frame, Labels, Matcher, MatchOp, SeriesSource, is_stale
from kvitals.series.window import Window

ROOT = Path(__file__).parents[2]
CAPTURED = ROOT / "fixtures" / "exposition" / "captured"
PAGES = sorted(path for system in ("vllm-0", "sglang-0") for path in CAPTURED.glob(f"{system}*.prom"))
RECORDINGS = [ROOT.parent / "app" / "demo" / f"{name}.kvcap" for name in ("heavy_tenant", "working_set", "few_slots")]
RECORDINGS += [ROOT / "captures" / "others" / "sglang_working_set.kvcap"]
KNOWLEDGE = load()
ADDRESS = "10.0.0.1:8000"
IDENTITY = ("engine",)  # a series that does not name its model has none; the agent gives it that of its page


class Raw:
    """The raw series of one target, as a Prometheus has them, and that Prometheus."""

    def __init__(self) -> None:
        self._parser = PageParser()
        self._values: dict[Labels, float] = {}
        self._rows: list[tuple[float, dict[Labels, float]]] = []

    def page(self, t: float, body: bytes, content_type: str = "") -> None:
        page = self._parser.parse(body, content_type)
        own = {"instance": ADDRESS, "job": "engines"}
        known = [Labels({METRIC_NAME: name, **dict(labels), **own}) for name, labels in page.layout.series]
        self._values |= {known[i]: v for i, v in zip(page.indices.tolist(), page.values.tolist(), strict=True)}
        up = {Labels({METRIC_NAME: "up", **own}): 1.0}
        self._rows.append((t, {labels: self._values[labels] for labels in known} | up))

    def failed(self, t: float) -> None:
        """A scrape that failed: Prometheus marks the series of the page as stale."""
        self._rows.append((t, {Labels({METRIC_NAME: "up", "instance": ADDRESS, "job": "engines"}): 0.0}))

    def gone(self, t: float) -> None:
        """The target is gone, and its `up` with it."""
        self._rows.append((t, {}))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(labels.name for _, row in self._rows for labels in row)

    @cache  # noqa: B019 (it lives as long as its test)
    def _frame(self) -> Frame:
        labels = list(dict.fromkeys(labels for _, row in self._rows for labels in row))
        values = np.array([[row.get(one, STALE) for one in labels] for _, row in self._rows])
        return Frame(np.array([t for t, _ in self._rows]), values, labels)

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        frame = self._frame()
        rows = (frame.times >= start) & (frame.times <= end)
        columns = [i for i, labels in enumerate(frame.labels) if all(m.matches(labels) for m in matchers)]
        if not columns or not rows.any():
            return []
        return [Frame(frame.times[rows], frame.values[rows][:, columns], [frame.labels[i] for i in columns])]

    def one(self, question: PrometheusQuery) -> list[PrometheusSeries]:
        result = evaluate(question.text, self, question.end)
        assert not isinstance(result, float)
        return [PrometheusSeries(dict(labels), value=(question.end, repr(value))) for labels, value in result]

    def ask(self, questions: Sequence[PrometheusQuery]) -> list[list[PrometheusSeries]]:
        return [self.one(question) for question in questions]


def dialect(raw: Raw, at: float) -> Pages:
    return read_pages(raw, raw.names, at, lambda model, role: [("ttft_p99", 2.0, "default")])  # type: ignore[arg-type]


def agent() -> tuple[Window, Translator]:
    window = Window(100_000.0, 100_000)
    return window, Translator(window, "page", Identity(ADDRESS), [load_map(system) for system in systems()])


def by_series(source: SeriesSource, text: str, at: float, extra: Sequence[str]) -> dict[Labels, float]:
    result = evaluate(text, source, at)
    assert not isinstance(result, float)
    return {labels.keep((*IDENTITY, *extra)): value for labels, value in result}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_the_values_that_the_agent_gives_it(path: Path) -> None:
    raw, (window, translator) = Raw(), agent()
    raw.page(1000.0, path.read_bytes())
    translator.good(1000.0, PageParser().parse(path.read_bytes()), 0.0, 0)
    pages = dialect(raw, 1000.0)
    compared = 0
    for frame in window.select([Matcher(METRIC_NAME, MatchOp.RE, "kvitals_.+")], 0.0, 2000.0):
        gone = is_stale(frame.values)
        for i, labels in enumerate(frame.labels):
            if labels.name in LOCAL or gone[-1, i] or not pages.has(labels.name):
                continue
            matchers = tuple(
                Matcher(n, MatchOp.EQ, v) for n, v in labels.items() if n not in (METRIC_NAME, "model", *IDENTITY)
            )
            asked = pages.translate(Selector(labels.name, matchers))
            assert asked is not None
            found = by_series(raw, str(asked), 1000.0, [n for n in labels if n not in (METRIC_NAME, "model")])
            wanted = labels.drop(METRIC_NAME, "model")
            assert found.get(wanted) == pytest.approx(float(frame.values[-1, i]), nan_ok=True), (str(asked), found)
            compared += 1
    assert compared > 100


@pytest.mark.parametrize(
    ("running", "end", "expected"),
    [
        (3, Raw.failed, [("scrape failed", 0.0)]),
        (0, Raw.failed, [("scrape failed", 0.0)]),
        (3, Raw.gone, [("target gone", 0.0)]),
        (0, Raw.gone, []),
    ],
)
def test_an_engine_that_was_idle_when_its_target_went_was_taken_away(
    running: int, end: Callable[[Raw, float], None], expected: list[tuple[str, float]]
) -> None:
    """Every engine of the last hour was "the last scrape failed", a page, also after a scale-in."""
    raw = Raw()
    body = re.sub(
        r"(?m)^(vllm:num_requests_running\{[^\n]*\}) .*$",
        rf"\1 {running}.0",
        (CAPTURED / "vllm-0.32-nixl-decode-after-transfers.prom").read_text(),
    )
    raw.page(100.0, body.encode())
    end(raw, 105.0)
    pages = dialect(raw, 110.0)
    assert told(pages, 110.0) == expected


def told(pages: Pages, at: float) -> list[tuple[str, float]]:
    """The reason for which it is down, empty where it is not, and whether it is up, of each engine."""
    engines = pages.local(ENTITIES, at) or []
    reasons = {labels["engine"]: labels["reason"] for labels, _ in pages.local(STATE, at) or []}
    return [(reasons.get(labels["engine"], ""), up) for labels, up in engines]


@pytest.mark.parametrize("end", [Raw.failed, Raw.gone])
def test_an_engine_that_is_down_was_there_before(end: Callable[[Raw, float], None]) -> None:
    """Seen: "for at least 984 s" of an engine that had died 100 s ago, with a course that was down all the time."""
    raw = Raw()
    body = (CAPTURED / "vllm-0.32-nixl-decode-after-transfers.prom").read_text()
    body = re.sub(r"(?m)^(vllm:num_requests_running\{[^\n]*\}) .*$", r"\1 3.0", body)
    for t in range(100, 401, 5):
        raw.page(float(t), body.encode())
    for t in range(405, 500, 5):
        end(raw, float(t))
    pages = dialect(raw, 500.0)
    assert [told(pages, at)[0][1] for at in (200.0, 395.0, 410.0, 500.0)] == [1.0, 1.0, 0.0, 0.0]
    assert told(pages, 395.0)[0][0] == ""


class Pool(Raw):
    """Engines of one pool with requests, each scraped from one time to another, every 15 s."""

    def __init__(self, **scraped: tuple[float, float]) -> None:
        super().__init__()
        for t in range(0, 3601, 15):
            there = [name for name, (begin, end) in scraped.items() if begin <= t <= end]
            row = {series: value for name in there for series, value in self._engine(name).items()}
            self._rows.append((float(t), row))

    @staticmethod
    def _engine(name: str) -> dict[Labels, float]:
        own = {"instance": f"{name}:8000", "job": "vllm", "pool": "chat"}
        running = {METRIC_NAME: "vllm:num_requests_running", "engine": "0", "model_name": "m", **own}
        return {Labels(running): 4.0, Labels({METRIC_NAME: "up", **own}): 1.0}


@pytest.mark.parametrize(
    ("pool", "down"),
    [
        (Pool(a=(0, 3600), b=(0, 1800), c=(1740, 3600)), []),  # a rollout without draining
        (Pool(a=(0, 3600), b=(0, 2400), c=(1680, 3600)), []),  # one that takes its time, as of a large pool
        (Pool(a=(0, 3600), b=(0, 1800)), ["b:8000/0"]),  # a crash half an hour ago
        (Pool(a=(0, 3600), b=(0, 1800), c=(1740, 3600), d=(0, 3000)), ["b:8000/0", "d:8000/0"]),  # and a crash since
    ],
)
def test_an_engine_that_another_one_replaced_is_not_down(pool: Pool, down: list[str]) -> None:
    """Seen: "Restart the engine" for pods that a rollout had replaced 11 minutes ago."""
    engines = dialect(pool, 3600.0).local(ENTITIES, 3600.0) or []
    assert sorted(labels["engine"] for labels, up in engines if not up) == down


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_all_that_is_on_a_page_can_be_asked_for(path: Path) -> None:
    raw, (window, translator) = Raw(), agent()
    raw.page(1000.0, path.read_bytes())
    translator.good(1000.0, PageParser().parse(path.read_bytes()), 0.0, 0)
    pages = dialect(raw, 1000.0)
    told = {labels.name for frame in window.select([Matcher(METRIC_NAME, MatchOp.RE, "kvitals_.+")], 0, 1e9)
            for labels in frame.labels}  # fmt: skip
    from_page = {name for name in told if not pages.why_not(name) and name not in (*LOCAL, UNUSABLE)}
    lost = {name for name in from_page if not pages.has(name)}
    assert not lost


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf", "1e308", "-50"])
def test_values_that_cannot_be_true_are_left_out_without_an_agent(number: str) -> None:
    raw = Raw()
    for second in range(20):
        text = re.sub(r"(?m)^([^#\s]\S*(?:\{[^}]*\})?) \S+$", rf"\1 {number}", PAGES[0].read_text())
        raw.page(1000.0 + second, text.encode())
    pages = dialect(raw, 1019.0)
    served = ServedFamilies(raw, pages)  # type: ignore[arg-type]
    windows = EvaluationSpan(1019.0, 19.0, 19.0).windows
    for name in ("traffic", "running_avg", "waiting_avg", "kv_usage_p90"):
        signal = KNOWLEDGE.signals[name]
        expr = parse(expand(signal.expr, windows.values(signal.window, signal.scope)))
        assert served.instant([expr], 1019.0)[expr] == [], name


def test_a_share_in_percent_is_left_out_without_an_agent() -> None:
    raw = Raw()
    text = re.sub(
        r"(?m)^(vllm:kv_cache_usage_perc\{[^}]*\}) \S+$",
        r"\1 40",
        (CAPTURED / "vllm-0.32-nixl-decode-after-transfers.prom").read_text(),
    )
    assert " 40\n" in text
    raw.page(1000.0, text.encode())
    asked = dialect(raw, 1000.0).translate(Selector("kvitals_kv_usage_ratio"))
    assert by_series(raw, str(asked), 1000.0, ()) == {}


def test_what_only_an_agent_knows_says_so() -> None:
    raw = Raw()
    raw.page(1000.0, PAGES[0].read_bytes())
    pages = dialect(raw, 1000.0)
    assert pages.why_not("kvitals_tail_requests") == "kvitals_tail_requests needs the agent"
    assert not pages.has("kvitals_tail_requests")
    assert pages.why_not("kvitals_ttft_seconds_bucket") == ""
    assert pages.why_not("kvitals_steps_total") == ""  # on pages of other engines; no agent would find it here


def _played(path: Path) -> tuple[Raw, Window, float]:
    raw, (window, translator), parser, last = Raw(), agent(), PageParser(), 0.0
    with CaptureReader.open(path) as reader:
        for captured in reader:
            record = decode(captured)
            if isinstance(record, ScrapeRecord) and record.ok:
                raw.page(record.t, record.body, record.content_type)
                translator.good(record.t, parser.parse(record.body, record.content_type), 0.0, 0)
                last = record.t
    return raw, window, last


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_signals_of_a_recording_are_the_same_without_an_agent(path: Path) -> None:
    raw, window, last = _played(path)
    span = EvaluationSpan(last, 60.0, 90.0)
    served = ServedFamilies(raw, dialect(raw, span.at))  # type: ignore[arg-type]
    compared, differ = 0, {}
    for name, signal in KNOWLEDGE.signals.items():
        expr = parse(expand(signal.expr, span.windows.values(signal.window, signal.scope)))
        read = {use.name for use in selectors(expr)}
        if any(metric.startswith(SIGNAL_PREFIX) for metric in read) or any(served.dialect.why_not(m) for m in read):
            continue
        if OBJECTIVE in read:
            continue  # from a configuration, which this agent has none of
        try:
            theirs = by_series(window, str(expr), span.at, ())
        except (AssertionError, PromQLError):
            continue
        ours = {labels.keep(IDENTITY): value for labels, value in served.instant([expr], span.at)[expr]}
        compared += bool(theirs)
        if ours != pytest.approx(theirs, rel=1e-9, nan_ok=True):
            differ[name] = (ours, theirs)
    assert compared > 25
    assert set(differ) <= DIFFER.keys(), {name: both for name, both in differ.items() if name not in DIFFER}


DIFFER = {
    "telemetry_flags_off": "which flags are off is worked out from the whole page, by the agent alone",
    "ready_seconds": "since when an engine answers is told by the scrape itself, which is not a page",
    "replicas_removed": "who is there is told by the scrape itself, which is not a page",
}
"""Signals that differ, and why."""


@pytest.mark.parametrize(
    ("ranks", "engine"),
    [
        ({}, f"{ADDRESS}/0"),
        ({"engine": "1"}, f"{ADDRESS}/1"),
        ({"ReplicaId": "r"}, f"{ADDRESS}/r"),
        ({"ReplicaId": "r", "engine": "1"}, f"{ADDRESS}/r/1"),
        ({"engine": "1", "instance": "serving/chat-7f9c"}, "serving/chat-7f9c/1"),
        ({"instance": "serving/chat-7f9c"}, "serving/chat-7f9c/0"),
        ({"ReplicaId": "r", "instance": "serving/chat-7f9c"}, "serving/chat-7f9c/r"),
    ],
)
def test_an_engine_is_named_by_its_page_and_its_ranks(ranks: dict[str, str], engine: str) -> None:
    name = "vllm:num_requests_running"
    frame = Frame(np.array([1.0]), np.array([[3.0]]), [Labels({METRIC_NAME: name, "instance": ADDRESS, **ranks})])
    pages = Pages(frozenset({name}), [load_map("vllm")], None, {})

    class One:
        def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
            return [frame] if all(m.matches(frame.labels[0]) for m in matchers) else []

    ((labels, value),) = evaluate(pages.leaf(Selector("kvitals_requests_running")), One(), 1.0)
    assert (labels["engine"], value) == (engine, 3.0)
