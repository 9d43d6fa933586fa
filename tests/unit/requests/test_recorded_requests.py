"""Spans of real servers (tests/fixtures/spans/ORIGIN.md) as requests."""

from __future__ import annotations

from collections import Counter

import pytest

from kvitals.agent.requests.record import RequestRecord
from tests.unit.otlp.span_fixtures import NAMES, parts_of
from tests.unit.requests.parts import Stitched


def requests(name: str) -> list[RequestRecord]:
    stitched = Stitched()
    parts, _ = parts_of(name)
    stitched.add(max(part.seen for part in parts), *parts)
    return sorted(stitched.records(), key=lambda record: record.start)


@pytest.mark.parametrize("name", NAMES)
def test_phases_add_up_and_none_is_longer_than_the_request(name: str) -> None:
    for record in requests(name):
        assert record.e2e is not None
        told = [phase.seconds for phase in record.phases if phase.seconds is not None]
        assert sum(told) == pytest.approx(record.e2e)
        assert record.ttft is None or record.ttft <= record.e2e + 1e-3
        assert 0 <= record.end - record.start == pytest.approx(record.e2e)


def test_vllm_choices_and_prompts_are_one_request_and_the_same_id_again_is_another() -> None:
    found = requests("vllm-0.32-choices")
    assert Counter(record.id for record in found) == {
        "req-tion-0": 4,
        "req-tion-1": 3,
        "two-prompts": 1,
        "two-choices": 1,
    }
    with_choices = [record.output_tokens for record in found if record.id in ("two-prompts", "two-choices")]
    assert with_choices == [16, 8]
    assert all(record.complete and record.cached_tokens is None for record in found)


def test_sglang_tells_stages_and_cached_tokens() -> None:
    found = [record for record in requests("sglang-0.5.23") if record.finish == "length" and record.output_tokens]
    assert len(found) == 5
    for record in found:
        sources = {phase.name: phase.source for phase in record.phases}
        assert sources == {"queue": "measured", "prefill": "measured", "decode": "measured", "unattributed": "derived"}
        assert record.cached_tokens is not None


def test_a_pair_of_dynamos_is_one_request_with_both_engines() -> None:
    found = requests("dynamo-1.6.1-pd")
    assert [set(record.engines) for record in found] == [{"prefill", "decode"}] * 2
    for record in found:
        assert record.sources["e2e"] == record.sources["ttft"] == "gateway"
        sources = {phase.name: phase.source for phase in record.phases}
        assert sources["gateway"] == "measured"
        assert sources["prefill"] == sources["decode"] == "derived"
        assert sources["queue"] == "unknown"


def test_a_refused_request_and_a_gateway_alone() -> None:
    refused, *_ = [record for record in requests("dynamo-1.6.1") if record.outcome == "error"]
    assert refused.engines == {}
    wrong_key = requests("litellm-1.109.1")[-1]
    assert (wrong_key.status, wrong_key.outcome, wrong_key.complete) == (400, "invalid", True)
    chat = requests("litellm-1.109.1")[0]
    assert chat.tenant
    assert not chat.complete
