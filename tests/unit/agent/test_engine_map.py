"""The engine maps account for every name that an engine is known to have, and for nothing else."""

import re
from pathlib import Path

import pytest
import yaml

from rules.engine_map import ROOT, EngineMap, load_map, systems, usable
from rules.loader import load
from rules.versions import in_range

FIXTURES = Path(__file__).parents[2] / "fixtures" / "exposition"
PARTS = re.compile(r"_(bucket|sum|count)$")

OWN = ("kvitals_target_", "kvitals_scrape_", "kvitals_engine_", "kvitals_family_", "kvitals_lora_")
"""Families that the scrape sense itself makes."""


def known_names() -> dict[str, tuple[str, str, str]]:
    """Name -> type, first version, version without it; the latter are empty for names of the newest version."""
    found = {}
    for line in (FIXTURES / "vllm-names.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, type_, *versions = line.split()
            since, until = versions or ("", "")
            found[name] = (type_, since.strip("-"), until.strip("-"))
    return found


@pytest.fixture(scope="module")
def vllm() -> EngineMap:
    return load_map("vllm")


def accounted(m: EngineMap, name: str) -> bool:
    raw = m.strip(name)
    infos = {info.raw for info in m.infos} | ({m.adapters.raw} if m.adapters else set())
    return raw in m.by_raw or raw in m.ignored or raw in infos


def test_every_known_name_is_accounted_for(vllm):
    assert [name for name in known_names() if not accounted(vllm, name)] == []


def test_every_mapped_name_is_known(vllm):
    known = {name.removeprefix("vllm:") for name in known_names()}
    infos = {info.raw for info in vllm.infos} | {vllm.adapters.raw}
    mapped = {metric.raw for metric in vllm.metrics if not metric.bare} | set(vllm.ignored) | infos
    assert sorted(mapped - known) == []
    pages = "".join(path.read_text() for path in FIXTURES.glob("*.prom"))
    assert [m.raw for m in vllm.metrics if m.bare and f"# TYPE {m.raw} " not in pages] == []


def test_types_agree_with_the_engine(vllm):
    families = load().families
    wrong = [
        (name, type_, metric.family)
        for name, (type_, *_) in known_names().items()
        for metric in vllm.by_raw.get(vllm.strip(name) or "", ())
        if families[metric.family].type != type_
    ]
    assert wrong == []


def test_old_names_have_the_versions_in_which_wheels_have_them(vllm):
    for name, (_, since, until) in known_names().items():
        entries = vllm.by_raw.get(vllm.strip(name) or "", ())
        if not until or not entries:
            continue
        first = max(since, "0.6", key=lambda version: [int(part) for part in version.split(".")])
        assert any(entry.known_in(first) for entry in entries), name
        assert not any(entry.known_in(until) for entry in entries), name


def test_families_are_defined_and_have_their_labels(vllm):
    families = load().families
    for metric in vllm.metrics:
        labels = {*metric.labels.values(), *metric.constant}
        assert labels == set(families[metric.family].labels), metric.raw


def test_no_family_of_an_engine_is_fed_by_nobody():
    fed = {metric.family for system in systems() for metric in load_map(system).metrics}
    subjects = ("latency", "load", "kv", "prefix", "tokens", "speculation", "lora", "offload", "transfer", "process")
    for family in families_in(*subjects):
        assert family in fed or family.startswith(OWN), family


def families_in(*subjects: str) -> list[str]:
    files = [ROOT.parent / "signals" / f"{subject}.yaml" for subject in subjects]
    return [name for file in files for name in yaml.safe_load(file.read_text())["families"]]


@pytest.mark.parametrize("version", ["0.6.3", "0.8.5", "0.9.0.1", "0.10.2", "0.11.2", "0.15.0", "0.24.0", "0.32.0"])
def test_what_rules_live_on_is_mapped_in_every_version(vllm, version):
    fed = {metric.family for metric in vllm.metrics if metric.known_in(version)}
    core = """ttft_seconds itl_seconds e2e_seconds requests_running requests_waiting kv_usage_ratio
        requests_finished_total preemptions_total prompt_tokens_total generation_tokens_total"""
    assert {f"kvitals_{name}" for name in core.split()} <= fed


def test_flags_feed_each_fact_once_and_defaults_are_ranges(vllm):
    told = [flag.fact or flag.info for flag in vllm.flags.values()]
    assert len(told) == len(set(told)) and all(told)
    for flag in vllm.flags.values():
        for default in flag.defaults:
            in_range("1.0", default.versions)


def test_telemetry_names_facts_and_families_that_exist(vllm):
    families = load().families
    facts = {flag.fact for flag in vllm.flags.values()}
    for telemetry in vllm.telemetry:
        assert telemetry.fact in facts
        assert set(telemetry.families) <= set(families)


class Flags(dict):
    """The flags of a command line as a FlagReader."""

    def number(self, name: str) -> float | None:
        value = self.get(name)
        return float(value) if isinstance(value, bool | int | float) else None

    def text(self, name: str) -> str:
        value = self.get(name)
        return value if isinstance(value, str) else ""


def test_flags_tell_facts(vllm):
    given = {"max-num-seqs": 64, "kv-cache-metrics": True, "otlp-traces-endpoint": "http://x", "quantization": "fp8"}
    facts, info = vllm.learn(Flags(given), "0.32.0")
    assert (facts["slots"], facts["kv_cache_metrics"], facts["tracing"]) == (64.0, 1.0, 1.0)
    assert info["quantization"] == "fp8"
    assert (facts["kv_metrics_sample"], facts["kv_events"], facts["tensor_parallel"]) == (0.01, 0.0, 1.0)
    assert "token_budget" not in facts  # its default depends on the hardware


def test_without_a_version_no_default_applies(vllm):
    assert vllm.learn(Flags(), "") == ({}, {})


def test_defaults_only_where_the_flag_exists(vllm):
    assert "kv_cache_metrics" not in vllm.learn(Flags(), "0.11.0")[0]


@pytest.mark.parametrize(
    ("version", "says"),
    [("0.32.0", True), ("v0.9.1", True), ("0.11.0rc2", True), ("0.1.dev1+gabc", False), ("dev", False), ("", False)],
)
def test_versions_that_say_something(version, says):
    assert usable(version) == says


def test_newer_minor_releases_are_untested(vllm):
    assert not vllm.untested("0.32.7") and not vllm.untested("0.31.0")
    assert vllm.untested("0.33.0") and vllm.untested("1.0.0")
