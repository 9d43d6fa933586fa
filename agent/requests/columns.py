"""Requests as columns of numbers, so that much can be asked of many at once.

    block = lay_out(records)       # some requests, a few microseconds each
    columns = joined(blocks)       # of all blocks, in an order of their own, whatever the order they came in
    columns.take(places)           # some of them

NaN is unknown. A phase that a request did not have took 0 seconds; of one without any phases all are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kvitals.agent.requests.observation import PHASES
from kvitals.agent.requests.record import RequestRecord

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

ROLES = ("unified", "prefill", "decode")
PLAIN = ("start", "end", "ttft", "e2e", "itl_max", "prompt_tokens", "cached_tokens", "output_tokens")
_TIE, _HIDES = len(PLAIN), len(PLAIN) + 1
_SECONDS = slice(_HIDES + 1, _HIDES + 1 + len(PHASES))
_STARTS = slice(_SECONDS.stop, _SECONDS.stop + len(PHASES))
_PLACE = {name: i for i, name in enumerate(PHASES)}
_TRANSFER = _PLACE["transfer"]
_NAN = float("nan")
_ABSENT, _UNPLACED, _UNKNOWN = [0.0] * len(PHASES), [_NAN] * len(PHASES), [_NAN] * len(PHASES)

NOBODY = -1
"""The number of no engine."""


class RequestBlock(NamedTuple):
    """Some requests, laid out."""

    records: list[RequestRecord]
    numbers: Floats  # a row a request
    names: Numbers  # a row a request: its tenant, and its engine in each of ROLES, as places in the following
    tenants: list[str]
    engines: list[str]

    @property
    def until(self) -> float:
        """When the last of them ended."""
        return max((record.end for record in self.records), default=float("-inf"))


def lay_out(records: Sequence[RequestRecord]) -> RequestBlock:
    """A block of some requests."""
    tenants: dict[str, int] = {}
    engines: dict[str, int] = {}
    rows: list[list[float]] = []
    names: list[tuple[int, ...]] = []
    for record in records:
        rows.append(_row(record))
        at = record.engines
        places = [engines.setdefault(at[role], len(engines)) if role in at else NOBODY for role in ROLES]
        names.append((tenants.setdefault(record.tenant, len(tenants)), *places))
    numbers = np.array(rows, np.float64).reshape(len(rows), _STARTS.stop)
    return RequestBlock(
        list(records), numbers, np.array(names, np.intp).reshape(len(rows), 1 + len(ROLES)), [*tenants], [*engines]
    )


def _row(record: RequestRecord) -> list[float]:
    seconds, starts, hides = _UNKNOWN, _UNPLACED, 0.0
    if record.phases:
        seconds, starts = _ABSENT.copy(), _UNPLACED.copy()
        for phase in record.phases:
            i = _PLACE.get(phase.name)
            if i is not None:
                seconds[i] = _NAN if phase.seconds is None else phase.seconds
                starts[i] = _NAN if phase.start is None or phase.seconds is None else phase.start
                hides = 1.0 if phase.seconds is None and i == _TRANSFER else hides
    ttft, itl, prompt = record.ttft, record.itl_max, record.prompt_tokens
    cached, output = record.cached_tokens, record.output_tokens
    e2e = record.e2e if record.outcome == "success" else None
    return [
        record.start,
        record.end,
        _NAN if ttft is None else ttft,
        _NAN if e2e is None else e2e,
        _NAN if itl is None else itl,
        _NAN if prompt is None else prompt,
        _NAN if cached is None else cached,
        _NAN if output is None else output,
        crc32(record.trace.encode(), crc32(record.id.encode())),
        hides,
        *seconds,
        *starts,
    ]


@dataclass(frozen=True)
class RequestColumns:
    """Requests, by the time of their start; a row each."""

    records: Sequence[RequestRecord]
    numbers: Floats
    names: Numbers
    tenants: Sequence[str]
    engines: Sequence[str]

    def __len__(self) -> int:
        return len(self.records)

    def take(self, places: Numbers) -> RequestColumns:
        """Those at some places, in that order."""
        records = self.records
        some = [records[i] for i in places]
        return RequestColumns(some, self.numbers[places], self.names[places], self.tenants, self.engines)

    def of(self, name: str) -> Floats:
        """One of PLAIN. `e2e` is told only of requests that came to their end."""
        return self.numbers[:, PLAIN.index(name)]

    @property
    def seconds(self) -> Floats:
        """Of the phases, in the order of PHASES."""
        return self.numbers[:, _SECONDS]

    @property
    def starts(self) -> Floats:
        """When the phases began, by an engine's clock."""
        return self.numbers[:, _STARTS]

    def hides_transfer(self, places: Numbers) -> Bools:
        """Whether some requests had a KV transfer that can not be told apart."""
        return np.asarray(self.numbers[places, _HIDES] > 0.0)

    @property
    def tenant(self) -> Numbers:
        """Places in `tenants`, where the unknown one is empty."""
        return self.names[:, 0]

    def engine(self, role: str) -> Numbers:
        """Places in `engines`, or NOBODY."""
        return self.names[:, 1 + ROLES.index(role)]

    def at(self, engines: Collection[str], places: Numbers) -> Bools:
        """Which of some requests were at some engines."""
        wanted = np.array([*(name in engines for name in self.engines), False])  # the last is NOBODY's
        return np.asarray(wanted[self.names[places, 1:]].any(axis=1))


def join_blocks(blocks: Iterable[RequestBlock], start: float = -math.inf, end: float = math.inf) -> RequestColumns:
    """The requests of some blocks that ended from `start` to `end`."""
    blocks = [lay_out(()), *blocks]
    tenants: dict[str, int] = {}
    engines: dict[str, int] = {}
    names = []
    for block in blocks:
        of_tenants = np.array([tenants.setdefault(name, len(tenants)) for name in block.tenants], np.intp)
        of_engines = np.array([*(engines.setdefault(name, len(engines)) for name in block.engines), NOBODY], np.intp)
        names.append(np.column_stack((of_tenants[block.names[:, 0]], of_engines[block.names[:, 1:]])))
    numbers = np.concatenate([block.numbers for block in blocks])
    records = list(chain.from_iterable(block.records for block in blocks))
    whole = RequestColumns(records, numbers, np.concatenate(names), [*tenants], [*engines])
    here = np.flatnonzero((whole.of("end") >= start) & (whole.of("end") <= end))
    by = numbers[here]
    return whole.take(here[np.lexsort((by[:, _TIE], by[:, PLAIN.index("end")], by[:, PLAIN.index("start")]))])
