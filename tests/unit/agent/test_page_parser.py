"""The page parser: agrees with prometheus_client's, whatever the pages before; refuses what is no sound page."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvitals.agent.collectors import page_parser
from kvitals.agent.collectors.page_parser import (
    DEFAULT_LIMITS,
    ExpositionError,
    PageLayout,
    PageLimits,
    PageParser,
    PageSamples,
    Series,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "exposition"
RECORDED = sorted(FIXTURES.glob("*.prom"))
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Samples = dict[Series, float]


class Follower:
    """Keeps the samples of a target as the parser's pages say that they changed."""

    def __init__(self, limits: PageLimits = DEFAULT_LIMITS) -> None:
        self.parser = PageParser(limits)
        self.samples: Samples = {}
        self.page: PageSamples | None = None

    def take(self, body: bytes, content_type: str = "") -> Samples:
        page = self.page = self.parser.parse(body, content_type)
        if page.fresh:
            self.samples = {}
        for index, value in zip(page.indices.tolist(), page.values.tolist(), strict=True):
            self.samples[page.layout.series[index]] = value
        return self.samples


def oracle(body: bytes, parse=parse_text) -> Samples:
    """What prometheus_client reads, without `_created` samples and with the first of duplicates."""
    found: Samples = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = tuple(sorted((k, v) for k, v in sample.labels.items() if v))
                found.setdefault((sample.name, labels), sample.value)
    return found


def same(a: Samples, b: Samples) -> bool:
    return a.keys() == b.keys() and all(x == b[k] or (math.isnan(x) and math.isnan(b[k])) for k, x in a.items())


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_pages_read_as_prometheus_client_reads_them(path):
    body = path.read_bytes()
    assert same(Follower().take(body), oracle(body))


def test_one_recorded_page_after_another():
    follower = Follower()
    for path in RECORDED + RECORDED[::-1]:
        body = path.read_bytes()
        assert same(follower.take(body), oracle(body)), path


def test_an_unchanged_page_changes_nothing():
    body = RECORDED[0].read_bytes()
    parser = PageParser()
    first, second = parser.parse(body), parser.parse(body)
    assert second.layout is first.layout
    assert first.fresh and not second.fresh
    assert not second.indices.size and second.samples == first.samples


def test_created_samples_are_dropped_and_counted():
    body = (FIXTURES / "vllm-0.32-loaded.prom").read_bytes()
    layout = PageParser().parse(body).layout
    assert layout.created == body.count(b"_created{") + body.count(b"_created 1")
    assert not any(name.endswith("_created") for name, _ in layout.series)


def test_a_gauge_that_is_called_created_is_no_start_time():
    page = PageParser().parse(b"# TYPE kube_pod_created gauge\nkube_pod_created 5\n")
    assert page.values.tolist() == [5.0]


def test_types_come_from_the_page():
    body = (FIXTURES / "vllm-0.32-loaded.prom").read_bytes()
    layout = PageParser().parse(body).layout
    types = {name: type_ for (name, _), type_ in zip(layout.series, layout.types, strict=True)}
    assert types["vllm:iteration_tokens_total_bucket"] == "histogram"
    assert types["vllm:num_requests_running"] == "gauge"
    assert types["vllm:prompt_tokens_total"] == "counter"
    assert types["http_request_size_bytes_sum"] == "summary"


# Generated pages

names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True).filter(lambda n: not n.endswith("_created"))
label_names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,5}", fullmatch=True)
label_values = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
values = st.floats() | st.integers(-10, 10).map(float)


@st.composite
def registries(draw) -> CollectorRegistry:
    """What prometheus_client can expose: families of each type, with and without labels."""
    registry = CollectorRegistry()
    bases = draw(st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), unique=True, max_size=5))
    for base in bases:
        kind = draw(st.sampled_from((Counter, Gauge, Histogram, Summary)))
        labels = draw(st.lists(label_names.filter(lambda n: n not in ("le", "quantile")), unique=True, max_size=3))
        metric = kind(base, draw(label_values), labels, registry=registry)
        for _ in range(draw(st.integers(1, 3))):
            child = metric.labels(*(draw(label_values) for _ in labels)) if labels else metric
            number = draw(values)
            if kind is Gauge:
                child.set(number)
            elif kind is Counter:
                child.inc(abs(number) if math.isfinite(number) else 1.0)
            else:  # OpenMetrics has no negative sums
                child.observe(abs(number) if math.isfinite(number) else 1.0)
    return registry


