"""docs/seeds.md: what the source documents of the rules name, and the rule, signal, lever or page that covers it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec import Struct, field

from kvitals.dashboards.reference import compatibility
from kvitals.dashboards.reference.metrics import headings
from kvitals.dashboards.reference.rules import RUNBOOKS, lever_codes
from kvitals.dashboards.reference.text import cell, generated_header, table
from kvitals.rules.engine_map import load_map
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import Rule
from kvitals.rules.proof import proof_of
from kvitals.rules.shipped import load_shipped

FILE = "seeds.md"
_DATA = Path(__file__).with_name("seeds.yaml")
_SIGNAL = re.compile(rf"\b{SIGNAL_PREFIX}(\w+)")
_HEAD = ("what is named", "in", "rules and their proof", "signals and families", "levers", "also", "note")

RowKind = Literal["symptoms", "metrics", "levers", "formulas", "systems"]
KINDS: tuple[RowKind, ...] = get_args(RowKind)

_INTRO = """\
# From the source documents to the rules

Five public documents describe how inference engines fail, what to measure and what to change. Each symptom, metric,
lever, formula and system that they name has a row here, with what covers it in kvitals.

*Proof* is the proof of the rule, from `rules/proof.csv`: *real*, a recording of a real program fires it; *captured*, a
recording with simulated engines fires it; *modelled*, only written series fire it ([rules](rule-reference.md)).
Signals and levers are those of the rules in the row, unless the row names its own. The rules of a lever are those
that offer it. A program has its map's evidence: the page of a running program that was captured, pages of its classes,
or names alone ([compatibility](compatibility.md)).

