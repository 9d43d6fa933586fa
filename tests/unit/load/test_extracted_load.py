"""`kvitals gate extract`: the load of a recording has its arrivals, lengths, prefixes and aborts, and no name."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvitals.agent.requests.record import RequestRecord
from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.load import extracted_load
from kvitals.app.load.extracted_load import ExtractedLoad, NoLoadError, extract_load
from kvitals.app.load.load_formats import FORMATS, load_lines, mean_rate, synthetic_text
from kvitals.app.lookups import recorded_lookups
from kvitals.app.trace_files import read_trace
from kvitals.config import Config
from kvitals.kvcache.whatif import ReplayPlan, what_if
from kvitals.ui.cli.main import main

CAPTURES = Path(__file__).parents[2] / "captures"
THRASH, TENANTS = CAPTURES / "ledger" / "thrash.kvcap", CAPTURES / "requests" / "tenants.kvcap"


@cache
def load(path: Path) -> ExtractedLoad:
    return extract_load(path, Config())


def rows(path: Path, form: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in load_lines(load(path), form)]


def request(number: int, **given: Any) -> RequestRecord:
    known = {"start": float(number), "end": number + 2.0, "prompt_tokens": 64, "output_tokens": 8} | given
    return RequestRecord(id=f"r{number}", complete=True, **known)


def test_the_load_has_every_request_in_order_of_arrival() -> None:
    found = load(TENANTS)
    assert len(found.requests) == 381
    assert found.requests[0].at == 0.0
    assert [one.at for one in found.requests] == sorted(one.at for one in found.requests)
    assert sum(one.abort_after is not None for one in found.requests) == 74
    assert len({one.tenant for one in found.requests}) == 4


def test_the_prefixes_hit_as_often_as_the_recorded_ones(tmp_path: Path) -> None:
    """Replayed in a cache of the same size, the load has the hit rate of the recorded lookups."""
    trace = tmp_path / "load.jsonl"
    trace.write_bytes(b"\n".join(load_lines(load(THRASH), "mooncake")) + b"\n")
    recorded = recorded_lookups(THRASH)
    assert recorded.today is not None
    plan = ReplayPlan((recorded.today, None))
    extracted = what_if(read_trace(trace, load(THRASH).block_tokens).accesses, plan)
    for one, other in zip(extracted, what_if(recorded.accesses, plan), strict=True):
        assert one.token_hit_rate == pytest.approx(other.token_hit_rate, abs=0.02)


def test_no_name_and_no_hash_of_the_recording_is_in_the_load() -> None:
    for path in (THRASH, TENANTS):
        records = extracted_load.ended_node(path, Config()).node.requests.store.newest(20_000)
        secrets = {one.tenant for one in records} | {one.session for one in records} | {one.id for one in records}
        written = b"\n".join(load_lines(load(path), "kvitals")).decode()
        assert [one for one in secrets if len(one) > 3 and one in written] == []
        blocks = [block for one in load(path).requests for block in one.blocks]
        assert max(blocks) < len(blocks)


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_has_every_request(form: Any) -> None:
    lines = rows(TENANTS, form)
    assert len(lines) == 381 + (form == "kvitals")
    first = lines[-381]
    keys = {
        "kvitals": {"at", "prompt_tokens", "output_tokens", "blocks", "tenant"},
        "mooncake": {"timestamp", "input_length", "output_length", "hash_ids"},
        "aiperf": {"timestamp", "input_length", "output_length", "hash_ids"},
        "vllm": {"prompt", "output_tokens"},
    }
    assert set(first) == keys[form]


def test_hash_ids_cover_the_prompt() -> None:
    block = load(THRASH).block_tokens
    for one in load(THRASH).requests:
        assert len(one.blocks) == -(-one.prompt_tokens // block)


def test_synthetic_prompts_share_words_where_blocks_are_shared() -> None:
    found = load(THRASH)
    texts = {one.blocks: synthetic_text(found, one).split() for one in found.requests[:200]}
    assert all(len(words) == one.prompt_tokens for one in found.requests[:200] for words in [texts[one.blocks]])
    (shared, _), *_ = Counter(one.blocks[0] for one in found.requests[:200]).most_common(1)
    heads = {tuple(words[: found.block_tokens]) for blocks, words in texts.items() if blocks[0] == shared}
    assert len(heads) == 1
    other = {tuple(words[: found.block_tokens]) for blocks, words in texts.items() if blocks[0] != shared}
    assert not heads & other


def made(*records: RequestRecord) -> ExtractedLoad:
    return extracted_load._load("x.kvcap", records, None)


def test_an_aborted_request_without_counts_has_those_of_its_tenant() -> None:
    gone = request(2, prompt_tokens=None, output_tokens=None, aborted=True, tenant="a", end=2.5)
    found = made(request(0, tenant="a", output_tokens=20), request(1, tenant="b", output_tokens=90), gone)
    last = found.requests[-1]
    assert (last.prompt_tokens, last.output_tokens, last.abort_after, last.estimated) == (64, 20, 0.5, True)


def test_an_aborted_request_shares_as_much_as_those_of_its_tenant() -> None:
    """Its client left before the engine told how much was cached, and a load of it had a lower hit rate."""
    gone = request(4, prompt_tokens=None, output_tokens=None, aborted=True, tenant="a", end=4.5)
    known = [request(at, tenant="a", cached_tokens=count) for at, count in enumerate((0, 32, 48))]
    found = made(*known, request(3, tenant="b", cached_tokens=64), gone)
    shared = [one.blocks for one in found.requests]
    assert shared[4][:2] == shared[2][:2] and shared[4][2] not in shared[2]
    assert set(shared[4]).isdisjoint(shared[3])


def test_a_refused_request_is_left_out_and_counted() -> None:
    refused = request(2, prompt_tokens=None, output_tokens=None, status=429)
    found = made(request(0), request(1), refused)
    assert (len(found.requests), found.left_out) == (2, 1)


def test_cached_tokens_are_the_shared_beginning() -> None:
    found = made(
        request(0, session="s", cached_tokens=32),
        request(1, session="s", cached_tokens=48),
        request(2, cached_tokens=0),
    )
    one, two, three = (one.blocks for one in found.requests)
    assert one[:2] == two[:2]
    assert len(set(one) & set(two)) == 2
    assert not set(three) & {*one, *two}
    assert found.prefixes == "cached token counts"
    assert mean_rate(found) == pytest.approx(1.0)


def test_a_recording_without_requests_names_what_to_record(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoLoadError, match="Record the clients' requests too: kvitals tap"):
        extract_load(HEAVY_TENANT, Config())
    with pytest.raises(SystemExit) as stop:
        main(["gate", "extract", str(HEAVY_TENANT)])
    assert stop.value.code == 2
    assert "see docs/requests.md" in capsys.readouterr().err


def test_the_command_writes_a_new_file_and_overwrites_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "load.jsonl"
    for code in (0, 2):
        with pytest.raises(SystemExit) as stop:
            main(["gate", "extract", str(TENANTS), "--out", str(out)])
        assert stop.value.code == code
    said = capsys.readouterr().err
    assert "381 requests in 28 s (13.56/s), 4 tenants, 74 aborted" in said
    assert "exists; choose another --out" in said
    header = msgspec.json.decode(out.read_bytes().splitlines()[0])
    assert header["kvitals_load"] == 1