@settings(deadline=None, max_examples=40)
@given(registries(), registries())
def test_generated_text_pages(first, second):
    follower = Follower()
    for registry in (first, second, first):
        body = generate_text(registry)
        if body:
            assert same(follower.take(body), oracle(body))


@settings(deadline=None, max_examples=40)
@given(registries(), registries())
def test_generated_openmetrics_pages(first, second):
    follower = Follower()
    for registry in (first, second, first):
        body = generate_openmetrics(registry)
        assert same(follower.take(body, OPENMETRICS), oracle(body, parse_openmetrics))


def test_exemplars_are_skipped():
    registry = CollectorRegistry()
    histogram = Histogram("h", "help", ["a"], registry=registry)
    counter = Counter("c", "help", registry=registry)
    follower = Follower()
    for i in range(3):
        histogram.labels('x # {y="z"} 1').observe(float(i), {"trace_id": f"abc{i}", "b": "hash # and brace }"})
        counter.inc(exemplar={"trace_id": str(i)})
        body = generate_openmetrics(registry)
        assert b"} # {" in body or b" # {" in body
        assert same(follower.take(body, OPENMETRICS), oracle(body, parse_openmetrics))


@pytest.mark.parametrize("line", ["c_total 1 # {", "c_total 1 #", "c_total 1 # {} x y z w", "c_total 1 # {a=}"])
def test_broken_exemplars_are_malformed(line):
    body = f"# TYPE c counter\n{line}\n# EOF\n".encode()
    with pytest.raises(ExpositionError) as caught:
        PageParser().parse(body, OPENMETRICS)
    assert caught.value.reason == "malformed"


# Edits of real pages: whatever came before, a page reads as if it had come alone


@pytest.fixture(scope="module", autouse=True)
def impatience():
    """Lines come to rest soon, so that a test sees it."""
    patience, page_parser._PATIENCE = page_parser._PATIENCE, 3
    yield
    page_parser._PATIENCE = patience


LOADED = b"\n".join((FIXTURES / "vllm-0.32-loaded.prom").read_bytes().split(b"\n")[:250]) + b"\n"
numbers = values.map(lambda x: repr(x).encode()) | st.sampled_from(
    [b"1_0", b"", b"x", b"1 2 3", b"0x1p3", b" 7", b"7 1700000000000", b"NaN", b"+Inf", b"1e999", b"\xff", b"1 # {} 2"]
)


def renumber(line: bytes, number: bytes) -> bytes:
    return line.rpartition(b" ")[0] + b" " + number


edits = st.one_of(
    st.tuples(st.just("number"), st.integers(0, 250), numbers),
    st.tuples(st.just("delete"), st.integers(0, 250), st.just(b"")),
    st.tuples(st.just("double"), st.integers(0, 250), st.just(b"")),
    st.tuples(st.just("swap"), st.integers(0, 250), st.just(b"")),
    st.tuples(st.just("insert"), st.integers(0, 250), st.binary(max_size=12)),
    st.tuples(st.just("replace"), st.integers(0, 250), st.sampled_from([b"5", b"# x", b"", b"a 1", b"a{} 1", b"a{b"])),
    st.tuples(st.just("cut"), st.integers(0, len(LOADED)), st.just(b"")),
    st.tuples(st.just("splice"), st.integers(0, len(LOADED)), st.binary(max_size=4)),
)


