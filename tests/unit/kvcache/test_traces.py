"""Trace files of other tools: what each format becomes, its units, and what a broken file is reported as."""

from __future__ import annotations

import gzip
import io
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.app.trace_files import read_trace
from kvitals.kvcache.accesses import UNKNOWN
from kvitals.kvcache.traces import documents, pickled, request
from kvitals.kvcache.traces import read as reader
from kvitals.kvcache.traces.read import parse_trace
from kvitals.kvcache.traces.request import TraceError, infer_block_size
from kvitals.kvcache.whatif import ReplayPlan, what_if

LINE = '{"timestamp": %d, "input_length": 900, "output_length": 7, "hash_ids": [0, %d]}\n'
SAMPLES = Path(__file__).parents[2] / "fixtures" / "traces"


def test_lines_are_accesses_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        LINE % (2500, 2) + "\n" + LINE % (1000, 1) + '{"timestamp": 3000, "input_length": 3, "hash_ids": []}'
    )
    trace = read_trace(path)
    accesses = trace.accesses
    assert accesses.time.tolist() == [1.0, 2.5, 3.0]
    assert accesses.block.tolist() == [0, 1, 0, 2]
    assert accesses.block.dtype == np.int32
    assert accesses.tokens.tolist() == [900, 900, 3]
    assert accesses.output.tolist() == [7, 7, UNKNOWN]
    assert accesses.block_size == 512
    assert accesses.observed == 1.0
    assert accesses.learned == (
        "Mooncake trace; times in ms; sorted by time, out of order in the file: 1; without an output length: 1; blocks "
        "of 512 tokens, from ids against lengths"
    )


