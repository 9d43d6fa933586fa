"""The protocol of a node's collectors, which `kvitals.agent.node` keeps in a registry by the records that they make.

    class FanCollector(NodeCollector[FanRecord]):
        records = (FanRecord,)
        def reads(self, held): return {("fan", ""): CollectorRun(self._read, deadline=8.0)}     # I/O
        def ingest(self, record): ...                                                           # none

`reads` does the I/O of a live node. `ingest` and `advance` do none and take the time from the records, so that a
recorded incident takes the path of a live one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from kvitals.agent.collectors.boundary import CollectorRun, Name
from kvitals.series.slices import Steps

R = TypeVar("R")


class NodeCollector(Generic[R]):
    """One kind of input: it reads records of its types, and ingests them, its own or recorded ones."""

    records: ClassVar[tuple[type[Any], ...]]
    """The types of the records that it makes; no two collectors of a node share one."""

    @property
    def supported(self) -> bool:
        """Whether this node has something to read for it now."""
        return True

    def reads(self, held: Container[str]) -> Mapping[Name, CollectorRun]:
        """What is read in this cycle, each with its deadline.

        held: keys of targets, and kinds of records, whose last records still wait to be ingested.
        """
        raise NotImplementedError

    def ingest(self, record: R) -> Steps[None]:
        """Put a record into the window, in steps."""
        raise NotImplementedError

    def advance(self, t: float) -> Steps[None]:
        """Settle, in steps, what is complete at `t`, seconds since the epoch."""
        yield from ()

    def flush(self, t: float) -> None:
        """Settle everything: a recording ends at `t`, seconds since the epoch."""

    def forget(self, key: str) -> None:
        """Drop the state of a target, by its key, that is watched no more."""

    async def close(self) -> None:
        """Release connections, ports and files."""
