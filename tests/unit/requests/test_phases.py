"""What a request's time went into, from vLLM, SGLang and proxies."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.requests import phases
from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.requests.record import RequestRecord
from tests.unit.requests.parts import Stitched, llm, one, stage, tap

T = 1_000_000.0
TRACE = ("trace:" + "7" * 32,)


def told(record: RequestRecord) -> dict[str, tuple[float | None, str]]:
    return {p.name: (round(p.seconds, 6) if p.seconds is not None else None, p.source) for p in record.phases}


def adds_up(record: RequestRecord) -> bool:
    total = sum(phase.seconds for phase in record.phases if phase.seconds is not None)
    return record.e2e is not None and math.isclose(total, record.e2e, abs_tol=1e-6)


def test_one_engines_own_word() -> None:
    record = one(llm(1, T))
    assert told(record) == {
        "queue": (0.0001, "measured"),
        "prefill": (0.2084, "measured"),
        "decode": (0.2139, "measured"),
        "unattributed": (0.0236, "derived"),
    }
    assert adds_up(record)
    assert record.ttft == 0.2319
    assert record.phases[-1].why == phases.AT_THE_DOOR
    assert record.cached_tokens is None
    starts = [phase.start for phase in record.phases[:3]]
    assert starts == pytest.approx([T - 0.446 + 0.2319 - 0.2085, T - 0.446 + 0.2319 - 0.2084, T - 0.446 + 0.2319])


def test_where_most_of_what_is_left_was_is_said_and_nothing_made_of_it() -> None:
    behind = one(llm(1, T, ttft=0.2089))  # 0.4 ms before the queue, 23.2 ms behind the last token
    assert told(behind)["unattributed"] == (0.0236, "derived") and behind.phases[-1].why == ""
    around = one(tap(1, T), llm(1, T))
    assert around.phases[-1].why == phases.AT_THE_DOOR and told(around)["queue"] == (0.0001, "measured")
    both = one(llm(1, T, role="decode"))  # the thorough way
    assert both.phases[-1].why == phases.AT_THE_DOOR


def test_the_observer_nearest_to_the_client_tells_ttft_e2e_and_usage() -> None:
    record = one(tap(1, T + 30), llm(1, T))  # clocks that differ by half a minute
    assert (record.ttft, record.e2e) == (0.2339, pytest.approx(0.45))
    assert told(record)["gateway"] == (0.004, "derived")
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (137, 64, 16)
    assert record.sources["ttft"] == "tap"
    assert record.tenant == "t-aaaaaaaaaa"
    assert adds_up(record)


@pytest.mark.parametrize("engine", [{"role": "decode"}, {}])
def test_no_more_is_cached_than_the_prompt_has(engine: dict[str, Any]) -> None:
    """The counts may be of two observers, each of which may be: what is more than the whole is unknown."""
    for parts in (
        (llm(1, T, prompt_tokens=100, cached_tokens=200, **engine),),
        (tap(1, T, prompt_tokens=100, cached_tokens=None), llm(1, T, prompt_tokens=300, cached_tokens=200, **engine)),
        (tap(1, T, prompt_tokens=100, external_tokens=101, cached_tokens=200), llm(1, T, **engine)),
    ):
        record = one(*parts)
        assert (record.prompt_tokens, record.cached_tokens) == (100, None)
        assert record.sources["cached_tokens"].endswith("; not used: more than the prompt")
        assert record.external_tokens is None


def test_choices_of_one_prompt_have_its_cached_tokens_once() -> None:
    """Each choice looks the prompt up: 0 + 96 of 100 tokens, and of four choices 288 %."""
    several = [llm(1, T, span=f"{n}" * 16, prompt_tokens=100, cached_tokens=96 if n else 16) for n in range(4)]
    record = one(*several)
    assert (record.prompt_tokens, record.cached_tokens) == (100, 16)


def test_a_gateway_around_a_tap_is_nearer_to_the_client() -> None:
    litellm = RequestPart(
        observer="gateway", system="litellm", seen=T, ids=("request:req-1",), span="g", start=T - 1, end=T, ttft=0.5,
        phases={"gateway": 0.1}, tenant="t-bbbbbbbbbb", prompt_tokens=140,
    )  # fmt: skip
    record = one(litellm, tap(1, T, parent="g"), llm(1, T, parent="a000000000000001"))
    assert (record.ttft, record.e2e) == (0.5, pytest.approx(1.0))
    assert told(record)["gateway"] == (pytest.approx(1.0 - 0.446), "derived")
    assert record.sources["prompt_tokens"] == "gateway; tap says 137"
    assert record.sources["tenant"] == "gateway; tap says t-aaaaaaaaaa"
    assert adds_up(record)


def test_without_an_engines_word_little_is_known() -> None:
    record = one(tap(1, T))
    assert told(record) == {
        "gateway": (0.0003, "measured"),
        "queue": (None, "unknown"),
        "prefill": (None, "unknown"),
        "decode": (pytest.approx(0.45 - 0.2339), "derived"),
        "unattributed": (pytest.approx(0.2339 - 0.0003), "derived"),
    }
    assert adds_up(record)
    assert not record.complete


def test_records_share_what_is_not_known_of_them() -> None:
    """Tens of thousands of records are in memory, and three of four phases were objects of their own."""
    stitched = Stitched()
    for n in (1, 2):
        stitched.add(T, tap(n, T))
    first, second = stitched.records()
    unknown = [[phase for phase in record.phases if phase.source == "unknown"] for record in (first, second)]
    assert unknown[0] and all(a is b for a, b in zip(*unknown, strict=True))
    assert first.observers is second.observers


def test_a_request_that_was_turned_away_is_complete_without_an_engine() -> None:
    record = one(tap(1, T, status=503, ttft=None, finish="", output_tokens=None))
    assert record.complete
    assert record.outcome == "refused"


def test_choices_go_on_side_by_side() -> None:
    slow = llm(1, T, span="b", phases={"queue": 0.0001, "prefill": 0.2, "decode": 0.24})
    fast = llm(1, T - 0.1, span="a", start=T - 0.446, phases={"queue": 0.0001, "prefill": 0.2, "decode": 0.14})
    record = one(tap(1, T, output_tokens=None), fast, slow)
    assert told(record)["decode"] == (0.24, "measured")
    assert record.output_tokens == 32
    assert adds_up(record)


def test_one_try_after_another_leaves_the_first_unattributed() -> None:
    first = llm(1, T - 10, span="a", engine="one", finish="error", phases={"queue": 0.0, "prefill": 0.1, "decode": 0.0})
    record = one(tap(1, T, start=T - 11), first, llm(1, T, span="b", engine="two"))
    assert told(record)["prefill"] == (0.2084, "measured")
    assert told(record)["gateway"] == (pytest.approx(11 - 2 * 0.446), "derived")
    assert told(record)["unattributed"][0] == pytest.approx(0.446 + 0.0236)
    assert adds_up(record)


P = {"queue": 0.001, "prefill": 0.2, "decode": 0.0}
D = {"queue": 0.05, "prefill": 0.01, "decode": 0.3}


def pair(waited: bool | None, **more: Any) -> RequestRecord:
    prefill = llm(1, T - 0.5, span="p", engine="p", start=T - 0.71, output_tokens=1, phases=P, ttft=0.205)
    decode = llm(1, T, span="d", engine="d", start=T - 0.4, phases=D, ttft=0.065)
    return one(prefill, decode, *([tap(1, T, start=T - 0.72)] if more.get("tapped", True) else []), waited=waited)


class TestVllmPair:
    def test_where_nothing_waited_the_decode_sides_queue_is_the_transfer(self) -> None:
        record = pair(waited=False)
        assert told(record) == {
            "gateway": (pytest.approx(0.72 - 0.21 - 0.4), "derived"),
            "queue": (0.001, "measured"),
            "prefill": (0.21, "measured"),
            "transfer": (0.05, "derived"),
            "decode": (0.3, "measured"),
            "unattributed": (pytest.approx(0.21 - 0.201 + 0.4 - 0.36), "derived"),
        }
        assert next(p.why for p in record.phases if p.name == "transfer") == phases.PULLED
        assert record.engines == {"prefill": "p", "decode": "d"}
        assert adds_up(record)

    @pytest.mark.parametrize("waited", [True, None])
    def test_else_it_stays_queue_and_the_transfer_is_unknown(self, waited: bool | None) -> None:
        record = pair(waited=waited)
        assert told(record)["queue"] == (0.051, "measured")
        assert told(record)["transfer"] == (None, "unknown")
        assert adds_up(record)

    def test_without_an_observer_around_them_the_time_between_them_is_unknown(self) -> None:
        record = pair(waited=False, tapped=False)
        assert record.e2e == pytest.approx(0.61)
        assert record.ttft == pytest.approx(0.21 + 0.065)
        assert record.sources["e2e"] == "engine, both sides"
        assert adds_up(record)

    def test_a_decode_side_alone_is_not_the_whole(self) -> None:
        decode = llm(1, T, engine="d", start=T - 0.4, phases=D, ttft=0.065)
        record = one(tap(1, T, start=T - 0.72), decode, roles={"d": "decode"}, waited=False)
        assert not record.complete
        assert told(record)["gateway"] == (0.0003, "measured")
        assert told(record)["transfer"] == (0.05, "derived")
        assert adds_up(record)


def sglang(role: str = "unified", **more: Any) -> Any:
    options: dict[str, Any] = {"system": "sglang", "phases": {}, "role": role, "start": T - 1.0} | more
    return llm(1, T, span=f"r-{role}", **options)


class TestSglang:
    def test_stages_are_measured_and_ranks_that_tell_the_same_count_once(self) -> None:
        stages = [
            stage(name, T - 1.0 + begin, seconds, phase, ids=TRACE, span=f"{name}{rank}", parent=f"thread{rank}")
            for rank in range(2)
            for name, begin, seconds, phase in (
                ("prefill_waiting", 0.05, 0.1, "queue"),
                ("prefill_forward", 0.15, 0.3, "prefill"),
                ("decode_forward", 0.45, 0.5, "decode"),
            )
        ]
        threads = [stage("thread", T - 1, 1, ids=TRACE, span=f"thread{rank}", parent="r-unified") for rank in range(2)]
        record = one(sglang(ids=(*TRACE, "request:r")), *threads, *stages)
        assert told(record) == {
            "queue": (0.1, "measured"),
            "prefill": (0.3, "measured"),
            "decode": (0.5, "measured"),
            "unattributed": (0.1, "derived"),
        }

    def test_of_a_pair_the_wait_for_kv_is_less_what_the_other_side_did(self) -> None:
        room = (*TRACE, "room:77")
        prefill, decode = sglang("prefill", ids=room, engine="p"), sglang("decode", ids=room, engine="d")
        stages = [
            stage(name, T - 1.0 + begin, seconds, phase, ids=TRACE, role=role, span=f"{role}{name}", parent=f"r-{role}")
            for role, name, begin, seconds, phase in (
                ("prefill", "prefill_bootstrap", 0.0, 0.05, "kv_wait"),
                ("prefill", "prefill_waiting", 0.05, 0.05, "queue"),
                ("prefill", "prefill_forward", 0.1, 0.3, "prefill"),
                ("prefill", "prefill_transfer_kv_cache", 0.4, 0.02, "transfer"),
                ("decode", "decode_bootstrap", 0.0, 0.02, "kv_wait"),
                ("decode", "decode_transferred", 0.02, 0.43, "kv_wait"),
                ("decode", "decode_waiting", 0.45, 0.01, "decode"),
                ("decode", "decode_forward", 0.46, 0.5, "decode"),
            )
        ]
        record = one(prefill, decode, *stages)
        assert told(record) == {
            "queue": (pytest.approx(0.05 + 0.01), "measured"),  # on the decode side, after the KV came
            "kv_wait": (pytest.approx(0.05 + 0.45 - 0.42), "derived"),
            "prefill": (0.3, "measured"),
            "transfer": (0.02, "measured"),
            "decode": (0.5, "measured"),
            "unattributed": (pytest.approx(0.04), "derived"),
        }
        assert record.e2e == 1.0
        assert adds_up(record)

    def test_the_wait_for_the_first_step_is_decoding_where_one_engine_does_both(self) -> None:
        stages = [
            stage(name, T - 1.0 + begin, seconds, "decode", ids=TRACE, span=name, parent="r-unified")
            for name, begin, seconds in (("decode_waiting", 0.4, 0.1), ("decode_forward", 0.5, 0.4))
        ]
        phases = told(one(sglang(ids=(*TRACE, "request:r")), *stages))
        assert phases["decode"] == (pytest.approx(0.5), "measured")
        assert phases["queue"] == (None, "unknown")

    def test_choices_are_one_request_behind_a_tap(self) -> None:
        """Its four spans of `n=2` have ids of their own and the tap's span above them."""
        spans = [
            msgspec.structs.replace(
                sglang(ids=(*TRACE, f"request:c{n}"), parent="tap", output_tokens=tokens), span=f"c{n}"
            )
            for n, tokens in enumerate((0, None, 8, 8))
        ]
        record = one(tap(1, T, ids=TRACE, span="tap", output_tokens=16), *spans)
        assert (record.output_tokens, len(record.spans)) == (16, 5)


