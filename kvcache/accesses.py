"""Block accesses: which chains of blocks were looked up, when, by whom and where.

An *access* is one prompt looked up in a prefix cache. Its *chain* is the ids of the prompt's blocks, from the root: a
block's id stands for its content and all that is before it, so equal ids are equal prefixes. Curves, what-if and
attainable hits read accesses and nothing else, wherever these come from: KV events, a recording, a trace file.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

UNKNOWN = -1
"""In columns of codes and counts: not known. Zero is a number."""

Source = Literal["parent chain", "tap", "report mode", "inferred", "trace"]
SOURCES: tuple[Source, ...] = ("parent chain", "tap", "report mode", "inferred", "trace")
"""How an access became known; the column `source` has the place in here."""

_PARTS = 8
"""A builder drops its oldest rows in parts of this share of its cap."""


@dataclass(frozen=True)
class Accesses:
    """Accesses in order of time, as columns; row i's chain is `block[start[i]:start[i + 1]]`.

    time: seconds, any epoch. tokens: of the prompt. engine, tenant: codes into `engines` and `tenants`. session: any
    number from 0 on, the same for the same session everywhere. output: tokens generated. hit: blocks that the engine
    took from its cache. Where a value is not known the column has UNKNOWN. `block` holds any 64 bits,
    or 32 where a reader has small ids: 4 bytes a reference.

    block_size: tokens a block. observed: the share of all look-ups that are in here, 0 to 1, or None where nobody
    knows; learned: one sentence on how that share and the chains were come by.
    """

    time: Floats
    tokens: Ints
    start: Ints
    block: Ints
    engine: Ints
    session: Ints
    tenant: Ints
    output: Ints
    hit: Ints
    source: Ints
    engines: tuple[str, ...]
    tenants: tuple[str, ...]
    block_size: int
    observed: float | None = None
    learned: str = ""

    def __post_init__(self) -> None:
        rows = len(self.time)
        if any(len(getattr(self, name)) != rows for name in COLUMNS) or len(self.start) != rows + 1:
            raise ValueError("the columns of accesses must be of one length, `start` one longer")
        if self.start[0] != 0 or self.start[-1] != len(self.block) or (np.diff(self.start) < 0).any():
            raise ValueError("`start` must rise from 0 to the number of block references")
        if not np.isfinite(self.time).all() or (np.diff(self.time) < 0).any():
            raise ValueError("accesses must be in order of time")
        if self.block_size <= 0 or (self.tokens < 0).any():
            raise ValueError("block_size must be positive and tokens known")
        if self.observed is not None and not 0 <= self.observed <= 1:
            raise ValueError("`observed` is a share from 0 to 1")
        for codes, names in ((self.engine, self.engines), (self.tenant, self.tenants), (self.source, SOURCES)):
            if rows and (codes.min() < UNKNOWN or codes.max() >= len(names)):
                raise ValueError("a code has no name")

    def __len__(self) -> int:
        return len(self.time)

    @property
    def references(self) -> int:
        """Block references: the lengths of all chains together."""
        return len(self.block)

    @property
    def lengths(self) -> Ints:
        """Blocks in each chain."""
        return np.diff(self.start)

    def select(
        self,
        engine: str | None = None,
        tenant: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Accesses:
        """Those of one engine, of one tenant, at or after `since` and before `until`. A name not in here: none."""
        keep = np.ones(len(self), dtype=bool)
        for wanted, names, codes in ((engine, self.engines, self.engine), (tenant, self.tenants, self.tenant)):
            if wanted is not None:
                keep &= codes == (names.index(wanted) if wanted in names else len(names))
        if since is not None:
            keep &= self.time >= since
        if until is not None:
            keep &= self.time < until
        return self.take(np.flatnonzero(keep))

    def take(self, rows: npt.NDArray[np.intp]) -> Accesses:
        """The rows of these numbers, which must be in order of time."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        start, block = select_chains(self.start, self.block, rows)
        return replace(self, **columns, start=start, block=block)


COLUMNS = ("time", "tokens", "engine", "session", "tenant", "output", "hit", "source")
"""The columns with one cell a row."""


def empty(block_size: int) -> Accesses:
    """No accesses."""
    none = np.zeros(0, dtype=np.int64)
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, none) | {"time": np.zeros(0)}
    return Accesses(
        **columns, start=np.zeros(1, dtype=np.int64), block=none, engines=(), tenants=(), block_size=block_size
    )


def in_order(
    columns: dict[str, Any],
    start: Ints,
    block: Ints,
    block_size: int,
    engines: tuple[str, ...] = (),
    tenants: tuple[str, ...] = (),
) -> Accesses:
    """Accesses from `columns` (all of COLUMNS) and chains that are in any order of time."""
    if (np.diff(columns["time"]) < 0).any():
        order = np.argsort(columns["time"], kind="stable")
        start, block = select_chains(start, block, order)
        columns = {name: column[order] for name, column in columns.items()}
    return Accesses(**columns, start=start, block=block, engines=engines, tenants=tenants, block_size=block_size)


