"""Every setting of every lever is held against the flags of the releases in its range."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvitals.rules.engine_flags import FlagTable, flag_table
from kvitals.rules.loader import load
from kvitals.rules.model import Lever, SystemSetting
from kvitals.rules.versions import in_range
from tests.support.loops import for_each

LEVERS = load().levers
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OBJECT_KEY = re.compile(r'"?\b([a-z][a-z_]+)"?:')

KNOWN_WITHHELD = {
    ("close-adapter-loading", "--lora-modules"): "releases before 0.6.2 load no adapter at run time",
    ("disable-speculation", "--speculative-model"): "0.8.2 has --speculative-config beside it",
    ("expert-load-balancing", "--num-redundant-experts"): "--eplb-config replaces it",
    ("host-tier", "--kv-offloading-backend"): "since 0.14 the size alone enables the native backend",
    ("host-tier", "--enable-hierarchical-cache"): "0.4.3 and 0.4.4 have no flag for its size",
    ("int8-weights", "--quantization"): "w8a8_int8 is a choice since 0.4.2",
    ("kv-lease", "--kv-transfer-config"): "its NIXL connector reads kv_lease_duration since 0.22",
    ("conversation-eviction", "--radix-eviction-policy"): "tlru is a choice since 0.5.21",
    ("lower-max-num-seqs", "--max-num-seqs"): "--max-num-active-seqs is better since 0.31",
    ("nvme-tier", "--kv-transfer-config"): "LMCacheConnectorV1 is registered since 0.9",
    ("shared-kv-store", "--kv-transfer-config"): "LMCacheConnectorV1 is registered since 0.9",
    ("output-limit", "--override-generation-config"): "earlier releases take it as a default, which a request exceeds",
    ("pd-disaggregation", "--kv-transfer-config"): "earlier NIXL connectors have no lease and lose blocks",
    ("priority-eviction", "--radix-eviction-policy"): "priority is a choice since 0.5.11",
    ("recompute-failed-loads", "--kv-transfer-config"): "before 0.17 recompute is the default",
    ("slo-aware-scheduling", "--schedule-policy"): "hrrn is a choice since 0.5.20",
    ("slo-aware-scheduling", "--enable-priority-scheduling"): "hrrn needs no priorities since 0.5.20",
    ("telemetry-flag", "--kv-events-config"): "--kv-cache-metrics costs less since 0.12",
}
"""Lever and flag: why a release that accepts the flag is not offered it."""


def settings() -> Iterator[tuple[Lever, SystemSetting, FlagTable]]:
    for lever in LEVERS.values():
        for setting in lever.settings:
            if (table := flag_table(setting.system)) is not None:
                yield lever, setting, table


def flags_in(text: str) -> list[str]:
    return [flag.replace("_", "-") for flag in dict.fromkeys(FLAG.findall(text))]


def releases(setting: SystemSetting, table: FlagTable) -> list[str]:
    return [release for release in table.releases if in_range(release, setting.versions)]


each_setting = for_each("lever, setting, table", settings)


@each_setting
def test_the_flag_exists_in_every_release_of_the_range(lever: Lever, setting: SystemSetting, table: FlagTable) -> None:
    wanted = releases(setting, table)
    assert wanted, f"no release that was read is in {setting.versions}"
    for flag in flags_in(f"{setting.flag} {setting.value} {setting.note}"):
        absent = [release for release in wanted if release not in table.having(flag)]
        assert absent == [], f"{lever.name}: {setting.system} {absent[0]} to {absent[-1]} has no {flag}"


@each_setting
def test_the_value_is_a_choice_of_every_release(lever: Lever, setting: SystemSetting, table: FlagTable) -> None:
    flags = flags_in(setting.flag)
    if not setting.value or " " in setting.value or not flags:
        return
    for release in releases(setting, table):
        choices = table.at(release)[flags[-1]].choices
        assert not choices or setting.value in choices, f"{lever.name}: {release} takes {' '.join(choices)}"


@each_setting
def test_the_keys_of_an_object_exist(lever: Lever, setting: SystemSetting, table: FlagTable) -> None:
    flag = setting.flag.split()[-1]
    for release in releases(setting, table):
        known = {name.partition(".")[2] for name in table.at(release) if name.startswith(f"{flag}.")}
        for key in OBJECT_KEY.findall(setting.value) if known else ():
            assert key in known | {"tcp", "kv_lease_duration"}, f"{lever.name}: {release} has no key {key} in {flag}"


@each_setting
def test_no_deprecated_flag_is_set(lever: Lever, setting: SystemSetting, table: FlagTable) -> None:
    if setting.value == "remove it":
        return
    for release in releases(setting, table):
        for flag in flags_in(setting.flag):
            assert table.at(release)[flag].deprecated == "", f"{lever.name}: {flag} is deprecated in {release}"


def test_no_release_is_withheld_a_flag_that_it_has() -> None:
    offered: dict[tuple[str, str, str], set[str]] = {}
    for lever, setting, table in settings():
        for flag in flags_in(setting.flag):
            offered.setdefault((lever.name, setting.system, flag), set()).update(releases(setting, table))
    withheld = {}
    for (name, system, flag), some in offered.items():
        table_ = flag_table(system)
        assert table_ is not None
        if out := [release for release in table_.having(flag) if release not in some]:
            withheld[name, flag] = f"{out[0]} to {out[-1]}"
    assert withheld.keys() == KNOWN_WITHHELD.keys(), withheld


def setting_for(lever: str, system: str, version: str) -> list[str]:
    """The flags of a lever for one release, with their values."""
    found = [s for s in LEVERS[lever].settings if s.system == system and in_range(version, s.versions)]
    return [f"{s.flag} {s.value}".strip() for s in found]


ABSENT = [
    *[("speculative-decoding", "sglang", version, "NGRAM") for version in ("0.4.2", "0.5.1", "0.5.2")],
    *[("priority-classes", "sglang", version, "--enable-priority-scheduling") for version in ("0.4.0", "0.5.1")],
    ("admission-control", "sglang", "0.4.9", "--max-queued-requests"),
    ("kv-events-replay", "sglang", "0.4.6", "--kv-events-config"),
    ("custom-buckets", "sglang", "0.4.6", "--bucket-time-to-first-token"),
    ("pipeline-parallel", "sglang", "0.4.6", "--pp-size"),
    ("host-tier", "sglang", "0.4.4", "--hicache-ratio"),
    *[
        (lever, "sglang", "0.4.0", "--")
        for lever in ("speculative-decoding", "expert-parallel", "block-size", "int8-weights", "matching-draft")
    ],
    *[
        (lever, "vllm", version, "--speculative-config")
        for lever in ("speculative-decoding", "disable-speculation", "draft-length", "matching-draft")
        for version in ("0.8.0", "0.8.1")
    ],
    *[(lever, "vllm", "0.5.5", "--scheduling-policy") for lever in ("priority-classes", "slo-aware-scheduling")],
    ("warm-up-shapes", "vllm", "0.32.0", "--jit-monitor-mode warn"),
    ("hot-share-cap", "vllm_router", "0.1.17", "sticky_least_loaded"),
    ("max-num-batched-tokens", "sglang", "0.5.23", "--max-prefill-tokens"),
]


@for_each("lever, system, version, text", ABSENT)
def test_not_offered_where_it_does_not_exist_or_means_something_else(
    lever: str, system: str, version: str, text: str
) -> None:
    assert not [setting for setting in setting_for(lever, system, version) if text in setting]


PRESENT = [
    ("drained-scale-in", "vllm", "0.18.0", "--shutdown-timeout"),
    ("recompute-failed-loads", "vllm", "0.18.0", "kv_load_failure_policy"),
    ("kv-lease", "vllm", "0.23.0", "kv_lease_duration"),
    ("radix-tree-matching", "vllm", "0.28.0", "--prefix-match-unit"),
    ("frequency-eviction", "sglang", "0.5.3", "lfu"),
    ("priority-eviction", "sglang", "0.5.15", "priority"),
    ("nvme-tier", "sglang", "0.4.10", "--hicache-storage-backend"),
    ("shared-kv-store", "sglang", "0.4.10", "--hicache-storage-backend"),
    ("session-pinning", "sglang", "0.5.15", "--enable-streaming-session"),
    ("circuit-breaker", "vllm", "0.30.0", "--max-num-queued-tokens"),
    ("dp-rank-routing", "sglang", "0.5.15", "routed_dp_rank"),
    ("dp-rank-routing", "sglang", "0.5.9", "data_parallel_rank"),
    ("dp-rank-routing", "vllm", "0.28.0", "X-data-parallel-rank"),
    ("conversation-eviction", "sglang", "0.5.21", "tlru"),
    ("hot-share-cap", "sglang_router", "0.3.2", "--balance-abs-threshold"),
    ("hot-share-cap", "vllm_router", "0.1.17", "cache_aware"),
    ("chunked-prefill", "vllm", "0.6.0", "--enable-chunked-prefill on"),
    ("max-num-batched-tokens", "sglang", "0.5.23", "--chunked-prefill-size"),
]


@for_each("lever, system, version, text", PRESENT)
def test_offered_where_it_exists(lever: str, system: str, version: str, text: str) -> None:
    assert [setting for setting in setting_for(lever, system, version) if text in setting]