def test_what_a_trace_lacks_and_repeats_is_stated(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    without = '{"timestamp": 3000, "input_length": 3, "hash_ids": []}\n'
    path.write_text(LINE % (1000, 1) * 3 + LINE % (1000, 2) + LINE % (2000, 1) + without)
    facts = read_trace(path).facts
    assert (facts.repeated, facts.without_output) == (2, 1)
    assert "equal to an earlier request in time, lengths and ids: 2" in facts.sentence
    assert "without an output length: 1" in facts.sentence


@pytest.mark.parametrize(
    ("name", "format_", "unit", "block_size", "source", "requests", "references", "sessions", "lasts"),
    [
        ("bailian.jsonl", "Bailian", "s", 16, "ids against lengths", 4, 146, 2, 79.136),
        ("azure_2023.csv", "Azure LLM inference", "s", None, "", 3, 0, 0, 77.29937),
        ("azure_2024.csv", "Azure LLM inference", "s", None, "", 3, 0, 0, 62.21737),
        ("burstgpt.csv", "BurstGPT", "s", None, "", 3, 0, 2, 105.5),
        ("aiperf.jsonl", "AIPerf", "ns", None, "", 3, 0, 2, 2.0),
        ("genai_perf.json", "GenAI-Perf", "ns", 16, "the format", 3, 6, 0, 2.0),
        ("vllm_bench.json", "vLLM or SGLang bench", "s", None, "", 3, 0, 0, 61.0),
        ("sglang_log.jsonl", "SGLang request log", "s", None, "", 2, 0, 0, 64.4),
        ("dynamo.jsonl", "Dynamo request", "ms", 64, "the file", 3, 6, 2, 70.0),
        ("inference_perf.json", "llm-d inference-perf", "s", None, "", 3, 0, 0, 80.0),
        ("weka.json", "WEKA", "s", 64, "the file", 3, 7, 1, 3.0),
        ("sharegpt.json", "ShareGPT", "none", 16, "the format", 3, 6, 2, 0.0),
        ("wildchat.jsonl", "WildChat", "none", 16, "the format", 2, 2, 1, 0.0),
        ("lmcache_agent.jsonl", "LMCache agent", "us", 16, "the format", 3, 14, 1, 4.0),
    ],
)
def test_each_format_is_read_in_its_own_units(
    name: str,
    format_: str,
    unit: str,
    block_size: int | None,
    source: str,
    requests: int,
    references: int,
    sessions: int,
    lasts: float,
) -> None:
    trace = read_trace(SAMPLES / name)
    facts, accesses = trace.facts, trace.accesses
    assert (facts.format, facts.time_unit, facts.block_size, facts.block_size_from) == (
        format_,
        unit,
        block_size,
        source,
    )
    assert (len(accesses), accesses.references, facts.sessions) == (requests, references, sessions)
    assert accesses.time[-1] - accesses.time[0] == pytest.approx(lasts, abs=1e-3)
    assert facts.agreement in (None, 1.0)
    assert (accesses.session >= 0).any() == bool(sessions)


def test_a_bailian_trace_is_in_blocks_of_16_tokens_and_seconds() -> None:
    """As Mooncake's format, in blocks of 512 tokens, it had a third of the hits."""
    accesses = read_trace(SAMPLES / "bailian.jsonl").accesses
    (row,) = what_if(accesses, ReplayPlan(capacities=(None,)))
    assert row.token_hit_rate == pytest.approx((32 + 43) * 16 / (521 + 87 + 700 + 1000))
    assert accesses.session[[0, 2, 3]].tolist() == [accesses.session[0]] * 3  # the parents' first turn names it


def test_sglang_dumps_are_read_and_nothing_in_them_runs(tmp_path: Path) -> None:
    class GenerateReqInput:
        def __init__(self, ids: list[int]) -> None:
            self.input_ids, self.text, self.session_params = ids, None, None

    class Attack:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    globals()["GenerateReqInput"] = GenerateReqInput
    GenerateReqInput.__qualname__ = "GenerateReqInput"
    meta = {"meta_info": {"prompt_tokens": 40, "completion_tokens": 3}}
    entries = [(GenerateReqInput(list(range(40 + i))), meta, 100.0 + i, 101.0) for i in range(3)]
    path = tmp_path / "dump.pkl"
    path.write_bytes(pickle.dumps({"server_args": Attack(), "requests": entries}))
    trace = read_trace(path)
    assert trace.facts.format == "SGLang request dump"
    assert trace.accesses.references == 6 and len(set(trace.accesses.block.tolist())) == 2
    assert not (tmp_path / "ran").exists()
    for broken in (b"\x80\x05.", pickle.dumps([1]), pickle.dumps(3), path.read_bytes()[:-20]):
        path.write_bytes(broken)
        with pytest.raises(TraceError, match=r"dump\.pkl"):
            read_trace(path)


def test_a_pickle_cannot_ask_for_memory_that_it_does_not_have() -> None:
    for bomb in (b"\x80\x05\x8e" + b"\xff" * 7 + b"\x0f" + b"x.", b"\x80\x05K\x01r\xff\xff\xff\x7f."):
        with pytest.raises(TraceError):
            list(pickled.read_pickled(bomb, "bomb"))


@pytest.mark.parametrize("operation", [b"(", b"]", b"}", b")"])
def test_a_pickle_of_many_containers_is_refused_before_it_takes_memory(
    operation: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickled, "MAX_MEMORY", 100_000)
    with pytest.raises(TraceError, match="bomb: a SGLang dump whose values take more than"):
        list(pickled.read_pickled(b"\x80\x04]" + operation * 10_000_000 + b".", "bomb"))


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ('{"timestamp": 0, "input_length": 5}', "the nearest is Mooncake, missing: hash_ids"),
        ('{"chat_id": 1, "turn": 1}', "the nearest is Bailian, missing: hash_ids"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "the nearest is Azure LLM inference, missing: GeneratedTokens"),
        ('[{"conversations": []}]', "the nearest is ShareGPT, missing: from"),
        ("nonsense", "kvitals reads Bailian, Mooncake"),
        ('{"a": 1}', "kvitals reads Bailian, Mooncake"),
        ("{", "kvitals reads"),
    ],
)
def test_another_file_is_refused_with_the_nearest_format(tmp_path: Path, text: str, nearest: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"other\.json: unknown trace format") as refused:
        read_trace(path)
    assert nearest in str(refused.value)


def test_a_packed_trace_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress((LINE % (1, 1)).encode()))
    assert read_trace(path).accesses.references == 2
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TraceError, match=r"trace\.jsonl\.gz"):
        read_trace(path)


def test_a_stated_block_size_wins_and_its_agreement_is_stated(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % (1, 1))
    facts = read_trace(path, 16).facts
    assert (facts.block_size, facts.block_size_from, facts.agreement) == (16, "--block-size", 0.0)
    assert "0.0% of requests have the number of ids that their length requires at that block size" in facts.sentence


