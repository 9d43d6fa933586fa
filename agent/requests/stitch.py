"""Parts to requests: which parts are of one request, and when nothing more is to come.

    stitcher = Stitcher(give)
    stitcher.add(t, parts)    # as they come, in any order
    stitcher.advance(t)       # calls give(parts, whole) for each request that is done by then

Parts find each other by the ids that they share, and by span and parent. A trace id alone does not make two parts one
request, since an agent's trace has many requests in it: it joins only what else would be one of a kind each, such as
one gateway's part and one engine's. Time is what the records say, so a replay gives the same requests.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from kvitals.agent.requests.observation import OUTER, RequestPart
from kvitals.agent.requests.released_ids import ReleasedIds, ReleasedRequest
from kvitals.agent.requests.shared_ids import separate
from kvitals.series.slices import Steps, complete

SETTLE_SECONDS = 7.0
"""How long after the last part of a request the next may come. OpenTelemetry's exporters hold spans for up to 5 s."""

MAX_AGE = 600.0
"""Seconds after which a request is given out whatever is missing of it."""

PATIENCE_SECONDS = 120.0
"""How long an engine's part waits for the observer around it, where that engine's requests have one."""

AT_ONCE = 20
"""Parts that are taken, and requests that are given out, at one go: in a few milliseconds."""

MAX_OPEN = 20_000
MAX_PARTS = 256
"""Of one request. An id that more parts share is no id."""

MAX_MATES = 64
"""Open requests of one trace, or below one span. A client may send the same trace id each time."""

MAX_GONE = 50_000
"""Ids of requests that were given out, by which late parts are told; twice as many are kept at most."""

MAX_KNOWN = 1_000
CLOCK_BACK_SECONDS = 60.0

NOWHERE = -1

Give = Callable[[Sequence[RequestPart], bool], None]
"""Takes the parts of one request, and whether it was done by itself and not pushed out."""


@dataclass(frozen=True)
class StitchLimits:
    """How much is remembered, and for how long (seconds)."""

    settle: float = SETTLE_SECONDS
    age: float = MAX_AGE
    patience: float = PATIENCE_SECONDS
    open: int = MAX_OPEN
    gone: int = MAX_GONE


LIMITS = StitchLimits()


class _Open(Struct, eq=False, gc=False):
    """A request that parts may still come for. Tens of thousands wait, in no cycle, so the collector need not look."""

    parts: tuple[RequestPart, ...]
    keys: tuple[str, ...]  # ids and spans by which it is found
    traces: tuple[str, ...]
    first: float
    last: float
    parents: tuple[str, ...] = ()  # spans around its parts
    place: int = NOWHERE  # in the queue of those that settle
    hidden: bool = False  # its first part is not found by spans, since nothing else of its trace has come
    alone: bool = False  # its trace has several requests, so the trace says nothing
    into: _Open | None = None  # the one that it became part of


_Listed = dict[str, "_Open | list[_Open]"]
"""Requests by a key that is no proof that they are one. Most often there is one, which stands there without a list."""


