"""Maps of engine logs: lines that state a start phase, a capacity or an error, in `rules/observers/engine_logs/`.

The types below mirror the YAML. A pattern gives one number or counts one event; text of a line is never kept.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from kvitals.rules.loader import KnowledgeProblem, read_as
from kvitals.series.patterns import PatternError, PatternGroups

ROOT = Path(__file__).parent / "observers" / "engine_logs"

LogPhase = Literal["load_weights", "load_model", "compile", "profile", "graph_capture", "init_engine"]
LogValue = Literal["kv_cache_tokens", "max_concurrency", "expert_balance"]
LogEvent = Literal["compilation", "out_of_memory", "transfer_failure"]
LOAD_AND_INIT = "load_and_init"
"""The phase that is the sum of those in `sequence`."""

LOG_PHASES = frozenset((*get_args(LogPhase), LOAD_AND_INIT))
LOG_VALUES = frozenset(get_args(LogValue))
LOG_EVENTS = frozenset(get_args(LogEvent))

MAX_PATTERNS = 64
VALUE = "value"
_NUMBER = rf"(?P<{VALUE}>[0-9][0-9,]{{0,20}}(?:\.[0-9]{{1,20}})?)"
_CONTAINER_PREFIX = r"(?:[0-9T:.+Z-]{20,40} (?:stdout|stderr) [FP] )?"
"""What a container runtime writes before each line (the CRI log format)."""


class LogPattern(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of line. `match` begins after the log's prefix; NUMBER in it is the number that is kept."""

    has: Annotated[str, Meta(min_length=4, max_length=100)]  # a text that each such line contains
    match: Annotated[str, Meta(min_length=4, max_length=500)]  # RE2
    phase: LogPhase | None = None  # the number is the seconds of a start phase
    value: LogValue | None = None
    event: LogEvent | None = None  # the line is one such event
    bare: bool = False  # the line has no prefix, as the last line of a traceback
    starts: bool = False  # the engine starts: earlier phases and values are obsolete
    zero: tuple[LogEvent, ...] = ()  # events that the engine reports from this line on


class EngineLogMap(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The lines of one engine's log that have a meaning."""

    system: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
    title: Annotated[str, Meta(min_length=1, max_length=80)]
    source: str
    prefix: str  # RE2
    patterns: Annotated[tuple[LogPattern, ...], Meta(max_length=MAX_PATTERNS)]
    sequence: tuple[LogPhase, ...] = ()  # phases that follow one another and together are the start


@lru_cache(maxsize=1)
def engine_log_maps() -> tuple[EngineLogMap, ...]:
    """The maps that ship, by name. Raises ValueError with file, line and reason."""
    return tuple(load_engine_log_map(path) for path in sorted(ROOT.glob("*.yaml")))


def load_engine_log_map(path: Path) -> EngineLogMap:
    """The map in a file. Raises ValueError with file, line and reason."""
    loaded = read_as(path, EngineLogMap)
    if isinstance(loaded, KnowledgeProblem):
        raise ValueError(str(loaded))
    for pattern in loaded.patterns:
        try:
            groups = compile_log_pattern(loaded, pattern)
        except PatternError as error:
            raise ValueError(f"{path}: {error}") from error
        if (VALUE in groups.names) != bool(pattern.phase or pattern.value):
            raise ValueError(f"{path}: {pattern.has!r}: a phase or value needs NUMBER in `match`, other patterns none")
    return loaded


def compile_log_pattern(log: EngineLogMap, pattern: LogPattern) -> PatternGroups:
    """The pattern for a whole line. Raises PatternError."""
    prefix = "" if pattern.bare else log.prefix
    return PatternGroups(f"{_CONTAINER_PREFIX}{prefix}{pattern.match.replace('NUMBER', _NUMBER)}.*")
