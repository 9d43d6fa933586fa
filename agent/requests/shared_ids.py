"""Requests that share an id all the same: a client that sends the same X-Request-Id each time, or tries again.

One id may also be of several parts that are one request: the choices of `n=2`, several prompts of one completion
request, the prefill and the decode side, one engine after another failed. So parts are taken apart only where they can
not be of one request.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvitals.agent.requests.observation import OUTER, RequestPart

CLIENTS = ("tap", "gateway")
"""Observers that see a client's request once."""

MAX_DEPTH = 64

CHOICES_SECONDS = 0.001
"""Choices and prompts of one request begin at the same moment by the engine's clock."""


def separate(parts: Sequence[RequestPart]) -> Sequence[Sequence[RequestPart]]:
    """Parts that are linked with each other, by request."""
    clients = engines = 0
    for part in parts:
        if part.observer in CLIENTS:
            clients += 1
        elif part.observer == "engine":
            engines += 1
    if clients < 2 and engines < 2:
        return [parts]
    groups: list[_Group] = []
    for tree in sorted(map(_Group, _trees(parts)), key=_Group.order):
        fitting = [group for group in groups if not tree.conflicts(group)]
        if fitting:
            max(fitting, key=tree.likeness).take(tree)
        else:
            groups.append(tree)
    return [group.parts for group in groups]


class _Group:
    """Parts that are of one request."""

    def __init__(self, parts: list[RequestPart]) -> None:
        self.parts = parts
        self.traces = {one for part in parts for one in part.ids if one.startswith("trace:")}
        # A gateway may say the same in a span and in its log.
        self.outers = {(p.observer, p.system, p.role, bool(p.span)) for p in parts if p.observer in OUTER}
        self.clients = {kind for kind in self.outers if kind[0] in CLIENTS}
        self.engines = [part for part in parts if part.observer == "engine"]
        self.start = _start(parts)

    def order(self) -> tuple[bool, float, str]:
        """Clients' observers first, then by time."""
        return not self.outers, self.start, min(part.span for part in self.parts)

    def take(self, other: _Group) -> None:
        self.parts = self.parts + other.parts
        self.traces |= other.traces
        self.outers |= other.outers
        self.clients |= other.clients
        self.engines = self.engines + other.engines

    def conflicts(self, other: _Group) -> bool:
        """Whether two can not be of one request: both have what a request has once, or their engines worked at other
        times in traces of their own."""
        if self.clients & other.clients:
            return True
        if self.traces & other.traces:
            return False
        if self.outers & other.outers:
            return True
        if not self.engines or not other.engines:
            return False
        if abs(_start(self.engines) - _start(other.engines)) <= CHOICES_SECONDS:
            return False
        return not _are_sides(self.engines, other.engines)

    def likeness(self, other: _Group) -> tuple[bool, float]:
        """The same trace counts most, then nearness in time."""
        return bool(self.traces & other.traces), -abs(self.start - other.start)


def _trees(parts: Sequence[RequestPart]) -> list[list[RequestPart]]:
    """Parts by the outermost span above them."""
    by_span = {part.span: part for part in parts if part.span}
    trees: dict[int, list[RequestPart]] = {}
    for part in parts:
        top = part
        for _ in range(MAX_DEPTH):  # spans that are each other's parents end somewhere
            above = by_span.get(top.parent) if top.parent else None
            if above is None:
                break
            top = above
        trees.setdefault(id(top), []).append(part)
    return list(trees.values())


def _start(parts: Sequence[RequestPart]) -> float:
    return min((part.start for part in parts if part.start is not None), default=0.0)


def _are_sides(one: Sequence[RequestPart], other: Sequence[RequestPart]) -> bool:
    """Whether they look like prefill and decode: the first gave one token, the other is of another engine."""
    first, then = sorted((one, other), key=_start)
    if {"prefill", "decode"} <= {part.role for part in (*one, *other)}:
        return True
    short = all(part.output_tokens is not None and part.output_tokens <= 1 for part in first)
    return short and {part.engine for part in first}.isdisjoint(part.engine for part in then if part.engine)