A row with **not covered** states what kvitals does not do, and why. A row with **in the document** states what a
document has wrong, and after the colon what is right, with its source. Worked examples are in
`tests/unit/sizing/test_worked_examples.py` ([where guides differ](size.md#where-guides-differ)).
"""


class SeedDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A source document: its title, and its subject in a few words."""

    title: str
    about: str


class SeedRow(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that the documents name, and what covers it."""

    what: str
    places: tuple[str, ...] = field(name="in")  # the document's key, and its section where it has numbers
    rules: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()  # empty: those of the rules' conditions
    families: tuple[str, ...] = ()
    levers: tuple[str, ...] = ()  # empty: those that the rules offer
    programs: tuple[str, ...] = ()  # maps of rules/engines
    see: Mapping[str, str] = {}  # words -> address, relative to docs/
    missing: str = ""  # what is not covered, and why
    right: str = ""  # what a document has wrong, and what is right, with its source


class SeedExtra(Struct, frozen=True, forbid_unknown_fields=True):
    """Rules, levers and programs that none of the documents name, by where they come from."""

    origin: str
    rules: tuple[str, ...] = ()
    levers: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


class SeedTables(Struct, frozen=True, forbid_unknown_fields=True):
    """The file beside this module."""

    documents: dict[str, SeedDocument]
    symptoms: tuple[SeedRow, ...]
    metrics: tuple[SeedRow, ...]
    levers: tuple[SeedRow, ...]
    formulas: tuple[SeedRow, ...]
    systems: tuple[SeedRow, ...]
    beyond: tuple[SeedExtra, ...]

    def rows(self, kind: RowKind) -> tuple[SeedRow, ...]:
        """The rows of one table, in the file's order."""
        tables: dict[RowKind, tuple[SeedRow, ...]] = {name: getattr(self, name) for name in KINDS}
        return tables[kind]


class SeedCover(Struct, frozen=True):
    """What covers a row, with what follows from the knowledge filled in."""

    rules: tuple[str, ...]
    signals: tuple[str, ...]
    levers: tuple[str, ...]


def seed_tables() -> SeedTables:
    """The rows as they are written. Raises msgspec.ValidationError for a wrong file."""
    return msgspec.convert(load_shipped(_DATA), SeedTables)


def is_covered(row: SeedRow) -> bool:
    """Whether anything covers a row, in whole or in part."""
    return any((row.rules, row.signals, row.families, row.levers, row.programs, row.see))


def seed_cover(row: SeedRow, knowledge: Knowledge) -> SeedCover:
    """The rules, signals and levers of a row. Raises KeyError for a name that the knowledge does not have."""
    rules = row.rules
    if not rules and row.levers:
        codes = lever_codes(knowledge)
        rules = _unique(code for lever in row.levers for code in codes.get(lever, ()))
    conditions = [knowledge.rules[code] for code in row.rules]
    signals = row.signals or (
        () if row.families else _unique(n for rule in conditions for n in condition_signals(rule))
    )
    levers = row.levers or _unique(use.lever for rule in conditions for use in rule.levers)
    if row.levers and not signals:
        predicts = [knowledge.levers[name].predicts for name in row.levers]
        signals = _unique(one.signal for several in predicts for one in several)
    return SeedCover(rules=rules, signals=signals, levers=levers)


def condition_signals(rule: Rule) -> tuple[str, ...]:
    """The signals that a rule's condition compares, in their order."""
    return _unique(_SIGNAL.findall(rule.when))


def page(knowledge: Knowledge) -> str:
    """The document. Raises KeyError for a row that names what the knowledge does not have."""
    tables = seed_tables()
    lines = [generated_header("dashboards/reference/seeds.yaml and rules"), "", *_INTRO.splitlines()]
    lines += ["", "## Documents", "", *_documents(tables), "", "## Rows", "", *_counts(tables)]
    for kind in KINDS:
        lines += ["", f"## {kind.capitalize()}", "", *table(_HEAD, (_row(r, knowledge) for r in tables.rows(kind)))]
    lines += ["", "## Not in the documents", "", *_beyond(tables, knowledge)]
    return "\n".join(lines).rstrip() + "\n"


def _documents(tables: SeedTables) -> Iterator[str]:
    yield from table(
        ("name", "title", "about"), ((k, cell(d.title), cell(d.about)) for k, d in tables.documents.items())
    )


def _counts(tables: SeedTables) -> Iterator[str]:
    rows = []
    for kind in KINDS:
        several = tables.rows(kind)
        part = [row for row in several if row.missing and is_covered(row)]
        none = [row for row in several if not is_covered(row)]
        rows.append(
            (kind, str(len(several)), str(len(several) - len(part) - len(none)), str(len(part)), str(len(none)))
        )
    yield from table(("kind", "rows", "covered", "covered in part", "not covered"), rows)


def _row(row: SeedRow, knowledge: Knowledge) -> tuple[str, ...]:
    cover = seed_cover(row, knowledge)
    also = [*map(_program, row.programs), *(f"[{cell(words)}]({address})" for words, address in row.see.items())]
    note = [f"**not covered**: {cell(row.missing)}"] if row.missing else []
    note += [f"**in the document**: {cell(row.right)}"] if row.right else []
    measured = [*(_metric(SIGNAL_PREFIX + name) for name in cover.signals), *map(_metric, row.families)]
    shown = (map(_rule, cover.rules), measured, map(_lever, cover.levers), also)
    return cell(row.what), ", ".join(row.places), *(", ".join(several) for several in shown), "; ".join(note)


def _beyond(tables: SeedTables, knowledge: Knowledge) -> Iterator[str]:
    yield "Rules, levers and programs that none of the documents name. The page of each rule has its references."
    yield ""
    rows = []
    for extra in tables.beyond:
        codes = (_rule(knowledge.rules[code].code) for code in extra.rules)
        names = (_lever(knowledge.levers[name].name) for name in extra.levers)
        rows.append((cell(extra.origin), ", ".join(codes), ", ".join(names), ", ".join(map(_program, extra.programs))))
    yield from table(("from", "rules and their proof", "levers", "programs"), rows)


def _rule(code: str) -> str:
    proof = proof_of(code)
    return f"[{code}]({RUNBOOKS}/{code}.md) {proof.proof if proof else 'no proof'}"


def _lever(name: str) -> str:
    return f"[{name}](rule-reference.md#{name})"


def _program(system: str) -> str:
    """A program with what its map was tested on."""
    evidence = compatibility.data().evidence[system]
    tested = (
        f"captured {evidence.captured}"
        if evidence.captured
        else "from its classes"
        if evidence.classes
        else "names only"
    )
    return f"[{load_map(system).title}](compatibility.md#programs) {tested}"


def _metric(name: str) -> str:
    """A link to the part of the metrics reference that has a signal or family."""
    anchor = headings()[name].lower().replace(" ", "-")
    return f"[`{name}`](metrics-reference.md#{anchor})"


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
