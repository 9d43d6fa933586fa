"""What must hold whatever a target answers. A check raises AssertionError, or what the code under it raised."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from functools import cache

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from kvitals.agent.collectors.page_parser import DEFAULT_LIMITS, ExpositionError, PageParser, Series
from kvitals.agent.collectors.page_reading import MAX_LABEL
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import MAX_RANKS, Translator
from kvitals.rules.engine_map import EngineMap, load_map, systems
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher, MatchOp, is_stale
from kvitals.series.window import Window
from tests.fuzz.mutations import FIXTURES, pages

REASONS = {
    "empty", "not_metrics", "too_large", "truncated", "bad_encoding", "line_too_long", "too_many_lines",
    "too_many_samples", "too_many_names", "too_many_labels", "malformed",
}  # fmt: skip
TARGET_SERIES = 3000
_RESTARTS = Matcher(METRIC_NAME, MatchOp.EQ, "kvitals_engine_restarts_total")
_EVERYTHING = (Matcher(METRIC_NAME, MatchOp.RE, ".+"),)

Samples = dict[Series, float]


def parser(session: bytes) -> None:
    """A page parsed after others is what it is alone, and what prometheus_client reads where it can read it."""
    follower, samples = PageParser(), Samples()
    for page in pages(session):
        alone = _parse(PageParser(), page, {})
        after = _parse(follower, page, samples)
        assert type(alone) is type(after), (alone, after)
        if isinstance(alone, str) or isinstance(after, str):
            assert alone == after, "the reason depends on the pages before"
            continue
        assert _same(alone, after), "the samples depend on the pages before"
        samples = after
        _compare_with_oracle(page, alone)


def _parse(parser: PageParser, page: bytes, before: Mapping[Series, float]) -> Samples | str:
    """All samples of a page, or why there are none."""
    try:
        parsed = parser.parse(page)
    except ExpositionError as error:
        assert error.reason in REASONS and len(str(error)) < 1000
        return error.reason
    assert parsed.samples <= DEFAULT_LIMITS.samples
    series = parsed.layout.series
    assert len(set(series)) == len(series) == len(parsed.layout.types)
    assert all(len(labels) <= DEFAULT_LIMITS.labels for _, labels in series)
    samples = {} if parsed.fresh else dict(before)
    samples |= {series[i]: v for i, v in zip(parsed.indices.tolist(), parsed.values.tolist(), strict=True)}
    return samples


def _compare_with_oracle(page: bytes, ours: Samples) -> None:
    try:
        families = list(text_string_to_metric_families(page.decode()))
    except Exception:  # it refuses what we take, or falls over it: then there is nothing to compare with
        return
    theirs: Samples = {}
    for family in families:
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if v))
            theirs.setdefault((sample.name, labels), float(sample.value))
    a, b = _without_total(ours), _without_total(theirs)
    if a is None or b is None:
        return
    missing = {s for s in b.keys() - a.keys() if not s[0].endswith("_created")}
    more = a.keys() - b.keys()
    assert not missing and not more, (sorted(missing)[:3], sorted(more)[:3])
    assert _same({s: b[s] for s in a}, a)


def _without_total(samples: Samples) -> Samples | None:
    """prometheus_client adds `_total` to the names of counters. None where that could be two series."""
    found = {(name.removesuffix("_total"), labels): value for (name, labels), value in samples.items()}
    return found if len(found) == len(samples) else None


def _same(a: Samples, b: Samples) -> bool:
    return a.keys() == b.keys() and all(x == b[k] or (math.isnan(x) and math.isnan(b[k])) for k, x in a.items())


class _Target:
    """One target in a window that several share."""

    def __init__(self, window: Window, port: int) -> None:
        self.window = window
        self.key = f"http://h:{port}/metrics"
        self.parser = PageParser()
        self.translator = Translator(window, self.key, Identity(f"h:{port}"), _maps())
        self.folded: set[Labels] = set()  # families' series that several raw ones made up once

    def take(self, t: float, page: bytes) -> str:
        try:
            parsed = self.parser.parse(page)
        except ExpositionError as error:
            return self.translator.bad(t, error.reason, str(error), 0.1).reason
        reason = self.translator.good(t, parsed, 0.1, len(page)).reason
        reading = self.translator.reading
        raw = Counter(meaning.labels for meaning in reading.meanings if meaning) if reading else Counter[Labels]()
        self.folded |= {labels for labels, times in raw.items() if times > 1}
        return reason

    def now(self) -> dict[Labels, float]:
        """The newest samples of its families."""
        found: dict[Labels, float] = {}
        frame = self.window.group(self.key).select(_EVERYTHING, -math.inf, math.inf)
        if frame is not None:
            here = ~is_stale(frame.values[-1])
            found = {x: v for x, v, h in zip(frame.labels, frame.values[-1].tolist(), here.tolist(), strict=True) if h}
        return found


def families(session: bytes) -> None:
    """Any target's pages are taken over or refused; its share is not exceeded, and its neighbour is not touched."""
    window = Window(600.0, 10 * TARGET_SERIES, TARGET_SERIES)
    hostile, good = _Target(window, 1), _Target(window, 2)
    expected, page = _good_page()
    for number, bad in enumerate(pages(session)):
        t = 1000.0 + 5.0 * number
        reason = hostile.take(t, bad)
        assert reason in REASONS | {"ok", "no_engine"}
        assert good.take(t, page) == "ok"
        now = good.now()
        assert now.keys() == expected.keys()
        np.testing.assert_array_equal(list(now.values()), [expected[x] for x in now])
        hostile.translator.learn("version endpoint", {}, {"version": f"0.{number}.1"})
    _check_limits(window, hostile)
    _check_recovery(hostile, 1000.0 + 5.0 * 1000)


