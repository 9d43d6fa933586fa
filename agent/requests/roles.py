"""Who did what of one request: its observers around the engine, and its engine or engines by their part in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvitals.agent.requests.observation import MAX_TIME, OUTER, RequestPart

LONGEST = 1e7
"""Seconds. What is longer is no duration of a request."""

MAX_DEPTH = 64


def length(part: RequestPart) -> float | None:
    """How long a part took, by its own clock."""
    if part.start is None or part.end is None:
        return None
    return known_seconds(part.end - part.start)


def known_seconds(seconds: float | None) -> float | None:
    """A duration, or None where there is none or it can not be one."""
    return seconds if seconds is not None and 0.0 <= seconds < LONGEST else None


def instant(t: float | None) -> float | None:
    """A time since the epoch, or None where there is none or it can not be one."""
    return t if t is not None and 0.0 <= t < MAX_TIME else None


@dataclass(slots=True)
class EngineShare:
    """One engine's share: of a pair prefill or decode, else unified."""

    role: str
    engines: list[RequestPart] = field(default_factory=list)
    stages: list[RequestPart] = field(default_factory=list)
    outers: list[RequestPart] = field(default_factory=list)  # observers around this engine alone

    @property
    def seconds(self) -> float | None:
        """How long the engine had the request; where no engine said so, as whoever asked it saw it."""
        if len(self.engines) == 1:
            return length(self.engines[0])
        if self.engines:
            return _covered(self.engines)
        asked = self.outers or [stage for stage in self.stages if stage.role]
        return max((seconds for part in asked if (seconds := length(part)) is not None), default=None)

    @property
    def main(self) -> RequestPart | None:
        """The engine's part that tells most: the one with phases, of several the last to end."""
        return max(self.engines, key=lambda p: (bool(p.phases), p.end or 0.0), default=None)

    @property
    def start(self) -> float | None:
        """By the engine's clock."""
        return min((p.start for p in (*self.engines, *self.stages) if p.start is not None), default=None)


def _covered(parts: Iterable[RequestPart]) -> float | None:
    """The time during which some part was going on: of choices the longest, of one try after another the sum."""
    total, until, found = 0.0, float("-inf"), False
    for part in sorted((p for p in parts if length(p) is not None), key=lambda p: p.start or 0.0):
        start, end = part.start or 0.0, part.end or 0.0
        total += max(0.0, end - max(start, until))
        until, found = max(until, end), True
    return total if found else None


@dataclass(slots=True)
class OrderedShares:
    """A request's parts, put in order."""

    outers: list[RequestPart]  # around the whole of it, the one nearest to the client first
    sides: list[EngineShare]  # in the order of work
    stages: list[RequestPart]  # of nobody in particular, such as a gateway's
    together: bool = False  # prefill and decode side are asked at the same time, and one waits for the other

    @property
    def is_whole(self) -> bool:
        """Whether engines told of all the work there is to a request."""
        told = {side.role for side in self.sides if side.engines}
        return "unified" in told or {"prefill", "decode"} <= told


def sort(parts: Sequence[RequestPart], role_of: Callable[[str], str]) -> OrderedShares:
    """Put the parts of one request in order. `role_of` tells an engine's role, where that is known."""
    if len(parts) == 1 and parts[0].observer == "engine":
        part = parts[0]
        return OrderedShares([], [EngineShare(part.role or role_of(part.engine) or "unified", [part])], [])
    engines = [p for p in parts if p.observer == "engine"]
    stages = [p for p in parts if p.observer == "stage"]
    outers = [p for p in parts if p.observer in OUTER]
    if len(outers) > 1:
        outers = _outermost_first(outers)
    by_span = {p.span: p for p in parts if p.span}
    sides = {role: EngineShare(role, engines=found) for role, found in _by_role(engines, by_span, role_of).items()}
    for part in outers:
        if part.role in ("prefill", "decode"):
            sides.setdefault(part.role, EngineShare(part.role)).outers.append(part)
    loose = []
    for part in stages:
        role = _role_of_stage(part, sides, by_span)
        if not role:
            loose.append(part)
        else:
            sides.setdefault(role, EngineShare(role)).stages.append(part)
    order = [sides[role] for role in ("unified", "prefill", "decode") if role in sides]
    together = len(order) > 1 and any(one.startswith("room:") for part in engines for one in part.ids)
    whole = [p for p in outers if p.role not in ("prefill", "decode")]
    return OrderedShares(whole, order, loose, together)


