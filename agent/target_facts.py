"""Facts about targets that neither their pages nor their endpoints report: from the command lines of their processes,
and from the configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from kvitals.agent import discovery
from kvitals.agent.discovery import DiscoveredTarget, DiscoveryError, Finder
from kvitals.agent.families import CONFIGURATION
from kvitals.agent.node_context import NodeContext
from kvitals.agent.records import FactsRecord, Record
from kvitals.agent.workers import Worker


class FactsReader:
    """Reads the flags of targets when they are added and when their engine was restarted."""

    def __init__(self, context: NodeContext, finder: Finder, search: Worker, identified: Callable[[str], None]) -> None:
        """search: the thread that searches processes; identified: is called with the key of a target whose process is
        known from now on."""
        self._context = context
        self._finder = finder
        self._search = search
        self._identified = identified
        self._wanted: dict[str, str] = {}  # targets whose flags are to be read, by key -> version
        self._pending: list[Record] = []

    def want(self, key: str, version: str) -> None:
        """A target is new, or its engine was restarted: what neither page nor endpoints report is read again."""
        self._wanted[key] = version
        if self._context.targets.tables[key].facts:
            self.configured(key)

    def configured(self, key: str) -> None:
        """Report the facts that the configuration states of a target."""
        facts = self._context.targets.tables[key].facts
        self._pending.append(FactsRecord(t=time.time(), target=key, source=CONFIGURATION, facts=facts))

    def forget(self, key: str) -> None:
        """A target is watched no more."""
        self._wanted.pop(key, None)

    def drain(self) -> list[Record]:
        """The records since the last call."""
        pending, self._pending = self._pending, []
        return pending

    async def learn(self, deadline: float) -> list[str]:
        """Read the flags of all targets that wait for it from the command lines of their processes, in one search of
        the node's processes. deadline: seconds; a search that takes longer is begun again with the next cycle.

        Returns what to show the user.
        """
        wanted, self._wanted = self._wanted, {}
        tables = self._context.targets.tables
        targets = {key: tables[key] for key in wanted}
        if not targets:
            return []
        urls = {target.url for target in targets.values()}
        try:
            processes = await self._search.run(partial(self._finder.behind, urls), deadline)
        except Exception as error:  # /proc hangs, or the process has no file descriptor left
            self._wanted = {key: wanted[key] for key in targets if key in tables} | self._wanted
            self._context.collectors.failed(("processes", ""), error)
            return [f"flags of {len(urls)} targets not read: {type(error).__name__} {error}"]
        notes: list[str] = []
        for key, target in targets.items():
            process = processes[target.url]
            if isinstance(process, DiscoveryError):
                notes.append(f"{target.url}: flags not read: {process}")
            elif tables.get(key) is target:  # it was not forgotten meanwhile
                self._keep(key, process, wanted[key])
        return notes

    def _keep(self, key: str, process: DiscoveredTarget, version: str) -> None:
        """Keep the process behind a target, and report its flags as facts."""
        self._context.targets.servers[key] = process
        self._identified(key)
        facts, info = process.learn(version)
        self._pending.append(FactsRecord(t=time.time(), target=key, source=discovery.SOURCE, facts=facts, info=info))
