from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as text_of_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from kvitals.agent.exports.metrics_page import prefers_openmetrics, render, render_openmetrics
from kvitals.agent.requests.request_families import Exemplar
from kvitals.rules.loader import load
from kvitals.rules.model import Family
from kvitals.series.types import STALE, Frame, Labels, Matcher
from kvitals.series.window import Window

FAMILIES = {
    "kvitals_running": Family(type="gauge", unit="requests", meaning="Running\n  requests, \\ all."),
    "kvitals_tokens_total": Family(type="counter", unit="tokens", meaning="Tokens."),
    "kvitals_ttft_seconds": Family(type="histogram", unit="seconds", meaning="TTFT."),
    "kvitals_engine_info": Family(type="info", unit="bool", meaning="The engine."),
}


def labels(name: str, **more: str) -> Labels:
    return Labels({"__name__": name, **more})


class Fixed:
    """A source of frames that were made by hand."""

    def __init__(self, *frames: Frame) -> None:
        self.frames = frames

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        return [frame for frame in self.frames if start <= frame.times[-1] <= end]


def frame(t: float, values: dict[Labels, float]) -> Frame:
    return Frame(np.array([t]), np.array([list(values.values())]), list(values))


def page(*frames: Frame, now: float = 100.0) -> str:
    return render(Fixed(*frames), FAMILIES, now).decode()


def test_a_page() -> None:
    ttft = {"engine": "a", "model": "m"}
    text = page(
        frame(
            99.0,
            {
                labels("kvitals_ttft_seconds_count", **ttft): 3.0,
                labels("kvitals_ttft_seconds_bucket", le="+Inf", **ttft): 3.0,
                labels("kvitals_ttft_seconds_bucket", le="10.0", **ttft): 2.0,
                labels("kvitals_ttft_seconds_bucket", le="9", **ttft): 1.0,
                labels("kvitals_ttft_seconds_sum", **ttft): 12.5,
                labels("kvitals_running", engine="b"): 2.0,
                labels("kvitals_running", engine='a"\\\n'): 0.1,
                labels("kvitals_tokens_total"): 1e16,
                labels("kvitals_engine_info", version="0.32.0"): 1.0,
                labels("kvitals_not_a_family"): 1.0,
                labels("kvitals_ttft_seconds"): 1.0,
            },
        )
    )
    assert text == (
        "# HELP kvitals_engine_info The engine.\n"
        "# TYPE kvitals_engine_info gauge\n"
        'kvitals_engine_info{version="0.32.0"} 1\n'
        "# HELP kvitals_running Running requests, \\\\ all.\n"
        "# TYPE kvitals_running gauge\n"
        'kvitals_running{engine="a\\"\\\\\\n"} 0.1\n'
        'kvitals_running{engine="b"} 2\n'
        "# HELP kvitals_tokens_total Tokens.\n"
        "# TYPE kvitals_tokens_total counter\n"
        "kvitals_tokens_total 1e+16\n"
        "# HELP kvitals_ttft_seconds TTFT.\n"
        "# TYPE kvitals_ttft_seconds histogram\n"
        'kvitals_ttft_seconds_bucket{engine="a",le="9",model="m"} 1\n'
        'kvitals_ttft_seconds_bucket{engine="a",le="10.0",model="m"} 2\n'
        'kvitals_ttft_seconds_bucket{engine="a",le="+Inf",model="m"} 3\n'
        'kvitals_ttft_seconds_sum{engine="a",model="m"} 12.5\n'
        'kvitals_ttft_seconds_count{engine="a",model="m"} 3\n'
    )


def test_nothing_is_an_empty_page() -> None:
    assert page() == ""


def test_a_family_without_live_series_is_not_shown() -> None:
    assert page(frame(99.0, {labels("kvitals_running"): STALE})) == ""


def test_an_ordinary_nan_is_a_value() -> None:
    assert page(frame(99.0, {labels("kvitals_running"): math.nan})).endswith("kvitals_running NaN\n")


