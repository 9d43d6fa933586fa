"""What every trace format becomes: requests, collected into accesses with their units stated."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from kvitals.kvcache.accesses import COLUMNS, SOURCES, UNKNOWN, Accesses, Floats, Ints, in_order

MAX_REQUESTS = 10_000_000
MAX_REFERENCES = 200_000_000
MAX_TOKENS = 100_000_000
MAX_BLOCK_SIZE = 1 << 16
DAY_SECONDS = 86400.0
BOUNDS = {
    "arrival time": (0.0, 1e20, ""),
    "prompt length": (0, MAX_TOKENS, " tokens"),
    "output length": (0, MAX_TOKENS, " tokens"),
    "block size": (1, MAX_BLOCK_SIZE, " tokens"),
    "time since the first request": (0, 731, " days"),
}
"""Every number that a trace states: the least, the most and the unit. An arrival time is in the unit of its format."""
AGREEMENT = 0.9
"""Share of requests that must have as many ids as blocks before a block size is inferred."""
ODD = np.uint64(0x9E3779B97F4A7C15)
"""By which numbers are mixed, so that equal ones stay equal and others hardly ever become so (Knuth, vol. 3, 6.4)."""
WITHOUT_IDS = 16
"""Tokens a block where a trace has no ids: no figure depends on it."""

TimeUnit = Literal["s", "ms", "us", "ns", "none"]
SECONDS: dict[TimeUnit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "none": 1.0}
"""Seconds in a unit. `none`: the file has no arrival times."""


class TraceError(ValueError):
    """A trace cannot be read; the message names the file, the line where there is one, and the reason."""


class TraceRequest(NamedTuple):
    """One prompt. time: in the unit of the trace, None if not recorded. chain: ids of its blocks, of 64 bits. session:
    any name that is the same for the same session. block_size: tokens a block, if the file states them."""

    time: float | None
    tokens: int
    output: int | None = None
    chain: Sequence[int] = ()
    session: object = None
    block_size: int | None = None


@dataclass(frozen=True)
class TraceFacts:
    """How a trace was read. format: its name. time_unit: of the file. block_size: tokens a block, None without ids;
    block_size_from: `ids against lengths`, `the file`, `--block-size` or `the format`. agreement: the share of requests
    that have as many ids as their length has blocks of that size. estimated_tokens: lengths come from text, not from a
    tokenizer. backwards: requests that are earlier than the request before them in the file. repeated: requests that
    equal an earlier one in time, lengths and ids. without_output: requests whose output length is not there, where
    others have one."""

    format: str
    time_unit: TimeUnit
    block_size: int | None
    block_size_from: str
    agreement: float | None
    sessions: int
    estimated_tokens: bool
    backwards: int = 0
    repeated: int = 0
    without_output: int = 0

    @property
    def sentence(self) -> str:
        """The same for a reader."""
        times = "no arrival times: requests keep the order of the file"
        parts = [f"{self.format} trace", times if self.time_unit == "none" else f"times in {self.time_unit}"]
        if self.backwards:
            parts.append(f"sorted by time, out of order in the file: {self.backwards:,}")
        if self.repeated:
            parts.append(f"equal to an earlier request in time, lengths and ids: {self.repeated:,}")
        if self.without_output:
            parts.append(f"without an output length: {self.without_output:,}")
        if self.block_size is None:
            parts.append("no prefix ids: arrivals and lengths only")
        else:
            parts.append(f"blocks of {self.block_size} tokens, from {self.block_size_from}")
        if self.agreement is not None and self.agreement < 1:
            parts.append(
                f"{self.agreement:.1%} of requests have the number of ids that their length requires at that block size"
            )
        if self.estimated_tokens:
            parts.append("tokens estimated as 4 bytes of text each")
        if self.sessions:
            parts.append(f"{self.sessions:,} named sessions")
        return "; ".join(parts)


@dataclass(frozen=True)
class Trace:
    """The requests of a file in order of time, and how they were read."""

    accesses: Accesses
    facts: TraceFacts


@dataclass(frozen=True)
class TraceUnits:
    """What a format states of itself. block_size: its usual one, None without ids; fixed: it is always that, so that
    nothing is inferred. estimated_tokens: as in TraceFacts."""

    format: str
    time_unit: TimeUnit
    block_size: int | None
    fixed: bool = False
    estimated_tokens: bool = False


class TraceCollector:
    """Collects requests. A block reference takes 4 bytes while ids are below 2^31, 8 otherwise; a request 40."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._times, self._counts, self._start = array("d"), array("q"), array("q", [0])
        self._block = array("i")
        self._sessions: dict[object, int] = {}
        self._sizes: set[int] = set()
        self._timed = 0
        self._fractions = 0

    def __len__(self) -> int:
        return len(self._times)

    def add_all(self, requests: Iterable[TraceRequest]) -> None:
        """Add requests in the order of the file. Raises TraceError beyond the limits."""
        for request in requests:
            self.add(request)

    def add(self, request: TraceRequest) -> None:
        """Add one request. Raises TraceError."""
        self._check(request)
        if request.time is not None:
            self._timed += 1
            self._fractions += request.time % 1 != 0
        self._times.append(0.0 if request.time is None else request.time)
        output = UNKNOWN if request.output is None else request.output
        session = UNKNOWN
        if request.session is not None:
            session = self._sessions.setdefault(request.session, len(self._sessions))
        self._counts.extend((request.tokens, output, session))
        self._extend(request.chain)
        if request.block_size is not None:
            self._sizes.add(request.block_size)
        self._start.append(len(self._block))
        if len(self) > MAX_REQUESTS or len(self._block) > MAX_REFERENCES:
            raise TraceError(
                f"{self._name}: more than {MAX_REQUESTS:,} requests or {MAX_REFERENCES:,} block references;"
                " split the file"
            )

    def _check(self, request: TraceRequest) -> None:
        """Raises TraceError for a number of a request that is out of bounds."""
        values = (request.time, request.tokens, request.output, request.block_size)
        for name, value in zip(BOUNDS, values, strict=False):
            if value is not None and (problem := out_of_bounds(name, value)):
                raise TraceError(f"{self._name}: request {len(self) + 1}: {problem}")

    def _extend(self, chain: Sequence[int]) -> None:
        held = len(self._block)
        try:
            self._block.extend(chain)
        except OverflowError:
            del self._block[held:]
            if self._block.typecode == "i":
                self._block = array("q", self._block)
            self._block.extend(id_ - (1 << 64) if id_ >= 1 << 63 else id_ for id_ in chain)

    def trace(self, units: TraceUnits, block_size: int | None) -> Trace:
        """All requests in order of time. block_size: what the user states, None to infer it. Raises TraceError."""
        if not len(self):
            raise TraceError(f"{self._name}: no requests in it")
        unit = self._unit(units)
        times = np.frombuffer(self._times) * SECONDS[unit]
        self._check_span(times, unit)
        tokens, output, session = np.array(self._counts, dtype=np.int64).reshape(-1, 3).T
        start = np.frombuffer(self._start, dtype=np.int64)
        block = np.frombuffer(self._block, dtype=np.int32 if self._block.typecode == "i" else np.int64)
        size, source, agreement = self._block_size(units, block_size, tokens, np.diff(start))
        # Views of a single cell: a column that is the same for all requests takes no memory.
        columns: dict[str, Any] = dict.fromkeys(COLUMNS, np.broadcast_to(np.int64(UNKNOWN), len(tokens)))
        columns |= {"time": times, "tokens": tokens, "output": output}
        columns["source"] = np.broadcast_to(np.int64(SOURCES.index("trace")), len(tokens))
        if self._sessions:
            columns["session"] = session
        facts = TraceFacts(
            format=units.format,
            time_unit=unit,
            block_size=size,
            block_size_from=source,
            agreement=agreement,
            sessions=len(self._sessions),
            estimated_tokens=units.estimated_tokens,
            backwards=int((np.diff(times) < 0).sum()),
            repeated=_repeated(times, tokens, output, cast(Ints, block), start) if unit != "none" else 0,
            without_output=int((output < 0).sum()) if (output >= 0).any() else 0,
        )
        accesses = in_order(columns, start, cast(Ints, block), size or WITHOUT_IDS)
        return Trace(replace(accesses, observed=1.0, learned=facts.sentence), facts)

    def _check_span(self, times: Floats, unit: TimeUnit) -> None:
        """Raises TraceError where the last request is so late that one of the times is wrong."""
        order = np.argsort(times, kind="stable")
        name = "time since the first request"
        if problem := out_of_bounds(name, (times[order[-1]] - times[order[0]]) / DAY_SECONDS):
            after = int(order[int(np.diff(times[order]).argmax()) + 1]) + 1
            raise TraceError(
                f"{self._name}: request {after:,} follows the longest pause, and is the first of those that are too "
                f"late: {problem}. Times are read as {unit}. Correct the times, or remove these requests"
            )

    def _unit(self, units: TraceUnits) -> TimeUnit:
        """Milliseconds with fractions in most lines are seconds: Mooncake's are whole. Raises TraceError for both
        kinds in one file."""
        if not self._timed:
            return "none"
        if self._timed < len(self):
            raise TraceError(
                f"{self._name}: {len(self) - self._timed:,} of {len(self):,} requests have no time; remove "
                f"these requests, or remove the times of the others"
            )
        if units.time_unit != "ms" or not self._fractions:
            return units.time_unit
        if self._fractions * 2 <= len(self):
            raise TraceError(
                f"{self._name}: {self._fractions:,} of {len(self):,} times have a fraction, the others are whole: "
                "kvitals reads whole times as ms and times with fractions as s, and a file must have one unit. Write "
                "all times as whole ms"
            )
        return "s"

    def _block_size(
        self, units: TraceUnits, stated: int | None, tokens: Ints, ids: Ints
    ) -> tuple[int | None, str, float | None]:
        """The tokens of a block, where they are from, and the share of requests that agree."""
        if stated is not None and (problem := out_of_bounds("block size", stated)):
            raise TraceError(f"{self._name}: --block-size: {problem}")
        if units.block_size is None:
            return None, "", None
        if not ids.any():
            return stated or units.block_size, "--block-size" if stated else "the format", None
        if len(self._sizes) > 1:
            sizes = ", ".join(map(str, sorted(self._sizes)[:5]))
            raise TraceError(f"{self._name}: requests with blocks of {sizes} tokens; split the file by block size")
        for size, source in ((stated, "--block-size"), (next(iter(self._sizes), None), "the file")):
            if size is not None:
                return size, source, agreement_of(size, tokens, ids)
        if units.fixed:
            return units.block_size, "the format", agreement_of(units.block_size, tokens, ids)
        size, share = infer_block_size(tokens, ids, units.block_size)
        if share < AGREEMENT:
            raise TraceError(
                f"{self._name}: ids and lengths fit no block size (best: {size} tokens, {share:.0%} of "
                f"requests); state it with --block-size TOKENS"
            )
        return size, "ids against lengths", share


