"""The flags of engines by version: which releases accept a flag, with which default and which choices.

`rules/flags/SYSTEM.csv` holds a row for each range of releases in which a flag is the same. A flag that changes its
default, its choices or its deprecation has several rows. The first lines, which begin with `#`, name the releases that
were read. Between two of them a flag is taken to be as in the earlier release.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from kvitals.rules.engine_map import load_map
from kvitals.rules.versions import release
from kvitals.series.ascii_numbers import ascii_float, is_digits

FOLDER = Path(__file__).parent / "flags"
COLUMNS = ("flag", "first", "last", "kind", "default", "choices", "aliases", "deprecated")
_READ = "# releases:"
GUESSED = "names on the page"
"""The source of a version that no endpoint reports: it is the oldest that has every name on the page."""

Kind = Literal["value", "switch", "negatable"]
"""`value` takes one, `switch` takes none, `negatable` is a switch with a `--no-` form."""


@dataclass(frozen=True)
class FlagBounds:
    """The numbers that a flag accepts. least: included for whole numbers, excluded for shares. most: included."""

    least: float = 1
    most: float = float("inf")
    whole: bool = True


_SHARES = frozenset({"--gpu-memory-utilization", "--mem-fraction-static"})
_TOKENS, _SEQUENCES, _RANKS = 1 << 30, 1 << 20, 1 << 16
_COUNTS = {
    "--api-server-count": _RANKS,
    "--block-size": 1 << 20,
    "--chunked-prefill-size": _TOKENS,
    "--expert-parallel-size": _RANKS,
    "--kv-cache-memory-bytes": 1 << 50,
    "--long-prefill-token-threshold": _TOKENS,
    "--max-cpu-loras": _SEQUENCES,
    "--max-loras": _SEQUENCES,
    "--max-loras-per-batch": _SEQUENCES,
    "--max-num-active-seqs": _SEQUENCES,
    "--max-num-batched-tokens": _TOKENS,
    "--max-num-queued-reqs": _TOKENS,
    "--max-num-queued-tokens": 1 << 40,
    "--max-num-seqs": _SEQUENCES,
    "--max-queued-requests": _TOKENS,
    "--max-running-requests": _SEQUENCES,
    "--num-gpu-blocks-override": _TOKENS,
    "--page-size": 1 << 20,
    "--pipeline-parallel-size": _RANKS,
    "--tensor-parallel-size": _RANKS,
}
"""Flags that count something, with the largest number that any machine can use: engines take larger ones and fail when
they allocate. Values that switch a flag off, such as -1, are not counts and are left out."""

LARGEST = 1 << 53
"""For all other flags: from here on not every whole number is a float."""


def bounds(flag: str) -> FlagBounds | None:
    """The numbers that a flag accepts; None where they are not known."""
    if flag in _SHARES:
        return FlagBounds(least=0, most=1, whole=False)
    return FlagBounds(most=_COUNTS[flag]) if flag in _COUNTS else None


def refusal(flag: str, value: str) -> str:
    """Why a flag does not accept a value; empty where it does, or where its bounds are not known."""
    limits = bounds(flag)
    if limits is None:
        return ""
    number = _number(value)
    if limits.whole and (number is None or not is_digits(value) or not limits.least <= number <= limits.most):
        return f"{flag} takes a whole number from {limits.least:g} to {limits.most:,}, not {value}"
    if not limits.whole and (number is None or not limits.least < number <= limits.most):
        return f"{flag} takes a value above {limits.least:g}, at most {limits.most:g}, not {value}"
    return ""


def _number(text: str) -> float | None:
    try:
        return ascii_float(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class FlagState:
    """A flag as one release has it."""

    flag: str  # with dashes; `--a.b` is key b of the JSON value of flag --a
    kind: Kind = "value"
    default: str = ""  # "none", "on", "off", "empty" for None, True, False and ""; empty: not known
    choices: tuple[str, ...] = ()  # empty: any, or not known
    aliases: tuple[str, ...] = ()  # other spellings, short forms included
    deprecated: str = ""  # the flag that replaces it; "yes": none is named; "refused": the engine does not start


@dataclass(frozen=True)
class FlagSpan:
    """A flag in a range of releases, both ends included."""

    first: str
    last: str
    state: FlagState

    def covers(self, version: str) -> bool:
        return release(self.first) <= release(version) <= release(self.last)


@dataclass(frozen=True)
class FlagTable:
    """All that is known of one engine's flags."""

    system: str
    releases: tuple[str, ...]  # those that were read, oldest first
    spans: tuple[FlagSpan, ...]
    comments: tuple[str, ...] = field(default=())  # the head of the file: where it is from

    @property
    def oldest(self) -> str:
        return self.releases[0]

    @property
    def newest(self) -> str:
        return self.releases[-1]

    def nearest(self, version: str) -> str | None:
        """The newest release that was read and is not newer than a version; None for one before them all."""
        known = [r for r in self.releases if release(r) <= release(version)]
        return known[-1] if known else None

    def is_newer(self, version: str) -> bool:
        """Whether a version is newer than the newest release that was read."""
        return release(version) > release(self.newest)

    def is_older(self, version: str) -> bool:
        return release(version) < release(self.oldest)

    def at(self, version: str) -> Mapping[str, FlagState]:
        """The flags of a version, by name and by alias. Raises ValueError for a version before the table."""
        nearest = self.nearest(version)
        if nearest is None:
            raise ValueError(f"the flags of {self.system} are known from version {self.oldest} on, not for {version}")
        return self._by_release[nearest]

    @cached_property
    def _by_release(self) -> dict[str, dict[str, FlagState]]:
        return {r: _by_name(span.state for span in self.spans if span.covers(r)) for r in self.releases}

    @cached_property
    def names(self) -> frozenset[str]:
        """Every spelling that some release has."""
        return frozenset(name for known in self._by_release.values() for name in known)

    def having(self, flag: str) -> list[str]:
        """The releases that accept a flag, oldest first."""
        return [r for r, known in self._by_release.items() if flag in known and known[flag].deprecated != "refused"]


