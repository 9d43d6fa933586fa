"""A running agent takes over a changed configuration, or refuses it, says why, and goes on with the old one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from kvitals.agent.file_changes import FileChanges
from kvitals.agent.workers import Worker, WorkerHungError
from kvitals.app.errors import UsageError
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import ConfigError, find
from kvitals.rules.loader import KnowledgeError
from kvitals.series.types import METRIC_NAME, Labels

LOOK_SECONDS = 1.0
STAT_SECONDS, LOAD_SECONDS = 2.0, 20.0
"""Deadlines: of looking whether files changed, and of reading all of them."""

MAX_RULE_FILES = 1000

_AFTER_RESTART = {
    "agent": ("listen", "hosts", "window", "parts_token_file", "memory_limit"),
    "labels": ("cluster", "node"),
    "tenants": ("top",),
}


class Reload:
    """Watches the configuration of a pipeline. `load` makes a setup of a file; None is the one in the usual places."""

    def __init__(self, pipeline: Pipeline, load: Callable[[Path | None], Setup], console: Console) -> None:
        self._pipeline = pipeline
        self._load = load
        self._console = console
        self._at_start = pipeline.setup.config
        self._changes = FileChanges(self._paths())
        self._looked = time.monotonic()
        self._success = not pipeline.setup.knowledge.problems
        self._loaded = time.time()
        self._thread = Worker("configuration")
        self._group = pipeline.node.window.group("configuration")
        self._placed: list[int] = []  # columns of what was said last
        self._announced: Path | None = None

    async def look(self, at_once: bool = False) -> bool:
        """Take changes over, if it is time to look again. at_once: load the configuration in any case. Whether the
        targets may be others now."""
        now = time.monotonic()
        if not at_once and now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        if at_once:
            self._changes.take(self._paths())
        if at_once:
            return await self._take_over()
        changed, new = await self._thread.run(self._looked_at, STAT_SECONDS)
        self._announce(new)
        if changed:
            return await self._take_over()
        return await self._pipeline.node.sources.files_changed()

    def say(self, t: float) -> None:
        """How the last change went and how the sources of targets fare, as families at `t`, seconds since the epoch."""
        failing = self._pipeline.node.sources.failing
        state = {"sense": "targets", "state": "partial" if failing else "ok", "reason": ",".join(failing)}
        own = {"cluster": self._at_start.labels.cluster, "node": self._at_start.labels.node}
        said = {
            Labels({METRIC_NAME: "kvitals_config_reload_success", **own}): float(self._success),
            Labels({METRIC_NAME: "kvitals_config_loaded_timestamp_seconds", **own}): self._loaded,
            Labels({METRIC_NAME: "kvitals_sense_state", **own, **state}): 1.0,
        }
        placed = {column: value for labels, value in said.items() if (column := self._group.column(labels)) is not None}
        self._group.end([column for column in self._placed if column not in placed])
        self._placed = list(placed)
        self._group.append(t, self._placed, list(placed.values()))

    @property
    def status(self) -> dict[str, Any]:
        """The same for people, in the words of Prometheus' runtimeinfo."""
        loaded = datetime.fromtimestamp(self._loaded, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"reloadConfigSuccess": self._success, "lastConfigTime": loaded}

    async def _take_over(self) -> bool:
        try:
            file = self._pipeline.setup.config.file
            setup = await self._thread.run(lambda: self._load(file), LOAD_SECONDS)
            self._refuse_broken_rules(setup)
            if self._pipeline.span is not None:
                await self._pipeline.settled(self._pipeline.triage)  # kept; `reconfigure` would make it on the loop
            self._pipeline.reconfigure(setup)
        except (UsageError, ConfigError, KnowledgeError, WorkerHungError) as error:
            self._success = False
            self._console.print("configuration refused, the previous one stays in force:", style="yellow")
            for line in str(error).splitlines():
                self._console.print(line, style="yellow", soft_wrap=True)
            return False
        left_out = setup.knowledge.problems
        self._success, self._loaded = not left_out, time.time()
        self._changes.take(self._paths())  # it may name other rules than before
        for line in (f"configuration loaded: {setup.config.file or 'no file, the defaults'}", *self._for_restart()):
            self._console.print(line, style="dim", soft_wrap=True)
        for problem in left_out:
            self._console.print(f"rules file still left out; correct or remove it: {problem}", style="yellow")
        return True

    def _looked_at(self) -> tuple[bool, Path | None]:
        """Whether a file changed, and a configuration file where there was none. In a thread."""
        new = find() if self._pipeline.setup.config.file is None else None
        return self._changes.look(self._paths()), new

    def _announce(self, new: Path | None) -> None:
        """Say that a file waits: whoever wrote it may not mean this agent."""
        if new is not None and new != self._announced:
            self._console.print(f"{new} is new: it takes effect at a SIGHUP or a restart", style="yellow")
        self._announced = new

    def _refuse_broken_rules(self, setup: Setup) -> None:
        """Raises UsageError where a file of rules is broken that was good, or new. What was broken stays left out."""
        before = {problem.file for problem in self._pipeline.setup.knowledge.problems}
        broken = [str(p) for p in setup.knowledge.problems if p.file not in before]
        if broken:
            raise UsageError("\n".join(broken))

    def _for_restart(self) -> list[str]:
        now = self._pipeline.setup.config
        changed = [
            f"[{table}] {key}"
            for table, keys in _AFTER_RESTART.items()
            for key in keys
            if getattr(getattr(now, table), key) != getattr(getattr(self._at_start, table), key)
        ]
        changed += [
            f"[{table}]"
            for table in ("remote", "otlp", "otlp_out", "history", "notify")
            if getattr(now, table) != getattr(self._at_start, table)
        ]
        return [f"{', '.join(changed)}: takes effect after a restart"] if changed else []

    def _paths(self) -> list[Path]:
        """The configuration file, and the files of the user's own rules."""
        file = self._pipeline.setup.config.file
        return [*([file] if file else []), *self._rule_files()]

    def _rule_files(self) -> Iterator[Path]:
        files = (path for directory in self._pipeline.setup.directories for path in directory.glob("*/*.yaml"))
        for _, path in zip(range(MAX_RULE_FILES), files, strict=False):
            yield path
