"""The request log sense: follows logs of gateways and proxies, a JSON object a line, and makes parts of their lines.

    logs = RequestLogs(tenants, state_directory())
    logs.configure(config.request_logs)      # raises ConfigError for a mapping that can not be used
    records = await logs.read()              # in a thread, within LOOK_SECONDS; a record for each log; never raises
    logs.close()                             # keeps the places for the next start

Where each log was read to is kept in the state directory once the next look begins, when the records of the last one
have been taken. So an agent that is stopped goes on exactly there, and one that is killed repeats at most one look.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

import msgspec

from kvitals.agent.collectors.file_tail import MAX_LINE, Tail, TailBudget, TailPosition
from kvitals.agent.logger import Logger
from kvitals.agent.requests.lines import NO_IDENTITY, NOT_A_REQUEST, NOT_JSON, LinePseudonyms, LineReader
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.agent.workers import Worker
from kvitals.config import ConfigError, RequestLog
from kvitals.rules.log_map import load_log_map, shipped_log_map
from kvitals.series.files import read_regular, replace_file
from kvitals.series.undecodable import UNDECODABLE

log = Logger()

LOOK_SECONDS = 4.0
"""How long is waited for a look. Where a file system hangs it goes on in its thread, and no other is begun."""

MAX_LOOK_BYTES = 32 << 20
"""Of one log in one look: a gigabyte that came at once is read in 32 looks."""

MAX_LOOK_PARTS = 20_000
MAX_READ_SECONDS = 1.0
"""Of one log in one look; what is left is read in the next."""

MAX_STATE_BYTES = 4 << 20
STATE_FILE = "request_logs.json"
TOO_LONG = "too_long"
DROPPED = {
    NOT_JSON: "a line that is not a JSON object",
    NOT_A_REQUEST: "a line that the format's `where` excludes: another path or method, or a health check",
    NO_IDENTITY: "a line with neither a time nor an id",
    TOO_LONG: f"a line longer than {MAX_LINE >> 20} MB",
}
"""Why a line gave no part."""

PARTIAL, UNKNOWN, FAILED = "partial", "unknown", "failed"
REASONS: dict[str, tuple[str, str]] = {
    "behind": (PARTIAL, "{detail} MB are not read yet: the log is new, or it grew faster than the agent reads it."),
    "no_lines_fit": (
        FAILED,
        "The agent could parse none of the last {detail} lines. Does the log have the configured format? "
        "docs/request-logs.md shows each format.",
    ),
    "unreadable_values": (
        PARTIAL,
        "The agent left out values that it could not parse or that are impossible, such as more cached tokens than "
        "prompt tokens: {detail}. Does the mapping fit the log?",
    ),
    "files": (UNKNOWN, "{detail}"),
    "unusable": (FAILED, "{detail}"),
    "state": (PARTIAL, "{detail}; after a restart the agent reads the log only from its end."),
    "hanging": (
        FAILED,
        "The log's file system has not answered for {detail} s. Is it a network mount that is disconnected?",
    ),
    "internal": (FAILED, "The log was not read because of a fault in kvitals ({detail}). Please report this."),
}
"""Why a log says less than all: the state, and what to do in words."""


@dataclass
class _Log:
    """One configured log."""

    name: str
    reader: LineReader
    tail: Tail


class _Told(TypedDict, total=False):
    """How a log fares, as its record has it."""

    state: str
    reason: str
    message: str


class RequestLogs:
    """Reads request logs. `read` is for one task at a time."""

    def __init__(self, whose: LinePseudonyms, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """`directory` is where places are kept; `clock` tells seconds and is never set."""
        self._whose = whose
        self._file = directory / STATE_FILE
        self._clock = clock
        self._logs: dict[str, _Log] = {}  # by name and path
        self._retired: list[Tail] = []  # to be closed with the next look: one may be under way
        self._saved: dict[str, list[TailPosition]] | None = None  # None: not read yet
        self._unsaved = ""  # why places could not be kept
        self._thread = Worker("request_logs")
        self._looking: asyncio.Task[list[PartsRecord]] | None = None
        self._looks_since = 0.0

    def configure(self, configs: Sequence[RequestLog]) -> None:
        """Follow these logs. One that goes on with name and path keeps its place. Raises ConfigError, and then nothing
        changed."""
        readers = {f"{config.name} {config.path}": (config, _reader(config, self._whose)) for config in configs}
        if self._saved is None:
            self._saved = _load(self._file)
        before, self._logs = self._logs, {}
        for key, (config, reader) in readers.items():
            known = before.pop(key, None)
            tail = known.tail if known else Tail(config.path, self._saved.get(key))
            self._logs[key] = _Log(config.name, reader, tail)
        self._retired += [one.tail for one in before.values()]

    async def read(self) -> list[PartsRecord]:
        """One record for each log: what came since the last look, and how the log fares."""
        if not self._logs:
            return []
        if self._looking is None:
            self._looks_since = self._clock()
            self._looking = asyncio.create_task(self._thread.run(partial(self._look, dict(self._logs))))
        done, _ = await asyncio.wait({self._looking}, timeout=LOOK_SECONDS)
        if not done:
            told = _told("hanging", f"{self._clock() - self._looks_since:.0f}")
            t = time.time()
            return [PartsRecord(t=t, source=one.name, parts=(), **told) for one in self._logs.values()]
        task, self._looking = self._looking, None
        return task.result()

    def close(self) -> None:
        """Keep the places and let go of the files."""
        if self._looking is None:
            self._save(self._logs)
            self._retired += [one.tail for one in self._logs.values()]
            self._retire()
        self._logs = {}

    def _look(self, logs: Mapping[str, _Log]) -> list[PartsRecord]:
        self._retire()
        self._save(logs)
        records = []
        for one in logs.values():
            t = time.time()
            try:
                records.append(self._read_one(one, t))
            except OSError as error:
                told = _told("unusable", f"{one.tail.path}: cannot be read: {error.strerror}")
                records.append(PartsRecord(t=t, source=one.name, parts=(), **told))
            except Exception as error:  # a log must not keep the agent from reading others
                log.exception("a request log was not read", log=one.name)
                told = _told("internal", type(error).__name__)
                records.append(PartsRecord(t=t, source=one.name, parts=(), **told))
        return records

    def _read_one(self, one: _Log, t: float) -> PartsRecord:
        parts: list[RequestPart] = []
        dropped: Counter[str] = Counter()
        one.reader.unreadable.clear()
        one.tail.look(self._clock())
        until = self._clock() + MAX_READ_SECONDS
        for count, line in enumerate(one.tail.lines(TailBudget(MAX_LOOK_BYTES)), 1):
            made = TOO_LONG if line is None else one.reader.read(line, t)
            if isinstance(made, str):
                dropped[made] += 1
            else:
                parts.append(made)
            if len(parts) >= MAX_LOOK_PARTS or (count % 1000 == 0 and self._clock() > until):
                break
        told = self._state(one, len(parts), dropped)
        return PartsRecord(t=t, source=one.name, parts=tuple(parts), dropped=dict(dropped), **told)

    def _state(self, one: _Log, parts: int, dropped: Counter[str]) -> _Told:
        """How a log fares, the worst first."""
        unread = sum(dropped.values())
        if one.tail.problems:
            return _told("unusable" if one.tail.unusable else "files", "; ".join(one.tail.problems[:3]))
        if unread and not parts and not dropped[NOT_A_REQUEST]:
            return _told("no_lines_fit", str(unread))
        if one.reader.unreadable:
            worst = ", ".join(f"{field} ({count})" for field, count in one.reader.unreadable.most_common(3))
            return _told("unreadable_values", worst)
        if one.tail.behind > MAX_LINE:
            return _told("behind", f"{one.tail.behind / 1e6:.0f}")
        return _told("state", self._unsaved) if self._unsaved else {}

    def _retire(self) -> None:
        while self._retired:
            self._retired.pop().close()

    def _save(self, logs: Mapping[str, _Log]) -> None:
        places = {key: places for key, one in logs.items() if (places := one.tail.places) is not None}
        if places == self._saved:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, msgspec.json.encode(places))
        except OSError as error:
            self._unsaved = f"{self._file}: cannot be written: {error.strerror}"
        else:
            self._saved, self._unsaved = places, ""


def _reader(config: RequestLog, whose: LinePseudonyms) -> LineReader:
    """Raises ConfigError."""
    try:
        found = load_log_map(config.mapping) if config.mapping else shipped_log_map(config.format)
    except ValueError as error:
        raise ConfigError(f"[[request_log]] {config.name}: {error}") from error
    return LineReader(found, whose, config.tenant)


def _load(file: Path) -> dict[str, list[TailPosition]]:
    """The places that were kept; none where there is no usable file, and then logs are read on from their ends."""
    try:
        return msgspec.json.decode(read_regular(file, MAX_STATE_BYTES), type=dict[str, list[TailPosition]])
    except (OSError, *UNDECODABLE):
        return {}


def _told(reason: str, detail: str) -> _Told:
    state, message = REASONS[reason]
    return {"state": state, "reason": reason, "message": message.format(detail=detail)}
