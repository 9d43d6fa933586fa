"""Ids of released requests: what is found again, and what they take."""

from __future__ import annotations

import tracemalloc

from kvitals.agent.requests.released_ids import ReleasedIds

LIMIT = 50_000


def test_ids_and_traces_of_a_released_request_are_found() -> None:
    released = ReleasedIds(100)
    released.add(["request:a", "span"], 5.0, True, ["trace:x", "trace:y"])
    released.add(["request:b"], float("-inf"), False, [])
    first, second = released.find("request:a"), released.find("request:b")
    assert first is not None and second is not None
    assert first == released.find("span")
    assert (first.end, first.outer, first.traces) == (5.0, True, (hash("trace:x"), hash("trace:y")))
    assert (second.end, second.outer, second.traces) == (float("-inf"), False, ())
    assert released.has_trace("trace:x") and released.has_trace("trace:y")
    assert not released.has_trace("trace:z") and released.find("request:c") is None


def test_an_id_that_is_released_again_stands_for_the_latest_request() -> None:
    released = ReleasedIds(100)
    for end in (1.0, 2.0):
        released.add(["request:a"], end, False, [])
    again = released.find("request:a")
    assert again is not None and again.end == 2.0


def test_every_id_is_found_while_the_table_grows() -> None:
    released = ReleasedIds(LIMIT)
    for number in range(20_000):
        released.add([f"request:{number}"], float(number), False, [f"trace:{number}"])
    found = [released.find(f"request:{number}") for number in range(20_000)]
    assert [request.end for request in found if request is not None] == [float(n) for n in range(20_000)]
    assert all(released.has_trace(f"trace:{number}") for number in range(20_000))


def test_two_generations_are_remembered() -> None:
    released = ReleasedIds(10)
    for number in range(25):
        released.add([f"request:{number}"], 0.0, False, [f"trace:{number}"])
    assert [n for n in range(25) if released.find(f"request:{n}") is not None] == list(range(10, 25))
    assert [n for n in range(25) if released.has_trace(f"trace:{n}")] == list(range(10, 25))
    released.turn()
    assert len(released) == 5
    released.turn()
    assert len(released) == 0 and released.find("request:24") is None


def test_a_request_with_very_many_ids_ends_a_generation() -> None:
    released = ReleasedIds(10)
    released.add([f"request:{n}" for n in range(1000)], 0.0, False, [])
    released.add(["request:next"], 0.0, False, [])
    assert released.find("request:0") is not None and released.find("request:next") is not None


def test_a_released_request_takes_few_bytes() -> None:
    """100,000 requests with a span and a trace took 26 MB as tuples in dicts."""
    released = ReleasedIds(LIMIT)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2 * LIMIT - 1):
            released.add([f"span:{number}"], float(number), True, [f"trace:{number}"])
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(released) == 2 * LIMIT - 1
    assert taken < 12e6