def _check_limits(window: Window, hostile: _Target) -> None:
    for name in (hostile.key, f"{hostile.key} status"):
        assert window.group(name).series <= TARGET_SERIES
    frames = window.select(_EVERYTHING, -math.inf, math.inf)
    labels = [x for frame in frames for x in frame.labels]
    assert max(len(value) for x in labels for value in x.values()) <= MAX_LABEL + len("h:1/")
    assert all(np.diff(frame.times).min(initial=1.0) > 0 for frame in frames)
    restarts = [f.values for f in window.select([_RESTARTS], -math.inf, math.inf)]
    if not any((np.nan_to_num(cells) > 0).any() for cells in restarts):
        _check_sums(window.group(hostile.key).select(_EVERYTHING, -math.inf, math.inf), hostile.folded)
    engines = {x["engine"] for x in labels if x.name == "kvitals_target_up"}
    assert len(engines) <= MAX_RANKS + 3


def _check_sums(frame: Frame | None, folded: Set[Labels]) -> None:
    """A sum that falls while its count does not would be taken for a reset, and all of it added. Of several raw series
    that became one, some may be gone."""
    place = {labels: i for i, labels in enumerate(frame.labels)} if frame else {}
    for labels, column in place.items():
        count = place.get(labels.with_(__name__=labels.name.removesuffix("_sum") + "_count"))
        if frame is None or count is None or not labels.name.endswith("_sum") or labels in folded:
            continue
        both = frame.values[:, [column, count]]
        with np.errstate(invalid="ignore"):
            steps = np.diff(both, axis=0)
        # A series that comes again after a gap may begin anew.
        steps[is_stale(both).any(axis=1)[1:]] = np.nan
        assert not ((steps[:, 0] < 0) & (steps[:, 1] >= 0)).any(), (str(labels), both.tolist())


def _check_recovery(hostile: _Target, t: float) -> None:
    """A good page after all of it, when the past is forgotten, is read as if nothing had been."""
    expected, page = _good_page()
    for i in range(3):
        assert hostile.take(t + 100.0 * i, page) == "ok"
    now = {x.with_(engine="h:2/0"): v for x, v in hostile.now().items()}
    missing = expected.keys() - now.keys()
    assert not missing, sorted(map(str, missing))[:5]
    more = {x for x in now.keys() - expected.keys() if "adapter" not in x.name}
    assert not more, sorted(map(str, more))[:5]


@cache
def _good_page() -> tuple[dict[Labels, float], bytes]:
    lines = (FIXTURES / "vllm-0.32-loaded.prom").read_bytes().splitlines(keepends=True)
    page = b"".join(line for line in lines if line.startswith((b"vllm:num", b"vllm:kv", b"vllm:time_to", b"process_")))
    target = _Target(Window(600.0, 10_000), 2)
    assert target.take(1.0, page) == "ok"
    return target.now(), page


@cache
def _maps() -> list[EngineMap]:
    return [load_map(system) for system in systems()]


CHECKS = {"parser": parser, "families": families}
