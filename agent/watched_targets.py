"""The targets that a node watches, by key, with the processes behind those on this machine."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvitals.agent.collectors import scrape
from kvitals.agent.collectors.scrape import ScrapeSense, ScrapeTarget
from kvitals.agent.discovery import DiscoveredTarget
from kvitals.agent.process_titles import ProcessRef
from kvitals.agent.target_sources import TargetList, scrape_target
from kvitals.config import Config, ConfigError, NodeLabels, TargetTable
from kvitals.config.hosts import is_loopback


class _Recorded(msgspec.Struct):
    """A target in a recording's header."""

    url: str
    name: str = ""
    labels: dict[str, str] = {}
    prefixes: dict[str, str] = {}


@dataclass
class TargetChanges:
    """What a list of targets changed, by key. A target whose labels changed is both forgotten and added."""

    forgotten: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    reconfigured: list[str] = field(default_factory=list)  # those whose configured facts changed
    notes: list[str] = field(default_factory=list)  # for the user


class WatchedTargets:
    """Each target that is watched is one of the scraper's, under the same key."""

    def __init__(self, scraper: ScrapeSense, labels: NodeLabels) -> None:
        """labels: of this node."""
        self.tables: dict[str, TargetTable] = {}
        self.scraped: dict[str, ScrapeTarget] = {}
        self.processes: dict[str, tuple[ProcessRef, ...]] = {}
        """The processes of the targets on this node."""
        self.servers: dict[str, DiscoveredTarget] = {}
        """The process that serves each target on this node, with its command line."""
        self.addresses: frozenset[str] = frozenset()
        """The addresses of this machine."""
        self._scraper = scraper
        self._labels = labels
        self._refused: dict[str, str] = {}  # URL of a target that cannot be watched -> why

    @property
    def urls(self) -> list[str]:
        """The URLs of all targets."""
        return [target.url for target in self.tables.values()]

    @property
    def meta(self) -> dict[str, Any]:
        """What a recording must have of the targets besides their records."""
        return {
            "targets": [
                {"url": t.url, "name": t.name, "labels": t.labels, "prefixes": self.scraped[key].prefixes}
                for key, t in self.tables.items()
            ]
        }

    @property
    def here(self) -> dict[str, str]:
        """Key -> URL of the targets on this node."""
        return {key: target.url for key, target in self.tables.items() if self.is_here(key)}

    def is_here(self, key: str) -> bool:
        """Whether a target runs on this node."""
        return self.scraped[key].labels.get("node") == self._labels.node

    def is_own(self, key: str) -> bool:
        """Whether a target's URL names this machine."""
        host = urlsplit(self.tables[key].url).hostname or ""
        return is_loopback(host) or host in self.addresses

    def problems(self) -> list[str]:
        """For each target whose last scrape failed: its URL, why, and what to do."""
        return [f"{url}: {message}" for url, message in self.failures.items()]

    @property
    def failures(self) -> dict[str, str]:
        """URLs of the targets whose last scrape failed -> why, and what to do."""
        last = {t.url: self._scraper.translator(key).status.last for key, t in self.tables.items()}
        return {url: outcome.message for url, outcome in last.items() if not outcome.ok}

    @property
    def no_engine(self) -> bool:
        """Whether every target's URL leads to no engine, as far as its last scrape shows."""
        return self._all_failed_with(scrape.NO_ENGINE)

    @property
    def unreachable(self) -> bool:
        """Whether the last scrape of every target met no server at all."""
        return self._all_failed_with(scrape.UNREACHABLE)

    def _all_failed_with(self, reasons: Container[str]) -> bool:
        last = [self._scraper.translator(key).status.last.reason for key in self.tables]
        return bool(last) and all(reason in reasons for reason in last)

    def check(self, target: TargetTable, config: Config) -> None:
        """Raises ConfigError where a target cannot be watched."""
        made = scrape_target(target, {}, config)
        try:
            scrape.check(made)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{target.url}: {error}") from error

    def expect(self, meta: Mapping[str, Any], config: Config, labels: Mapping[str, str]) -> None:
        """Watch the targets of a recording, as its header names them. Raises ConfigError.

        A recording comes from anywhere, so only address, name, labels and prefixes are taken from it: no token file.
        """
        try:
            for recorded in msgspec.convert(meta.get("targets", []), list[_Recorded]):
                target = TargetTable(
                    url=recorded.url, name=recorded.name, labels=recorded.labels, prefixes=recorded.prefixes
                )
                self._add(target, config, labels)
        except ValueError as error:
            raise ConfigError(f"the recording names an invalid target: {error}") from error

    def adapt(self, wanted: TargetList, *, first: bool = False) -> TargetChanges:
        """Watch the targets of a list and no others. first: nothing was watched before, so a new target is no news."""
        changes, urls = TargetChanges(), {target.url for target in wanted.targets}
        changes.notes += wanted.said
        for key, target in list(self.tables.items()):
            if target.url not in urls:
                self._forget(key, changes)
                changes.notes.append(f"{target.url}: no longer named, forgotten")
        self._refused = {url: why for url, why in self._refused.items() if url in urls}
        keys = {target.url: key for key, target in self.tables.items()}
        for target in wanted.targets:
            try:
                before = keys.get(target.url)
                if self._watch(target, before, wanted.config, changes) and not first:
                    changes.notes.append(f"{target.url}: {'changed' if before else 'new'}, watched from now on")
                self._refused.pop(target.url, None)
            except ConfigError as error:
                if self._refused.get(target.url) != str(error):
                    changes.notes.append(f"not watched: {error}")
                self._refused[target.url] = str(error)
        return changes

    def _watch(self, target: TargetTable, key: str | None, config: Config, changes: TargetChanges) -> bool:
        """Watch a target, which may be watched already under `key`, perhaps in another way. Returns whether its series
        begin anew. Raises ConfigError."""
        own = self._own_labels(target)
        if key is not None:
            made = scrape_target(target, own, config)
            known, before = self.tables[key], self.scraped[key]
            if known == target and before == made:
                return False
            if _is_same(before, made):
                self._scraper.renew(key, made)
                self.tables[key], self.scraped[key] = target, made
                if known.facts != target.facts:
                    changes.reconfigured.append(key)
                return False
            self._forget(key, changes)
        changes.added.append(self._add(target, config, own))
        return True

    def _add(self, target: TargetTable, config: Config, own: Mapping[str, str]) -> str:
        """Watch a target; returns its key. Raises ConfigError."""
        made = scrape_target(target, own, config)
        try:
            key = self._scraper.add(made)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{target.url}: {error}") from error
        self.tables[key], self.scraped[key] = target, made
        return key

    def _forget(self, key: str, changes: TargetChanges) -> None:
        self._scraper.remove(key)
        self.processes.pop(key, None)
        self.servers.pop(key, None)
        del self.tables[key], self.scraped[key]
        changes.forgotten.append(key)

    def _own_labels(self, target: TargetTable) -> dict[str, str]:
        """The labels that everything of this node carries; an engine elsewhere is not of this node."""
        is_here = is_loopback(urlsplit(target.url).hostname or "")
        labels = {"cluster": self._labels.cluster, "node": self._labels.node if is_here else ""}
        return {name: value for name, value in labels.items() if value}


def _is_same(one: ScrapeTarget, other: ScrapeTarget) -> bool:
    """Whether two ways to scrape an engine give the same series, so that they go on."""
    return (one.url, one.name, one.labels, one.prefixes) == (other.url, other.name, other.labels, other.prefixes)