@given(
    st.sampled_from([1, 16, 32, 64, 100, 256, 512]),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=30),
    st.booleans(),
)
def test_a_block_size_is_inferred_that_all_requests_agree_with(size: int, lengths: list[int], partial: bool) -> None:
    tokens = np.array(lengths)
    ids = -(-tokens // size) if partial else tokens // size
    inferred, share = infer_block_size(tokens, ids, 16)
    if not (ids > 0).any():
        return
    known = ids > 0
    assert share == 1.0
    assert (ids[known] == (-(-tokens // inferred) if partial else tokens // inferred)[known]).all() or (
        (ids[known] == tokens[known] // inferred).all() or (ids[known] == -(-tokens[known] // inferred)).all()
    )


def test_ids_that_agree_with_no_block_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{"timestamp": 0, "input_length": %d, "hash_ids": [1, 2, 3]}\n'
    path.write_text("".join(line % tokens for tokens in (50, 500, 5000, 50000)))
    with pytest.raises(TraceError, match=r"fit no block size .* state it with --block-size"):
        read_trace(path)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        '{"timestamp": 0, "input_length": 5}',
        '{"input_length": 5, "hash_ids": [1]}',
        '{"timestamp": -1, "input_length": 5, "hash_ids": [1]}',
        '{"timestamp": 0, "input_length": -5, "hash_ids": [1]}',
        '{"timestamp": 0, "input_length": 1e300, "hash_ids": [1]}',
        '{"timestamp": 0, "input_length": 5, "hash_ids": [9223372036854775808]}',
        '{"timestamp": 0, "input_length": 5, "hash_ids": ["a"]}',
        '{"timestamp": 0, "input_length": 5, "hash_ids": [1.5]}',
        '{"timestamp": 0, "input_length": 5, "hash_ids": ' + "[" * 5000 + "]" * 5000 + "}",
        "\x00\x00",
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % (1, 1) + line + "\n")
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: not a request of a Mooncake trace"):
        read_trace(path)


def test_limits_are_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % (1, 1) * 3)
    monkeypatch.setattr(request, "MAX_REFERENCES", 5)
    with pytest.raises(TraceError, match="more than 10,000,000 requests or 5 block references"):
        read_trace(path)
    monkeypatch.setattr(reader, "MAX_LINE", 20)
    with pytest.raises(TraceError, match="jsonl:1: more than"):
        read_trace(path)
    monkeypatch.setattr(documents, "MAX_BYTES", 20)
    with pytest.raises(TraceError, match=r"weka\.json: a WEKA file of more than 0 MB; split it"):
        read_trace(SAMPLES / "weka.json")


def test_a_trace_of_too_many_lines_is_refused_before_a_line_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 million tiny requests took 113 s of CPU time, and were refused then."""
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % (1, 1) * 6)
    table = tmp_path / "trace.csv"
    table.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2024-05-10 00:00:00.0,1,1\n" * 6)
    decoded: list[object] = []
    monkeypatch.setattr(reader, "_numbered", lambda *words: decoded.append(words) or iter(()))
    monkeypatch.setattr(reader, "HEAD", 100)
    monkeypatch.setattr(reader, "MAX_LINES", 5)
    for file in (path, table):
        with pytest.raises(TraceError, match=f"{file.name}: more than 5 lines or 4 GB; split it"):
            read_trace(file)
    assert decoded == []


def test_a_pickle_of_tiny_containers_takes_no_more_memory_than_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 MB took 661 MB."""
    monkeypatch.setattr(pickled, "MAX_MEMORY", 4 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="more than 4 MB of memory; dump fewer requests"):
            list(pickled.read_pickled(b"\x80\x04]\x94(" + b"}\x94" * 200_000 + b"e.", "bomb"))
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_what_is_no_trace(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(TraceError, match="no requests in it"):
        read_trace(empty)
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "missing.jsonl")
    one = tmp_path / "one.jsonl"
    one.write_text(LINE % (1, 1))
    with pytest.raises(TraceError, match="block size must be from 1 to"):
        read_trace(one, 0)
    not_packed = tmp_path / "not.gz"
    not_packed.write_text("plain")
    with pytest.raises(TraceError, match=r"not\.gz cannot be read: Not a gzipped file"):
        read_trace(not_packed)


_SAMPLES = [path.read_bytes() for path in sorted(SAMPLES.iterdir()) if path.suffix not in (".md", ".gz")]
_SAMPLES.append(pickle.dumps([(1, {"meta_info": {"prompt_tokens": 4}}, 2.0, 3.0)]))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(_SAMPLES), st.data())
def test_a_damaged_file_of_any_format_is_read_or_refused(sample: bytes, data: st.DataObject) -> None:
    damaged = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        end = data.draw(st.integers(at, min(len(damaged), at + 40)))
        damaged[at:end] = data.draw(
            st.one_of(st.binary(max_size=12), st.sampled_from([b"null", b"[", b"1e99", b'"x"']))
        )
    try:
        trace = parse_trace(io.BytesIO(bytes(damaged)), "damaged", data.draw(st.sampled_from([None, 16])))
    except TraceError as refused:
        assert "damaged" in str(refused)
    else:
        assert len(trace.accesses) and trace.facts.format


def test_a_load_of_kvitals_itself_is_read_as_the_recording_that_it_is_of(tmp_path: Path) -> None:
    """docs/gate.md promises it; it was refused as a trace of Mooncake that lacks a timestamp."""
    path = tmp_path / "incident.jsonl"
    path.write_text(
        '{"kvitals_load":1,"source":"a.kvcap","requests":2,"seconds":1.0,"block_tokens":32,"prefixes":"KV events"}\n'
        '{"at":0.0,"prompt_tokens":64,"output_tokens":16,"blocks":[0,1],"tenant":"tenant-1","session":"session-1"}\n'
        '{"at":1.0,"prompt_tokens":70,"output_tokens":8,"blocks":[0,2,3]}\n'
    )
    trace = read_trace(path)
    assert (
        trace.facts.sentence == "kvitals load trace; times in s; blocks of 32 tokens, from the file; 1 named sessions"
    )
    assert trace.accesses.time.tolist() == [0.0, 1.0] and trace.accesses.block.tolist() == [0, 1, 0, 2, 3]
    path.write_text('{"kvitals_load":1,"block_tokens":32}\n{"prompt_tokens":3}\n')
    with pytest.raises(TraceError, match="not a request of a kvitals load: no `at`"):
        read_trace(path)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Request tokens,Response tokens\n"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.jsonl", LINE % (1000, 1) + LINE % (7258118400000, 2), "request 2 .* from 0 to 731 days, not 84,006"),
        ("t.jsonl", LINE % (1000, 1) * 3 + (LINE % (1, 2)).replace("1,", "0.1,", 1), "1 of 4 times have a fraction"),
        ("t.csv", AZURE + "2023-11-16 18:00:00,5,-1\n", "request 1: output length must be from 0 .* tokens, not -1"),
        ("t.csv", AZURE + f"2023-11-16 18:00:00,{10**9},5\n", "prompt length .* to 100,000,000 tokens, not 1e.09"),
        ("t.csv", AZURE + f"2023-11-16 18:00:00,5,{10**30}\n", "request 1: output length must be"),
        ("t.csv", AZURE + "2023-11-16 18:00:00,5,1\n2023-11-16 18:00:00Z,5,1\n", ":3: .* write all of them alike"),
        ("t.csv", BURST + "-5,5,1\n", "request 1: arrival time must be from 0"),
        ("t.csv", BURST + "nan,5,1\n", "request 1: arrival time must be from 0 .* not nan"),
    ],
)
def test_a_number_out_of_bounds_is_named_with_its_range(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=says):
        read_trace(path)


@pytest.mark.parametrize(("unit", "value"), [("seconds", "1000"), ("tokens", "-5"), ("tokens", "1e308")])
def test_an_aiperf_length_is_in_tokens(tmp_path: Path, unit: str, value: str) -> None:
    line = (SAMPLES / "aiperf.jsonl").read_text().splitlines()[1]
    path = tmp_path / "t.jsonl"
    path.write_text(line.replace('"value": 194, "unit": "tokens"', f'"value": {value}, "unit": "{unit}"'))
    with pytest.raises(TraceError, match=r":1: .*output_sequence_length"):
        read_trace(path)
