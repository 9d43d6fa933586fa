from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.series.types import Frame
from tests.oracle import oracle_data
from tests.oracle.oracle_server import Prometheus

START = oracle_data.START
NOW = START + 3000.0
SPAN = [("start", f"{START}"), ("end", f"{START + 3600}")]

Pairs = list[tuple[str, str]]


@pytest.fixture
async def ours() -> AsyncIterator[str]:
    app = build_app(
        ApiParts(
            oracle_data.Memory(oracle_data.frames()),
            {},
            findings=lambda: None,
            ready=lambda: True,
            clock=lambda: NOW,
        )
    )
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def both(ours: str, theirs: Prometheus, path: str, pairs: Pairs, method: str = "GET") -> list[Any]:
    answers: list[Any] = []
    for base in (ours, f"http://127.0.0.1:{theirs.port}"):
        sent: dict[str, Any] = {"data": pairs} if method == "POST" else {"params": pairs}
        async with (
            ClientSession() as session,
            session.request(method, base + path, **sent) as answer,
        ):
            answers.append((answer.status, answer.content_type, await answer.text()))
    return answers


def same(mine: Any, yours: Any, where: str = "") -> None:
    """Equal but for the last digits of numbers, those written as text too, and the order of series."""
    assert type(mine) is type(yours) or {type(mine), type(yours)} == {int, float}, where
    if isinstance(mine, dict):
        assert mine.keys() == yours.keys(), where
        for key in mine:
            same(mine[key], yours[key], f"{where}.{key}")
    elif isinstance(mine, list):
        assert len(mine) == len(yours), f"{where}: {mine} {yours}"
        if mine and isinstance(mine[0], dict) and "metric" in mine[0]:
            mine, yours = (sorted(side, key=lambda one: json.dumps(one["metric"])) for side in (mine, yours))
        elif mine and isinstance(mine[0], dict):
            mine, yours = (sorted(side, key=json.dumps) for side in (mine, yours))
        for n, (a, b) in enumerate(zip(mine, yours, strict=True)):
            same(a, b, f"{where}[{n}]")
    elif mine != yours:
        assert math.isclose(float(mine), float(yours), rel_tol=1e-9), f"{where}: {mine!r} {yours!r}"


def ordered(answer: Any) -> Any:
    """Prometheus sorts label names in JSON by byte; so does this, to compare metrics as text."""
    return json.loads(json.dumps(answer, sort_keys=True))


async def check(ours: str, theirs: Prometheus, path: str, pairs: Pairs, method: str = "GET") -> None:
    (status, kind, text), (their_status, their_kind, their_text) = await both(ours, theirs, path, pairs, method)
    assert (status, kind) == (their_status, their_kind), f"{text[:300]}\n{their_text[:300]}"
    if kind != "application/json":
        return
    mine, yours = ordered(json.loads(text)), ordered(json.loads(their_text))
    if mine["status"] == "error":
        assert mine.keys() == yours.keys()
        assert mine["errorType"] == yours["errorType"]
    else:
        same(mine, yours)


QUERIES = [
    "1",
    "0.1",
    '"a text"',
    "-1e-300",
    "scalar(nope)",
    "vector(1)/0",
    "vector(-1)/0",
    "vector(0)/0",
    "vector(1e20)",
    "vector(1e21)",
    "vector(1.5e-7)",
    "vector(0.000001)",
    "vector(-0)",
    "vector(1e16) * 3",
    "nope",
    "running",
    "gauge",
    "sparse",
    "info",
    "price",
    "running[2m]",
    "sparse[10m] offset 1m",
    "gauge[30m]",
    "nope[1m]",
    "sum by (pool) (rate(tokens_total[5m]))",
    "histogram_quantile(0.9, sum by (le) (rate(latency_seconds_bucket[5m])))",
    "running > 1e9",
    "running and on (engine) waiting",
    "max_over_time(sum(running)[10m:1m])",
]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("after", [300.0, 912.345, 1861.5, 3599.0])
async def test_instant(ours: str, theirs: Prometheus, query: str, after: float) -> None:
    await check(ours, theirs, "/api/v1/query", [("query", query), ("time", f"{START + after}")])


@pytest.mark.parametrize("query", [q for q in QUERIES if "[2m]" not in q and "offset" not in q])
async def test_range(ours: str, theirs: Prometheus, query: str) -> None:
    await check(ours, theirs, "/api/v1/query_range", [("query", query), *SPAN, ("step", "77s")])