def _outermost_first(outers: list[RequestPart]) -> list[RequestPart]:
    """By who is around whom, else the one that took longer first."""
    spans = {p.span: p for p in outers if p.span}

    def depth(part: RequestPart) -> int:
        above, found = part, 0
        while above.parent in spans and found < MAX_DEPTH:
            above, found = spans[above.parent], found + 1
        return found

    return sorted(outers, key=lambda p: (depth(p), -(length(p) or 0.0), p.system, p.span))


def _by_role(
    engines: Sequence[RequestPart], by_span: dict[str, RequestPart], role_of: Callable[[str], str]
) -> dict[str, list[RequestPart]]:
    """Engines' parts by role. Where nobody says it, two engines one after the other, of which the first gave one token,
    are a prefill and a decode side."""
    if not engines:
        return {}
    told: dict[str, list[RequestPart]] = {}
    untold = []
    for part in engines:
        role = part.role or role_of(part.engine) or _role_above(part, by_span)
        if role:
            told.setdefault(role, []).append(part)
        else:
            untold.append(part)
    if not untold:
        return told
    if told:
        other = {"prefill": "decode", "decode": "prefill"}.get(next(iter(told)), "") if len(told) == 1 else ""
        # Parts around or within one whose role is known are of that engine.
        for part in untold:
            near = next((r for r, some in told.items() if any(_nested(part, p, by_span) for p in some)), "")
            told.setdefault(near or other or "unified", []).append(part)
        return told
    first, *rest = sorted(untold, key=lambda p: (p.start or 0.0, p.end or 0.0))
    if rest and _is_prefill(first, rest):
        return {"prefill": [first], "decode": rest}
    return {"unified": untold}


def _is_prefill(first: RequestPart, rest: Sequence[RequestPart]) -> bool:
    if first.output_tokens is None or first.output_tokens > 1 or first.end is None:
        return False
    elsewhere = first.engine != "" and all(p.engine not in ("", first.engine) for p in rest)
    after = all(p.start is not None and p.start >= first.end for p in rest)
    return elsewhere or after


def _role_above(part: RequestPart, by_span: dict[str, RequestPart]) -> str:
    return next((p.role for p in _above(part, by_span) if p.role in ("prefill", "decode")), "")


def _above(part: RequestPart, by_span: dict[str, RequestPart]) -> Iterable[RequestPart]:
    for _ in range(MAX_DEPTH):
        above = by_span.get(part.parent) if part.parent else None
        if above is None:
            return
        yield above
        part = above


def _nested(one: RequestPart, other: RequestPart, by_span: dict[str, RequestPart]) -> bool:
    return any(p is other for p in _above(one, by_span)) or any(p is one for p in _above(other, by_span))


def _role_of_stage(part: RequestPart, sides: dict[str, EngineShare], by_span: dict[str, RequestPart]) -> str:
    """Whose stage it is; empty for nobody's."""
    if part.role:
        return part.role
    above = list(_above(part, by_span))
    for role, side in sides.items():
        if any(p is engine for p in above for engine in side.engines):
            return role
    inherited = next((p.role for p in above if p.role), "")
    if inherited in sides:
        return inherited
    if any(p.observer in OUTER for p in above[:1]) or part.phases.keys() == {"gateway"}:
        return ""
    here = [role for role, side in sides.items() if part.engine and any(p.engine == part.engine for p in side.engines)]
    if len(here) == 1:
        return here[0]
    return next(iter(sides)) if len(sides) == 1 else ""
