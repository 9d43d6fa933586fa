"""What pages of external caches, shared stores and the transfer library mean (LMCache, KVBM, Mooncake, NIXL)."""

import pytest

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.page_reading import recognise
from kvitals.rules.engine_map import load_map, systems
from tests.unit.maps.pages import Read, relabelled, stored

MAPS = [load_map(system) for system in systems()]
ENGINE = stored("vllm-0.32-loaded")
LMCACHE = stored("lmcache-0.5.6-class-logger")
MASTER, CLIENT = stored("mooncake-0.3.13-master"), stored("mooncake-0.3.13-client")
NIXL, NIXL_OF_SEVERAL = stored("nixl-1.5.1"), stored("nixl-1.5.1-mp")


def recognised(text: str) -> str | None:
    found = recognise(PageParser().parse(text.encode()).layout, MAPS)
    return found.system if found else None


def value(read: Read, family: str, **labels: str) -> float:
    [found] = read.now(family, **labels).values()
    return found


# What a page is of


@pytest.mark.parametrize(
    ("page", "system"),
    [(LMCACHE, "lmcache"), (MASTER, "mooncake"), (CLIENT, "mooncake"), (NIXL, "nixl"), (NIXL_OF_SEVERAL, "nixl")],
    ids=["lmcache", "master", "client", "nixl", "nixl-mp"],
)
def test_a_page_of_its_own(page, system):
    assert recognised(page) == system
    read = Read().page(page)
    assert read.translator.reading.unknown == []
    [info] = [labels for labels in read.series() if labels.name == "kvitals_engine_info"]
    assert info["kind"] == "store"  # what engines are judged by is not asked of it


@pytest.mark.parametrize("line", ["master_uptime_seconds 5\n", "agent_rx_packets_total 5\n", "segment_files 3\n"])
def test_common_words_are_not_enough(line):
    assert recognised(line) is None


@pytest.mark.parametrize("guest", [LMCACHE, NIXL], ids=["lmcache", "nixl"])
def test_a_guest_does_not_make_the_engines_page_its_own(guest):
    assert recognised(guest + ENGINE) == "vllm"
    assert recognised(ENGINE + guest) == "vllm"


# LMCache in an engine's processes


def workers(page: str, n: int, amount: float = 4.0) -> str:
    """The page of an engine of several workers, each of which counts the same, and of its scheduler."""
    ranks = [{"role": "worker", "worker_id": str(i)} for i in range(n)] + [{"role": "scheduler", "worker_id": "0"}]
    only_workers = ("num_hit_tokens", "local_cache_usage", "time_to_retrieve", "local_cpu_evict_count")

    def several(name: str, labels, _: float) -> list[tuple[dict[str, str], float]]:
        counts = [
            amount if any(part in name for part in only_workers) and r["role"] == "worker" else 0.0 for r in ranks
        ]
        healthy = [1.0] * len(ranks) if name.endswith("is_healthy") else counts
        return [({**labels, **rank, "model_name": "/models/m"}, n) for rank, n in zip(ranks, healthy, strict=True)]

    return relabelled(page, several)


def test_what_all_workers_do_for_a_token_counts_once_and_bytes_are_of_each():
    read = Read().page(workers(LMCACHE, 4))
    assert value(read, "kvitals_external_loaded_tokens_total") == 4.0
    assert value(read, "kvitals_external_evictions_total") == 4.0
    assert value(read, "kvitals_external_used_bytes", medium="host") == 16.0
    assert value(read, "kvitals_external_load_seconds_count") == 16.0
    assert value(read, "kvitals_external_healthy") == 1.0


def test_beside_an_engine_it_is_of_the_engine_and_of_its_model():
    read = Read().page(ENGINE + workers(LMCACHE, 2))
    assert set(read.now("kvitals_external_loaded_tokens_total")) == set(read.now("kvitals_requests_running"))
    assert {s.get("model") for s in read.series() if s.name.startswith("kvitals_external_")} <= {"./tiny", None}
    reading = read.translator.reading
    assert (reading.unknown, reading.missing) == ([], [])
    assert value(read, "kvitals_requests_running") == 7.0


def test_milliseconds_and_minutes():
    read = Read().page(relabelled(LMCACHE, lambda _, labels, __: [(dict(labels), 3.0)]))
    assert value(read, "kvitals_external_remote_seconds_sum", operation="get") == pytest.approx(0.003)
    assert value(read, "kvitals_external_ping_seconds") == pytest.approx(0.003)
    assert value(read, "kvitals_external_reuse_gap_seconds_sum") == 180.0
    assert value(read, "kvitals_external_load_seconds_sum") == 3.0


# LMCache's server

SERVER = """# TYPE lmcache_mp_lookup_requested_tokens_total counter
lmcache_mp_lookup_requested_tokens_total{cache_salt="ann",model_name="m",otel_scope_name="lmcache.lookup"} 1000
lmcache_mp_lookup_requested_tokens_total{cache_salt="bob",model_name="m",otel_scope_name="lmcache.lookup"} 500
# TYPE lmcache_mp_lookup_hit_l1_tokens_total counter
lmcache_mp_lookup_hit_l1_tokens_total{cache_salt="ann",model_name="m",otel_scope_name="lmcache.lookup"} 600
# TYPE lmcache_mp_lookup_hit_l2_tokens_total counter
lmcache_mp_lookup_hit_l2_tokens_total{cache_salt="ann",model_name="m",otel_scope_name="lmcache.lookup"} 100
# TYPE lmcache_mp_l2_load_throughput_GB_per_second histogram
lmcache_mp_l2_load_throughput_GB_per_second_bucket{l2_name="disk",le="0.5"} 1
lmcache_mp_l2_load_throughput_GB_per_second_bucket{l2_name="disk",le="+Inf"} 2
lmcache_mp_l2_load_throughput_GB_per_second_sum{l2_name="disk"} 1.5
lmcache_mp_l2_load_throughput_GB_per_second_count{l2_name="disk"} 2
# TYPE lmcache_mp_l1_usage_ratio gauge
lmcache_mp_l1_usage_ratio 0.8
"""


