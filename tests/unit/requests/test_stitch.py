"""Which parts are of one request, and when it is given out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.stitch import LIMITS, MAX_MATES, MAX_PARTS
from tests.unit.requests.parts import Stitched, llm, one, stage, tap

T = 1_000_000.0
SETTLE = LIMITS.settle


def key(record: RequestRecord) -> str:
    return str(msgspec.json.encode(record))


def with_(part: RequestPart, **changes: Any) -> RequestPart:
    return msgspec.structs.replace(part, **changes)


def test_a_tap_and_an_engine_that_share_an_id_are_one_request() -> None:
    record = one(tap(1, T), llm(1, T - 0.002))
    assert record.id == "req-1"
    assert record.observers == ("kvitals", "vllm")
    assert record.complete


def test_a_request_is_given_out_once_when_nothing_came_for_a_while() -> None:
    stitched = Stitched()
    stitched.add(T, tap(1, T))
    assert stitched.records(T + SETTLE - 1) == []
    stitched.add(T + SETTLE - 1, llm(1, T))
    assert stitched.records(T + SETTLE + 1) == []
    assert len(stitched.records(T + 2 * SETTLE)) == 1
    assert len(stitched.records()) == 1
    assert stitched.stitcher.open == 0


def test_what_comes_afterwards_is_late_and_what_came_is_a_duplicate() -> None:
    stitched = Stitched()
    stitched.add(T, tap(1, T))
    stitched.records(T + SETTLE)
    stitched.add(T + SETTLE + 1, llm(1, T), tap(1, T))
    assert len(stitched.records()) == 1
    assert stitched.stitcher.dropped["late"] == 1
    assert stitched.stitcher.dropped["duplicate"] == 1


def test_who_saw_the_whole_request_is_never_late_for_a_record_of_the_engine_alone() -> None:
    stitched = Stitched()
    stitched.add(T, llm(1, T))
    stitched.records(T + SETTLE)
    stitched.add(T + 60, tap(1, T + 60))
    assert [record.tenant for record in stitched.records()] == ["", "t-aaaaaaaaaa"]


def test_an_id_that_is_used_again_later_is_another_request() -> None:
    stitched = Stitched()
    for n in range(3):
        t = T + n * 60
        stitched.add(t, tap(1, t, trace=n, span=f"a{n}"), llm(1, t, trace=n, span=f"e{n}"))
    assert len(stitched.records()) == 3
    assert not any(stitched.stitcher.dropped.values())


def test_a_client_that_always_sends_the_same_id_has_as_many_requests_as_it_sent() -> None:
    stitched = Stitched()
    for n in range(40):
        t = T + n * 0.2
        stitched.add(t, tap(1, t, trace=n, span=f"a{n}"), llm(1, t, trace=n, span=f"e{n}", parent=f"a{n}"))
    records = stitched.records()
    assert len(records) == 40
    assert all(record.observers == ("kvitals", "vllm") for record in records)


def test_an_id_of_everybody_is_bounded() -> None:
    stitched = Stitched()
    for n in range(3 * MAX_PARTS):
        stitched.add(T, tap(1, T + n * 0.01, trace=n, span=f"a{n}"))
    assert stitched.stitcher.open <= 1
    assert len(stitched.records()) == 3 * MAX_PARTS


def test_choices_of_one_request_are_one_request() -> None:
    # vLLM, n=2 and no traceparent: the same id, two traces of their own
    record = one(
        llm(1, T, trace=1, span="a", output_tokens=16),
        llm(1, T + 0.02, trace=2, span="b", start=T - 0.446, output_tokens=9),
    )
    assert record.output_tokens == 25
    assert record.prompt_tokens == 137


def test_an_agents_trace_with_many_requests_makes_many_records() -> None:
    stitched = Stitched()
    for n in range(5):
        stitched.add(T, tap(n, T + n, trace=7, parent="c0ffee"), llm(n, T + n, trace=7, parent=f"a{n:015x}"))
    records = stitched.records()
    assert sorted(record.id for record in records) == [f"req-{n}" for n in range(5)]
    assert all(record.observers == ("kvitals", "vllm") for record in records)


def test_siblings_below_a_span_that_nobody_saw_are_not_one_request() -> None:
    stitched = Stitched()
    stitched.add(T, *(llm(n, T, trace=7, parent="c0ffee") for n in range(3)))
    assert len(stitched.records()) == 3


def test_a_trace_alone_joins_one_of_a_kind_each() -> None:
    bare = ("trace:" + "7" * 32,)
    record = one(tap(1, T, ids=bare, span=""), llm(1, T, ids=bare))
    assert record.observers == ("kvitals", "vllm")


@pytest.mark.parametrize("order", range(6))
def test_a_trace_alone_does_not_join_what_may_be_two_requests(order: int) -> None:
    bare = ("trace:" + "7" * 32,)
    parts = [tap(n, T, ids=bare, span=f"a{n}") for n in range(2)] + [
        llm(n, T, ids=bare, span=f"e{n}") for n in range(2)
    ]
    random.Random(order).shuffle(parts)
    stitched = Stitched()
    for i, part in enumerate(parts):
        stitched.add(T + i, part)
    assert len(stitched.records(T + 60)) == 4


def test_a_span_below_another_is_of_its_request_whichever_comes_first() -> None:
    bare = ("trace:" + "7" * 32,)
    for parts in ([tap(1, T, ids=bare), llm(9, T, trace=0x77, parent="a000000000000001")],):
        linked = with_(parts[1], ids=("trace:" + "7" * 32, "request:other"))
        assert one(parts[0], linked).observers == ("kvitals", "vllm")
        assert one(linked, parts[0]).observers == ("kvitals", "vllm")


def test_stages_without_an_id_go_to_the_request_during_which_they_were() -> None:
    stitched = Stitched()
    trace = ("trace:" + f"{7:032x}",)
    routing = stage(
        "kv_router.select_worker", T + 9.6, 0.01, "gateway", ids=trace, span="s1", parent="dropped", system="dynamo"
    )
    stitched.add(T, tap(1, T, trace=7), tap(2, T + 10, trace=7), routing)
    stitched.records()
    assert [len(parts) for parts, _ in stitched.given] == [1, 2]
    assert routing in stitched.given[1][0]


def test_stages_of_no_request_are_counted_and_no_record() -> None:
    stitched = Stitched()
    stitched.add(T, stage("prefill_forward", T, 0.1, "prefill", ids=("trace:" + "7" * 32,), span="s"))
    assert stitched.records(T + 60) == []
    assert stitched.stitcher.open == 1
    assert stitched.records(T + LIMITS.age) == []
    assert stitched.stitcher.dropped["orphan"] == 1


def test_a_part_without_any_id_is_a_record_that_says_so() -> None:
    record = one(tap(1, T, ids=(), span=""))
    assert not record.complete
    assert record.ttft == 0.2339


def test_a_prefill_waits_for_the_decode_and_not_for_ever() -> None:
    stitched = Stitched(roles={"p": "prefill", "d": "decode"})
    stitched.add(T, llm(1, T, span="p", engine="p", output_tokens=1), llm(2, T, engine="p", output_tokens=1))
    assert stitched.records(T + 60) == []
    stitched.add(T + 60, llm(1, T + 60, span="d", engine="d"))
    (record,) = stitched.records(T + 60 + SETTLE)
    assert record.engines == {"prefill": "p", "decode": "d"}
    assert record.complete
    alone = stitched.records(T + LIMITS.age)[1]
    assert alone.engines == {"prefill": "p"}
    assert not alone.complete


def test_where_requests_have_an_observer_around_them_the_engines_part_waits_for_it() -> None:
    stitched = Stitched()
    stitched.add(T, llm(1, T, parent="a000000000000001"), tap(1, T))
    assert len(stitched.records(T + SETTLE)) == 1
    stitched.add(T + 10, llm(2, T + 10, parent="a000000000000002"))
    assert len(stitched.records(T + 40)) == 1
    stitched.add(T + 40, tap(2, T + 40))
    assert len(stitched.records(T + 50)) == 2
    stitched.add(T + 50, llm(3, T + 50, parent="ffffffffffffffff"))
    assert len(stitched.records(T + 50 + LIMITS.patience)) == 3


def test_open_requests_are_bounded_and_none_is_lost() -> None:
    stitched = Stitched(replace(LIMITS, open=100))
    for n in range(300):
        stitched.add(T, llm(n, T))
    assert stitched.stitcher.open == 100
    assert stitched.stitcher.dropped["open_limit"] == 200
    records = stitched.records()
    assert len(records) == 300
    assert sum(record.complete for record in records) == 100


def test_a_clock_that_was_set_back_begins_anew() -> None:
    stitched = Stitched()
    stitched.add(T, llm(1, T))
    stitched.add(T - 3600, llm(2, T - 3600))
    assert len(stitched.records(T - 3600)) == 1
    assert len(stitched.records(T - 3600 + SETTLE)) == 2


def test_nothing_is_kept_of_requests_that_are_long_gone() -> None:
    stitched = Stitched(replace(LIMITS, gone=100))
    for n in range(2000):
        stitched.add(T + n, tap(n, T + n), llm(n, T + n, parent=f"a{n:015x}"))
    stitched.records()
    stitcher = stitched.stitcher
    assert not stitcher._by and not stitcher._waiting and not stitcher._traces
    assert len(stitcher._released) < 500


def test_one_trace_id_of_everybody_costs_no_more_than_others() -> None:
    stitched = Stitched()
    for n in range(20 * MAX_MATES):
        stitched.add(T, llm(n, T, trace=7, parent="c0ffee"))
    assert max(len(mates) for mates in stitched.stitcher._traces.values()) <= MAX_MATES
    assert max(len(mates) for mates in stitched.stitcher._waiting.values()) <= MAX_MATES
    assert len(stitched.records()) == 20 * MAX_MATES


def test_a_part_below_another_finds_it_by_its_span_alone() -> None:
    """Neither shares an id, so only the spans join them; the first of its trace is not found by spans before."""
    around, within = tap(1, T, span="a1"), with_(llm(2, T, trace=1, parent="a1"), ids=(f"trace:{1:032x}",))
    for first, second in ((around, within), (within, around)):
        stitched = Stitched()
        stitched.add(T, first)
        stitched.add(T + 1, second)
        assert [record.observers for record in stitched.records()] == [("kvitals", "vllm")]


def test_a_span_that_comes_twice_is_a_duplicate_before_and_after_its_request_was_given_out() -> None:
    nameless = with_(llm(1, T), ids=(f"trace:{1:032x}",))
    stitched = Stitched()
    stitched.add(T, nameless)
    stitched.add(T + 1, nameless)
    stitched.records(T + SETTLE + 1)
    stitched.add(T + SETTLE + 2, nameless)
    assert len(stitched.records()) == 1
    assert stitched.stitcher.dropped["duplicate"] == 2


def test_a_request_beyond_those_listed_of_its_trace_is_still_found_by_its_spans() -> None:
    stitched = Stitched()
    stitched.add(T, *(llm(n, T, trace=7) for n in range(MAX_MATES)))
    stitched.add(T + 5, llm(1000, T + 5, trace=7, parent="a7"))
    stitched.records(T + SETTLE)  # all that are listed are given out
    stitched.add(T + SETTLE + 1, with_(tap(1000, T + 5, trace=7, span="a7"), ids=(f"trace:{7:032x}",)))
    assert [record.observers for record in stitched.records()].count(("kvitals", "vllm")) == 1


def test_since_when_the_oldest_is_open() -> None:
    stitched = Stitched()
    stitched.add(T, llm(1, T))
    stitched.add(T + 3, llm(2, T + 3), tap(1, T))
    assert stitched.stitcher.oldest() == T
    stitched.records(T + SETTLE + 3)
    assert stitched.stitcher.oldest() is None
    assert stitched.stitcher.open == 0


def _request(n: int, kind: str, trace: int) -> list[RequestPart]:
    t = T + n * 0.01
    around = f"a{n:015x}"
    return {
        "engine": [llm(n, t, trace=trace)],
        "tap": [tap(n, t, trace=trace), llm(n, t, trace=trace, parent=around)],
        "choices": [
            tap(n, t, trace=trace),
            *(llm(n, t, trace=trace, span=f"e{n}-{i}", parent=around) for i in range(2)),
        ],
        "pair": [
            tap(n, t, trace=trace),
            llm(n, t - 0.3, trace=trace, span=f"p{n}", engine="p", output_tokens=1, parent=around),
            llm(n, t, trace=trace, span=f"d{n}", engine="d", parent=around),
        ],
        "log": [tap(n, t, trace=trace, span="", system="nginx"), llm(n, t, trace=trace)],
        "stages": [
            llm(n, t, trace=trace, system="sglang", phases={}),
            stage(
                "prefill_forward",
                t - 0.3,
                0.2,
                "prefill",
                ids=(f"trace:{trace:032x}",),
                span=f"s{n}",
                parent=f"e{n:015x}",
            ),
        ],
    }[kind]


KINDS = st.sampled_from(("engine", "tap", "choices", "pair", "log", "stages"))


@given(st.lists(KINDS, min_size=1, max_size=8), st.booleans(), st.randoms(use_true_random=False), st.data())
def test_any_order_and_repetition_gives_the_same_records(
    kinds: list[str], shared_trace: bool, shuffled: random.Random, data: st.DataObject
) -> None:
    parts = [part for n, kind in enumerate(kinds) for part in _request(n, kind, 7 if shared_trace else n)]
    expected = Stitched()
    expected.add(T, *parts)
    want = sorted(map(key, expected.records()))
    assert len(want) == len(kinds)
    again = data.draw(st.lists(st.sampled_from(parts), max_size=5))
    mixed = [*parts, *again]
    shuffled.shuffle(mixed)
    got = Stitched()
    for i, part in enumerate(mixed):
        got.add(T + i * 0.1, part)
    assert sorted(map(key, got.records(T + 3600))) == want
    assert got.stitcher.dropped["duplicate"] == len(again)


@given(st.lists(st.tuples(st.sampled_from(("tap", "llm", "stage")), st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_requests_that_share_nothing_are_never_merged(drawn: list[tuple[str, int, int]]) -> None:
    """Two groups of parts, whose ids have nothing in common, in any mixture."""
    stitched = Stitched()
    for i, (kind, n, parent) in enumerate(drawn):
        side = i % 2
        name = f"{side}{n}"
        told: dict[str, Any] = {"ids": (f"trace:{side}{n % 2}", f"request:{name}"), "span": f"{side}-{i}"}
        told["parent"] = f"{side}-{parent}"
        t = T + n
        part = tap(n, t, **told) if kind == "tap" else llm(n, t, **told)
        if kind == "stage":
            part = stage("prefill_forward", t, 0.1, "prefill", **told | {"ids": told["ids"][:1]})
        stitched.add(T + i, part)
    stitched.records()
    for parts, _ in stitched.given:
        assert len({one.partition(":")[2][0] for part in parts for one in part.ids}) == 1
