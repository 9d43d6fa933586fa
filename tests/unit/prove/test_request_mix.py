"""Another mix of tenants or lengths is another load, although the counters may be the same."""

import random
from collections.abc import Sequence

from kvitals.agent.requests.record import RequestRecord
from kvitals.app.prove.request_mix import RequestMix, read_requests


def records(seed: int, count: int, tenants: Sequence[str] = ("a", "b"), prompt: int = 300) -> list[RequestRecord]:
    draw = random.Random(seed)
    return [
        RequestRecord(
            id=str(i), start=float(i), end=i + 1.0, complete=True, tenant=draw.choice(tenants),
            prompt_tokens=draw.randint(prompt // 2, prompt * 2), output_tokens=draw.randint(16, 64),
        )
        for i in range(count)
    ]  # fmt: skip


def test_the_same_requests_are_alike() -> None:
    assert [RequestMix(records(seed, 40), records(seed + 100, 40)).unlike for seed in range(20)] == [""] * 20


def test_another_mix_of_tenants_is_another_load() -> None:
    unlike = RequestMix(records(1, 200), records(2, 200, ["b", "b", "b", "b", "b", "c"])).unlike
    assert unlike.startswith("the mix of tenants differs: a sent 49 %") and unlike.endswith(
        "% of the requests before, and 0 % now"
    )


def test_other_lengths_are_another_load() -> None:
    assert "lengths of prompts differ" in RequestMix(records(1, 200), records(2, 200, prompt=900)).unlike


def test_few_requests_or_none_leave_it_to_the_counters() -> None:
    few = RequestMix(records(1, 10), records(2, 200, prompt=900))
    assert few.unlike == "" and "from counters only" in few.sentence
    requests, problem = read_requests("http://127.0.0.1:9", "engine", 0.0, 1.0)
    assert not requests and "from counters only" in RequestMix(requests, requests, problem).sentence and problem
