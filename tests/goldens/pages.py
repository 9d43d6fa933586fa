"""The pages that goldens are of, and what each means to the engine maps, as text.

A page is *captured* from a server, *instantiated* from a program's own metric classes with values that are nobody's,
or *generated* here from an inventory, for versions that there is no page of. Where a page does not say so in its first
line (`# origin: ...`) it is captured. Values are in the golden of a captured page; of the others only what there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.page_reading import Reading
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import VERSION, Translator
from kvitals.rules.engine_map import EngineMap, load_map, systems
from kvitals.rules.versions import release
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, is_stale
from kvitals.series.window import Window
from tests.goldens.names import ROOT as NAMES
from tests.goldens.names import Name, inventory, raw

ROOT = Path(__file__).parent
PAGES = ROOT.parent / "fixtures" / "exposition"

_ORIGIN = re.compile(r"# origin: (\w+)")
_SAID_ABOVE = ("kvitals_scrape_", "kvitals_target_", "kvitals_engine_restarts", "kvitals_family_", "kvitals_name_")


@dataclass(frozen=True)
class Page:
    """A metrics page. `version` is what the program would say of itself, empty where the page has to tell."""

    name: str
    origin: str
    text: str
    version: str = ""


def pages() -> list[Page]:
    """All pages, those that are generated among them."""
    stored = [(path.stem, path.read_text(encoding="utf-8")) for path in sorted(PAGES.rglob("*.prom"))]
    return [Page(name, origin(text), text) for name, text in stored] + list(generated())


def origin(text: str) -> str:
    """Where a stored page is from."""
    found = _ORIGIN.match(text)
    return found[1] if found else "captured"


def generated() -> Iterator[Page]:
    """A page of each version at which names changed, for the programs whose inventory tells versions."""
    for system in sorted({path.stem for path in NAMES.glob("*.txt")} & set(systems())):
        m, names = load_map(system), inventory(system)
        for version in sorted(boundaries(m, names), key=release):
            text = "".join(of_name(m, name, version) for name in names if name.in_version(version))
            yield Page(f"{system}-{version}-names", "generated", text, version)


def boundaries(m: EngineMap, names: list[Name]) -> set[str]:
    """The versions from which a name is there no more, and the oldest and newest of the map."""
    gone = {name.until for name in names if name.until}
    return {m.oldest, *gone, m.newest} if gone else set()


def of_name(m: EngineMap, name: Name, version: str) -> str:
    """Lines of a page for one name, with a series for each meaning that the map knows of it in that version."""
    entries = [entry for entry in m.by_raw.get(raw(m, name.name), ()) if entry.known_in(version)]
    found = dict.fromkeys(tuple((dict.fromkeys(e.labels, "x") | e.where).items()) for e in entries)
    rows = [dict(labels) for labels in found] or [{}]
    parts = {"histogram": ["_bucket", "_sum", "_count"], "summary": ["_sum", "_count"]}.get(name.type, [""])
    lines = [f"# TYPE {name.name} {name.type}\n"]
    for labels in rows:
        for part in parts:
            said = labels | {m.model_label: "m"} | ({"le": "+Inf"} if part == "_bucket" else {})
            inner = ",".join(f'{key}="{value}"' for key, value in said.items() if key)
            lines.append(f"{name.name}{part}{{{inner}}} 1.0\n")
    return "".join(lines)


def golden(page: Page) -> str:
    """What the maps read on a page."""
    window = Window(1000.0, 100_000)
    translator = Translator(window, "page", Identity("host:1"), [load_map(system) for system in systems()])
    if page.version:
        translator.learn(VERSION, {}, {"version": page.version})
    translator.good(1.0, PageParser().parse(page.text.encode()), 0.0, 0)
    head = [f"origin: {page.origin}"]
    if translator.reading is None:
        return "\n".join([*head, "no map knows this page"]) + "\n"
    values = page.origin == "captured"
    return "\n".join([*head, *understood(translator.reading), *families(window, values)]) + "\n"


def understood(reading: Reading) -> Iterator[str]:
    """What the page is of, and what the map does not know of it."""
    version = reading.version if usable_guess(reading) else "unknown"
    yield f"map: {reading.system.system}, version {version} by {reading.version_source}"
    yield from (f"unknown name: {name}" for name in reading.unknown)
    yield from (f"missing: {family} ({name})" for family, name in sorted(reading.missing))
    yield from (f"of another version: {name} ({family})" for family, name in sorted(reading.outdated))


def usable_guess(reading: Reading) -> bool:
    """A guess by names says nothing where none of them came later than the oldest version of the map."""
    return reading.version_source != "names on the page" or reading.version != reading.system.oldest


def families(window: Window, values: bool) -> Iterator[str]:
    """A line for each series, and one for all buckets of a histogram."""
    found: dict[str, str] = {}
    buckets: dict[str, dict[str, float]] = {}
    for frame in window.select([Matcher(METRIC_NAME, MatchOp.NE, "")], 0, 1e12):
        gone = is_stale(frame.values)
        for column, labels in enumerate(frame.labels):
            if gone[-1, column] or labels.name.startswith(_SAID_ABOVE):
                continue
            value = float(frame.values[-1, column])
            if labels.name.endswith("_bucket"):
                buckets.setdefault(written(labels.drop("le")), {})[labels["le"]] = value
            else:
                found[written(labels)] = f"{value:.12g}"
    for series, counts in buckets.items():
        bounds = sorted(counts, key=float)
        found[series] = " ".join(f"{le}:{counts[le]:.12g}" if values else le for le in bounds)
    for series in sorted(found):
        yield f"{series} {found[series]}" if values or series in buckets else series


def written(labels: Labels) -> str:
    """A series as PromQL writes it."""
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items() if key != METRIC_NAME)
    return f"{labels.name}{{{inner}}}"
