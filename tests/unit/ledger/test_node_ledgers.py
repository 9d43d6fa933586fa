"""The ledgers of a node: families in the window, look-ups and reports for who asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.ledger_api import LedgerApi
from kvitals.agent.ledger.event import HOST, BlockEventBatch, BlocksCleared, BlocksRemoved, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.node_ledgers import MAX_ENGINES, LedgerSide
from kvitals.agent.ledger.packed import PackedError, pack, unpack
from kvitals.agent.node import Node
from kvitals.agent.records import FactsRecord, ScrapeRecord, encode
from kvitals.agent.requests.record import RequestRecord
from kvitals.config import Config
from kvitals.rules.loader import load
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp
from kvitals.series.window import Window

T = 1_790_000_000.0
POOL = 64


def window() -> Window:
    """With what pages tell of two engines."""
    made = Window(3600, 10_000)
    group = made.group("pages")
    for engine in ("e", "f"):
        for name, more, value in (
            ("kvitals_engine_fact", {"fact": "kv_blocks"}, float(POOL)),
            ("kvitals_kv_usage_ratio", {}, 0.25),
        ):
            column = group.column(Labels({METRIC_NAME: name, "engine": engine, **more}))
            assert column is not None
            group.append(T + column / 8, np.array([column]), np.array([value]))
    return made


def looked_up(made: Window, t: float, tokens: float) -> None:
    group = made.group("counter")
    column = group.column(Labels({METRIC_NAME: "kvitals_prefix_query_tokens_total", "engine": "e"}))
    assert column is not None
    group.append(t, np.array([column]), np.array([tokens]))


def side(made: Window) -> LedgerSide:
    return LedgerSide(made, {"node": "n"}, lambda engine: {"node": "n", "model": "m", "engine": engine}, 10)


def feed(ledger: LedgerSide, at: float, *events: Any, engine: str = "e", sequence: int = 0) -> None:
    batch = BlockEventBatch(sequence, T + at, events)
    ledger.feed(KvEventsRecord(t=T + at, target="http://x/metrics", batches=(batch,)), engine)


def value(made: Window, name: str, **labels: str) -> float | None:
    matchers = [Matcher(METRIC_NAME, MatchOp.EQ, name), *(Matcher(k, MatchOp.EQ, v) for k, v in labels.items())]
    found = [frame.values[:, 0] for frame in made.select(matchers, 0, T + 10_000)]
    return float(found[0][~np.isnan(found[0])][-1]) if found else None


def stored(*hashes: int, after: int | None = None, tenant: str = "a", medium: str = "gpu") -> BlocksStored:
    return BlocksStored(hashes, after, 16, medium, tenant, f"s-{tenant}")


def busy(made: Window) -> LedgerSide:
    """Two engines, two tenants, a thrashing cache, a lower tier, a reset."""
    ledger = side(made)
    looked_up(made, T, 0.0)
    chains = {tenant: [10_000 * n + i for i in range(40)] for n, tenant in enumerate(("a", "b"))}
    for n in range(120):
        tenant, other = ("a", "b") if n % 2 else ("b", "a")
        feed(
            ledger, n, BlocksRemoved(tuple(reversed(chains[other]))), stored(*chains[tenant], tenant=tenant), sequence=n
        )
        ledger.advance(T + n)
    looked_up(made, T + 119, 120 * 640.0)
    feed(ledger, 120, stored(*chains["b"][:3], tenant="b", medium=HOST))
    feed(ledger, 120, stored(*chains["a"], tenant="a"), stored(7, after=77), engine="f")
    feed(ledger, 121, stored(*range(90_000, 90_040), tenant="b"), engine="f", sequence=1)
    feed(ledger, 150, BlocksCleared(), stored(1, tenant="b"), engine="f", sequence=2)
    for n in range(122, 500, 2):
        ledger.advance(T + n)
    return ledger


def test_every_family_is_written_and_none_that_is_not_declared() -> None:
    made = window()
    ledger = busy(made)
    for n in range(30):
        feed(ledger, 500 + n, stored(*range(1000 * n, 1000 * n + 60)), engine="ef"[n % 2], sequence=200 + n)
    ledger.flush(T + 540)
    prefixes = ("kvitals_cache_", "kvitals_reuse_")
    declared = {name for name in load().families if name.startswith(prefixes)} - cascade()
    names = {labels.name for frame in made.select((), 0, T + 10_000) for labels in frame.labels}
    for suffix in ("_bucket", "_sum", "_count"):
        names = {name.removesuffix(suffix) for name in names}
    written = {name for name in names if name.startswith(prefixes)}
    assert written - declared == set()
    assert declared - written == set()


def cascade() -> set[str]:
    """Families of what watches the ledger, which has tests of its own."""
    return {name for name in load().families if name.startswith("kvitals_cascade")}


def test_what_the_numbers_are() -> None:
    made = window()
    busy(made)
    assert value(made, "kvitals_cache_stored_blocks_total", engine="e", medium="gpu") == 4800
    assert value(made, "kvitals_cache_removed_blocks_total", engine="e", reuse="never", medium="gpu") == 119 * 40
    assert value(made, "kvitals_cache_refaulted_tokens_total", engine="e", medium="gpu") == 118 * 640
    assert value(made, "kvitals_cache_fill_ratio", engine="e") == 40 / POOL
    assert value(made, "kvitals_cache_lookup_tokens_total", engine="e") == 120 * 640
    assert value(made, "kvitals_cache_hit_tokens_total", engine="e") == 0
    assert value(made, "kvitals_cache_observed_ratio", engine="e") == 1.0
    assert value(made, "kvitals_cache_confidence_ratio", engine="e") == 1.0
    assert value(made, "kvitals_cache_blame_tokens_total", engine="e", tenant="a", by="b") == 59 * 640
    assert value(made, "kvitals_cache_blame_known_ratio", engine="e") == 1.0
    assert value(made, "kvitals_cache_tenant_attainable_tokens_total", tenant="a") == 60 * 39 * 16
    assert value(made, "kvitals_cache_cleared_blocks_total", engine="f", reason="reset") == 81
    assert value(made, "kvitals_cache_resident_tokens", engine="e", purpose="pinned") == 16 * 16
    assert value(made, "kvitals_cache_refault_seconds_count", engine="e", medium="gpu") == 118 * 40


def test_the_curve_says_how_much_more_memory_would_have_helped() -> None:
    made = window()
    busy(made).flush(T + 500)
    half = value(made, "kvitals_reuse_hit_ratio", engine="e", capacity="0.5")
    twice = value(made, "kvitals_reuse_hit_ratio", engine="e", capacity="2")
    assert half == pytest.approx(0.0, abs=0.01)
    assert twice == pytest.approx(118 / 120, abs=0.02)


def test_look_ups_can_be_taken_away_and_put_together_again() -> None:
    made = window()
    ledger = busy(made)
    found = ledger.accesses()
    assert found is not None
    assert (len(found), found.block_size, set(found.engines), set(found.tenants)) == (123, 16, {"e", "f"}, {"a", "b"})
    again = unpack(pack(found))
    assert (again.block == found.block).all() and (again.time == found.time).all()
    assert (again.engines, again.tenants, again.learned) == (found.engines, found.tenants, found.learned)
    for bad in (b"", b"\x80", pack(found)[:-9], pack(found).replace(b"block_size", b"block_siz_")):
        with pytest.raises(PackedError):
            unpack(bad)


async def test_the_api_tells_what_the_cache_holds_and_gives_look_ups() -> None:
    ledger = busy(window())
    ledgers: list[LedgerSide | None] = [None]
    app = build_app(
        ApiParts(
            Window(60, 10),
            {},
            findings=lambda: None,
            ready=lambda: True,
            ledger=LedgerApi(lambda: ledgers[0], {"a": "acme"}.get),
        )
    )
    async with TestClient(TestServer(app)) as client:
        for path in ("cache", "accesses"):
            answer = await client.get(f"/api/v1/{path}")
            assert (answer.status, "KV events" in (await answer.json())["error"]) == (404, True)
        ledgers[0] = ledger
        told = (await (await client.get("/api/v1/cache")).json())["data"]
        assert told["tenant_names"] == {"a": "acme"}
        (engine,) = [one for one in told["engines"] if one["engine"] == "e"]
        assert engine["blame"]["tokens"][0]["tokens"] == 59 * 640
        assert engine["observed"] == 1.0
        answer = await client.get("/api/v1/accesses", params={"engine": "f"})
        assert len(unpack(await answer.read())) == 3
        assert len(unpack(await (await client.get("/api/v1/accesses", params={"since": str(T + 100)})).read())) == 23
        assert (await client.get("/api/v1/accesses", params={"since": "x"})).status == 400
        assert (await client.get("/api/v1/accesses", params={"nodes": "2"})).status == 400


def test_a_target_that_is_gone_takes_its_ledger_and_its_room_along() -> None:
    made = window()
    ledger = side(made)
    feed(ledger, 0, stored(1, 2))
    ledger.advance(T + 1)
    ledger.gone("http://x/metrics")
    assert ledger.engines == {}
    feed(ledger, 5, stored(3))
    assert list(ledger.engines) == ["e"]


def test_engines_have_a_limit() -> None:
    made = window()
    ledger = side(made)
    for n in range(MAX_ENGINES + 2):
        feed(ledger, 0, stored(1), engine=f"e{n}")
    for n in (1, 3):
        ledger.advance(T + n)
    assert len(ledger.engines) == MAX_ENGINES
    assert value(made, "kvitals_cache_ledger_dropped_total", reason="engine_limit") == 2


PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 64
"""