@pytest.mark.parametrize(
    "pairs",
    [
        [("time", "2023-11-14T22:13:20.5Z")],
        [("time", "2023-11-14T22:13:20.123456789+01:00")],
        [("time", "1700000000.1239")],
        [("time", "1.7e9")],
        [("time", "now")],
        [("time", "2023-11-14")],
        [("time", "2023-11-14T22:13:20")],
        [("time", "1"), ("time", "2")],
        [("time", "5"), ("timeout", "x")],
        [("time", "5"), ("timeout", "1s")],
        [("time", "5"), ("limit", "1"), ("stats", "")],
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_times(ours: str, theirs: Prometheus, pairs: Pairs, method: str) -> None:
    await check(ours, theirs, "/api/v1/query", [("query", "vector(1)"), *pairs], method)


@pytest.mark.parametrize(
    "query", ["", "vector(1", "foo{", "{}", "rate(up)", "nope(1)", "up offset 1x", "1 +", "up{a='b'", "x[5m"]
)
@pytest.mark.parametrize("path", ["/api/v1/query", "/api/v1/query_range", "/api/v1/query_exemplars"])
async def test_bad_queries(ours: str, theirs: Prometheus, path: str, query: str) -> None:
    await check(ours, theirs, path, [("query", query), *SPAN, ("step", "60")])


@pytest.mark.parametrize(
    "query", ["running + on () group_left waiting", "running * on (model) waiting", "-{__name__=~'twin.*'}"]
)
async def test_queries_that_fail(ours: str, theirs: Prometheus, query: str) -> None:
    await check(ours, theirs, "/api/v1/query", [("query", query), ("time", f"{START + 300}")])
    await check(ours, theirs, "/api/v1/query_range", [("query", query), *SPAN, ("step", "60")])


@pytest.mark.parametrize(
    "pairs",
    [
        [("start", "1"), ("end", "3"), ("step", "1")],
        [("start", "1"), ("end", "2"), ("step", "1h30m")],
        [("start", "1"), ("end", "2"), ("step", "0.25")],
        [("start", "1"), ("end", "3"), ("step", "1.5s")],
        [("start", "1"), ("end", "10000.9"), ("step", "1")],
        [("start", "1"), ("end", "30000"), ("step", "1")],
        [("start", "3"), ("end", "1"), ("step", "1")],
        [("start", "1"), ("end", "1"), ("step", "1")],
        [("start", "1"), ("end", "3"), ("step", "0")],
        [("start", "1"), ("end", "3"), ("step", "-1")],
        [("start", "1"), ("end", "3")],
        [("start", "1"), ("step", "1")],
        [("end", "1"), ("step", "1")],
        [("start", ""), ("end", "1"), ("step", "1")],
        [("start", "1970-01-01T00:00:01Z"), ("end", "1970-01-01T00:00:03Z"), ("step", "1s")],
    ],
)
async def test_ranges(ours: str, theirs: Prometheus, pairs: Pairs) -> None:
    await check(ours, theirs, "/api/v1/query_range", [("query", "vector(1)"), *pairs])


MATCHES: list[Pairs] = [
    [],
    [("match[]", "running")],
    [("match[]", "running"), ("match[]", "price")],
    [("match[]", '{__name__=~"twin_.", engine!="e1"}')],
    [("match[]", "nope")],
    [("match[]", '{pool=~".+"}')],
    [("match[]", "{")],
    [("match[]", "{}")],
    [("match[]", '{a=~".*"}')],
    [("match[]", "rate(running[1m])")],
    [("match[]", "running[5m]")],
    [("match[]", "running"), ("start", f"{START + 600}"), ("end", f"{START + 1200}")],
    [("match[]", "running"), ("start", f"{START + 600}")],
    [("match[]", "running"), ("end", f"{START - 600}")],
    [("match[]", "running"), ("start", "x")],
    [("match[]", "running"), ("end", "x")],
]


@pytest.mark.parametrize("pairs", MATCHES)
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/api/v1/labels", "GET"),
        ("/api/v1/labels", "POST"),
        ("/api/v1/series", "GET"),
        ("/api/v1/series", "POST"),
        ("/api/v1/label/__name__/values", "GET"),
        ("/api/v1/label/le/values", "GET"),
        ("/api/v1/label/nope/values", "GET"),
        ("/api/v1/label/a-b/values", "GET"),
    ],
)
async def test_labels(ours: str, theirs: Prometheus, path: str, method: str, pairs: Pairs) -> None:
    # Prometheus looks at whole blocks for labels and values, so a time range is only compared for series.
    timed = any(value.startswith("17") for _, value in pairs)
    if not timed or path == "/api/v1/series":
        await check(ours, theirs, path, pairs, method)


@pytest.mark.parametrize(
    ("path", "pairs", "method"),
    [
        ("/api/v1/metadata", [], "GET"),
        ("/api/v1/metadata", [("metric", "nope")], "GET"),
        ("/api/v1/metadata", [("limit", "x")], "GET"),
        ("/api/v1/rules", [], "GET"),
        ("/api/v1/alerts", [], "GET"),
        ("/api/v1/query_exemplars", [("query", "running"), *SPAN], "GET"),
        ("/api/v1/query_exemplars", [("query", "running"), *SPAN], "POST"),
        ("/api/v1/query_exemplars", [("query", "running")], "GET"),
        ("/api/v1/query_exemplars", [("query", "running"), ("start", "2"), ("end", "1")], "GET"),
        ("/-/healthy", [], "GET"),
        ("/-/ready", [], "GET"),
    ],
)
async def test_the_rest(ours: str, theirs: Prometheus, path: str, pairs: Pairs, method: str) -> None:
    await check(ours, theirs, path, pairs, method)


@pytest.mark.parametrize(
    ("path", "pairs", "method"),
    [("/api/v1/metadata", [], "POST"), ("/api/v1/nope", [], "GET"), ("/api/v1/query", [("query", "1")], "PUT")],
)
async def test_what_there_is_not_has_the_same_status(
    ours: str, theirs: Prometheus, path: str, pairs: Pairs, method: str
) -> None:
    """Prometheus answers in plain text. Ours is an error of the API, which clients can read."""
    (mine, kind, body), (yours, _, _) = await both(ours, theirs, path, pairs, method)
    assert (mine, kind) == (yours, "application/json")
    assert json.loads(body)["status"] == "error"


async def test_build_info(ours: str, theirs: Prometheus) -> None:
    (_, _, mine), (_, _, yours) = await both(ours, theirs, "/api/v1/status/buildinfo", [])
    assert json.loads(mine)["data"].keys() == json.loads(yours)["data"].keys()
    assert json.loads(yours)["data"]["version"].startswith(json.loads(mine)["data"]["version"])


def test_the_samples_are_there() -> None:
    frames: list[Frame] = oracle_data.frames()
    assert sum(frame.values.size for frame in frames) > 1000
