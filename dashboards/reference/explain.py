"""The page of one word as Markdown: a rule, a signal, a metric, a lever or a word of the glossary.

`kvitals explain` prints it. The texts are those of the reference documents and runbooks: each is computed in one place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from kvitals.dashboards import runbooks
from kvitals.dashboards.reference import glossary, metrics, rules
from kvitals.dashboards.reference.text import one_line
from kvitals.rules.engine_map import EngineMap, Metric, load_map, systems
from kvitals.rules.loader import HISTOGRAM_PARTS, SIGNAL_PREFIX, Knowledge, family_of
from kvitals.rules.model import Signal

SUGGESTIONS = 3
_SHORT_CODE = re.compile(r"^([a-z]{3})(\d)$")
"""A rule code without its zero: KVC1."""

_SERIES = re.compile(r"\bkvitals[_:]\w+")
"""The names of families and signals in an expression."""


class UnknownWordError(Exception):
    """No rule, signal, metric, lever or word of the glossary has the name. `near`: names like it, the nearest first."""

    def __init__(self, word: str, near: list[str]) -> None:
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        super().__init__(
            f"nothing is known about {word!r}.{meant} explain accepts a rule code (KVC01), a metric, a signal, "
            f"a lever, a title, a flag or a word of the glossary; kvitals rules list prints the rules."
        )
        self.near = near


def explanation(word: str, knowledge: Knowledge) -> str:
    """The page of a word; several, where a metric is a signal's name, too. Raises UnknownWordError."""
    asked = word.strip()
    kinds: tuple[Callable[[str, Knowledge], str], ...] = (_rule, _signal, _family, _raw, _lever, _flag, _term)
    for spelling in _spellings(asked):
        if pages := [page for kind in kinds if (page := kind(spelling, knowledge))]:
            return "\n".join(pages)
    raise UnknownWordError(word, _near(asked, knowledge))


def _spellings(word: str) -> Iterator[str]:
    """The word, then with other marks between its parts: names of metrics have `_`, of levers `-`, terms a space."""
    yield word
    parts = re.split(r"[\s_-]+", word)
    yield from (mark.join(parts) for mark in ("_", " ", "-"))


def vocabulary(knowledge: Knowledge) -> list[str]:
    """Every word that has a page, but for the engines' own names of metrics."""
    signals = [SIGNAL_PREFIX + name for name in knowledge.signals]
    return [*knowledge.rules, *signals, *knowledge.families, *knowledge.levers, *glossary.terms()]


def _near(word: str, knowledge: Knowledge) -> list[str]:
    titles = [rule.title for rule in knowledge.rules.values()] + [one.title for one in knowledge.levers.values()]
    words = [*titles, *_levers_of_flags(knowledge), *_raw_names(), *knowledge.signals, *vocabulary(knowledge)]
    known = {title.partition(":")[0].lower(): title for title in titles} | {name.lower(): name for name in words}
    near = difflib.get_close_matches(word.lower(), known, n=SUGGESTIONS, cutoff=0.5 if " " in word else 0.7)
    if not near and len(word) > 2:
        near = sorted((name for name in known if word.lower() in name), key=len)[:SUGGESTIONS]
    return [known[name] for name in near]


def _rule(word: str, knowledge: Knowledge) -> str:
    every = knowledge.rules.values()
    by_name = {key.lower(): rule for rule in every for key in (rule.code, rule.name, rule.slug, rule.title)}
    heads = [one for one in every if one.title.partition(":")[0].lower() == word.lower()]
    if len(heads) == 1:  # a title without what follows its colon
        by_name.setdefault(word.lower(), heads[0])
    rule = by_name.get(word.lower()) or by_name.get(_SHORT_CODE.sub(r"\g<1>0\2", word.lower()))
    return runbooks.page(rule, knowledge) if rule else ""


def _signal(word: str, knowledge: Knowledge) -> str:
    name = word.lower().removeprefix(SIGNAL_PREFIX)
    if (signal := knowledge.signals.get(name)) is None:
        return ""
    judging = [code for code, rule in sorted(knowledge.rules.items()) if name in knowledge.needs(rule)]
    window = f", over the {signal.window} window" if "$window" in signal.expr else ""
    lines = [
        f"# {SIGNAL_PREFIX}{name}",
        "",
        f"**Signal** ({metrics.unit_words(signal)}, of each {signal.scope}{window})",
    ]
    lines += ["", one_line(signal.meaning), ""]
    if floor := metrics.sample_floor(signal):
        lines.append(f"- Absent below {floor}; an absent value is not zero.")
    if signal.better != "neither":
        lines.append(f"- Better: {signal.better}.")
    lines.append(f"- Rules that use it: {', '.join(judging) or 'none'}")
    lines += ["", "## Calculated from", "", "```promql", signal.expr.strip(), "```", ""]
    lines += [f"- {line}" for line in _reads(signal, knowledge)]
    return "\n".join(lines) + "\n"


