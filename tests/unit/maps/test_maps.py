"""Every engine map accounts for every name that its program is known to have, and for nothing else."""

import re
from pathlib import Path

import yaml

from kvitals.rules.engine_map import ROOT, EngineMap, load_map, systems
from kvitals.rules.loader import load
from kvitals.rules.versions import in_range, release
from tests.goldens.names import ROOT as NAMES
from tests.goldens.names import inventory, raw
from tests.support.loops import for_each

PAGES = Path(__file__).parents[2] / "fixtures" / "exposition"

OWN = ("kvitals_target_", "kvitals_scrape_", "kvitals_engine_", "kvitals_family_", "kvitals_lora_", "kvitals_probe_")
"""Families that senses and the scrape itself make."""

SHAPE = {"summary": "histogram"}
"""Of a summary the sum and the count are read, which a histogram has too."""

SUBJECTS = [
    *("latency", "load", "kv", "prefix", "tokens", "speculation"),
    *("lora", "offload", "transfer", "process", "parallel"),
]
"""What only engines tell."""


each_map = for_each("m", lambda: [load_map(system) for system in systems()], ids=lambda m: m.system)


def others(m: EngineMap) -> set[str]:
    """Raw names that the map knows and that feed no family."""
    return {info.raw for info in m.infos} | ({m.adapters.raw} if m.adapters else set()) | set(m.ignored)


def on_pages() -> set[str]:
    found: set[str] = set()
    for page in PAGES.rglob("*.prom"):
        found.update(re.findall(r"^# TYPE (\S+) ", page.read_text(encoding="utf-8"), re.MULTILINE))
    return found


@each_map
def test_an_inventory_says_where_its_names_are_from(m: EngineMap) -> None:
    first = (NAMES / f"{m.system}.txt").read_text(encoding="utf-8").split("\n", 1)[0]
    assert first.startswith("# ") and len(first) > 20


@each_map
def test_no_line_of_an_inventory_is_there_twice(m: EngineMap) -> None:
    lines = inventory(m.system)
    assert len(set(lines)) == len(lines)


@each_map
def test_every_known_name_is_accounted_for(m: EngineMap) -> None:
    known = m.by_raw.keys() | others(m)
    assert [line.name for line in inventory(m.system) if raw(m, line.name) not in known] == []


@each_map
def test_every_mapped_name_is_known(m: EngineMap) -> None:
    known = {raw(m, line.name) for line in inventory(m.system)}
    bare = on_pages()
    mapped = {metric.raw for metric in m.metrics if not metric.bare} | others(m)
    assert sorted(mapped - known) == []
    assert [metric.raw for metric in m.metrics if metric.bare and metric.raw not in known | bare] == []


@each_map
def test_no_name_is_both_mapped_and_ignored(m: EngineMap) -> None:
    assert sorted(m.by_raw.keys() & m.ignored.keys()) == []


@each_map
def test_types_agree_with_the_program(m: EngineMap) -> None:
    families = load().families
    wrong = [
        (line.name, line.type, entry.family)
        for line in inventory(m.system)
        for entry in m.by_raw.get(raw(m, line.name), ())
        if entry.known_in(line.first(m.oldest)) and families[entry.family].type != SHAPE.get(line.type, line.type)
    ]
    assert wrong == []


@each_map
def test_ranges_of_versions_are_those_of_releases(m: EngineMap) -> None:
    lines = inventory(m.system)
    for line in lines:
        entries = m.by_raw.get(raw(m, line.name), ())
        if not entries or not (line.since or line.until):
            continue
        first = line.first(m.oldest)
        assert any(entry.known_in(first) for entry in entries), line
        if line.since and first == line.since and not any(o.name == line.name and o.until for o in lines):
            assert min((entry.since or m.oldest for entry in entries), key=release) == line.since, line
        again = any(o.name == line.name and o is not line and o.in_version(line.until) for o in lines)
        if line.until and not again:
            assert not any(entry.known_in(line.until) for entry in entries), line


@each_map
def test_families_are_defined_and_have_their_labels(m: EngineMap) -> None:
    families = load().families
    for metric in m.metrics:
        labels = {*metric.labels.values(), *metric.constant}
        own = set(families[metric.family].labels)
        assert labels == own - m.series_labels.keys(), metric.raw
        assert not metric.changes or metric.changes in families, metric.raw


def test_no_family_of_an_engine_is_fed_by_nobody():
    fed = {metric.family for system in systems() for metric in load_map(system).metrics}
    for family in families_in(*SUBJECTS):
        assert family in fed or family.startswith(OWN), family


def families_in(*subjects: str) -> list[str]:
    files = [ROOT.parent / "signals" / f"{subject}.yaml" for subject in subjects]
    return [name for file in files for name in yaml.safe_load(file.read_text(encoding="utf-8"))["families"]]


@each_map
def test_flags_feed_each_fact_once_and_defaults_are_ranges(m: EngineMap) -> None:
    told = [flag.fact or flag.info for flag in m.flags.values()]
    assert len(told) == len(set(told)) and all(told)
    for flag in m.flags.values():
        for default in flag.defaults:
            in_range("1.0", default.versions)


@each_map
def test_telemetry_names_facts_and_families_that_exist(m: EngineMap) -> None:
    families = load().families
    facts = {flag.fact for flag in m.flags.values()}
    for telemetry in m.telemetry:
        assert not telemetry.fact or telemetry.fact in facts
        assert set(telemetry.families) <= set(families)
        in_range("1.0", telemetry.versions)


def test_what_an_engine_cannot_have_is_a_rule() -> None:
    codes = {code: system for system in systems() for code in load_map(system).not_applicable}
    assert codes.keys() <= load().rules.keys(), codes
