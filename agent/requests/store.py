"""The requests of late, in memory: the newest ones, and for longer the slowest of each minute."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from kvitals.agent.requests.record import RequestRecord

MAX_RECORDS = 20_000
SLOWEST_A_MINUTE = 20
MINUTES = 60


class Store:
    """Records as they were given out. A replay fills it anew from a capture's parts."""

    def __init__(self, most: int = MAX_RECORDS, slowest: int = SLOWEST_A_MINUTE) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=most)
        self._slowest: dict[int, list[tuple[float, int, RequestRecord]]] = {}  # minute -> heap, the fastest first
        self._kept = slowest
        self._count = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: RequestRecord) -> None:
        """Keep a record."""
        self._records.append(record)
        self._count += 1
        if record.e2e is None:
            return
        minute = int(record.end // 60)
        heap = self._slowest.get(minute)
        if heap is None:
            heap = self._slowest[minute] = []
            if len(self._slowest) > MINUTES:
                del self._slowest[min(self._slowest)]
        item = (record.e2e, self._count, record)
        if len(heap) < self._kept:
            heapq.heappush(heap, item)
        elif heap[0][0] < record.e2e:
            heapq.heapreplace(heap, item)

    def newest(self, count: int, tenant: str | None = None) -> list[RequestRecord]:
        """The requests that were given out last, the latest first. `tenant`: its pseudonym, "" for unknown ones."""
        found = []
        for record in reversed(self._records):
            if tenant is None or record.tenant == tenant:
                found.append(record)
                if len(found) >= count:
                    break
        return found

    def slowest(self, count: int, tenant: str | None = None, since: float = 0.0) -> list[RequestRecord]:
        """The requests that took longest and ended at `since` or later, the slowest first."""
        kept = {id(record): record for record in self if record.e2e is not None and record.end >= since}
        found = (record for record in kept.values() if tenant is None or record.tenant == tenant)
        return heapq.nlargest(count, found, key=lambda record: record.e2e or 0.0)

    def find(self, name: str) -> list[RequestRecord]:
        """The requests of an id or a trace id, the latest first."""
        kept = {id(record): record for record in self if name in (record.id, record.trace)}
        return sorted(kept.values(), key=lambda record: -record.end)

    def __iter__(self) -> Iterator[RequestRecord]:
        """All that is kept, some of it twice."""
        yield from self._records
        for heap in self._slowest.values():
            for _, _, record in heap:
                yield record