def concatenate(parts: Sequence[Accesses]) -> Accesses:
    """All of them in order of time; rows of the same time stay in the order of `parts`.

    The observed share is all rows over all look-ups that they stand for; None where a part with rows does not know it.
    Raises ValueError for no parts, and for blocks of different sizes, whose ids can not be compared.
    """
    if not parts:
        raise ValueError("no accesses to combine")
    if len({part.block_size for part in parts}) > 1:
        sizes = ", ".join(str(size) for size in sorted({part.block_size for part in parts}))
        raise ValueError(f"accesses with blocks of {sizes} tokens cannot be combined: select engines of one size")
    engines = _names([part.engines for part in parts])
    tenants = _names([part.tenants for part in parts])
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    columns["engine"] = np.concatenate([_recoded(part.engine, part.engines, engines) for part in parts])
    columns["tenant"] = np.concatenate([_recoded(part.tenant, part.tenants, tenants) for part in parts])
    starts = np.cumsum([0, *(part.references for part in parts)])
    start = np.concatenate([*(part.start[:-1] + at for part, at in zip(parts, starts, strict=False)), starts[-1:]])
    block = np.concatenate([part.block for part in parts])
    return replace(
        in_order(columns, start, block, parts[0].block_size, engines, tenants),
        observed=_observed(parts),
        learned="; ".join(dict.fromkeys(part.learned for part in parts if part.learned)),
    )


_COUNTS = ("tokens", "session", "output", "hit", "source", "engine", "tenant")


class Builder:
    """Takes accesses one by one and keeps the latest, `max_references` block references of them at most.

    Rows may come a little out of order. `left` counts rows that had to leave, oldest first and several at a time;
    `refused` counts rows with a chain of more than an eighth of the cap, or without a time or tokens. A reference takes
    8 bytes, a row 72 and its names.
    """

    def __init__(self, block_size: int, max_references: int) -> None:
        if block_size <= 0 or max_references < _PARTS:
            raise ValueError(f"block_size must be positive and max_references at least {_PARTS}")
        self.left = 0
        self.refused = 0
        self._block_size = block_size
        self._part_size = max_references // _PARTS
        self._parts: deque[Accesses] = deque()
        self._begin()

    def _begin(self) -> None:
        self._time, self._counts = array("d"), array("q")
        self._start, self._block = array("q", [0]), array("q")
        self._engines: dict[str, int] = {}
        self._tenants: dict[str, int] = {}

    def add(
        self,
        time: float,
        tokens: int,
        chain: Sequence[int],
        source: Source,
        engine: str | None = None,
        tenant: str | None = None,
        session: int = UNKNOWN,
        output: int = UNKNOWN,
        hit: int = UNKNOWN,
    ) -> bool:
        """One access; `chain` holds signed 64-bit ids. False where it was refused.

        Raises OverflowError for a number of more than 64 bits, and then keeps nothing of the row.
        """
        if len(chain) > self._part_size or tokens < 0 or not isfinite(time):
            self.refused += 1
            return False
        ids = array("q", chain)
        if len(self._block) + len(ids) > self._part_size or len(self._time) == self._part_size:
            self._seal()
        counts = array("q", (tokens, session, output, hit, SOURCES.index(source)))
        self._time.append(time)
        self._block.extend(ids)
        self._start.append(len(self._block))
        counts.extend((_code(engine, self._engines), _code(tenant, self._tenants)))
        self._counts.extend(counts)
        return True

    def accesses(self, observed: float | None = None, learned: str = "") -> Accesses:
        """What is held now, in order of time. O(what is held)."""
        held = concatenate([*self._parts, self._open()])
        return replace(held, observed=observed, learned=learned)

    def _seal(self) -> None:
        self._parts.append(self._open())
        self._begin()
        if len(self._parts) == _PARTS:
            self.left += len(self._parts.popleft())

    def _open(self) -> Accesses:
        """The rows that are not sealed yet."""
        counts = np.array(self._counts, dtype=np.int64).reshape(-1, len(_COUNTS)).T
        columns: dict[str, Any] = dict(zip(_COUNTS, counts, strict=True)) | {"time": np.array(self._time)}
        start, block = np.array(self._start, dtype=np.int64), np.array(self._block, dtype=np.int64)
        return in_order(columns, start, block, self._block_size, tuple(self._engines), tuple(self._tenants))


def select_chains(start: Ints, block: Ints, rows: npt.NDArray[np.intp]) -> tuple[Ints, Ints]:
    """`start` and `block` of these rows, in that order."""
    lengths = np.diff(start)[rows]
    chosen = np.concatenate(([0], np.cumsum(lengths)))
    return chosen, block[np.arange(chosen[-1]) + np.repeat(start[rows] - chosen[:-1], lengths)]


def _observed(parts: Sequence[Accesses]) -> float | None:
    shares = [(part.observed, len(part)) for part in parts if len(part)]
    if not shares or any(share is None for share, _ in shares):
        return None
    looked_up = sum(rows / share if share else np.inf for share, rows in shares if share is not None)
    return float(sum(rows for _, rows in shares) / looked_up)


def _code(name: str | None, names: dict[str, int]) -> int:
    return UNKNOWN if name is None else names.setdefault(name, len(names))


def _names(tables: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for table in tables for name in table))


def _recoded(codes: Ints, old: tuple[str, ...], new: tuple[str, ...]) -> Ints:
    """Codes into `old` as codes into `new`; UNKNOWN, the last place, stays."""
    place = {name: code for code, name in enumerate(new)}
    return np.array([*(place[name] for name in old), UNKNOWN], dtype=np.int64)[codes]