def test_the_newest_of_two_frames_counts() -> None:
    old, new = frame(98.0, {labels("kvitals_running"): 1.0}), frame(99.0, {labels("kvitals_running"): 2.0})
    for frames in ((old, new), (new, old)):
        assert page(*frames).endswith("kvitals_running 2\n")


def test_a_window_with_an_end_and_a_gap() -> None:
    window = Window(600, 100)
    one, two = window.group("one"), window.group("two")
    columns = [one.column(labels("kvitals_running", engine=engine)) for engine in ("a", "b")]
    assert None not in columns
    one.append(90.0, [c for c in columns if c is not None], [1.0, 2.0])
    lost = two.column(labels("kvitals_running", engine="c"))
    assert lost is not None
    two.append(20.0, [lost], [3.0])
    text = render(window, FAMILIES, 95.0).decode()
    assert 'engine="a"} 1' in text and 'engine="b"} 2' in text and 'engine="c"' not in text
    one.end([c for c in columns[:1] if c is not None])
    one.append(94.0)
    text = render(window, FAMILIES, 95.0).decode()
    assert 'engine="a"' not in text and 'engine="b"} 2' in text
    one.append_gap(95.0)
    assert render(window, FAMILIES, 95.0) == b""


@pytest.mark.filterwarnings("error")
def test_every_family_that_ships_is_readable() -> None:
    """prometheus_client's parser is the judge."""
    families = load().families
    values: dict[Labels, float] = {}
    for name, family in families.items():
        if family.type == "histogram":
            values |= {labels(f"{name}_bucket", le=le, engine="a"): 1.0 for le in ("+Inf", "10", "9.5")}
            values |= {labels(f"{name}_sum", engine="a"): 1.0, labels(f"{name}_count", engine="a"): 1.0}
        else:
            values[labels(name, engine="a")] = 1.0
    text = render(Fixed(frame(99.0, values)), families, 100.0).decode()
    read = {(family.name, family.type): family for family in text_string_to_metric_families(text)}
    assert len(read) == len(families)
    for name, family in families.items():
        shown = {"info": "gauge"}.get(family.type, family.type)
        got = read[name.removesuffix("_total") if shown == "counter" else name, shown]
        assert got.documentation == " ".join(family.meaning.split())


_names = st.sampled_from(["engine", "model", "tenant"])
_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1, max_size=12)


@given(
    st.dictionaries(
        st.dictionaries(_names, _values, min_size=1).map(lambda d: labels("kvitals_running", **d)),
        st.floats(),
        min_size=1,
    )
)
def test_any_labels_and_values_come_back(values: dict[Labels, float]) -> None:
    (family,) = text_string_to_metric_families(page(frame(99.0, values)))
    read = {Labels(sample.labels): sample.value for sample in family.samples}
    assert {one.drop("__name__") for one in values} == set(read)
    for one, value in values.items():
        assert read[one.drop("__name__")] == pytest.approx(value, rel=0, abs=0, nan_ok=True)


def openmetrics(*frames: Frame, exemplars: Sequence[tuple[Labels, Exemplar]] = ()) -> str:
    return render_openmetrics(Fixed(*frames), FAMILIES, 100.0, exemplars).decode()


