"""Levers by the money that they could bring: what each is predicted to do, how that is known, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from kvitals.diagnoser.review.result import CacheMoney, Incidents, LeverRow, PaidWork, ReviewIncident
from kvitals.diagnoser.review.words import share
from kvitals.diagnoser.review.work import Week
from kvitals.rules.model import Lever

SPARE = 1.25
"""Of the load of an hour, that replicas are to carry."""
LEAST_SHARE = 0.002
"""Of all GPU-hours: less is not worth a row."""
LEAST_SECONDS = 3600.0
"""Of time in which an engine was watched: less is no sample of what a week brings."""
MOST = 12


def levers(
    week: Week, total: PaidWork, cache: CacheMoney, incidents: Incidents, known: Mapping[str, Lever]
) -> list[LeverRow]:
    """The most money first; of like money the surer one."""
    rows = [*_replicas(week), *_idle(week), *_cache(week, cache), *_thrown_away(week), *_of_incidents(incidents)]
    per_hour = total.usd / total.gpu_hours if total.usd is not None and total.gpu_hours > 0 else None
    short = float(week.seen.data["seen"].max(axis=1).sum()) < LEAST_SECONDS
    best: dict[tuple[str, str], LeverRow] = {}
    for row in rows:
        lever = known.get(row.lever)
        if lever is None or (row.gpu_hours is not None and row.gpu_hours < LEAST_SHARE * total.gpu_hours):
            continue
        priced = row.gpu_hours * per_hour if row.gpu_hours is not None and per_hour is not None else None
        said = LeverRow(
            lever=row.lever, title=lever.title, why=row.why, setting=row.setting, gpu_hours=row.gpu_hours, usd=priced,
            at_most=row.at_most, confidence="low" if short else row.confidence, method=row.method,
            does_not_fix=lever.does_not_fix, codes=row.codes,
        )  # fmt: skip
        key = row.lever, row.setting
        if key not in best or (said.gpu_hours or 0.0) > (best[key].gpu_hours or 0.0):
            best[key] = said
    order = {"high": 0, "medium": 1, "low": 2}
    found = sorted(best.values(), key=lambda row: (-(row.gpu_hours or 0.0), order[row.confidence], row.lever))
    return found[:MOST]


def _row(lever: str, why: str, gpu_hours: float | None, confidence: str, method: str, *, at_most: bool) -> LeverRow:
    return LeverRow(
        lever=lever, title="", why=why, setting="", gpu_hours=gpu_hours, usd=None, at_most=at_most,
        confidence=confidence, method=method, does_not_fix="", codes=[],
    )  # fmt: skip


def _replicas(week: Week) -> Iterator[LeverRow]:
    """Engines of a pool beyond those that the tokens of each step needed."""
    seen = week.seen
    spare = 0.0
    for pool in {one.place for one in seen.engines}:
        engines = np.array([one.place == pool for one in seen.engines], dtype=np.bool_)
        usable = seen.data["usable"][:, engines]
        if engines.sum() < 2 or not np.isfinite(usable).any():
            continue
        each = float(np.nanmedian(usable))
        there = (seen.data["seen"][:, engines] / seen.step).sum(axis=1)
        rate = np.nansum(seen.data["output"][:, engines], axis=1) / seen.step
        needed = np.maximum(np.ceil(SPARE * rate / each), 1.0)
        hours = week.ledger.gpu_hours[:, engines].sum(axis=1)
        spare += float((hours * np.clip(there - needed, 0.0, None) / np.where(there > 0, there, 1.0)).sum())
    if spare > 0:
        yield _row(
            "predictive-scaling",
            "Run fewer replicas in quiet hours.",
            spare,
            "medium",
            f"Replicas that ran, minus the replicas that each step's tokens needed at the usable rate with "
            f"{SPARE - 1:.0%} to spare; at least one always runs.",
            at_most=False,
        )


def _idle(week: Week) -> Iterator[LeverRow]:
    idle = float(week.ledger.parts["idle"].sum())
    if not week.seen.known("busy"):
        return
    said = f"No request ran for {share(idle / max(float(week.ledger.gpu_hours.sum()), 1e-9))} of the GPU time."
    yield _row("off-peak-fill", said, idle, "high", "Observed GPU-hours in which no request ran.", at_most=True)
    yield _row("mig-or-colocation", said, idle, "medium", "Observed GPU-hours in which no request ran.", at_most=True)


def _cache(week: Week, cache: CacheMoney) -> Iterator[LeverRow]:
    if cache.attainable_gpu_hours:
        why = (
            f"The hit rate of prompt tokens was {share(cache.known_hit_ratio)}; {share(cache.attainable)} is "
            f"attainable."
        )
        for lever in ("host-tier", "kv-quantization"):
            yield _row(lever, why, cache.attainable_gpu_hours, "medium", cache.method, at_most=True)


def _thrown_away(week: Week) -> Iterator[LeverRow]:
    parts = {name: float(of.sum()) for name, of in week.ledger.parts.items()}
    yield _row(
        "raise-kv-budget", "Engines computed prompts again whose KV the cache had held.", parts["reprefill"], "medium",
        "Prefill's GPU-hours times the share of computed tokens that the cache had held before.", at_most=True,
    )  # fmt: skip
    yield _row(
        "draft-length", "Drafted tokens were rejected.", parts["drafts"], "low",
        "Decode's GPU-hours times the share of rejected draft tokens; below the critical batch these cost little.",
        at_most=True,
    )  # fmt: skip
    yield _row(
        "admission-control", "Engines computed requests whose client disconnected before the end.",
        parts["aborted"], "low",
        "Busy GPU-hours times the share of aborted requests; some clients always disconnect.", at_most=True,
    )  # fmt: skip


def _of_incidents(incidents: Incidents) -> Iterator[LeverRow]:
    """The first lever of each incident, for what it cost on all entities together."""
    found: dict[tuple[str, str], list[ReviewIncident]] = {}
    for one in incidents.rows:
        if one.kind == "cause" and not one.explained_by and one.levers:
            found.setdefault((one.code, one.levers[0].lever), []).append(one)
    for several in found.values():
        first = several[0]
        lost, late = (sum(getattr(one, f"{what}_gpu_hours") or 0.0 for one in several) for what in ("lost", "late"))
        where = first.entity + (f" and {len(several) - 1} more" if len(several) > 1 else "")
        yield LeverRow(
            lever=first.levers[0].lever,
            title="",
            why=f"{first.title} ({first.code}, {where}).",
            setting=first.levers[0].setting,
            gpu_hours=max(lost, late) or None,
            usd=None,
            at_most=True,
            confidence="low",
            method=_LATE if late > lost else _LOST,
            does_not_fix="",
            codes=[first.code],
        )


_LOST = (
    "Busy GPU-hours in the incident, times the relative drop in tokens against the same engines' busy hours "
    "without an incident; a different workload also counts as lost."
)
_LATE = (
    "Busy GPU-hours in the incident, times the share of late first tokens above the share in hours without an incident."
)
