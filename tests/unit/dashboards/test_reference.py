"""The reference documents: nothing is left out, nothing is invented, and what they rest on is there."""

from __future__ import annotations

import re

import msgspec
import pytest

from kvitals.config import LISTS, TABLES, Config
from kvitals.dashboards import reference
from kvitals.dashboards.generate import stale
from kvitals.dashboards.reference import compatibility, configuration
from kvitals.rules.engine_map import load_map, systems
from kvitals.rules.loader import load
from tests.goldens.pages import PAGES, origin

KNOWLEDGE = load()
DOCUMENTS = reference.files(KNOWLEDGE)


def test_the_written_documents_are_those_of_today() -> None:
    assert stale(DOCUMENTS, reference.DOCS) == [], "run: python -m kvitals.dashboards.generate"


def test_every_table_that_the_reader_takes_has_its_keys_written_down() -> None:
    tables = {*TABLES, *LISTS}
    assert {name.partition(".")[0] for name in configuration.TABLES} == tables
    assert len(msgspec.structs.fields(Config)) == len(tables) + 2  # with numbers by codes of rules, and its own path


def test_a_key_without_words_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = configuration._words()
    del words["agent"]["interval"]
    monkeypatch.setattr(configuration, "_words", lambda: words)
    with pytest.raises(ValueError, match=r"\[agent\].*interval"):
        reference.files(KNOWLEDGE)


def test_a_table_without_a_place_is_refused_and_named() -> None:
    text = (reference.DOCS / configuration.FILE).read_text().replace("<!-- keys of history -->", "")
    with pytest.raises(ValueError, match="history"):
        configuration.fill_tables(text)


def test_every_family_signal_rule_and_lever_is_there_once() -> None:
    metrics, rules = DOCUMENTS["metrics-reference.md"], DOCUMENTS["rule-reference.md"]
    named = re.findall(r"^\| `(kvitals[_:]\w+)` \|", metrics, re.MULTILINE)
    assert sorted(named) == sorted([*KNOWLEDGE.families, *(f"kvitals:{name}" for name in KNOWLEDGE.signals)])
    assert sorted(re.findall(r"^\| \[([A-Z]{3}\d\d)\]", rules, re.MULTILINE)) == sorted(KNOWLEDGE.rules)
    assert sorted(re.findall(r"^### (\S+)$", rules, re.MULTILINE)) == sorted(KNOWLEDGE.levers)


def test_what_is_said_to_be_captured_is_what_the_tests_read() -> None:
    pages: dict[str, set[str]] = {"captured": set(), "instantiated": set()}
    for path in PAGES.rglob("*.prom"):
        text = path.read_text()
        names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
        for system in systems():
            m = load_map(system)
            known = {m.strip(name) or "" for name in names} & set(m.recognise.names or m.by_raw) | (
                names & set(m.recognise.names)
            )
            if any(m.strip(name) is not None for name in names) and known:
                pages[origin(text)].add(system)
    evidence = compatibility.data().evidence
    assert evidence.keys() == set(systems())
    for system, one in evidence.items():
        assert not one.captured or system in pages["captured"], f"no captured page of {system}"
        assert not one.classes or system in pages["instantiated"], f"no page of the classes of {system}"


def test_capabilities_ask_for_families_that_there_are() -> None:
    for one in compatibility.data().capabilities:
        assert set(one.families) <= KNOWLEDGE.families.keys(), one.what
