"""docs/compatibility.md: which programs and versions are known, from what, and what each of them can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from kvitals.dashboards.reference.text import cell, generated_header, table
from kvitals.rules.engine_flags import flag_table, systems_with_flags
from kvitals.rules.engine_map import EngineMap, Metric, load_map, systems
from kvitals.rules.shipped import load_shipped

FILE = "compatibility.md"
_DATA = Path(__file__).with_name("compatibility.yaml")
_NO = "-"

_INTRO = """\
# What each engine can show

kvitals reads a program through a map of its metrics, with the versions of each name. A version newer than its map is
read with the map's newest names and marked `untested`. `kvitals check` lists names that no map has.

*Captured* pages come from running programs, and the tests read them. Pages of *classes* were made by the program's own
metric classes without a server. *Names* come from releases and sources: such a map is checked against an inventory of
names, and was not tested on a running program. Data that a version does not export is unknown in the verdict, never
healthy.

"""


class Capability(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that one wants to see, and the families of which any shows it."""

    what: str
    families: tuple[str, ...]
    adapters: bool = False  # an info metric that lists adapters shows it too


class MapEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """What a map was made from and is tested with."""

    names: str
    captured: str = ""
    classes: str = ""


class Data(Struct, frozen=True, forbid_unknown_fields=True):
    """The file beside this one."""

    capabilities: tuple[Capability, ...]
    evidence: dict[str, MapEvidence]


def data() -> Data:
    """What the document asks of the maps. Raises msgspec.ValidationError for a wrong file."""
    return msgspec.convert(load_shipped(_DATA), Data)


def page() -> str:
    """The document."""
    known, maps = data(), [load_map(system) for system in systems()]
    engines = sorted((m for m in maps if m.kind == "engine"), key=lambda m: -len(m.metrics))
    others = sorted((m for m in maps if m.kind in ("frontend", "router", "gateway")), key=lambda m: m.title)
    lines = [generated_header("rules/engines and dashboards/reference/compatibility.yaml"), "", *_INTRO.splitlines()]
    lines += ["## Programs", "", *_programs(maps, known), ""]
    lines += ["## Engines", "", *_shown(engines, known), ""]
    lines += ["## Frontends, routers and gateways", "", *_shown(others, known), ""]
    lines += [
        "`-` is not on the program's page. kvitals also reads the engine's command line and version, its KV events,",
        "its spans, and the GPUs and processes of the node: see [concepts](concepts.md).",
        "",
        "## Flags that enable more",
        "",
        "`kvitals check` lists the metrics that your engines do not have.",
        "",
        *_flags(maps),
        "",
        "## Flags that are known",
        "",
        "Levers, `kvitals check` and `kvitals upgrade` use the flags of these releases ([upgrades](upgrade.md)). A",
        "newer engine is reported as *newer than the flags that this kvitals knows*.",
        "",
        *_known_flags(),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _known_flags() -> Iterator[str]:
    tables = [found for system in systems_with_flags() if (found := flag_table(system)) is not None]
    rows = [
        (load_map(t.system).title, f"{t.oldest} to {t.newest}", str(len(t.releases)), str(len(t.at(t.newest))))
        for t in tables
    ]
    yield from table(("program", "versions", "releases read", "spellings of flags in the newest"), rows)


def _programs(maps: list[EngineMap], known: Data) -> Iterator[str]:
    rows = []
    for m in sorted(maps, key=lambda m: (m.kind, m.title)):
        from_ = known.evidence[m.system]
        versions = f"{m.oldest} to {m.newest}" if m.oldest != m.newest else m.newest
        families = len({metric.family for metric in m.metrics})
        what = (m.title, m.kind, versions if m.newest != "0" else "any", str(families))
        rows.append((*what, from_.captured or _NO, from_.classes or _NO, from_.names))
    yield from table(("program", "kind", "versions", "families", "captured", "classes", "names from"), rows)


def _shown(maps: list[EngineMap], known: Data) -> Iterator[str]:
    rows = [(one.what, *(_cell(m, one) for m in maps)) for one in known.capabilities]
    told = [row for row in rows if any(text != _NO for text in row[1:])]
    yield from table(("", *(m.title for m in maps)), told)


def _cell(m: EngineMap, wanted: Capability) -> str:
    """Whether and from when a program shows something."""
    if wanted.adapters and m.adapters:
        return "yes"
    entries = [metric for metric in m.metrics if metric.family in wanted.families]
    now = [metric for metric in entries if metric.known_in(m.newest)]
    by_default = [metric for metric in now if not metric.flag]
    if by_default:
        return _since(m, wanted, by_default)
    if now:
        flag = now[0].flag
        return f"with {flag}" if " " in flag else f"with `{flag}`"
    return "old versions only" if entries else _NO


def _since(m: EngineMap, wanted: Capability, now: list[Metric]) -> str:
    """The first version from which on every version has it under some name."""
    first = min((metric.since for metric in now), key=_order)
    before = [x for x in m.metrics if x.family in wanted.families and not x.known_in(m.newest) and not x.flag]
    return "yes" if not first or before else f"since {first}"


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _flags(maps: list[EngineMap]) -> Iterator[str]:
    flags = [(m.title, flag) for m in maps for flag in m.telemetry]
    rows = [
        (title, f"`{cell(one.flag)}`", cell(one.brings), cell(one.cost), one.versions or "all") for title, one in flags
    ]
    yield from table(("program", "flag", "adds", "cost", "versions"), rows)