def _repeated(times: Floats, tokens: Ints, output: Ints, block: Ints, start: Ints) -> int:
    """Requests that equal an earlier one in time, lengths and ids; the last id stands for all, as it is of a prefix."""
    counts = np.diff(start)
    last = np.full(len(tokens), UNKNOWN)
    last[counts > 0] = block[start[1:][counts > 0] - 1]
    mixed = np.zeros(len(tokens), dtype=np.uint64)  # by one number each: ten million rows are sorted in a second
    for column in (times.view(np.uint64), tokens, output, counts, last):
        mixed = (mixed ^ column.astype(np.uint64)) * ODD
    return len(mixed) - len(np.unique(mixed))


def out_of_bounds(name: str, value: float) -> str:
    """What is wrong with a number of BOUNDS; empty where it is in its range."""
    least, most, unit = BOUNDS[name]
    return "" if least <= value <= most else f"{name} must be from {least:,.15g} to {most:,.15g}{unit}, not {value:,g}"


def agreement_of(size: int, tokens: Ints, ids: Ints) -> float:
    """The share of requests with as many ids as blocks of `size` tokens, with or without an id for a partial one."""
    partial, whole = -(-tokens // size) == ids, tokens // size == ids
    return float(max(partial.mean(), whole.mean()))


def infer_block_size(tokens: Ints, ids: Ints, usual: int) -> tuple[int, float]:
    """The tokens of a block that most requests agree with, and their share. Of several such sizes `usual`, then a power
    of two, then the smallest."""
    known = (ids > 0) & (tokens > 0)
    tokens, ids = tokens[known], ids[known]
    if not len(tokens):
        return usual, 0.0
    below = np.where(ids > 1, -(-tokens // np.maximum(ids - 1, 1)) - 1, MAX_BLOCK_SIZE)
    counts = [
        _covering(-(-tokens // ids), below),  # the last, partial block has an id
        _covering(tokens // (ids + 1) + 1, tokens // ids),  # it has none
    ]
    most = max(counts, key=lambda count: int(count.max()))
    best = np.flatnonzero(most == most.max())
    if usual in best:
        size = usual
    else:
        powers = best[(best & (best - 1)) == 0]
        size = int(powers[0] if len(powers) else best[0])
    return size, float(most.max() / len(tokens))


def _covering(low: Ints, high: Ints) -> Ints:
    """For each block size from 0 on, how many of the ranges low..high it is in."""
    some = (low <= high) & (low <= MAX_BLOCK_SIZE)
    steps = np.bincount(np.maximum(low[some], 1), minlength=MAX_BLOCK_SIZE + 2)
    steps = steps - np.bincount(np.minimum(high[some], MAX_BLOCK_SIZE) + 1, minlength=MAX_BLOCK_SIZE + 2)
    return np.asarray(np.cumsum(steps)[: MAX_BLOCK_SIZE + 1])