def edit(body: bytes, change: tuple[str, int, bytes]) -> bytes:
    kind, at, text = change
    if kind == "cut":
        return body[:at]
    if kind == "splice":
        return body[:at] + text + body[at:]
    lines = body.split(b"\n")
    at %= len(lines)
    if kind == "number":
        lines[at] = renumber(lines[at], text)
    elif kind == "replace":
        lines[at] = text
    elif kind == "delete":
        del lines[at]
    elif kind == "insert":
        lines.insert(at, text)
    elif kind == "double":
        lines.insert(at, lines[at])
    elif kind == "swap":
        lines[at - 1], lines[at] = lines[at], lines[at - 1]
    return b"\n".join(lines)


def alone(body: bytes) -> tuple[Samples, PageLayout, int] | tuple[str, int]:
    follower = Follower()
    try:
        samples = follower.take(body)
    except ExpositionError as error:
        return error.reason, error.line
    assert follower.page is not None
    return dict(samples), follower.page.layout, follower.page.timestamped


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(edits, max_size=6), min_size=1, max_size=6), st.booleans())
@example([[("replace", 20, b"5")]], False)  # a number alone, where a comment was
def test_the_result_does_not_depend_on_the_pages_before(rounds, onwards):
    follower = Follower()
    follower.take(LOADED)
    body = LOADED
    for round_ in rounds:
        if not onwards:
            body = LOADED
        for change in round_:
            body = edit(body, change)
        expected = alone(body)
        try:
            samples = follower.take(body)
        except ExpositionError as error:
            assert (error.reason, error.line) == expected
            continue
        page = follower.page
        assert page is not None and len(expected) == 3
        assert same(samples, expected[0])
        assert page.layout.series == expected[1].series and page.layout.types == expected[1].types
        assert (page.layout.duplicates, page.layout.created) == (expected[1].duplicates, expected[1].created)
        assert page.timestamped == expected[2]


def counters(**values: float) -> bytes:
    return "".join(f"{name} {value!r}\n" for name, value in values.items()).encode()


def test_lines_begin_to_move_and_come_to_rest(monkeypatch):
    monkeypatch.setattr(page_parser, "_PATIENCE", 5)
    follower = Follower()
    listed = []
    for i in range(40):
        a, b = float(i), float(i if 10 <= i < 20 else 0)
        samples = follower.take(counters(a=a, b=b, c=1.0))
        assert samples == {("a", ()): a, ("b", ()): b, ("c", ()): 1.0}
        assert follower.page is not None
        listed.append(follower.page.indices.tolist())
    assert listed[0] == [0, 1, 2]
    assert listed[5] == [0] and listed[15] == [0, 1] and listed[35] == [0]
    assert follower.page.indices is follower.parser.parse(counters(a=9.0, b=0.0, c=1.0)).indices


def test_what_moves_is_remembered_across_layouts():
    parser = PageParser()
    for i in range(3):
        parser.parse(counters(a=i, b=1.0))
    assert parser.parse(counters(a=3.0, b=1.0, c=1.0)).fresh
    assert parser.parse(counters(a=4.0, b=1.0, c=1.0)).indices.tolist() == [0]


@settings(deadline=None)
@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_junk_never_crashes_it(body):
    try:
        PageParser().parse(body)
    except ExpositionError as error:
        assert error.reason and len(str(error)) > 20


# What is accepted, and how


@pytest.mark.parametrize(
    ("line", "series", "value"),
    [
        (b"a 1", ("a", ()), 1.0),
        (b"a\t1", ("a", ()), 1.0),
        (b"  a  1  ", ("a", ()), 1.0),
        (b"a{} 1", ("a", ()), 1.0),
        (b'a{b="c"}1', ("a", (("b", "c"),)), 1.0),
        (b'a{b="c",} 1', ("a", (("b", "c"),)), 1.0),
        (b'a { b = "c" , d = "e" } 1', ("a", (("b", "c"), ("d", "e"))), 1.0),
        (b'a{z="1",b="2"} 1', ("a", (("b", "2"), ("z", "1"))), 1.0),
        (b'a{b=""} 1', ("a", ()), 1.0),
        (b'a{b="x\\\\y\\"z\\nw\\d"} 1', ("a", (("b", 'x\\y"z\nw\\d'),)), 1.0),
        (b'a{b="} 2"} 1', ("a", (("b", "} 2"),)), 1.0),
        ('a{b="é😀"} 1'.encode(), ("a", (("b", "é😀"),)), 1.0),
        (b"a +Inf", ("a", ()), math.inf),
        (b"a -Inf", ("a", ()), -math.inf),
        (b"a 1e-3", ("a", ()), 0.001),
        (b"a 5 1700000000000", ("a", ()), 5.0),
        (b"a:b_c 1", ("a:b_c", ()), 1.0),
    ],
)
def test_lines_that_are_accepted(line, series, value):
    page = PageParser().parse(b"# TYPE x counter\n" + line + b"\n")
    assert page.layout.series == [series]
    assert page.values.tolist() == [value]


