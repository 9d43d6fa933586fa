"""Log maps: which keys of a request log's JSON lines say what of a request, as data in `rules/observers/logs/`.

The types below mirror the YAML; their comments are the reference of the format, docs/request-logs.md explains it. A key
that no map names is never kept, so a prompt in a log gets no further than the line that it came in.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from kvitals.rules.loader import KnowledgeProblem, read_as

ROOT = Path(__file__).parent / "observers" / "logs"

Observer = Literal["gateway", "router", "proxy", "engine"]
Phase = Literal["gateway", "queue", "kv_wait", "prefill", "transfer", "decode"]
IdKind = Literal["trace", "request", "response", "room", "remote"]
Field = Literal[
    "start",
    "end",
    "duration",
    "first_token",
    "ttft",
    "itl",
    "itl_max",
    "model",
    "lora",
    "stream",
    "engine",
    "role",
    "prompt_tokens",
    "cached_tokens",
    "external_tokens",
    "output_tokens",
    "status",
    "finish",
    "error",
    "aborted",
]
Key = Annotated[str, Meta(min_length=1, max_length=200)]
"""Keys with dots between, numbers being places in lists. A key that has dots itself is found too."""

TEXTS = frozenset(("model", "lora", "engine", "role", "finish", "error"))
MAX_KEYS = 200

_CONTENT = re.compile(
    r"(^|[._-])(content|messages?|prompts?|inputs?|text|query|body|arguments|instructions|documents?|completions?"
    r"|output|answer|reasoning|authorization|cookies?|passwords?|secrets?|token)$",
    re.IGNORECASE,
)


class Value(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a value is and how it is read. A key that is not there, null, an empty text and "-" are no value."""

    key: Key
    unit: Literal["s", "ms", "us", "ns"] = "s"  # of durations and of times that are numbers; a time may be ISO 8601 too
    when: dict[Key, tuple[str, ...]] = {}  # it counts only where each of these has one of the values (* and ?)
    values: dict[str, str | float | bool] = {}  # what the texts there (* and ?) mean; others mean nothing
    take: Literal["", "last", "trace", "address"] = ""
    """last: of several with commas between. trace: the trace id of a traceparent. address: host and port of a URL."""
    after: tuple[str, ...] = ()  # one of these stands before it and is left away; without one it is no value
    none: tuple[str, ...] = ()  # further texts that are no value


Spec = Key | Value | tuple[Key | Value, ...]
"""A key, a value, or several of either, of which the first that is there counts."""


class LogMap(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the lines of one log mean."""

    system: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,39}$")]  # who wrote it
    title: Annotated[str, Meta(min_length=1, max_length=80)]
    source: str = ""  # what the map was made from
    observer: Observer = "gateway"
    where: dict[Key, tuple[str, ...]] = {}  # only lines in which each of these has one of the values (* and ?)
    fields: dict[Field, Spec] = {}
    phases: dict[Phase, Spec] = {}
    ids: dict[IdKind, Spec] = {}  # here each that is there counts
    tenant: Spec = ()
    session: Spec = ()


def values(spec: Spec) -> tuple[Value, ...]:
    """A spec written out."""
    several = spec if isinstance(spec, tuple) else (spec,)
    return tuple(one if isinstance(one, Value) else Value(key=one) for one in several)


def formats() -> tuple[str, ...]:
    """The logs that there are maps of."""
    return tuple(sorted(path.stem for path in ROOT.glob("*.yaml")))


@lru_cache(maxsize=16)
def shipped_log_map(name: str) -> LogMap:
    """The map of a known log. Raises ValueError."""
    return load_log_map(ROOT / f"{name}.yaml")


def load_log_map(path: Path) -> LogMap:
    """The map in a file. Raises ValueError with file, line and what would be right."""
    found = read_as(path, LogMap)
    if isinstance(found, KnowledgeProblem):
        raise ValueError(str(found))
    if problem := _problem(found):
        raise ValueError(f"{path}: {problem}")
    return found


def _problem(log: LogMap) -> str:
    """What is wrong with a map beyond its types; nothing for a good one."""
    specs = [
        *log.fields.items(),
        *log.phases.items(),
        *log.ids.items(),
        ("tenant", log.tenant),
        ("session", log.session),
    ]
    named = [(name, value) for name, spec in specs for value in values(spec)]
    if not log.ids and not log.fields.keys() & {"start", "end"}:
        return (
            "name the field of a time (start or end) or of an id: kvitals cannot assign a line without "
            "either to a request"
        )
    if len(named) > MAX_KEYS:
        return f"names {len(named)} keys, but only {MAX_KEYS} are allowed"
    for name, value in named:
        if (name in TEXTS or name in log.ids) and _CONTENT.search(value.key) and not value.values:
            return f"{name}: {value.key} may contain user text or a secret, so kvitals never reads it"
    return ""
