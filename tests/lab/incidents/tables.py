"""The benchmark's tables, as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvitals.rules.finding import Triage

from ..product import Verdict
from ..tables import grid
from .incident import Incident, held_out
from .judging import Outcome, score


def kept(outcome: Outcome) -> bool:
    """Held out and never the reason of a change."""
    return held_out().get(outcome.incident.name) == ""


def rows(outcomes: Iterable[Outcome]) -> str:
    """A run a line."""
    lines = []
    for one in outcomes:
        said = one.score
        lines.append(
            (
                one.incident.run,
                " ".join(one.incident.label.first) or "nothing",
                " ".join(said.told) or "nothing",
                "yes" if said.first else "NO",
                "yes" if said.in_three else "NO",
                " ".join((*said.forbidden, *(c for c in said.extra if c not in said.forbidden))),
                " ".join(said.missing),
                "yes" if said.health else f"NO: {said.healthy}",
                "yes" if one.cold.first else "NO: " + (" ".join(one.cold.told[:2]) or "nothing"),
                "yes" if one.steady else " ".join(one.firsts),
                "-" if one.seconds is None else f"{one.seconds:.0f}",
            )
        )
    head = (
        *("run", "label", "told", "first right", "in three", "extra", "missing", "health right"),
        *("12 s cold", "steady", "seconds"),
    )
    return grid(head, lines)


def live_rows(verdicts: Iterable[tuple[Incident, Verdict]]) -> tuple[str, int]:
    """What was said live of each beside its label, and how many were wrong."""
    lines, wrong = [], 0
    for incident, verdict in verdicts:
        said = score(msgspec.convert(verdict.document, Triage), incident.label)
        right = said.first and said.health
        wrong += not right
        label = " ".join(incident.label.first) or "nothing"
        told = " ".join(said.told) or "nothing"
        lines.append((incident.run, label, told, "yes" if right else "NO", f"{verdict.seconds:.1f}"))
    return grid(("run", "label", "told", "right", "seconds"), lines), wrong


def summary(outcomes: Sequence[Outcome]) -> str:
    """Counts over the tuned and the held-out runs."""
    parts = []
    for name, some in (
        ("tuned", [one for one in outcomes if not kept(one)]),
        ("held out", [one for one in outcomes if kept(one)]),
    ):
        if some:
            parts.append((name, *_counts(some)))
    head = (
        *("", "runs", "first right", "in first three", "extra causes", "healthy called healthy"),
        *("12 s cold right", "steady", "seconds, median"),
    )
    return grid(head, parts)


def _counts(some: Sequence[Outcome]) -> tuple[str, ...]:
    healthy = [one for one in some if one.incident.label.healthy == "yes"]
    times = sorted(one.seconds for one in some if one.seconds is not None)
    return (
        str(len(some)),
        _of(sum(one.score.first for one in some), len(some)),
        _of(sum(one.score.in_three for one in some), len(some)),
        str(sum(len(one.score.extra) for one in some)),
        _of(sum(one.score.healthy is True and one.score.first for one in healthy), len(healthy)),
        _of(sum(one.cold.first for one in some), len(some)),
        _of(sum(one.steady for one in some), len(some)),
        f"{times[len(times) // 2]:.0f}" if times else "-",
    )


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}"