@pytest.mark.parametrize(
    "line",
    [
        b"a",
        b"a ",
        b"a x",
        b"a 1_0",
        b"a 1 2 3",
        b"a 1 x",
        b"a{b=} 1",
        b'a{b="c} 1',
        b'a{b="c"',
        b'a{b="c" d="e"} 1',
        b'a{b="c",b="d"} 1',
        b"a{,} 1",
        b'{a="b"} 1',
        b"1a 1",
        b"a 0x10",
        b'a{1b="c"} 1',
        b"a 1 # {} 2",
    ],
)
def test_lines_that_spoil_a_page(line):
    with pytest.raises(ExpositionError) as caught:
        PageParser().parse(b"good 1\n" + line + b"\n")
    assert (caught.value.reason, caught.value.line) == ("malformed", 2)


def test_nan_is_a_value_and_no_stale_marker():
    page = PageParser().parse(b"a NaN\n")
    assert math.isnan(page.values[0])
    assert page.values.tobytes() != b"\x02\x00\x00\x00\x00\x00\xf0\x7f"


def test_the_first_of_duplicates_counts():
    parser = PageParser()
    page = parser.parse(b'a{b="1",c="2"} 1\na{c="2",b="1"} 2\n')
    assert page.values.tolist() == [1.0] and page.layout.duplicates == 1
    page = parser.parse(b'a{b="1",c="2"} 1\na{c="2",b="1"} 3\n')
    assert not page.indices.size and page.layout.duplicates == 1


def test_timestamps_of_dropped_samples_do_not_count():
    page = b"# TYPE a counter\n# TYPE a_total counter\na_total 1\na_created 5\n"
    timed = page.replace(b"a_created 5", b"a_created 5 1700000000000")
    parser = PageParser()
    assert [parser.parse(body).timestamped for body in (page, timed, page, timed)] == [0, 0, 0, 0]


def test_timestamps_are_ignored_and_counted():
    parser = PageParser()
    assert parser.parse(b"a 1 1700000000000\nb 2\n").timestamped == 1
    page = parser.parse(b"a 1 1700000001000\nb 3 1700000001000\n")
    assert not page.fresh and page.timestamped == 2
    page = parser.parse(b"a 1\nb 3 1700000001000\n")
    assert not page.fresh and page.timestamped == 1


@pytest.mark.parametrize(
    ("body", "content_type", "reason"),
    [
        (b"", "", "empty"),
        (b"<!DOCTYPE html><html><body>hello</body></html>\n", "text/html; charset=utf-8", "not_metrics"),
        (b"\n  <html>\n", "", "not_metrics"),
        (b'{"status": "ok"}\n', "application/json", "not_metrics"),
        (b"[]", "", "not_metrics"),
        (b"404 page not found", "text/plain", "not_metrics"),
        (b"404 page not found", "text/html", "not_metrics"),
        (b"Not Found\n", "text/plain", "not_metrics"),
        (b"\x0a\x05hello", "application/vnd.google.protobuf; proto=x", "not_metrics"),
        (b"a 1\nb", "", "truncated"),
        (b"a 1\nb 2", "", "truncated"),
        (b"a 1\n", OPENMETRICS, "truncated"),
        (b"a 1\n# EOF\nb 2\n# EOF\n", OPENMETRICS, "malformed"),
        (b'a{b="\xff"} 1\n', "", "bad_encoding"),
        ("a 1\n".encode("utf-16"), "", "not_metrics"),
        (b"# HELP a \xff\na 1\n", "", "bad_encoding"),
    ],
)
def test_pages_that_are_none(body, content_type, reason):
    with pytest.raises(ExpositionError) as caught:
        PageParser().parse(body, content_type)
    assert caught.value.reason == reason
    assert re.search(r"[.]$", str(caught.value)) and len(str(caught.value)) > 30


