"""The request side within a node: from records of senses to series and back from a recording."""

from __future__ import annotations

import pytest

from kvitals.agent.node import Node
from kvitals.agent.records import ScrapeRecord, decode, encode
from kvitals.agent.request_collectors import CLOCK_SOURCE
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.stitch import LIMITS
from kvitals.config import Config
from kvitals.series.promql import evaluate
from kvitals.series.recordings import Record
from tests.unit.requests.parts import llm, tap

T = 1_790_000_000.0
URL = "http://127.0.0.1:8000"
PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} WAITING
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} WAITING
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 1
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
"""


def page(key: str, t: float, waiting: int = 0) -> Record:
    body = PAGE.replace(b"WAITING", str(waiting).encode())
    return encode(ScrapeRecord(t=t, target=key, status=200, content_type="text/plain; version=0.0.4", body=body))


def parts(t: float, n: int = 1, **more: object) -> Record:
    made = (tap(n, t, engine="127.0.0.1:8000"), llm(n, t, engine="", **more))
    return encode(PartsRecord(t=t, source="tap", parts=made))


def node() -> tuple[Node, str]:
    made = Node(Config())
    made.expect({"targets": [{"url": URL}]})
    return made, f"{URL}/metrics"


def replayed(records: list[Record]) -> list[RequestRecord]:
    made, _ = node()
    for record in records:
        made.ingest_recorded(record)
    made.requests.flush()
    return made.requests.store.newest(100)


def test_a_recording_of_parts_gives_the_same_records_again() -> None:
    _, key = node()
    records = [page(key, T), *(parts(T + n, n) for n in range(1, 6)), page(key, T + 30)]
    first = replayed(records)
    assert [record.id for record in first] == [f"req-{n}" for n in (5, 4, 3, 2, 1)]
    assert replayed([encode(again) for raw in records if (again := decode(raw)) is not None]) == first


def test_engines_have_the_label_of_the_target_that_they_are() -> None:
    made, key = node()
    made.ingest_recorded(page(key, T))
    made.ingest_recorded(parts(T))
    made.ingest_recorded(page(key, T + LIMITS.settle + 1))
    (record,) = made.requests.store.newest(10)
    assert record.engines == {"unified": "127.0.0.1:8000/0"}
    made.ingest_recorded(page(key, T + LIMITS.settle + 3))
    found = evaluate("kvitals_observed_requests_total", made.window, T + LIMITS.settle + 3)
    assert not isinstance(found, float)
    assert [(labels["engine"], value) for labels, value in found] == [("127.0.0.1:8000/0", 1.0)]


@pytest.mark.parametrize(("waiting", "transfer"), [(0, 0.05), (3, None)])
def test_where_nothing_waited_for_capacity_the_decode_sides_queue_is_the_transfer(
    waiting: int, transfer: float | None
) -> None:
    made, key = node()
    made.ingest_recorded(page(key, T - 1, waiting))
    decode_side = llm(
        1, T, engine="127.0.0.1:8000", role="decode", phases={"queue": 0.05, "prefill": 0.01, "decode": 0.3}
    )
    made.ingest_recorded(encode(PartsRecord(t=T, source="otlp", parts=(decode_side,))))
    made.ingest_recorded(page(key, T + LIMITS.settle + 1, waiting))
    (record,) = made.requests.store.newest(10)
    assert record.seconds("transfer") == transfer


def test_where_the_engines_page_is_not_read_the_transfer_is_unknown() -> None:
    made, _ = node()
    decode_side = llm(1, T, engine="elsewhere:1", role="decode", phases={"queue": 0.05, "prefill": 0.01, "decode": 0.3})
    made.ingest_recorded(encode(PartsRecord(t=T, source="otlp", parts=(decode_side,))))
    made.requests.flush()
    (record,) = made.requests.store.newest(10)
    assert record.seconds("transfer") is None
    assert record.seconds("queue") == 0.05


def test_a_node_without_requests_has_no_series_of_them() -> None:
    made, key = node()
    for n in range(10):
        made.ingest_recorded(page(key, T + n * 5))
    names = {labels.name for frame in made.window.select((), 0, T + 60) for labels in frame.labels}
    assert "kvitals_target_up" in names
    assert not [name for name in names if name.startswith(("kvitals_tenant", "kvitals_request_", "kvitals_observed"))]


def test_records_of_a_source_say_how_it_fares() -> None:
    made, _ = node()
    made.ingest_recorded(encode(PartsRecord(t=T, source="otlp", parts=(), dropped={"not_ours": 3})))
    for n in (5, 10):
        made.ingest_recorded(encode(PartsRecord(t=T + n, source="otlp", parts=())))
    found = evaluate('kvitals_parts_dropped_total{reason="not_ours"}', made.window, T + 10)
    assert not isinstance(found, float)
    assert [value for _, value in found] == [3.0]


def test_without_any_target_time_goes_on_for_requests_too() -> None:
    made = Node(Config())
    made.ingest_recorded(parts(T))
    assert made.requests.store.newest(10) == []
    made.ingest_recorded(encode(PartsRecord(t=T + 60, source=CLOCK_SOURCE, parts=())))
    assert len(made.requests.store.newest(10)) == 1
