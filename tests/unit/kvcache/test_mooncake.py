"""Trace files: what they say, and what a broken one is told to be."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kvitals.app.trace_files import read_trace
from kvitals.kvcache import mooncake
from kvitals.kvcache.accesses import UNKNOWN
from kvitals.kvcache.mooncake import TraceError

LINE = '{"timestamp": %d, "input_length": 900, "output_length": 7, "hash_ids": [0, %d]}\n'


def test_lines_are_accesses_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        LINE % (2500, 2) + "\n" + LINE % (1000, 1) + '{"timestamp": 3000, "input_length": 3, "hash_ids": []}'
    )
    found = read_trace(path)
    assert found.time.tolist() == [1.0, 2.5, 3.0]
    assert found.block.tolist() == [0, 1, 0, 2]
    assert found.tokens.tolist() == [900, 900, 3]
    assert found.output.tolist() == [7, 7, UNKNOWN]
    assert found.block_size == 512
    assert found.observed == 1.0
    assert found.learned == "a trace file, all of its requests"


def test_a_packed_trace_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress((LINE % (1, 1)).encode()))
    assert read_trace(path).references == 2
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TraceError, match=r"trace\.jsonl\.gz"):
        read_trace(path)


def test_another_block_size_is_doubted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % (1, 1))
    assert "1 of 1 have not as many ids as their input_length has blocks of 16 tokens" in read_trace(path, 16).learned


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


def test_limits_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % (1, 1) * 3)
    monkeypatch.setattr(mooncake, "MAX_REFERENCES", 5)
    with pytest.raises(TraceError, match="jsonl:3: more than 5,000,000 requests or 5 block references"):
        read_trace(path)
    monkeypatch.setattr(mooncake, "MAX_LINE", 20)
    with pytest.raises(TraceError, match="jsonl:1: more than"):
        read_trace(path)


def test_what_is_no_trace(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(TraceError, match="no requests in it"):
        read_trace(empty)
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "missing.jsonl")
    with pytest.raises(TraceError, match="at least one"):
        read_trace(empty, 0)
    not_packed = tmp_path / "not.gz"
    not_packed.write_text("plain")
    with pytest.raises(TraceError, match=r"not\.gz: Not a gzipped file"):
        read_trace(not_packed)
