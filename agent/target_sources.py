"""Where targets come from: the configuration, targets files, the pods of this node, the processes of this node.

    sources = Sources(config, Finder(maps))
    look = await sources.look()      # look.targets are to be watched, and no others; look.said is for the user

A source that fails keeps the targets that it had, and says so once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kvitals.agent.collectors import scrape
from kvitals.agent.collectors.boundary import Collectors
from kvitals.agent.discovery import Finder
from kvitals.agent.file_changes import Stamp, stamp
from kvitals.agent.kubernetes import Pods
from kvitals.agent.workers import Worker
from kvitals.config import MAX_TARGETS, Config, ConfigError, TargetTable, is_pattern, normal_url, read_targets
from kvitals.series.secret_file import SecretError, secret

FILES, KUBERNETES, PROCESSES = "targets_files", "kubernetes", "discovery"
"""The collectors of targets."""

FILES_SECONDS = 2.0
SCAN_SECONDS = 20.0
"""Deadlines. A node with some ten thousand processes takes seconds to search."""

MAX_FILES = 100
_NEVER: Stamp = (-1, -1, -1)


@dataclass(frozen=True)
class TargetList:
    """The targets there are now by a configuration, and what to tell the user."""

    config: Config
    targets: tuple[TargetTable, ...]
    said: tuple[str, ...] = ()


class Sources:
    """All sources of targets. `urls`: those that the user named, instead of all others."""

    def __init__(
        self, config: Config, finder: Finder, urls: Sequence[str] = (), collectors: Collectors | None = None
    ) -> None:
        """`collectors`: who is told how each source fares."""
        self._config = config
        self._finder = finder
        self._urls = tuple(urls)
        self._collectors = collectors
        self._threads = {name: Worker(name) for name in (FILES, PROCESSES)}
        self._unread = ""  # why the targets files were not read at the last look
        self._files = TargetFiles(config.agent.targets_file)
        self._pods = Pods(config.kubernetes) if config.kubernetes else None
        self._known_pods: tuple[TargetTable, ...] = ()
        self._found: dict[str, TargetTable] = {}  # URL -> engine that was found among the processes
        self._told: dict[str, tuple[str, ...]] = {}  # source -> what was last said of it
        self._reading = asyncio.Lock()  # one look at the files at a time
        self._pods_failed = False

    @property
    def may_grow(self) -> bool:
        """Whether targets may come later by themselves, so that none for now is no mistake."""
        return not self._urls and bool(self._config.agent.targets_file or self._config.kubernetes)

    @property
    def failing(self) -> tuple[str, ...]:
        """The sources that could not be read at the last look, of `files` and `kubernetes`."""
        failed = {"files": bool(self._files.problems or self._unread), "kubernetes": self._pods_failed}
        return tuple(name for name, so in failed.items() if so and not self._urls)

    def configure(self, config: Config) -> None:
        """Take another configuration. What is known from sources that stay is kept; what is wrong is told anew."""
        self._told.clear()
        self._files.name(config.agent.targets_file)
        if config.kubernetes != self._config.kubernetes:
            self._pods = Pods(config.kubernetes) if config.kubernetes else None
            self._pods_failed = False
        if config.kubernetes is None:
            self._known_pods = ()
        self._config = config

    async def files_changed(self) -> bool:
        """Whether targets files name other targets than at the last look. Quick: unchanged files are not read."""
        return not self._urls and await self._look_at_files()

    async def look(self, at_once: bool = False) -> TargetList:
        """Ask every source. at_once: a file that changed just now is read, though someone may be writing it.

        Raises ConfigError where the user named what is no URL.
        """
        config = self._config
        if self._urls:
            return TargetList(config, _unique(self._named()))
        said: list[str] = []
        await self._look_at_files(at_once)
        self._say("files", [*self._files.problems, *([self._unread] if self._unread else [])], said)
        targets = [*config.targets, *self._files.targets, *await self._of_pods(said)]
        named = config.targets or config.agent.targets_file or config.kubernetes
        if not named and config.agent.discover:
            targets += await self._of_processes(said)
        else:
            self._found.clear()
        unique = _unique(targets)
        if len(unique) > MAX_TARGETS:
            self._say(
                "cap", [f"{len(unique)} targets, only the first {MAX_TARGETS} are watched: use several agents"], said
            )
        return TargetList(config, unique[:MAX_TARGETS], tuple(said))

    def _named(self) -> Iterable[TargetTable]:
        configured = {target.url: target for target in self._config.targets}
        try:
            return [configured.get(url) or TargetTable(url=url) for url in map(normal_url, self._urls)]
        except ValueError as error:
            raise ConfigError(str(error)) from error

    async def _of_pods(self, said: list[str]) -> tuple[TargetTable, ...]:
        pods = self._pods
        if pods is None:
            return ()
        try:
            with self._guarded(KUBERNETES):
                found = await pods.list()
        except Exception as error:
            self._pods_failed = pods is self._pods
            kept = f"; the agent keeps the {len(self._known_pods)} pods that it knows" if self._known_pods else ""
            self._say("pods", [f"pods not listed: {error}{kept}"], said)
        else:
            if pods is self._pods:  # else the configuration changed meanwhile
                self._known_pods, self._pods_failed = found.targets, False
            self._say("pods", found.notes, said)
        return self._known_pods

    async def _of_processes(self, said: list[str]) -> Iterable[TargetTable]:
        """Engines that were found once stay: one that went away is down, and that is worth a finding."""
        try:
            with self._guarded(PROCESSES):
                found = await self._threads[PROCESSES].run(self._finder.scan, SCAN_SECONDS)
        except Exception as error:
            self._say("processes", [f"processes not searched for engines: {_words(error)}"], said)
        else:
            self._say("processes", found.notes, said)
            for target in found.targets:
                self._found.setdefault(normal_url(target.url), TargetTable(url=target.url))
        return self._found.values()

    async def _look_at_files(self, at_once: bool = False) -> bool:
        """As `TargetFiles.look`, in a thread; files that do not answer keep the targets that they had."""
        try:
            async with self._reading:
                with self._guarded(FILES):
                    changed = await self._threads[FILES].run(partial(self._files.look, at_once), FILES_SECONDS)
        except Exception as error:
            self._unread = f"targets files not read: {_words(error)}"
            return False
        self._unread = ""
        return changed

    def _guarded(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Keeps what is raised as the state of a collector, and raises it."""
        return self._collectors.watched(name) if self._collectors is not None else contextlib.nullcontext()

    def _say(self, source: str, lines: Iterable[str], said: list[str]) -> None:
        """Say what was not said before of a source."""
        now = tuple(lines)
        said += [line for line in now if line not in self._told.get(source, ())]
        self._told[source] = now