def test_a_proxys_stages_where_no_engine_spoke() -> None:
    ids = ("request:req-1",)
    sides = [
        stage("llm_d.pd_proxy.prefill", T - 1, 0.3, ids=ids, role="prefill", system="llm-d", span="p"),
        stage(
            "llm_d.pd_proxy.decode",
            T - 0.6,
            0.6,
            ids=ids,
            role="decode",
            system="llm-d",
            span="d",
            phases={"gateway": 0.1},
        ),
    ]
    record = one(tap(1, T, start=T - 1.1, ttft=None), *sides)
    assert told(record)["prefill"] == (0.3, "derived")
    assert told(record)["decode"] == (0.5, "derived")
    assert told(record)["gateway"] == (pytest.approx(0.1003), "measured")
    assert adds_up(record)


def test_a_stream_that_the_client_left_is_cut_to_what_it_saw() -> None:
    record = one(tap(1, T, start=T - 0.3, aborted=True), llm(1, T))
    assert record.outcome == "aborted"
    closed = one(tap(1, T, start=T - 0.3, aborted=True, status=499), llm(1, T))
    assert closed.outcome == "aborted"
    refused = one(tap(1, T, start=T - 0.3, aborted=True, status=400), llm(1, T))
    assert refused.outcome == "invalid", "a client that leaves once it has read that it is refused aborts nothing"
    assert told(record)["decode"] == (pytest.approx(0.3 - 0.2085), "derived")
    assert adds_up(record)


