"""Requests' records to accesses: which of the look-ups was whose.

A record tells when a request was there, how long its prompt was and how much of it was found. The last two are nearly
a name: the look-up that found so many blocks and whose prompt ends so many blocks from the root, at the right time, is
its own. Where several fit, each is as likely.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from kvitals.agent.ledger.prompt_lookups import Access
from kvitals.agent.requests.record import RequestRecord

SLACK = 0.5
"""Seconds by which an engine's events and a request's observer may differ: a step and their clocks."""

SAME_STEP = 0.0005
"""Seconds within which an engine tells the first tokens of one step."""

MAX_PAST = 1_024
"""Accesses that were settled last, in which another request's stores may be found yet."""

MAX_PENDING = 4_096
"""Accesses that wait for their record, of one engine."""


@dataclass(frozen=True)
class BlockClaim:
    """What a record says that blocks can be held against."""

    low: float  # its first store is between these
    high: float
    expected: float  # when the last store of its prompt was told, or a little later
    is_exact: bool  # the engine itself said so
    hits: tuple[int, ...]  # blocks that it may have found here; empty: not told
    blocks: int  # whole ones of its prompt
    until: int | None  # blocks from the root that it can have filled, with what it generated; None: not told
    end: float  # when it was over

    def fits(self, access: Access) -> bool:
        """Whether an access can be this request's: nothing of its prompt's end lies within one of its stores."""
        if access.hits == self.blocks:  # it missed no whole block, and what it stored it had generated
            in_time = self.low <= access.at <= self.end + SLACK
            return in_time and (self.until is None or _first_end(access) <= self.until)
        return self.low <= access.at <= self.high and access.hits < _first_end(access) <= self.blocks

    def away(self, access: Access) -> float:
        """Seconds from when the access told the last blocks of the prompt to when the request had its first token. An
        engine tells its blocks before, so the other way round counts ten times."""
        told = access.at
        for i in range(0, len(access.marks), 2):
            if access.marks[i + 1] >= self.blocks:
                break
            told = access.marks[i]
        return max(self.expected - told, 10.0 * (told - self.expected))

    def nearer(self, found: tuple[Access, int], other: Access) -> bool:
        """Whether the store at a mark of one access is nearer to the first token than another access is."""
        access, mark = found
        away = self.expected - access.marks[2 * mark]
        return max(away, -10.0 * away) + SAME_STEP < self.away(other)

    def ends(self, access: Access) -> bool:
        """Whether one of its stores ends where the prompt's whole blocks do."""
        if access.prompt == self.blocks or access.end == self.blocks:
            return True
        return self.blocks in access.marks[1::2]


