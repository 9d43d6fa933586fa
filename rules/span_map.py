"""Span maps: which spans of a system say what of a request, as data in `rules/observers/spans/`.

The types below mirror the YAML; their comments are the reference of the format. What is not named here is never read,
so an attribute with a prompt in it can not get further than the bytes that it came in.
"""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from kvitals.rules.shipped import load_shipped

ROOT = Path(__file__).parent / "observers" / "spans"

Observer = Literal["gateway", "router", "proxy", "engine", "stage"]
Phase = Literal["gateway", "queue", "kv_wait", "prefill", "transfer", "decode"]
Role = Literal["prefill", "decode", "unified"]
IdKind = Literal["request", "response", "room", "remote"]
Field = Literal[
    "model",
    "lora",
    "stream",
    "ttft",
    "itl",
    "itl_max",
    "itl_p99",
    "prompt_tokens",
    "cached_tokens",
    "external_tokens",
    "output_tokens",
    "status",
    "finish",
    "error",
]
Attribute = Annotated[str, Meta(min_length=1, max_length=200)]
Attributes = tuple[Attribute, ...]

MAX_NAME = 300
"""Of a span's name, as far as it is looked at."""

FORBIDDEN = re.compile(
    r"(^|\.)(input|output)\.(value|messages?)|(?<!token_count\.)\b(prompts?|completions?|messages?|choices)(\.|$)"
    r"|content|body"
    r"|instructions|definitions|invocation_parameters|arguments|documents|stack_?trace|authorization|cookie|api_?key$"
)
"""Attributes that hold what users wrote, or secrets. A map that names one is refused."""


class Wrap(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an engine puts around a request's id."""

    prefix: Annotated[str, Meta(min_length=1, max_length=40)]
    index: bool = False  # and behind it - and the prompt's index, which the id in the response does not have


class SpanKind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of span. A span is of the first kind of which all that is said here holds, those with `names` first.

    Of several attributes for one thing the first that the span has counts, so the current name goes before the old.
    """

    names: tuple[str, ...] = ()
    pattern: str = ""  # regular expression for the whole name; its group `role` tells the role
    scopes: tuple[str, ...] = ()  # of the instrumentation, * and ? stand for any text; empty: any
    having: Attributes = ()  # one of these attributes is there
    where: dict[Attribute, tuple[str, ...]] = {}  # each of these is there and has one of the values
    matching: dict[Attribute, str] = {}  # each of these is there and the expression is found in it
    keep: bool = True  # False: counted and not kept, such as a span for every token
    observer: Observer = "stage"
    called: Annotated[str, Meta(max_length=60)] = ""  # the part's name; the span's own only where `names` has it
    role: Role | Literal[""] = ""
    roles: dict[Attribute, dict[str, Role]] = {}  # attribute -> what its values mean
    phase: Phase | Literal[""] = ""  # what the span as a whole is
    phases: dict[Phase, Attributes] = {}  # durations that it tells
    fields: dict[Field, Attributes] = {}
    ids: dict[IdKind, Attributes] = {}  # here each attribute that is there counts
    engine: Attributes = ()  # the engine's name or address
    milliseconds: Attributes = ()  # attributes that are in milliseconds; durations are in seconds else
    no_error: tuple[str, ...] = ()  # values of the attributes for `error` that are none
    aborted: dict[Attribute, tuple[str, ...]] = {}  # one of these values: the client left before the end
    first_token: tuple[str, ...] = ()  # names of events that mark the first token
    note: str = ""

    def of_scope(self, scope: str) -> bool:
        """Whether spans of an instrumentation scope can be of this kind."""
        return not self.scopes or any(fnmatchcase(scope, pattern) for pattern in self.scopes)


class SpanMap(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one system's spans mean."""

    system: str
    title: str
    source: str  # what it was made from
    spans: tuple[SpanKind, ...]
    is_engine: bool = False  # whoever sends them is an engine, so the resource tells which one
    fields: dict[Field, Attributes] = {}  # of every kind that is no stage, where the kind itself says nothing of them
    ids: dict[IdKind, Attributes] = {}  # likewise
    tenant: Attributes = ()  # that name a tenant, besides those of the configuration, which come before
    session: Attributes = ()
    wraps: tuple[Wrap, ...] = ()
    last: bool = False  # it is asked after all others: conventions that many systems share


@lru_cache(maxsize=1)
def load_span_maps() -> tuple[SpanMap, ...]:
    """All maps, those of one system before those of conventions. Raises ValueError for a broken one."""
    maps = [_load(path) for path in sorted(ROOT.glob("*.yaml"))]
    return tuple(sorted(maps, key=lambda one: one.last))


def _load(path: Path) -> SpanMap:
    found = msgspec.convert(load_shipped(path), SpanMap)
    kinds = tuple(_completed(kind, found) for kind in found.spans)
    for kind in kinds:
        problem = _problem(kind)
        if problem:
            raise ValueError(f"{path.name}: {kind.names or kind.pattern or kind.having}: {problem}")
    return msgspec.structs.replace(found, spans=kinds)


def _completed(kind: SpanKind, found: SpanMap) -> SpanKind:
    if not kind.keep or kind.observer == "stage":
        return kind
    return msgspec.structs.replace(kind, fields=found.fields | kind.fields, ids=found.ids | kind.ids)


def _problem(kind: SpanKind) -> str:
    """What is wrong with a kind, beyond what its type says; nothing for a good one."""
    if not (kind.names or kind.pattern or kind.having):
        return "select the spans by names, pattern or having"
    if kind.keep and not kind.names and not kind.called:
        return "give it a name: the names of such spans may contain anything"
    for expression in (kind.pattern, *kind.matching.values()):
        try:
            re.compile(expression)
        except re.error as error:
            return f"{expression!r} is no regular expression: {error}"
    kept = [*(a for names in (*kind.fields.values(), *kind.ids.values()) for a in names), *kind.engine]
    used = Counter(a for names in (*kind.fields.values(), *kind.phases.values()) for a in names)
    twice = [attribute for attribute, times in used.items() if times > 1]
    if twice:
        return f"{twice[0]} is for two things"
    bad = [attribute for attribute in kept if FORBIDDEN.search(attribute)]
    return f"{bad[0]} may contain user text" if bad else ""
