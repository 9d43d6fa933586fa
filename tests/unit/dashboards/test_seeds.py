"""docs/seeds.md: every row names what exists, states each rule's proof, and no rule, lever or row is left out."""

from __future__ import annotations

import csv
import re

import pytest

from kvitals.dashboards import reference
from kvitals.dashboards.reference import seeds
from kvitals.dashboards.reference.seeds import KINDS, RowKind, SeedRow
from kvitals.rules.engine_map import load_map, systems
from kvitals.rules.loader import load
from kvitals.rules.proof import PROOF_FILE
from tests.support.loops import for_each
from tests.unit.docs.test_documents import LINK, anchors

KNOWLEDGE = load()
TABLES = seeds.seed_tables()
ROWS = [(kind, row) for kind in KINDS for row in TABLES.rows(kind)]
PAGE = (reference.DOCS / seeds.FILE).read_text(encoding="utf-8")
LEFT_OUT = "dashboards/reference/seeds.yaml: name each in a row, or under `beyond`, and not in both"
BAR = re.compile(r"(?<!\\)\|")


def proofs() -> dict[str, str]:
    with PROOF_FILE.open(encoding="utf-8", newline="") as file:
        return {row["code"]: row["proof"] for row in csv.DictReader(file)}


def written(kind: str) -> list[list[str]]:
    """The cells of each row of a table in the written document."""
    part = PAGE.split(f"\n## {kind.capitalize()}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in BAR.split(line)[1:-1]] for line in part.splitlines() if line.startswith("| ")][1:]


@for_each("kind, row", ROWS)
def test_a_row_names_what_the_knowledge_has(kind: RowKind, row: SeedRow) -> None:
    assert set(row.rules) <= KNOWLEDGE.rules.keys()
    assert set(row.signals) <= KNOWLEDGE.signals.keys()
    assert set(row.families) <= KNOWLEDGE.families.keys()
    assert set(row.levers) <= KNOWLEDGE.levers.keys()
    assert set(row.programs) <= set(systems())
    assert row.places, "in which document?"
    assert {place.split()[0] for place in row.places} <= TABLES.documents.keys()


@for_each("kind, row", ROWS)
def test_a_row_is_covered_or_states_why_not(kind: RowKind, row: SeedRow) -> None:
    cover = {
        "symptoms": row.rules,
        "metrics": row.signals or row.families or row.see,
        "levers": row.levers,
        "formulas": row.signals or row.families or row.rules or row.see,
        "systems": row.programs or row.families or row.rules or row.see,
    }
    assert cover[kind] or row.missing, f"{row.what}: name what covers it, or in `missing` why nothing does"


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_has_every_row_with_its_links_and_proofs(kind: RowKind) -> None:
    known, rows = proofs(), written(kind)
    assert len(rows) == len(TABLES.rows(kind))
    for row, cells in zip(TABLES.rows(kind), rows, strict=True):
        what, _, rules, measured, levers, also, note = cells
        stated = dict(re.findall(r"\[([A-Z]{3}\d\d)\]\(\S+\) ([\w ]+)", rules))
        assert stated == {code: known[code] for code in stated}, what
        assert set(row.rules) <= stated.keys(), what
        assert all(f"[`kvitals:{name}`](" in measured for name in row.signals), what
        assert all(f"[`{name}`](" in measured for name in row.families), what
        assert all(f"[{name}](rule-reference.md#{name})" in levers for name in row.levers), what
        assert all(f"[{load_map(name).title}](compatibility.md#programs)" in also for name in row.programs), what
        assert len(LINK.findall(also)) == len(row.programs) + len(row.see), what
        assert ("**not covered**" in note) == bool(row.missing), what
        assert seeds.is_covered(row) == bool(rules or measured or levers or also), what


def test_each_rule_and_lever_has_a_row_or_another_origin() -> None:
    rules = {code for _, row in ROWS for code in row.rules}
    levers = {name for _, row in ROWS for name in row.levers}
    extra_rules = [code for extra in TABLES.beyond for code in extra.rules]
    extra_levers = [name for extra in TABLES.beyond for name in extra.levers]
    assert sorted([*rules, *extra_rules]) == sorted(KNOWLEDGE.rules), LEFT_OUT
    assert sorted([*levers, *extra_levers]) == sorted(KNOWLEDGE.levers), LEFT_OUT


def test_each_program_with_a_map_has_a_row_or_another_origin() -> None:
    named = {name for _, row in ROWS for name in row.programs}
    extra = [name for one in TABLES.beyond for name in one.programs]
    assert sorted([*named, *extra]) == sorted(systems()), LEFT_OUT


def test_each_symptom_of_the_rules_has_a_row_among_the_symptoms() -> None:
    named = {code for row in TABLES.symptoms for code in row.rules}
    assert sorted(code for code, rule in KNOWLEDGE.rules.items() if rule.kind == "symptom" and code not in named) == []


def test_each_document_is_named_and_no_row_is_there_twice() -> None:
    assert {place.split()[0] for _, row in ROWS for place in row.places} == TABLES.documents.keys()
    for kind in KINDS:
        names = [row.what for row in TABLES.rows(kind)]
        assert sorted(set(names)) == sorted(names)


def test_links_lead_to_headings() -> None:
    """Each address once: the document has thousands of links."""
    places: dict[str, set[str]] = {}
    for link in sorted(set(LINK.findall(PAGE))):
        name, _, anchor = link.partition("#")
        path = (reference.DOCS / name).resolve()
        assert path.is_file(), link
        if anchor:
            places[name] = places.get(name) or anchors(path)
            assert anchor in places[name], link


def test_an_unknown_name_stops_the_page() -> None:
    wrong = SeedRow(what="a symptom", places=("sizing",), rules=("XYZ99",))
    with pytest.raises(KeyError, match="XYZ99"):
        seeds.seed_cover(wrong, KNOWLEDGE)


def test_a_lever_has_the_rules_that_offer_it() -> None:
    row = SeedRow(what="chunked prefill", places=("sizing",), levers=("chunked-prefill",))
    offers = {code for code, rule in KNOWLEDGE.rules.items() if "chunked-prefill" in {u.lever for u in rule.levers}}
    assert offers
    assert set(seeds.seed_cover(row, KNOWLEDGE).rules) == offers