def _by_name(states: Iterable[FlagState]) -> dict[str, FlagState]:
    known: dict[str, FlagState] = {}
    for state in states:
        for name in (state.flag, *state.aliases):
            known[name] = state
        if state.kind == "negatable":
            known["--no-" + state.flag.removeprefix("--")] = state
    return known


@lru_cache(maxsize=8)
def spellings(system: str) -> Mapping[str, str]:
    """Every other spelling of a flag, with the one that kvitals uses; both without dashes in front.

    Releases differ in which spelling is the flag and which its alias. The one that the engine's map reads counts, then
    the longest.
    """
    table = flag_table(system)
    groups: dict[str, set[str]] = {}
    for span in () if table is None else table.spans:
        names = {name.lstrip("-") for name in (span.state.flag, *span.state.aliases)}
        group = names.union(*(groups[name] for name in names if name in groups))
        groups |= dict.fromkeys(group, group)
    read = {name.partition(".")[0] for name in load_map(system).flags} if groups else set()
    found: dict[str, str] = {}
    for name, group in groups.items():
        chosen = max(group, key=lambda one: (one in read, len(one), one))
        if name != chosen:
            found[name] = chosen
    return found


@lru_cache(maxsize=8)
def switches(system: str) -> frozenset[str]:
    """The flags that take no value in any release, without dashes in front."""
    table = flag_table(system)
    spans = () if table is None else table.spans
    valued = {span.state.flag for span in spans if span.state.kind == "value"}
    return frozenset(span.state.flag.lstrip("-") for span in spans if span.state.flag not in valued)


def systems_with_flags() -> list[str]:
    """The engines whose flags are known."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


@lru_cache(maxsize=8)
def flag_table(system: str) -> FlagTable | None:
    """The flags of an engine; None for an engine without a table."""
    path = FOLDER / f"{system}.csv"
    return read_table(path) if system in systems_with_flags() else None


def read_table(path: Path) -> FlagTable:
    """The table in a file. Raises OSError, or ValueError for a file that is not such a table."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line for line in lines if line.startswith("#")]
    listed = next((line for line in comments if line.startswith(_READ)), "")
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    if not listed or tuple(rows.fieldnames or ()) != COLUMNS:
        raise ValueError(f"{path}: expected a line `{_READ} ...` and the columns {', '.join(COLUMNS)}")
    spans = [
        FlagSpan(
            row["first"],
            row["last"],
            FlagState(
                row["flag"],
                _kind(row["kind"]),
                row["default"],
                tuple(row["choices"].split()),
                tuple(row["aliases"].split()),
                row["deprecated"],
            ),
        )
        for row in rows
    ]
    kept = tuple(line for line in comments if not line.startswith(_READ))
    return FlagTable(path.stem, tuple(listed.removeprefix(_READ).split()), tuple(spans), kept)


def _kind(word: str) -> Kind:
    if word == "switch":
        return "switch"
    return "negatable" if word == "negatable" else "value"


def write_table(table: FlagTable, path: Path) -> None:
    """Write a table, sorted by flag and release."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for comment in table.comments:
            file.write(comment + "\n")
        file.write(f"{_READ} {' '.join(table.releases)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for span in sorted(table.spans, key=lambda s: (s.state.flag, release(s.first))):
            state = span.state
            listed = " ".join(state.choices), " ".join(state.aliases)
            writer.writerow([state.flag, span.first, span.last, state.kind, state.default, *listed, state.deprecated])


def spans_of(by_release: Mapping[str, Mapping[str, FlagState]]) -> list[FlagSpan]:
    """Ranges of equal states, from the flags of each release. A release without a flag ends its range."""
    spans: list[FlagSpan] = []
    for flag in sorted({flag for known in by_release.values() for flag in known}):
        first = last = ""
        state: FlagState | None = None
        for version in sorted(by_release, key=release):
            here = by_release[version].get(flag)
            if here != state:
                if state is not None:
                    spans.append(FlagSpan(first, last, state))
                first, state = version, here
            last = version
        if state is not None:
            spans.append(FlagSpan(first, last, state))
    return spans


def with_release(table: FlagTable, version: str, known: Mapping[str, FlagState]) -> FlagTable:
    """The table with one release more, or with that release read anew."""
    primary = {r: {s.state.flag: s.state for s in table.spans if s.covers(r)} for r in table.releases}
    primary[version] = dict(known)
    releases = tuple(sorted(primary, key=release))
    return FlagTable(table.system, releases, tuple(spans_of(primary)), table.comments)
