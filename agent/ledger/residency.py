"""What the blocks that an engine holds are for, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvitals.agent.ledger.block_table import Blocks
from kvitals.series.slices import Steps, complete

PINNED, HOT, COLD, OFFLOADED = "pinned", "hot", "cold", "offloaded"
SHARED = "shared"

HOT_SECONDS = 300.0
"""A block that a look-up found within so long is hot."""

SAMPLED = 16
"""Of large tables one block in so many is looked at."""

MAX_EXACT = 16_384
RUNS_AT_ONCE = 2_048
"""Runs between which others have their turn: about two milliseconds."""


@dataclass
class Residency:
    """Tokens."""

    purposes: dict[str, int] = field(default_factory=dict)
    tenants: dict[str, int] = field(default_factory=dict)  # "": nobody knows; `shared`: of two or more
    known: dict[str, int] = field(default_factory=dict)  # told, learned, shared, unknown


def survey(main: Blocks, lower: Sequence[Blocks], tokens: int, pinned: float | None, t: float) -> Residency:
    """What is held at `t`, in blocks of that many tokens. pinned: blocks that requests hold, as the engine says; those
    are taken to be the ones used last. None: it does not say, so hot and cold have them too."""
    return complete(survey_steps(main, lower, tokens, pinned, t))


def survey_steps(
    main: Blocks, lower: Sequence[Blocks], tokens: int, pinned: float | None, t: float
) -> Steps[Residency]:
    """The same in steps."""
    found = Residency()
    ages: dict[int, list[int]] = {}  # seconds since the last use -> hot, cold blocks
    for number, run in enumerate(list(main.runs)):
        if number % RUNS_AT_ONCE == RUNS_AT_ONCE - 1:
            yield None
        live = run.live
        if not live:
            continue
        age = int(max(t - run.last, 0.0))
        both = ages.setdefault(age, [0, 0])
        both[0 if run.uses and age <= HOT_SECONDS else 1] += live
        tenant, known = (SHARED, SHARED) if run.tenant == "" else (run.tenant or "", run.how or "unknown")
        found.tenants[tenant] = found.tenants.get(tenant, 0) + live * tokens
        found.known[known] = found.known.get(known, 0) + live * tokens
    found.purposes = _purposes(ages, pinned)
    if lower:
        found.purposes[OFFLOADED] = _elsewhere(lower, main)
    found.purposes = {purpose: blocks * tokens for purpose, blocks in found.purposes.items()}
    return found


def _purposes(ages: dict[int, list[int]], pinned: float | None) -> dict[str, int]:
    left = int(pinned or 0)
    hot = cold = held = 0
    for age in sorted(ages):
        here, there = ages[age]
        of_cold = min(there, left)  # what is in use has been stored just now more often than found again
        of_hot = min(here, left - of_cold)
        left -= of_cold + of_hot
        held += of_cold + of_hot
        hot, cold = hot + here - of_hot, cold + there - of_cold
    purposes = {HOT: hot, COLD: cold}
    return purposes if pinned is None else {PINNED: held, **purposes}


def _elsewhere(lower: Sequence[Blocks], main: Blocks) -> int:
    """Blocks that only a lower tier has."""
    every = SAMPLED if sum(table.live for table in lower) > MAX_EXACT else 1
    only = sum(not main.holds((block,)) for table in lower for block in sample_blocks(table, every))
    return only * every


def sample_blocks(table: Blocks, every: int) -> Iterable[int]:
    """The live blocks whose hash can be divided by `every`, a power of two."""
    mask = every - 1
    for run in table.runs:
        for block in run.hashes[: run.live]:
            if not block & mask:
                yield block


def duplicates(tables: Sequence[Blocks]) -> int:
    """Blocks that an engine holds though another one does as well, about: each time beyond the first."""
    every = SAMPLED if sum(table.live for table in tables) > MAX_EXACT else 1
    seen: set[int] = set()
    again = 0
    for table in tables:
        for block in sample_blocks(table, every):
            if block in seen:
                again += 1
            else:
                seen.add(block)
    return again * every