def test_the_servers_hits_by_tier_without_its_tenants():
    read = Read().page(SERVER)
    assert value(read, "kvitals_external_lookup_tokens_total") == 1500.0
    assert value(read, "kvitals_external_tier_hit_tokens_total", medium="host") == 600.0
    assert value(read, "kvitals_external_tier_hit_tokens_total", medium="lower") == 100.0
    assert not {"ann", "bob"} & {text for labels in read.series() for text in dict(labels).values()}


def test_gigabytes_are_bytes_and_the_hosts_fill_is_no_pinned_share():
    read = Read().page(SERVER)
    assert value(read, "kvitals_external_bytes_per_second_sum", operation="lower_load") == 1.5e9
    assert value(read, "kvitals_external_bytes_per_second_bucket", operation="lower_load", le="500000000") == 1.0
    assert value(read, "kvitals_external_fill_ratio") == 0.8
    assert read.now("kvitals_host_kv_usage_ratio") == {}


# KVBM

KVBM = "".join(
    f"# TYPE kvbm_{name} counter\nkvbm_{name} {n}\n"
    for name, n in (
        ("offload_blocks_d2h", 1), ("offload_blocks_h2d", 2), ("offload_blocks_d2d", 3), ("offload_blocks_d2o", 4),
        ("onboard_blocks_h2d", 5), ("onboard_blocks_d2d", 6), ("onboard_blocks_o2d", 7),
    )
)  # fmt: skip


def test_the_same_letters_mean_other_media_on_the_way_up():
    read = Read().page(KVBM)
    down = {
        (s["source"], s["medium"]): v for s, v in read.series().items() if s.name == "kvitals_tier_stored_blocks_total"
    }
    up = {s["medium"]: v for s, v in read.series().items() if s.name == "kvitals_tier_loaded_blocks_total"}
    assert down == {("device", "host"): 1, ("host", "disk"): 2, ("device", "disk"): 3, ("device", "object"): 4}
    assert up == {"host": 5, "disk": 6, "object": 7}


# Mooncake


def test_a_masters_room_hits_and_evictions():
    read = Read().page(MASTER)
    assert value(read, "kvitals_store_capacity_bytes", medium="host") == 64 << 20
    assert value(read, "kvitals_store_used_bytes", medium="host") == 48 << 20
    assert value(read, "kvitals_store_keys") == 48.0
    assert (value(read, "kvitals_store_gets_total"), value(read, "kvitals_store_gets_found_total")) == (30.0, 4.0)
    assert value(read, "kvitals_store_evicted_keys_total") == 16.0  # 64 stored, 48 left
    assert value(read, "kvitals_store_allocation_failures_total") == 16.0  # of 80
    assert value(read, "kvitals_store_rpcs_total", operation="put_start") == 80.0
    assert value(read, "kvitals_store_rpc_failures_total", operation="get_replica_list") == 26.0  # those are the misses


TENANTS = """# TYPE mooncake_tenant_quota_reject_total counter
mooncake_tenant_quota_reject_total{tenant_id="ann",reason="bytes"} 3
mooncake_tenant_quota_reject_total{tenant_id="bob",reason="bytes"} 4
"""


def test_tenants_of_a_store_are_added_up():
    read = Read().page(MASTER + TENANTS)
    assert value(read, "kvitals_store_quota_rejections_total", reason="bytes") == 7.0
    assert not any("tenant_id" in dict(labels) for labels in read.series())


def test_a_clients_times_are_in_microseconds():
    read = Read().page(CLIENT)
    assert value(read, "kvitals_store_operation_seconds_count", operation="get", status="ok") == 10.0
    assert value(read, "kvitals_store_operation_seconds_sum", operation="get", status="ok") == pytest.approx(0.000939)
    assert value(read, "kvitals_store_operation_seconds_bucket", operation="put", le="0.0005") == 20.0
    assert value(read, "kvitals_store_client_bytes_total", operation="write") == 28 << 20


# NIXL


@pytest.mark.parametrize("page", [NIXL, NIXL_OF_SEVERAL], ids=["one", "several"])
def test_an_agents_transfers(page):
    read = Read().page(page)
    assert value(read, "kvitals_transfer_bytes_total", direction="tx") == 10 << 20
    assert value(read, "kvitals_transfer_requests_total", direction="rx") == 10.0
    assert value(read, "kvitals_transfer_seconds_count") == 20.0
    assert value(read, "kvitals_transfer_seconds_bucket", le="0.01") == 20.0
    assert 0.001 < value(read, "kvitals_transfer_seconds_sum") < 0.02
    registered = value(read, "kvitals_transfer_memory_registered_bytes_total")
    assert registered - value(read, "kvitals_transfer_memory_deregistered_bytes_total") == 2 << 20


def test_processes_of_one_engine_are_added_up():
    def twice(_: str, labels, amount: float) -> list[tuple[dict[str, str], float]]:
        return [({**labels, "pid": pid, "local_rank": rank}, amount) for pid, rank in (("1", "0"), ("2", "1"))]

    assert (
        value(Read().page(relabelled(NIXL_OF_SEVERAL, twice)), "kvitals_transfer_requests_total", direction="tx") == 20
    )
