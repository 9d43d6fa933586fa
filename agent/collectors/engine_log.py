"""Reads engine logs: start phases, capacities and errors as numbers. No text of a line is kept.

parser = EngineLogParser()
summary = parser.parse(lines, is_past=False)      # pure
log = open_log("/var/log/vllm.log")               # or "journal:vllm.service", or "-" for standard input
record = read_log(log, parser, key, t)            # blocking
"""

from __future__ import annotations

import math
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from kvitals.agent.collectors.file_tail import Tail, TailBudget
from kvitals.agent.records import OK, EngineLogRecord
from kvitals.rules.engine_log_map import LOAD_AND_INIT, VALUE, LogPattern, compile_log_pattern, engine_log_maps
from kvitals.series.ascii_numbers import ascii_float
from kvitals.series.patterns import PatternGroups

MAX_LINE = 4096
"""Bytes of a line that are matched; the rest is ignored."""

MAX_CYCLE_BYTES = 4 << 20
"""Of one log in one cycle."""

MAX_CYCLE_CPU_SECONDS = 0.25
"""Of one log in one cycle; the rest is read in the next."""

MAX_PAST_BYTES = 64 << 20
"""A file that is larger when it is opened is read from its end: its last start is not searched for."""

MAX_NUMBER = 1e15
MAX_HALF_LINE = 1 << 16
"""Bytes at the end of a file that may be a line whose rest is not written yet."""

LINES_A_CHECK = 500
JOURNAL, STDIN = "journal:", "-"
CHUNK = 1 << 18

PARTIAL, UNKNOWN, FAILED = "partial", "unknown", "failed"
REASONS: dict[str, tuple[str, str]] = {
    "files": (UNKNOWN, "{detail}"),
    "unusable": (FAILED, "{detail}"),
    "ended": (FAILED, "The log's stream ended: {detail}. Restart the agent to read it again."),
    "behind": (PARTIAL, "{detail} MB are not read yet: the log is new, or it grows faster than the agent reads it."),
}
"""Why a log gives less than everything: the state, and what to do."""


@dataclass
class LogSummary:
    """What some lines of a log state."""

    restarted: bool = False
    startup: dict[str, float] = field(default_factory=dict)  # phase -> seconds
    values: dict[str, float] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)  # with 0 for an event that the engine reports from here on
    lines: int = 0
    matched: int = 0


@dataclass(frozen=True)
class _Matcher:
    groups: PatternGroups
    pattern: LogPattern
    sequence: tuple[str, ...]


@lru_cache(maxsize=1)
def _matchers() -> tuple[tuple[bytes, _Matcher], ...]:
    """Each pattern after the text that each of its lines contains, which is tested first: it costs a hundredth."""
    return tuple(
        (pattern.has.encode(), _Matcher(compile_log_pattern(log, pattern), pattern, log.sequence))
        for log in engine_log_maps()
        for pattern in log.patterns
    )


class EngineLogParser:
    """Parses the lines of one log. It keeps the phases of the last start, which come over several cycles."""

    def __init__(self) -> None:
        self._matchers = _matchers()
        self._startup: dict[str, float] = {}

    def parse(self, lines: Iterable[bytes | None], *, is_past: bool) -> LogSummary:
        """Parse lines, where None is a line that is too long.

        is_past: the lines were written before the agent read this log, so events in them are not counted. Stops after
        `MAX_CYCLE_CPU_SECONDS` and leaves the rest of `lines` unread.
        """
        summary, until = LogSummary(), time.thread_time() + MAX_CYCLE_CPU_SECONDS
        for line in lines:
            summary.lines += 1
            if line is not None:
                self._parse_line(line[:MAX_LINE], summary, is_past)
            if summary.lines % LINES_A_CHECK == 0 and time.thread_time() > until:
                break
        return summary

    def _parse_line(self, line: bytes, summary: LogSummary, is_past: bool) -> None:
        for has, matcher in self._matchers:
            if has not in line:
                continue
            groups = matcher.groups.of(line.decode(errors="replace"))
            if groups is not None:
                summary.matched += 1
                self._add(matcher, groups.get(VALUE, ""), summary, is_past)

    def _add(self, matcher: _Matcher, text: str, summary: LogSummary, is_past: bool) -> None:
        pattern = matcher.pattern
        if pattern.starts:
            self._startup, summary.startup, summary.values = {}, {}, {}
            summary.restarted = True
        for event in pattern.zero:
            summary.events[event] += 0
        if pattern.event is not None:
            summary.events[pattern.event] += 0 if is_past else 1
        number = _number(text)
        if number is None:
            return
        if pattern.value is not None:
            summary.values[pattern.value] = number
        if pattern.phase is not None:
            self._add_phase(pattern.phase, number, matcher.sequence)
            summary.startup = dict(self._startup)

    def _add_phase(self, phase: str, seconds: float, sequence: tuple[str, ...]) -> None:
        """Ranks start at the same time, so the slowest rank's time of a phase counts."""
        self._startup[phase] = max(seconds, self._startup.get(phase, 0.0))
        if sequence and all(part in self._startup for part in sequence):
            self._startup[LOAD_AND_INIT] = sum(self._startup[part] for part in sequence)