def test_a_page_as_openmetrics_with_exemplars() -> None:
    ttft = {"engine": "a"}
    text = openmetrics(
        frame(
            99.0,
            {
                labels("kvitals_ttft_seconds_bucket", le="1", **ttft): 1.0,
                labels("kvitals_ttft_seconds_bucket", le="2.5", **ttft): 2.0,
                labels("kvitals_ttft_seconds_bucket", le="+Inf", **ttft): 3.0,
                labels("kvitals_ttft_seconds_sum", **ttft): 12.5,
                labels("kvitals_ttft_seconds_count", **ttft): 3.0,
                labels("kvitals_tokens_total"): 7.0,
                labels("kvitals_running", engine="b"): 2.0,
            },
        ),
        exemplars=[
            (labels("kvitals_ttft_seconds_bucket", le="1", **ttft), Exemplar("ab" * 16, 0.25, 98.1239)),
            (labels("kvitals_ttft_seconds_bucket", le="2.5", **ttft), Exemplar("x" * 121, 2.0, 98.0)),  # too long
            (labels("kvitals_ttft_seconds_bucket", le="1", engine="gone"), Exemplar("ab" * 16, 0.25, 98.0)),
        ],
    )
    assert text == (
        "# TYPE kvitals_running gauge\n"
        "# HELP kvitals_running Running requests, \\\\ all.\n"
        'kvitals_running{engine="b"} 2\n'
        "# TYPE kvitals_tokens counter\n"
        "# HELP kvitals_tokens Tokens.\n"
        "kvitals_tokens_total 7\n"
        "# TYPE kvitals_ttft_seconds histogram\n"
        "# HELP kvitals_ttft_seconds TTFT.\n"
        f'kvitals_ttft_seconds_bucket{{engine="a",le="1.0"}} 1 # {{trace_id="{"ab" * 16}"}} 0.25 98.124\n'
        'kvitals_ttft_seconds_bucket{engine="a",le="2.5"} 2\n'
        'kvitals_ttft_seconds_bucket{engine="a",le="+Inf"} 3\n'
        'kvitals_ttft_seconds_sum{engine="a"} 12.5\n'
        'kvitals_ttft_seconds_count{engine="a"} 3\n'
        "# EOF\n"
    )


def test_every_family_that_ships_is_readable_as_openmetrics() -> None:
    """prometheus_client's parser is the judge; it refuses bounds that are not canonical and names that clash."""
    families = load().families
    values: dict[Labels, float] = {}
    for name, family in families.items():
        if family.type == "histogram":
            bounds = ("+Inf", "10", "9.5", "0.00001", "1e6", "123456")
            values |= {labels(f"{name}_bucket", le=le, engine='a"'): 1.0 for le in bounds}
            values |= {labels(f"{name}_sum", engine='a"'): 1.0, labels(f"{name}_count", engine='a"'): 1.0}
        else:
            values[labels(name, engine='a"')] = 1.0
    buckets = [one for one in values if "le" in one]
    exemplars = [(one, Exemplar("ab" * 16, 1e-6, 99.0)) for one in buckets]
    text = render_openmetrics(Fixed(frame(99.0, values)), families, 100.0, exemplars).decode()
    read = list(text_of_openmetrics(text))  # type: ignore[no-untyped-call]
    assert len(read) == len(families)
    found = [sample.exemplar for family in read for sample in family.samples if sample.exemplar is not None]
    assert len(found) == len(buckets)
    assert {tuple(one.labels.items()) for one in found} == {(("trace_id", "ab" * 16),)}
    documented = {family.documentation for family in read}
    assert documented == {" ".join(family.meaning.split()) for family in families.values()}


def test_a_counter_whose_bare_name_is_another_familys_keeps_its_own() -> None:
    families = {
        "kvitals_keys": Family(type="gauge", unit="keys", meaning="M."),
        "kvitals_keys_total": Family(type="counter", unit="keys", meaning="M."),
    }
    values = {labels("kvitals_keys"): 1.0, labels("kvitals_keys_total"): 2.0}
    text = render_openmetrics(Fixed(frame(99.0, values)), families, 100.0).decode()
    read = {family.name: family for family in text_of_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert (read["kvitals_keys"].type, read["kvitals_keys_total"].type) == ("gauge", "unknown")
    assert read["kvitals_keys_total"].samples[0].value == 2.0


@given(st.floats(min_value=1e-12, max_value=1e25))
def test_bounds_are_written_as_openmetrics_has_them(bound: float) -> None:
    text = openmetrics(frame(99.0, {labels("kvitals_ttft_seconds_bucket", le=repr(bound)): 1.0}))
    assert f'le="{floatToGoString(bound)}"' in text  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.3", False),
        ("Application/OpenMetrics-Text; Q=0.4", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nan", False),
    ],
)
def test_which_format_is_wanted(accept: str, wanted: bool) -> None:
    assert prefers_openmetrics(accept) is wanted