def test_a_node_keeps_a_ledger_from_the_first_event_on() -> None:
    node = Node(Config())
    node.expect({"targets": [{"url": "http://127.0.0.1:8000"}]})
    key = "http://127.0.0.1:8000/metrics"

    def page(t: float) -> Any:
        body = ScrapeRecord(t=t, target=key, status=200, content_type="text/plain; version=0.0.4", body=PAGE)
        return encode(body)

    node.ingest_recorded(page(T))
    node.ingest_recorded(encode(FactsRecord(t=T, target=key, source="configuration", facts={"kv_blocks": 10.0})))
    assert node.ledger is None
    batch = BlockEventBatch(0, T + 1, (stored(1, 2, 3, 4),))
    node.ingest_recorded(encode(KvEventsRecord(t=T + 1, target=key, batches=(batch,))))
    node.ingest_recorded(page(T + 20))
    node.ingest_recorded(page(T + 40))
    assert node.ledger is not None
    assert value(node.window, "kvitals_cache_fill_ratio", engine="127.0.0.1:8000/0") == 0.4
    assert value(node.window, "kvitals_cache_lookup_tokens_total", engine="127.0.0.1:8000/0") == 64


def test_records_of_requests_reach_the_ledger_of_their_engine() -> None:
    ledger = side(window())
    feed(ledger, 0, BlocksStored((1, 2), None, 16))
    ledger.heard(T)
    for name, engine in (("r", "e"), ("x", "elsewhere")):
        ledger.request(
            RequestRecord(
                id=name,
                start=T - 1,
                end=T + 1,
                complete=True,
                engines={"unified": engine},
                tenant="a",
                prompt_tokens=35,
                cached_tokens=0,
                output_tokens=2,
            )
        )
    ledger.advance(T + 30)
    assert ledger.engines["e"].sources == {"parent chain": 1}
    assert ledger.tenants.sums["a"].lookup == 35  # the prompt, not its whole blocks
