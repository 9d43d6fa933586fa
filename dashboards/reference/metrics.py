"""docs/metrics-reference.md: every family and signal, by subject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml

from kvitals.dashboards.reference.text import cell, generated_header, one_line, table
from kvitals.rules.engine_map import load_map, systems
from kvitals.rules.loader import ROOT, SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import Family, Signal
from kvitals.rules.shipped import YAML_LOADER, load_shipped

FILE = "metrics-reference.md"

_INTRO = """\
# Metrics

There are two kinds of series. A **family** (`kvitals_...`) has the numbers that an engine, an exporter or the agent
reports, under one name for all programs. The agent's `/metrics`, recordings and history have the families.
A **signal** (`kvitals:...`) is one number per entity that PromQL computes from families. Rules compare signals and
boards draw them; in Prometheus a signal is a recording rule.

Counters only grow, and histograms keep the engine's own bucket bounds. Every series has the labels in its row, and the
known labels of its entity (`cluster`, `node`, `pool`, `engine`, `model`, `role`, `hardware`). A signal with fewer
samples than its minimum is absent; absent does not mean zero.

"""


def page(knowledge: Knowledge) -> str:
    """The document. Raises OSError or ValueError where the files of signals can not be read again."""
    lines = [generated_header("rules/signals/*.yaml"), "", *_INTRO.splitlines()]
    for path in sorted((ROOT / "signals").glob("*.yaml")):
        lines += _subject(path, knowledge)
    return "\n".join(lines).rstrip() + "\n"


@cache
def reporters() -> Mapping[str, list[str]]:
    """Family -> the programs whose pages report it; the agent reports the others itself."""
    programs: dict[str, list[str]] = {}
    for system in systems():
        for family in dict.fromkeys(metric.family for metric in load_map(system).metrics):
            programs.setdefault(family, []).append(load_map(system).title)
    return programs


@cache
def headings() -> Mapping[str, str]:
    """Family or `kvitals:` signal -> the heading that the document has it under."""
    places: dict[str, str] = {}
    for path in (ROOT / "signals").glob("*.yaml"):
        data = load_shipped(path)
        names = [*(data.get("families") or {}), *(SIGNAL_PREFIX + name for name in data.get("signals") or {})]
        places.update(dict.fromkeys(names, _heading(path)))
    return places


def _heading(path: Path) -> str:
    return path.stem.replace("_", " ").capitalize()


def _subject(path: Path, knowledge: Knowledge) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    data = yaml.load(text, YAML_LOADER)  # noqa: S506 (a safe one)
    yield from (f"## {_heading(path)}", "", _comment(text), "")
    families = [(name, knowledge.families[name]) for name in data.get("families") or {}]
    if families:
        rows = (_family(name, family) for name, family in families)
        yield from table(("family", "type, unit", "labels", "meaning", "reported by"), rows)
        yield ""
    signals = [(name, knowledge.signals[name]) for name in data.get("signals") or {}]
    if signals:
        rows = (_signal(name, signal) for name, signal in signals)
        yield from table(("signal", "unit", "one per", "meaning", "minimum samples"), rows)
        yield ""


def _comment(text: str) -> str:
    """What a file says of itself at its head."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return cell(" ".join(lines).replace("docs/", ""))


def family_meaning(family: Family) -> str:
    """What a family is, and what to beware of, on one line."""
    return f"{one_line(family.meaning)} {one_line(family.caveat)}".strip()


def reported_by(name: str) -> str:
    """The programs that report a family."""
    return ", ".join(reporters().get(name, [])) or "the agent"


def sample_floor(signal: Signal) -> str:
    """The number of samples below which a signal is absent; empty where it has none."""
    return f"{signal.samples.min:g} {signal.samples.of}" if signal.samples else ""


def unit_words(signal: Signal) -> str:
    return signal.unit.replace("_", " ")


def _family(name: str, family: Family) -> tuple[str, ...]:
    labels = " ".join(f"`{label}`" for label in family.labels)
    return f"`{name}`", f"{family.type}, {family.unit}", labels, cell(family_meaning(family)), reported_by(name)


def _signal(name: str, signal: Signal) -> tuple[str, ...]:
    meaning = cell(signal.meaning)
    return f"`{SIGNAL_PREFIX}{name}`", unit_words(signal), signal.scope, meaning, sample_floor(signal)
