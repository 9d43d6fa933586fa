"""What is in a trace that is sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from traced import CLIENT, ENGINE, START, TAP, record

from kvitals.agent.exports.otlp_spans import REQUEST, SCOPE, SpanMaker, name_of
from kvitals.agent.requests.observation import PHASES
from kvitals.agent.requests.record import RequestPhase, RequestRecord, SpanRef
from kvitals.rules.span_map import load_span_maps

NEAR = 1e-6
"""Seconds that a float of now resolves, and some."""


def spans(of: RequestRecord) -> dict[str, ReadableSpan]:
    made = SpanMaker("1.2", {"node": "n"}).spans(of, "slow")
    assert len({span.context.span_id for span in made}) == len(made)
    return {span.name.removeprefix("kvitals."): span for span in made}


def seconds(span: ReadableSpan) -> tuple[float, float]:
    """Start after the request's, and duration."""
    assert span.start_time is not None and span.end_time is not None
    return (span.start_time - int(START) * 10**9) / 1e9, (span.end_time - span.start_time) / 1e9


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_and_its_phases() -> None:
    made = spans(record())
    assert list(made) == ["request", "gateway", "queue", "prefill", "decode"]
    assert {name: seconds(span) for name, span in made.items()} == {
        "request": (0.0, 2.0),
        "gateway": (0.0, 0.004),
        "queue": pytest.approx((0.003, 0.5), abs=NEAR),
        "prefill": pytest.approx((0.503, 0.25), abs=NEAR),
        "decode": pytest.approx((0.753, 1.2), abs=NEAR),
    }
    assert not any(said(span)["kvitals.laid_out"] for name, span in made.items() if name != "request")
    assert said(made["gateway"]) == {
        "kvitals.phase.source": "derived",
        "kvitals.phase.why": "outside",
        "kvitals.laid_out": False,
    }
    assert said(made["decode"])["kvitals.engine"] == "10.0.0.1:8000/0"
    request = said(made["request"])
    assert (
        request
        | {
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": "m",
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.usage.cache_read.input_tokens": 0,
            "gen_ai.response.finish_reasons": ("stop",),
            "server.address": "10.0.0.1",
            "server.port": 8000,
            "kvitals.tenant": "t-aaaaaaaaaa",
            "kvitals.kept": "slow",
            "kvitals.phase.unknown": ("transfer",),
            "kvitals.phase.unattributed": 0.046,
        }
        == request
    )
    assert "error.type" not in request and "kvitals.session" not in request
    assert made["request"].resource.attributes == {
        "service.name": "kvitals",
        "service.version": "1.2",
        "kvitals.node": "n",
    }


def test_what_is_unknown_is_left_out() -> None:
    bare = spans(RequestRecord(id="x", start=START, end=START + 1.0, complete=False))
    assert list(bare) == ["request"]
    assert seconds(bare["request"]) == (0.0, 1.0)
    assert set(said(bare["request"])) == {"kvitals.request.id", "kvitals.outcome", "kvitals.kept", "kvitals.complete"}
    assert bare["request"].context.trace_id


def test_behind_the_tap_the_span_is_the_taps() -> None:
    """Nobody else sends it, and the engine's span names it as its parent."""
    made = spans(record())
    request = made["request"]
    assert f"{request.context.trace_id:032x}" == record().trace
    assert f"{request.context.span_id:016x}" == TAP
    assert request.parent is not None and f"{request.parent.span_id:016x}" == CLIENT
    assert request.kind is SpanKind.SERVER
    assert all(made[name].parent == request.context for name in ("queue", "decode"))


def test_else_it_is_below_the_outermost_one() -> None:
    request = spans(record(spans=(SpanRef("gateway", CLIENT), SpanRef("engine", ENGINE, "", CLIENT))))["request"]
    assert request.parent is not None and f"{request.parent.span_id:016x}" == CLIENT
    assert request.kind is SpanKind.INTERNAL
    assert f"{request.context.span_id:016x}" not in (TAP, CLIENT, ENGINE)


@pytest.mark.parametrize(("parents", "parent"), [((CLIENT, CLIENT), CLIENT), ((CLIENT, ""), None), (("", ""), None)])
def test_of_a_pair_that_nobody_was_seen_around(parents: tuple[str, str], parent: str | None) -> None:
    """The request is longer than either engine's span, so it is in neither."""
    refs = (SpanRef("engine", ENGINE, "", parents[0]), SpanRef("engine", TAP, "", parents[1]))
    request = spans(record(spans=refs))["request"]
    assert (f"{request.parent.span_id:016x}" if request.parent else None) == parent


def test_spans_of_other_traces_are_linked() -> None:
    """Two choices of one request that were asked for without a traceparent."""
    request = spans(record(spans=(SpanRef("engine", ENGINE), SpanRef("engine", CLIENT, "f" * 32))))["request"]
    assert [(f"{one.context.trace_id:032x}", f"{one.context.span_id:016x}") for one in request.links] == [
        ("f" * 32, CLIENT)
    ]
    assert request.parent is not None and f"{request.parent.span_id:016x}" == ENGINE