def _number(text: str) -> float | None:
    try:
        number = ascii_float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= MAX_NUMBER else None


class EngineLog(Protocol):
    """A log that is followed."""

    @property
    def problem(self) -> str:
        """Why the last read is incomplete; empty where it is not."""

    @property
    def problem_reason(self) -> str:
        """The key of `REASONS` for `problem`."""

    @property
    def behind(self) -> int:
        """Bytes that are known to be unread."""

    @property
    def is_past(self) -> bool:
        """Whether the next lines were written before the log was opened."""

    def lines(self) -> Generator[bytes | None]:
        """New whole lines, up to `MAX_CYCLE_BYTES`; None for a line that is too long. Raises OSError."""

    def close(self) -> None:
        """Release files and processes."""


def open_log(where: str) -> EngineLog:
    """The log of a target's `log`. Raises OSError where the journal or standard input cannot be read."""
    if where == STDIN:
        return StreamLog(os.dup(sys.stdin.fileno()))
    if where.startswith(JOURNAL):
        return JournalLog(where.removeprefix(JOURNAL))
    return FileLog(Path(where))


class FileLog:
    """Log files of one path, each read from its start, so that the last start of a running engine is known."""

    def __init__(self, path: Path) -> None:
        self._is_large = _bytes_of(path) > MAX_PAST_BYTES
        self._tail = Tail(path, None if self._is_large else [])
        self._past = not self._is_large

    @property
    def problem(self) -> str:
        return "; ".join(self._tail.problems[:3])

    @property
    def problem_reason(self) -> str:
        return "unusable" if self._tail.unusable else "files"

    @property
    def behind(self) -> int:
        return self._tail.behind

    @property
    def is_past(self) -> bool:
        return self._past

    def lines(self) -> Generator[bytes | None]:
        self._tail.look(time.monotonic())
        try:
            yield from self._tail.lines(TailBudget(MAX_CYCLE_BYTES))
        finally:
            self._past = self._past and self._tail.behind > MAX_HALF_LINE

    def close(self) -> None:
        self._tail.close()


def _bytes_of(path: Path) -> int:
    try:
        return sum(one.stat().st_size for one in path.parent.glob(path.name))
    except OSError:
        return 0


class StreamLog:
    """A pipe of lines, such as standard input."""

    problem_reason = "ended"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._skipping = False
        self.problem = ""
        self.behind = 0
        self.is_past = False

    def lines(self) -> Generator[bytes | None]:
        left = MAX_CYCLE_BYTES
        while left > 0 and not self.problem and select.select([self._descriptor], [], [], 0)[0]:
            chunk = os.read(self._descriptor, CHUNK)
            if not chunk:
                self.problem = "its writer closed it"
                return
            left -= len(chunk)
            *whole, rest = (self._rest + chunk).split(b"\n")
            self._rest = rest[:MAX_LINE]  # no more of a line is matched
            yield from whole

    def close(self) -> None:
        os.close(self._descriptor)


class JournalLog(StreamLog):
    """The journal of a systemd unit, from now on, through `journalctl`."""

    def __init__(self, unit: str) -> None:
        """Raises OSError where journalctl cannot be started."""
        command = ["journalctl", "--follow", "--lines=0", "--output=cat", "--quiet", f"--unit={unit}"]
        self._process = subprocess.Popen(  # noqa: S603 (the configuration checks the unit)
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        super().__init__(os.dup(self._process.stdout.fileno()))
        self._process.stdout.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        super().close()


def read_log(log: EngineLog, parser: EngineLogParser, key: str, t: float) -> EngineLogRecord:
    """One cycle's record of a target's log. Blocking; raises OSError."""
    with closing(log.lines()) as lines:
        summary = parser.parse(lines, is_past=log.is_past)
    state, reason, message = _state(log)
    return EngineLogRecord(
        t=t,
        target=key,
        state=state,
        reason=reason,
        message=message,
        restarted=summary.restarted,
        startup=summary.startup,
        values=summary.values,
        events=dict(summary.events),
        lines=summary.lines,
        matched=summary.matched,
    )


def _state(log: EngineLog) -> tuple[str, str, str]:
    """State, reason and message of a log that was read."""
    if log.problem:
        reason, detail = log.problem_reason, log.problem
    elif log.behind > MAX_CYCLE_BYTES:
        reason, detail = "behind", f"{log.behind / 1e6:.0f}"
    else:
        return OK, OK, ""
    state, template = REASONS[reason]
    return state, reason, template.format(detail=detail)