@pytest.mark.parametrize(
    ("limits", "body", "reason"),
    [
        (PageLimits(page_bytes=10), b"a 1\n" * 3, "too_large"),
        (PageLimits(line_bytes=20), b"a 1\nb" + b"0" * 20 + b" 1\n", "line_too_long"),
        (PageLimits(samples=2), b"a 1\nb 1\nc 1\n", "too_many_samples"),
        (PageLimits(labels=1), b'a{b="1",c="2"} 1\n', "too_many_labels"),
    ],
)
def test_limits(limits, body, reason):
    with pytest.raises(ExpositionError) as caught:
        PageParser(limits).parse(body)
    assert caught.value.reason == reason


def test_of_one_name_the_first_series_are_kept_and_the_rest_is_counted():
    """20,000 series that never repeat took 65 MB, of which a quarter was ever looked at."""
    parser = PageParser(PageLimits(name_series=2))
    page = parser.parse(b'a{n="1"} 1\na{n="2"} 2\na{n="3"} 3\nb 4\n')
    assert page.layout.series == [("a", (("n", "1"),)), ("a", (("n", "2"),)), ("b", ())]
    assert (page.values.tolist(), page.layout.crowded, page.samples) == ([1.0, 2.0, 4.0], 1, 4)
    later = parser.parse(b'a{n="1"} 1\na{n="2"} 2\na{n="3"} 9\nb 5\n')
    assert later.layout is page.layout and later.values.tolist()[-1] == 5.0
    with pytest.raises(ExpositionError):  # what is not kept is still read
        parser.parse(b'a{n="1"} 1\na{n="2"} 2\na{n="3"} x\nb 4\n')


def test_a_line_that_grows_beyond_the_limit_is_refused_on_the_fast_path_too():
    parser = PageParser(PageLimits(line_bytes=20))
    parser.parse(b"abc 1\nd 2\n")
    with pytest.raises(ExpositionError) as caught:
        parser.parse(b"abc 1" + b"0" * 20 + b"\nd 2\n")
    assert caught.value.reason == "line_too_long"


def test_a_bad_page_leaves_the_last_good_one_as_it_was():
    follower = Follower()
    follower.take(b"a 1\nb 2\n")
    for bad in (b"a 1\nb x\n", b"a 1\nb", b"", b"a 5\nb 2 2 2\n"):
        with pytest.raises(ExpositionError):
            follower.take(bad)
    assert follower.take(b"a 1\nb 3\n") == {("a", ()): 1.0, ("b", ()): 3.0}
    assert follower.page is not None and not follower.page.fresh


def test_time_spent_on_a_hostile_line_is_bounded():
    """No backtracking: half a megabyte of openings, quotes and commas is refused in no time."""
    limits = PageLimits(line_bytes=2**20)
    for text in (b'a{b="' + b"\\" * 500_000, b"a{" + b'b="c",' * 80_000, b"a 1 # {" + b'"' * 500_000, b"a" * 500_000):
        with pytest.raises(ExpositionError):
            PageParser(limits).parse(b"good 1\n" + text + b"\n", OPENMETRICS)


def test_series_share_the_texts_of_their_labels() -> None:
    """20,000 series of a page had a text of their own for the name, each label and each value: 6 MB."""
    page = "".join(f'm{{engine="number zero",n="{n}"}} 1\n' for n in range(100)).encode()
    series = PageParser().parse(page).layout.series
    for part in ("name", "label", "value"):
        texts = [{"name": name, "label": labels[0][0], "value": labels[0][1]}[part] for name, labels in series]
        assert len({id(text) for text in texts}) == 1, part