@pytest.mark.parametrize(
    ("told", "outcome", "code", "error"),
    [
        ({"status": 500}, "error", StatusCode.ERROR, "500"),
        ({"error": "timeout", "status": None}, "error", StatusCode.ERROR, "timeout"),
        ({"status": 429}, "refused", StatusCode.ERROR, "429"),
        ({"status": 400}, "invalid", StatusCode.UNSET, "400"),
        ({"aborted": True}, "aborted", StatusCode.UNSET, None),
    ],
)
def test_how_it_ended(told: dict[str, Any], outcome: str, code: StatusCode, error: str | None) -> None:
    request = spans(record(**told))["request"]
    assert (said(request)["kvitals.outcome"], request.status.status_code) == (outcome, code)
    assert said(request).get("error.type") == error


@pytest.mark.parametrize(
    "starts",
    [
        (START, None, START + 0.6),  # one is not known
        (START, START + 700.0, START + 701.0),  # another clock
        (START, START + 0.9, START + 0.1),  # in another order
        (START - 5.0, START, START + 0.6),
    ],
)
def test_what_does_not_fit_is_laid_out_in_order(starts: tuple[float | None, ...]) -> None:
    lengths = {"queue": 0.5, "prefill": 0.25, "decode": 1.0}
    phases = tuple(
        RequestPhase(name, length, "measured", start)
        for (name, length), start in zip(lengths.items(), starts, strict=True)
    )
    made = spans(record(phases=phases))
    assert {name: seconds(made[name]) for name in lengths} == {
        "queue": (0.0, 0.5),
        "prefill": (0.5, 0.25),
        "decode": (0.75, 1.0),
    }
    assert all(said(made[name])["kvitals.laid_out"] for name in lengths)


def test_a_pair_has_two_engines() -> None:
    pair = record(
        engines={"prefill": "p:1", "decode": "d"},
        phases=tuple(RequestPhase(name, 0.1, "measured") for name in ("queue", "prefill", "transfer", "decode")),
    )
    made = spans(pair)
    assert {n: said(s).get("kvitals.engine") for n, s in made.items()} == {
        "request": None, "queue": None, "prefill": "p:1", "transfer": "d", "decode": "d",
    }  # fmt: skip
    assert said(made["request"])["kvitals.engine.prefill"] == "p:1"
    assert "server.address" not in said(made["request"])  # `d` is a name


TIMES = st.floats(0.0, 1_000.0, allow_nan=False)


@given(
    st.dictionaries(st.sampled_from(PHASES), st.tuples(st.none() | TIMES, st.none() | st.floats(-10.0, 2_000.0))),
    TIMES,
)
@settings(max_examples=200, deadline=None)
def test_phases_are_within_the_request_and_as_long_as_recorded(
    drawn: dict[str, tuple[float | None, float | None]], rest: float
) -> None:
    phases = tuple(
        RequestPhase(name, length, "measured", START + begin if begin is not None else None)
        for name, (length, begin) in sorted(drawn.items(), key=lambda one: PHASES.index(one[0]))
    )
    e2e = sum(phase.seconds for phase in phases if phase.seconds is not None) + rest
    made = spans(record(phases=phases, e2e=e2e))
    first, last = made["request"].start_time, made["request"].end_time
    assert first is not None and last is not None
    assert set(made) == {"request"} | {phase.name for phase in phases if phase.seconds is not None}
    for phase in phases:
        if phase.seconds is not None:
            span = made[phase.name]
            assert span.start_time is not None and span.end_time is not None
            assert first <= span.start_time <= span.end_time <= last
            assert abs(span.end_time - span.start_time - phase.seconds * 1e9) <= 10


def test_a_record_that_is_sent_twice_is_one_trace() -> None:
    one, other = spans(record(spans=(), trace="")), spans(record(spans=(), trace=""))
    assert [s.context for s in one.values()] == [s.context for s in other.values()]
    different = spans(record(spans=(), trace="", id="another"))
    assert different["request"].context.trace_id != one["request"].context.trace_id


@pytest.mark.parametrize("trace", ["", "xyz", "0" * 32, "é" * 32, "1" * 31, "-" + "1" * 31])
def test_a_trace_id_that_is_none(trace: str) -> None:
    request = spans(record(trace=trace))["request"]
    assert request.context.is_valid
    assert request.parent is None


def test_what_is_sent_is_known_when_it_comes_back() -> None:
    (own,) = (one for one in load_span_maps() if one.system == SCOPE)
    (kind,) = own.spans
    assert set(kind.names) == {REQUEST, *map(name_of, PHASES)}
    assert (kind.keep, kind.scopes) == (False, (SCOPE,))
