"""How right the verdicts on drawn incidents are, and how many first levers helped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..incidents.judging import in_order
from ..tables import grid
from .play import Played, verdict
from .truth import RESTORES, Truth, restored

HELPS, WORSE = RESTORES, -0.15
HEAVY = ("page", "ticket")


@dataclass(frozen=True)
class Scored:
    """One incident beside its truth. first: None where the truth names no cause. health: None where it is marginal.
    lever: what of the harm the first lever took away; None where it was not played."""

    played: Played
    truth: Truth
    told: tuple[str, ...]
    healthy: bool | None
    first: bool | None
    health: bool | None
    wrong: tuple[str, ...]
    lever: float | None


def read(folder: Path) -> list[Path]:
    """The recordings that have a result."""
    return sorted(f for f in folder.glob("drawn-*.kvcap") if f.with_suffix(".json").exists())


def score(capture: Path) -> Scored:
    """The verdict of the rules and code that are here, on a recording."""
    played = msgspec.json.decode(capture.with_suffix(".json").read_bytes(), type=Played)
    truth, document = played.truth, verdict(capture, played)
    told = tuple(dict.fromkeys(f.code for f in in_order(document)))
    known = {*truth.also, *truth.codes}
    alone = [c for c in document.causes if not known & set(c.explained_by)]
    heavy = dict.fromkeys(c.code for c in alone if c.severity in HEAVY)
    breached = truth.state == "breached"
    arm = next((a for a in played.arms if a.name == played.lever), None)
    return Scored(
        played=played,
        truth=truth,
        told=told,
        healthy=document.healthy,
        first=bool(told) and told[0] in truth.codes if breached else None,
        health=document.healthy is True if truth.state == "in order" else None,
        wrong=() if truth.state in ("void", "marginal") else tuple(c for c in heavy if c not in known),
        lever=restored(played.harm, arm.harm) if breached and arm is not None else None,
    )


def report(scored: Sequence[Scored]) -> str:
    """A row for each incident, and the shares with their intervals."""
    rows = [_row(s) for s in scored]
    head = ["seed", "system", "faults", "harm", "truth", "codes", "told", "healthy", "right", "wrong", "lever", "load"]
    return f"{grid(head, rows)}\n\n{summary(scored)}"


def _row(s: Scored) -> list[str]:
    right = s.first if s.first is not None else s.health
    faults = ", ".join(f"{name} {strength:g}" for name, strength in s.played.faults)
    lever = s.played.lever_of + ("" if s.lever is None else f" {s.lever:+.2f}")
    return [
        *(str(s.played.seed), s.played.system, faults or "none", f"{s.played.harm.value:.1f}", s.truth.state),
        *(" ".join(s.truth.codes[:4]), " ".join(s.told[:3]) or "-", str(s.healthy)),
        *("" if right is None else "yes" if right else "NO", " ".join(s.wrong), lever, f"{s.played.load:.1f}"),
    ]


def summary(scored: Sequence[Scored]) -> str:
    counted = [s for s in scored if s.truth.state in ("breached", "in order")]
    return "\n".join(
        [
            _share("first cause right", [s.first for s in scored if s.first is not None]),
            _share("healthy called healthy", [s.health for s in scored if s.health is not None]),
            _share("without a wrong page or ticket", [not s.wrong for s in counted]),
            _share("first lever helps", [s.lever >= HELPS for s in scored if s.lever is not None]),
            _share("first lever does not harm", [s.lever > WORSE for s in scored if s.lever is not None]),
            f"marginal: {_number(scored, 'marginal')}, void: {_number(scored, 'void')}",
        ]
    )


def _number(scored: Iterable[Scored], state: str) -> int:
    return sum(s.truth.state == state for s in scored)


def _share(name: str, values: Sequence[bool]) -> str:
    if not values:
        return f"{name}: none"
    low, high = wilson(sum(values), len(values))
    share = sum(values) / len(values)
    return f"{name}: {sum(values)} of {len(values)} ({share:.0%}; {low:.0%} to {high:.0%})"


def wilson(good: int, all_: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (E. B. Wilson, 1927)."""
    share, square = good / all_, z * z / all_
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / all_ + square / (4 * all_))
    return max(0.0, middle - half), min(1.0, middle + half)