def _reads(signal: Signal, knowledge: Knowledge) -> Iterator[str]:
    """The families and signals that a signal is made of, a line each."""
    read = sorted(set(_SERIES.findall(signal.expr)))
    for name in dict.fromkeys(family_of(name, knowledge.families) or name for name in read):
        if name in knowledge.families:
            yield f"`{name}`: {one_line(knowledge.families[name].meaning)}"
        elif (source := knowledge.signals.get(name.removeprefix(SIGNAL_PREFIX))) is not None:
            yield f"`{name}`: {one_line(source.meaning)}"


def _family(word: str, knowledge: Knowledge) -> str:
    name = family_of(word.lower(), knowledge.families) or word.lower()
    if (family := knowledge.families.get(name)) is None:
        return ""
    lines = [f"# {name}", "", f"**Metric** ({family.type}, {family.unit})", "", metrics.family_meaning(family), ""]
    if family.labels:
        lines.append(f"- Labels besides those of the entity: {', '.join(f'`{label}`' for label in family.labels)}")
    lines.append(f"- Reported by: {metrics.reported_by(name)}")
    for map_, metric in _mapped():
        if metric.family == name:
            lines.append(f"  - {map_.title}: `{_raw_name(map_, metric)}`{_versions(metric)}")
    users = [f"`{SIGNAL_PREFIX}{one}`" for one in sorted(_users(name, knowledge))]
    lines.append(f"- Signals that use it: {', '.join(users) or 'none'}")
    return "\n".join(lines) + "\n"


def _users(family: str, knowledge: Knowledge) -> Iterator[str]:
    wanted = {family, *(family + part for part in HISTOGRAM_PARTS)}
    yield from (name for name, signal in knowledge.signals.items() if wanted & set(_SERIES.findall(signal.expr)))


def _versions(metric: Metric) -> str:
    flag = f", enabled by {metric.flag}" if metric.flag else ""
    return f" ({metric.versions}{flag})" if metric.versions else flag


def _mapped() -> Iterator[tuple[EngineMap, Metric]]:
    for system in systems():
        yield from ((load_map(system), metric) for metric in load_map(system).metrics)


def _raw_name(map_: EngineMap, metric: Metric) -> str:
    prefix = "" if metric.bare or map_.full_names or not map_.recognise.prefixes else map_.recognise.prefixes[0]
    return prefix + metric.raw


@cache
def _raw_names() -> Mapping[str, list[tuple[EngineMap, Metric]]]:
    """An engine's own name of a metric -> its entries in the maps."""
    entries: dict[str, list[tuple[EngineMap, Metric]]] = {}
    for map_, metric in _mapped():
        entries.setdefault(_raw_name(map_, metric), []).append((map_, metric))
    return entries


def _raw(word: str, knowledge: Knowledge) -> str:
    known = _raw_names()
    wanted = [word, *(word.removesuffix(part) for part in (*HISTOGRAM_PARTS, "_total"))]
    name = next((one for one in wanted if one in known), None)
    if name is None or name in knowledge.families:
        return ""
    lines = [f"# {name}", "", "**An engine's own metric.** kvitals reads it as:", ""]
    for map_, metric in known[name]:
        labels = ", ".join(f'{label}="{value}"' for label, value in metric.constant.items())
        selected = f"{metric.family}{{{labels}}}" if labels else metric.family
        program = f"{map_.title} {metric.versions}".rstrip()
        lines.append(f"- `{selected}` ({program}): {one_line(knowledge.families[metric.family].meaning)}")
        if metric.note:
            lines.append(f"  - {one_line(metric.note)}")
    return "\n".join(lines) + "\n"


def _lever(word: str, knowledge: Knowledge) -> str:
    by_name = {key.lower(): lever for lever in knowledge.levers.values() for key in (lever.name, lever.title)}
    if (lever := by_name.get(word.lower())) is None:
        return ""
    codes = rules.lever_codes(knowledge).get(lever.name, [])
    return "\n".join([f"# {lever.name}", "", *rules.lever_text(lever, codes)]) + "\n"


def _flag(word: str, knowledge: Knowledge) -> str:
    """The levers that set an engine's flag, one page after the other."""
    names = _levers_of_flags(knowledge).get(word.lower(), ())
    return "\n".join(_lever(name, knowledge) for name in names)


def _levers_of_flags(knowledge: Knowledge) -> dict[str, list[str]]:
    """Flag of an engine -> the names of the levers that set it."""
    found: dict[str, list[str]] = {}
    for lever in knowledge.levers.values():
        for flag in dict.fromkeys(setting.flag.lower() for setting in lever.settings if setting.flag):
            found.setdefault(flag, []).append(lever.name)
    return found


def _term(word: str, _: Knowledge) -> str:
    entries = glossary.terms()
    entry = entries.get(word.lower()) or entries.get(word.lower().removesuffix("s"))
    if entry is None:
        return ""
    lines = [f"# {entry[0]}", "", f"**Word of the glossary.** {entry[1].is_}"]
    return "\n".join([*lines, *(["", f"Not used for it: {entry[1].not_}"] if entry[1].not_ else [])]) + "\n"