@dataclass
class _File:
    read: Stamp | None = _NEVER  # as it was when it was read
    seen: Stamp | None = _NEVER  # as it was at the last look
    targets: tuple[TargetTable, ...] = ()
    problem: str = ""


@dataclass
class TargetFiles:
    """Targets files, read again when they change and are at rest. `patterns`: paths whose last part may be one."""

    patterns: tuple[Path, ...]
    _files: dict[Path, _File] = field(default_factory=dict)
    _too_many: str = ""

    @property
    def targets(self) -> tuple[TargetTable, ...]:
        """The targets of all files, as they were last good."""
        return tuple(target for file in self._files.values() for target in file.targets)

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each file that can not be used now."""
        found = tuple(file.problem for file in self._files.values() if file.problem)
        return (*found, self._too_many) if self._too_many else found

    def name(self, patterns: tuple[Path, ...]) -> None:
        """Watch other files from the next look on."""
        self.patterns = patterns

    def look(self, at_once: bool = False) -> bool:
        """Read what changed. A file is read when two looks in a row found it the same, or `at_once`. Whether the
        targets or the problems are others than before."""
        before = self.targets, self.problems
        paths = self._paths()
        self._files = {path: self._files.get(path) or _File() for path in paths}
        for path, file in self._files.items():
            now = stamp(path)
            at_rest, file.seen = at_once or now == file.seen, now
            if at_rest and now != file.read:
                file.read = now
                _read(path, file)
        return (self.targets, self.problems) != before

    def _paths(self) -> list[Path]:
        found: dict[Path, None] = {}
        for pattern in self.patterns:
            matching = sorted(pattern.parent.glob(pattern.name)) if is_pattern(pattern.name) else [pattern]
            found |= dict.fromkeys(matching)
        self._too_many = (
            f"{len(found)} targets files, only the first {MAX_FILES} are read" if len(found) > MAX_FILES else ""
        )
        return list(found)[:MAX_FILES]


def scrape_target(target: TargetTable, own: Mapping[str, str], config: Config) -> scrape.ScrapeTarget:
    """What is scraped for a target, with its token read. own: labels of this node. Raises ConfigError."""
    return scrape.ScrapeTarget(
        url=target.url,
        name=target.name,
        labels={**own, **target.labels},
        timeout=float(target.timeout or config.agent.timeout),
        token=_token(target),
        ca_file=str(target.ca_file or ""),
        cert_file=str(target.cert_file or ""),
        key_file=str(target.key_file or ""),
        insecure=target.insecure,
        prefixes={**config.agent.prefixes, **target.prefixes},
    )


def _token(target: TargetTable) -> str:
    if target.bearer_file is None:
        return ""
    try:
        return secret(target.bearer_file)
    except SecretError as error:
        raise ConfigError(f"{target.url}: bearer_file {error}") from error


def _read(path: Path, file: _File) -> None:
    """Take a file's targets over; those that it had stay where it can not be read."""
    try:
        file.targets, file.problem = read_targets(path), ""
    except ConfigError as error:
        kept = f"; the agent keeps its {len(file.targets)} earlier targets" if file.targets else ""
        file.problem = f"{error}{kept}"


def _unique(targets: Iterable[TargetTable]) -> tuple[TargetTable, ...]:
    """One target for each page, the first."""
    found: dict[str, TargetTable] = {}
    for target in targets:
        found.setdefault(_page(target.url), target)
    return tuple(found.values())


def _words(error: Exception) -> str:
    """An error in a line."""
    return (str(error) or type(error).__name__)[:300]


def _page(url: str) -> str:
    try:
        return scrape.key_of(url)
    except ValueError:  # it is said when the target is to be watched
        return url