some = st.one_of(st.none(), st.floats(0, 1))
counts = st.one_of(st.none(), st.integers(0, 200))
ENGINE = st.fixed_dictionaries(
    {"ttft": some, "output_tokens": counts, "prompt_tokens": counts, "engine": st.sampled_from(("", "e"))},
    optional={
        "phases": st.fixed_dictionaries({name: st.floats(0, 0.2) for name in ("queue", "prefill", "decode")}),
        "role": st.sampled_from(("", "unified", "decode")),
        "itl": some,
        "tenant": st.sampled_from(("", "t-e")),
        "start": some.map(lambda s: T - s if s is not None else None),
    },
)
OUTER = st.fixed_dictionaries(
    {"ttft": some, "itl": some, "prompt_tokens": counts, "output_tokens": counts, "cached_tokens": counts},
    optional={
        "tenant": st.sampled_from(("", "t-o")),
        "status": st.sampled_from((None, 200, 500)),
        "aborted": st.booleans(),
        "ids": st.sampled_from((("request:req-1",), ("trace:1", "request:req-1"), ("response:chatcmpl-req-1",))),
    },
)


@given(ENGINE, st.one_of(st.none(), OUTER))
def test_the_short_way_comes_to_the_same_record(engine: dict[str, Any], outer: dict[str, Any] | None) -> None:
    parts = [llm(1, T, **engine), *([tap(1, T, **outer)] if outer is not None else [])]
    assembly = Stitched().assembly
    for order in (parts, parts[::-1]):
        plain = assembly._plain(order)
        if plain is not None:
            assert plain == assembly._thorough(order, True)