def block_claim(record: RequestRecord, tokens: int) -> BlockClaim | None:
    """What a record asks for, with blocks of that many tokens; None where it does not tell its prompt."""
    if record.prompt_tokens is None:
        return None
    prefill = next((p for p in record.phases if p.name == "prefill" and p.start is not None), None)
    is_exact = prefill is not None and prefill.seconds is not None and prefill.source == "measured"
    if is_exact and prefill is not None:
        first = (prefill.start or 0.0) + (prefill.seconds or 0.0)
    else:
        first = record.start + record.ttft if record.ttft is not None else record.end
    hits: tuple[int, ...] = ()
    if record.cached_tokens is not None:
        here = max(record.cached_tokens - (record.external_tokens or 0), 0)
        hits = tuple(dict.fromkeys((record.cached_tokens // tokens, here // tokens)))
    until = None if record.output_tokens is None else (record.prompt_tokens + record.output_tokens) // tokens
    return BlockClaim(
        low=record.start - SLACK,
        high=first + SLACK,
        expected=first,
        is_exact=is_exact,
        hits=hits,
        blocks=record.prompt_tokens // tokens,
        until=until,
        end=record.end,
    )


@dataclass(frozen=True)
class Match:
    """An access that fits a record, and how sure that is: 1 over how many fit."""

    access: Access
    confidence: float


class WaitingAccesses:
    """Accesses whose record may come, of one engine."""

    def __init__(self) -> None:
        # In the order in which they were added. The first of a dict is found behind all that were removed before it.
        self._all: OrderedDict[Access, None] = OrderedDict()
        self._by_hits: dict[int, dict[Access, None]] = {}
        self._past: deque[Access] = deque(maxlen=MAX_PAST)  # with stores after those of the prompt

    def __len__(self) -> int:
        return len(self._all)

    def oldest(self) -> Access | None:
        """The one that waits longest."""
        return next(iter(self._all), None)

    def all(self) -> list[Access]:
        """All that wait, the oldest first."""
        return list(self._all)

    def add(self, access: Access) -> None:
        """It waits from now on."""
        self._all[access] = None
        self._by_hits.setdefault(access.hits, {})[access] = None

    def remove(self, access: Access) -> None:
        """It waits no more."""
        del self._all[access]
        alike = self._by_hits[access.hits]
        del alike[access]
        if not alike:
            del self._by_hits[access.hits]
        if access.marks:
            self._past.append(access)

    def match(self, wanted: BlockClaim, session: str, affinity: Callable[[Access], int]) -> Match | None:
        """The access that fits best. affinity: how much what it found has to do with who asks."""
        if wanted.hits:
            found = [access for hits in wanted.hits for access in self._by_hits.get(hits, ()) if wanted.fits(access)]
        else:
            found = [access for access in self._all if access.hits >= 0 and wanted.fits(access)]
        found = [access for access in found if not (session and access.told[1]) or access.told[1] == session]
        for better in ([a for a in found if a.told[1] == session and session], [a for a in found if wanted.ends(a)]):
            found = better or found
        if not found:
            return None
        away = {access: wanted.away(access) for access in found}
        if wanted.is_exact:
            found = [access for access in found if away[access] <= min(away.values()) + SAME_STEP]
        if len(found) > 1:
            near = [affinity(access) for access in found]
            found = [access for access, how in zip(found, near, strict=True) if how == max(near)]
        return Match(min(found, key=away.__getitem__), 1.0 / len(found))

    def behind(self, access: Access, wanted: BlockClaim) -> Access | None:
        """One that begins where an access ends, and may be what that request generated."""
        end = access.end
        if wanted.until is None or end >= wanted.until:
            return None
        for other in self._by_hits.get(end, ()):
            in_time = access.at < other.at <= wanted.end + SLACK and other is not access
            if in_time and other.parent == access.tip and _first_end(other) <= wanted.until:
                return other
        return None

    def within(self, wanted: BlockClaim) -> tuple[Access, int] | None:
        """An access that had another request's stores added to it as if it went on, and the number of the mark where
        that one's begin. Where nobody tells what was found, one of them ends where the prompt's whole blocks do."""
        best: tuple[float, Access, int] | None = None
        for access in chain(self._all, self._past):
            marks = access.marks
            if not marks or marks[-2] < wanted.low or marks[0] > wanted.high:
                continue
            for i in range(0, len(marks), 2):
                if (wanted.hits and marks[i + 1] not in wanted.hits) or not wanted.low <= marks[i] <= wanted.high:
                    continue
                end = marks[i + 3] if i + 3 < len(marks) else access.end
                if marks[i + 1] < end <= wanted.blocks and (wanted.hits or end == wanted.blocks):
                    away = abs(marks[i] - wanted.expected)
                    if best is None or away < best[0]:
                        best = away, access, i // 2
        return best[1:] if best is not None else None


def strays(access: Access, wanted: BlockClaim) -> int | None:
    """The number of the first mark of an access that can not be the request's: it was over by then, or had not
    generated so much. None where all may be its own."""
    marks = access.marks
    for i in range(0, len(marks), 2):
        if marks[i] > wanted.end + SLACK or (wanted.until is not None and marks[i + 1] >= wanted.until):
            return i // 2
    return None


def _first_end(access: Access) -> float:
    """Where its first store ends: the prefix that was reported before it is none."""
    return next((depth for depth in access.marks[1::2] if depth > access.hits), access.end)