class Stitcher:
    """Joins parts. `dropped` counts those that are of no request any more, by reason."""

    def __init__(self, give: Give, role_of: Callable[[str], str] = lambda _: "", limits: StitchLimits = LIMITS) -> None:
        """`role_of` tells an engine's role from what observers call it, where that is known."""
        self._give = give
        self._role_of = role_of
        self._limits = limits
        self._now = float("-inf")
        self._queue: deque[_Open] = deque()  # to settle, the one that was touched last is last
        self._begin = self._end = 0  # places in the queue: who is no more where it stands has another, or none
        self._active = 0  # of those that stand in the queue
        self._firsts: dict[float, int] = {}  # when a first part came -> open requests
        self._held: OrderedDict[_Open, float] = OrderedDict()  # of which more must come, until when
        self._by: dict[str, _Open] = {}  # id or span -> request
        self._waiting: _Listed = {}  # span that did not come -> requests with parts below it
        self._traces: _Listed = {}
        self._crowded: set[str] = set()  # traces of which some open requests are not listed
        self._released = ReleasedIds(limits.gone)  # ids and spans
        self._released_since = float("-inf")
        self._has_outer: dict[tuple[str, str], float] = {}  # system, engine -> when one had an observer around it
        self.dropped = {"late": 0, "duplicate": 0, "orphan": 0, "open_limit": 0}

    @property
    def open(self) -> int:
        """Requests that parts may still come for."""
        return self._active + len(self._held)

    def oldest(self) -> float | None:
        """When the first part came of the one that is open longest."""
        return min(self._firsts, default=None)

    def add(self, t: float, parts: Iterable[RequestPart]) -> None:
        """Take parts that came at `t`, seconds since the epoch."""
        complete(self.add_steps(t, parts))

    def add_steps(self, t: float, parts: Iterable[RequestPart]) -> Steps[None]:
        """The same in steps."""
        yield from self.advance_steps(t)
        for number, part in enumerate(parts):
            self._take(part)
            if number % AT_ONCE == 0:
                yield None
        while self.open > self._limits.open:
            self.dropped["open_limit"] += 1
            held = next(iter(self._held)) if len(self._held) > self._active else None
            self._close(held or self._first(), whole=False)
            if self.dropped["open_limit"] % AT_ONCE == 0:
                yield None

    def advance(self, t: float) -> None:
        """Give out what is done by `t`."""
        complete(self.advance_steps(t))

    def advance_steps(self, t: float) -> Steps[None]:
        """The same in steps."""
        if t < self._now - CLOCK_BACK_SECONDS:
            self.flush()
            self._now = float("-inf")
        self._now = max(self._now, t)
        self._forget()
        settled = self._now - self._limits.settle
        queue, settled_now = self._queue, 0
        while self._active:
            one = queue[0]
            if one.place != self._begin:  # it stands elsewhere by now, or nowhere
                queue.popleft()
                self._begin += 1
            elif one.last > settled:
                break
            else:
                self._settle(one)
                settled_now += 1
                if settled_now % AT_ONCE == 0:
                    yield None
        while self._held:
            one, until = next(iter(self._held.items()))
            if until > self._now:
                break
            self._close(one, whole=False)
            yield None

    def flush(self) -> None:
        """Give out everything."""
        while self._active or self._held:
            one = self._first() if self._active else next(iter(self._held))
            if self._is_lone(one):
                self._close_lone(one, whole=not self._waits(one))
            else:
                one = self._joined(one)
                self._close(one, whole=not self._waits(one))

    def _first(self) -> _Open:
        """The first one that stands in the queue, where there is one."""
        queue = self._queue
        while (one := queue[0]).place != self._begin:
            queue.popleft()
            self._begin += 1
        return one

    def _line_up(self, one: _Open) -> None:
        """Put it at the end of the queue."""
        if one.place == NOWHERE:
            self._active += 1
        one.place = self._end
        self._end += 1
        self._queue.append(one)

    def _leave_queue(self, one: _Open) -> None:
        """Let it not stand in the queue any more; where it stood is passed over."""
        if one.place != NOWHERE:
            one.place = NOWHERE
            self._active -= 1

    def _take(self, part: RequestPart) -> None:
        trace, keys = _keys(part)
        by = self._by
        if trace and trace not in self._traces and trace not in self._crowded:
            # The first of its trace, as most are: so nobody has its span, or one around it or below.
            if by.keys().isdisjoint(keys):
                if not self._is_gone(part, trace, keys):
                    self._traces[trace] = self._begun(part, keys, (trace,), hidden=True)
                return
        elif isinstance(mate := self._traces.get(trace), _Open):  # else there were others, for whom all of them were
            self._introduce(_root(mate))
        own = trace + part.span if part.span else ""
        parent = trace + part.parent if part.parent else ""
        ids = keys
        if own:
            keys = (*ids, own)
        if not by.keys().isdisjoint(keys) or (parent and parent in by) or (own and own in self._waiting):
            self._join(part, trace, keys, own, parent)
        elif not self._is_gone(part, trace, ids):
            one = self._begun(part, keys, (trace,) if trace else ())
            if parent:
                one.parents = (parent,)
                self._list(self._waiting, parent, one)
            if trace:
                self._list_in_trace(trace, one)

    def _begun(self, part: RequestPart, keys: tuple[str, ...], traces: tuple[str, ...], hidden: bool = False) -> _Open:
        """A request of one part."""
        now, by = self._now, self._by
        one = _Open((part,), keys, traces, now, now, (), self._end, hidden)
        self._queue.append(one)
        self._end += 1
        self._active += 1
        self._firsts[now] = self._firsts.get(now, 0) + 1
        for key in keys:
            by[key] = one
        return one

    def _introduce(self, one: _Open) -> None:
        """Let it be found by its span, and by the one around it."""
        if not one.hidden:
            return
        one.hidden = False
        part, trace = one.parts[0], one.traces[0]
        if part.span:
            own = trace + part.span
            one.keys += (own,)
            self._by[own] = one
        if part.parent:
            parent = trace + part.parent
            one.parents += (parent,)
            self._list(self._waiting, parent, one)

    def _join(self, part: RequestPart, trace: str, keys: tuple[str, ...], own: str, parent: str) -> None:
        """Add a part to the request, or the requests, that it shares something with."""
        by = self._by
        if own in by:
            self.dropped["duplicate"] += 1
            return
        found = [by[key] for key in (*keys, parent) if key in by]
        if own in self._waiting:
            found += _all(self._waiting.pop(own))
        one = self._union([_root(other) for other in found])
        if not own and any(_same(part, other) for other in one.parts):
            self.dropped["duplicate"] += 1
            return
        self._touch(one)
        one.parts += (part,)
        one.keys += keys
        for key in keys:
            by[key] = one
        if parent:
            one.parents += (parent,)
            if parent not in by:
                self._list(self._waiting, parent, one)
        if trace:
            if trace not in one.traces:
                one.traces = (*one.traces, trace)
            self._list_in_trace(trace, one)
        if len(one.parts) >= MAX_PARTS or self._now - one.first > self._limits.age:
            self._close(one, whole=False)

    def _union(self, found: Sequence[_Open]) -> _Open:
        """One request of several."""
        if len(found) == 1:
            return found[0]
        one = max(found, key=lambda other: len(other.parts))
        for other in dict.fromkeys(found):
            self._introduce(other)
            if other is not one:
                one.parts += other.parts
                one.keys += other.keys
                one.parents += other.parents
                one.traces = tuple(dict.fromkeys(one.traces + other.traces))
                self._forget_first(max(one.first, other.first))
                one.first, one.last = min(one.first, other.first), max(one.last, other.last)
                one.alone |= other.alone
                other.parts, other.into = (), one
                self._leave_queue(other)
                self._held.pop(other, None)
        return one

    def _touch(self, one: _Open) -> None:
        one.last = self._now
        self._held.pop(one, None)
        self._line_up(one)

    def _settle(self, one: _Open) -> None:
        """Nothing came for a while: it is done, or what is missing is waited for."""
        lone, traces = self._is_lone(one), one.traces
        # Who is alone in the only trace that it has, has nobody to be joined.
        if not lone and (len(traces) != 1 or self._traces.get(traces[0]) is not one):
            one = self._joined(one)
            if one.last > self._now - self._limits.settle:
                return
        until = self._waits(one)
        if until > self._now:
            self._leave_queue(one)
            self._held[one] = until
        elif lone:
            self._close_lone(one, whole=not until)
        else:
            self._close(one, whole=not until)

    def _waits(self, one: _Open) -> float:
        """Until when more is waited for; 0 where nothing is missing."""
        half, engines = True, 0  # half: of engines a prefill side alone told, or none and no one but stages
        patient = False
        for part in one.parts:
            if part.observer == "engine":
                engines += 1
                half = half and (part.role or self._role_of(part.engine)) == "prefill"
                if part.parent and self._has_outer:
                    outer = self._has_outer.get((part.system, part.engine))
                    patient |= outer is not None and self._now - outer < MAX_AGE
            elif part.observer in OUTER and not part.role:
                return 0.0
        if half and (engines or _is_stages(one.parts)):
            return one.first + self._limits.age
        return one.first + self._limits.patience if patient else 0.0

    def _joined(self, one: _Open) -> _Open:
        """The request with what only the trace joins to it: all of a trace where that may be one request, else the
        stages during it."""
        for trace in one.traces:
            here = self._traces.get(trace)
            if here is one or not isinstance(here, list):
                continue
            groups = list(dict.fromkeys(_root(mate) for mate in here))
            self._traces[trace] = groups
            if len(groups) < 2 or one not in groups:
                continue
            solid = [group for group in groups if not _is_stages(group.parts)]
            if not any(group.alone for group in solid) and _are_different(solid):
                one = self._union(groups)
                self._held.pop(one, None)
                self._line_up(one)
                continue
            for group in solid:
                group.alone = True
            for group in groups:
                if group not in solid and [o for o in solid if _is_within(group.parts[0], o.parts)] == [one]:
                    one = self._union([one, group])
        return one

    def _close(self, one: _Open, *, whole: bool) -> None:
        if one.place == NOWHERE:
            self._held.pop(one, None)
        self._leave_queue(one)
        self._forget_first(one.first)
        self._unlist(one)
        parts = one.parts
        if _is_stages(parts):
            self.dropped["orphan"] += len(parts)
        elif len(parts) == 1:
            self._give(parts, whole)
        else:
            for group in separate(parts):
                self._learn(group)
                self._give(group, whole)

    def _is_lone(self, one: _Open) -> bool:
        """Whether it is the first one in the queue, and has one part that is found by its ids and trace alone."""
        return (
            one.hidden and len(one.parts) == 1 and one.place == self._begin and self._traces.get(one.traces[0]) is one
        )

    def _close_lone(self, one: _Open, *, whole: bool) -> None:
        """The same as `_close`, soon, of a lone one."""
        parts = one.parts
        part, trace = parts[0], one.traces[0]
        one.place = NOWHERE
        self._queue.popleft()
        self._begin += 1
        self._active -= 1
        self._forget_first(one.first)
        by = self._by
        for key in one.keys:
            del by[key]
        keys = (*one.keys, trace + part.span) if part.span else one.keys
        end = part.end if part.end is not None else float("-inf")
        self._released.add(keys, end, part.observer in OUTER, (trace,))
        del self._traces[trace]
        if part.observer == "stage":
            self.dropped["orphan"] += 1
        else:
            self._give(parts, whole)

    def _forget_first(self, first: float) -> None:
        """One less is open whose first part came then."""
        left = self._firsts[first] - 1
        if left:
            self._firsts[first] = left
        else:
            del self._firsts[first]

    def _unlist(self, one: _Open) -> None:
        """Forget its ids, but for telling what comes late."""
        by, traces, end, outer = self._by, self._traces, float("-inf"), False
        for part in one.parts:
            if part.end is not None and part.end > end:
                end = part.end
            outer |= part.observer in OUTER
        for key in one.keys:
            by.pop(key, None)
        span = one.parts[0].span if one.hidden else ""
        self._released.add((*one.keys, one.traces[0] + span) if span else one.keys, end, outer, one.traces)
        for parent in one.parents:
            self._leave(self._waiting, parent, one)
        for trace in one.traces:
            if traces.get(trace) is one:
                del traces[trace]
            else:
                self._leave(traces, trace, one)

    def _list_in_trace(self, trace: str, one: _Open) -> None:
        if not self._list(self._traces, trace, one):
            one.alone = True
            if len(self._crowded) >= MAX_KNOWN:
                self._crowded.clear()
            self._crowded.add(trace)

    @staticmethod
    def _list(listed: _Listed, key: str, one: _Open) -> bool:
        """Add a request to those of a key; False where there are too many for the key to say anything."""
        here = listed.setdefault(key, one)
        if here is one:
            return True
        if not isinstance(here, list):
            here = listed[key] = [here]
        if here[-1] is not one:
            if len(here) >= MAX_MATES:
                return one in here
            here.append(one)
        return True

    @staticmethod
    def _leave(listed: _Listed, key: str, one: _Open) -> None:
        here = listed.pop(key, None)
        if here is not one and here is not None:
            left = [other for other in _all(here) if _root(other) is not one]
            if left:
                listed[key] = left

    def _learn(self, parts: Sequence[RequestPart]) -> None:
        """Remember which engines' requests have an observer around them."""
        if len(parts) > 1 and any(p.observer in OUTER for p in parts):
            for part in parts:
                if part.observer == "engine":
                    if len(self._has_outer) >= MAX_KNOWN:
                        self._has_outer.clear()
                    self._has_outer[part.system, part.engine] = self._now

    def _is_gone(self, part: RequestPart, trace: str, ids: tuple[str, ...]) -> bool:
        """Whether a part is of no request any more, which is counted."""
        released = self._released
        # Spans are told apart by their trace, so where that is unknown they need not be put together.
        if trace and not released.has_trace(trace) and all(released.find(key) is None for key in ids):
            return False
        own = trace + part.span if part.span else ""
        parent = trace + part.parent if part.parent else ""
        for key in (own, *ids, parent):
            gone = released.find(key)
            reason = _why_gone(part, trace, gone, key == own) if gone is not None else ""
            if reason:
                self.dropped[reason] += 1
                return True
        return False

    def _forget(self) -> None:
        if self._now - self._released_since > self._limits.age / 2:
            self._released.turn()
            self._released_since = self._now