def test_what_comes_in_most_goes_the_short_way() -> None:
    assembly = Stitched().assembly
    assert assembly._plain([llm(1, T)]) is not None
    assert assembly._plain([tap(1, T), llm(1, T)]) is not None


numbers = st.one_of(st.none(), st.floats(), st.floats(0, 2))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(("tap", "llm", "stage")),
                "start": numbers,
                "ttft": numbers,
                "role": st.sampled_from(("", "prefill", "decode", "unified")),
                "phases": st.dictionaries(st.sampled_from((*phases.PHASES, "what")), st.floats(), max_size=4),
                "parent": st.sampled_from(("", "s0", "s1", "s2")),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from((True, False, None)),
)
def test_whatever_numbers_come_phases_add_up(drawn: list[dict[str, Any]], waited: bool | None) -> None:
    parts = []
    for i, made in enumerate(drawn):
        kind = made.pop("kind")
        made |= {"ids": ("request:r",), "span": f"s{i}"}
        make = tap if kind == "tap" else llm
        part = make(1, T, **made)
        parts.append(part if kind != "stage" else msgspec.structs.replace(part, observer="stage"))
    stitched = Stitched(waited=waited)
    stitched.add(T, *parts)
    for record in stitched.records():
        assert record.end >= record.start
        for phase in record.phases:
            assert phase.seconds is None or phase.seconds >= 0
        if record.e2e is not None:
            assert adds_up(record)
