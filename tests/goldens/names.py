"""Inventories: every metric name that a program is known to have had, one file per engine map.

`tests/fixtures/names/SYSTEM.txt` has lines `name type [since until]`: names as a page shows them (histograms without
_bucket, _sum and _count), the first version that has the name, and the first that has it no more; `-` where there is
no such version or it is before the map begins. A name whose type changed has a line for each. The comments at the head
say where the names are from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvitals.rules.engine_map import EngineMap
from kvitals.rules.versions import release

ROOT = Path(__file__).parents[1] / "fixtures" / "names"


@dataclass(frozen=True)
class Name:
    """One metric of a program, in the versions from `since` to before `until`; empty where it has no such bound."""

    name: str
    type: str
    since: str = ""
    until: str = ""

    def first(self, oldest: str) -> str:
        """The first version that has it, of those from `oldest` on."""
        return max(self.since or oldest, oldest, key=release)

    def in_version(self, version: str) -> bool:
        """Whether that version has it."""
        at = release(version)
        return release(self.since) <= at and (not self.until or at < release(self.until))


def inventory(system: str) -> list[Name]:
    """The names in a system's inventory. Raises FileNotFoundError, or ValueError for a line that is none."""
    found = []
    for line in (ROOT / f"{system}.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            fields = line.split()
            if len(fields) not in (2, 4):
                raise ValueError(f"{system}.txt: `{line}` is not `name type` or `name type since until`")
            found.append(Name(fields[0], fields[1], *(version.strip("-") for version in fields[2:])))
    return found


def raw(m: EngineMap, name: str) -> str:
    """A page's name as the map has it."""
    stripped = m.strip(name)
    return name if stripped is None else stripped