def _keys(part: RequestPart) -> tuple[str, tuple[str, ...]]:
    """The trace, and the ids that make two parts one request."""
    ids = part.ids
    if not ids or not ids[0].startswith("trace:"):
        traces = [one for one in ids if one.startswith("trace:")]
        return traces[0] if traces else "", tuple(one for one in ids if not one.startswith("trace:"))
    for one in ids[1:]:
        if one.startswith("trace:"):
            return ids[0], tuple(one for one in ids if not one.startswith("trace:"))
    return ids[0], ids[1:]


def _why_gone(part: RequestPart, trace: str, gone: ReleasedRequest, is_own: bool) -> str:
    """Why a part is of a request that was given out, where it is; `is_own`: that one had its span."""
    if is_own:
        return "duplicate"
    if part.observer == "stage":
        return "late"
    end, outer, traces = gone
    is_other = trace and traces and hash(trace) not in traces  # an id that is used again
    begins_later = part.start is not None and part.start > end
    return "late" if not is_other and not begins_later and (outer or part.observer not in OUTER) else ""


def _is_stages(parts: Sequence[RequestPart]) -> bool:
    return parts[0].observer == "stage" and all(part.observer == "stage" for part in parts)


def _all(listed: _Open | list[_Open]) -> list[_Open]:
    return listed if isinstance(listed, list) else [listed]


def _root(one: _Open) -> _Open:
    while one.into is not None:
        one = one.into
    return one


def _same(part: RequestPart, other: RequestPart) -> bool:
    """Whether two parts without span ids are one that came twice."""
    return (
        part.start == other.start
        and part.end == other.end
        and part.system == other.system
        and part.name == other.name
        and part.ids == other.ids
        and not other.span
    )


def _are_different(groups: Sequence[_Open]) -> bool:
    """Whether no two of them have a part of the same kind, so that all may be one request."""
    seen: set[tuple[str, str, str]] = set()
    for group in groups:
        kinds = {
            (p.observer, "" if p.observer == "engine" else p.system, p.role)
            for p in group.parts
            if p.observer != "stage"
        }
        if seen & kinds:
            return False
        seen |= kinds
    return True


def _is_within(stage: RequestPart, parts: Sequence[RequestPart]) -> bool:
    start = stage.start
    return start is not None and any(
        p.start is not None and p.end is not None and p.start <= start <= p.end for p in parts if p.observer != "stage"
    )
