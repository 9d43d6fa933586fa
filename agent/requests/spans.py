"""Spans to parts: what a span says of a request, by `rules/observers/spans/`. Pure; spans are redacted here.

    reader = SpanReader(tenants, config.tenants.attributes)
    reader.read(spans, scope, engine, seen, parts, dropped)     # fills the two

Only attributes that a map names are looked at, and each is brought into the type of its field: a number, an id, a word.
So a prompt in a span can not come out of here, wherever it stands. Tenants become pseudonyms at once.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from kvitals.agent.requests.observation import MAX_ID, RequestPart
from kvitals.rules.span_map import MAX_NAME, SpanKind, SpanMap, Wrap, load_span_maps
from kvitals.series.ascii_numbers import ascii_float

NOT_OURS, DETAIL, NO_IDS, TIME, MALFORMED = "not_ours", "detail", "no_ids", "time", "malformed"
TOO_LARGE = "too_large"
"""Why a span is not kept: it is nothing that a map knows, one of many within another, without an id to join it by, of
another time than now, no span, or larger than a span may be."""

MAX_AGE = 24 * 3600.0
MAX_AHEAD = 3600.0
"""Seconds by which a span may have ended before it came, and after: clocks differ, and exporters try again."""

MAX_TEXT = 200
MAX_TOKENS = 1_000_000_000
MIN_ID = 4
"""Characters of an id. Requests that are called `1` by two clients are not one request."""

CLOCK_SLACK = 1.0
"""Seconds by which a duration may be longer than its span, since they may be of different clocks."""

CLIENT_LEFT = 499
MAX_SCOPES = 64

_AT = {field: i for i, field in enumerate(RequestPart.__struct_fields__)}
_SEEN, _TENANT, _SESSION, _PHASES = (_AT[field] for field in ("seen", "tenant", "session", "phases"))
_TTFT, _STATUS, _ERROR, _ABORTED = (_AT[field] for field in ("ttft", "status", "error", "aborted"))
"""Places of a part's fields: by more than 15 names Python makes one slowly."""

_NO_TRACE = bytes(16)
_NO_ID = frozenset(("null", "none", "undefined", "unknown"))
_MAX_NO_ID = max(map(len, _NO_ID))
_INDEX = re.compile(r"-[0-9]{1,6}\Z")
_WORD = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")
_TRUE, _FALSE = frozenset(("true", "1")), frozenset(("false", "0"))

Value = str | int | float | bool
Attributes = Mapping[str, Any]
"""A span's, by name. The values are protobuf messages, of which one field is set."""

ERROR = 2
"""The code of a span's status."""

_SCALARS = frozenset(("string_value", "int_value", "double_value", "bool_value"))


class SpanEvent(Protocol):
    """Something that happened within a span."""

    @property
    def name(self) -> str: ...
    @property
    def time_unix_nano(self) -> int: ...


class SpanStatus(Protocol):
    """How a span ended."""

    @property
    def code(self) -> int: ...


class SpanFields(Protocol):
    """What is looked at of a span."""

    @property
    def trace_id(self) -> bytes: ...
    @property
    def span_id(self) -> bytes: ...
    @property
    def parent_span_id(self) -> bytes: ...
    @property
    def name(self) -> str: ...
    @property
    def start_time_unix_nano(self) -> int: ...
    @property
    def end_time_unix_nano(self) -> int: ...
    @property
    def attributes(self) -> Attributes: ...
    @property
    def events(self) -> Sequence[SpanEvent]: ...
    @property
    def status(self) -> SpanStatus: ...


class SpanPseudonyms(Protocol):
    """Makes the pseudonyms of tenants and sessions; empty for one who is nobody."""

    def pseudonym(self, raw: str) -> str: ...
    def session(self, raw: str) -> str: ...


class SpanReader:
    """Makes parts of spans. For one thread at a time."""

    def __init__(
        self, whose: SpanPseudonyms, tenant_attributes: Sequence[str], maps: Sequence[SpanMap] | None = None
    ) -> None:
        """`tenant_attributes` name a tenant on any span, the first that is there and is somebody."""
        maps = load_span_maps() if maps is None else maps
        self._whose = whose
        self._kinds = [_Kind(kind, one, tenant_attributes) for one in maps for kind in one.spans]
        self._scopes: dict[str, _Scope] = {}
        self.implausible = 0
        """Numbers that were left out because they can not be."""

    def read(
        self,
        spans: Iterable[SpanFields | str],
        scope: str,
        engine: str,
        seen: float,
        parts: list[RequestPart],
        dropped: dict[str, int],
    ) -> None:
        """Add the parts of some spans of one scope and resource, and count those that give none by reason.

        `engine` is what the resource calls the engine, `seen` when the spans came. A text stands for a span that was
        not unpacked, and is the reason.
        """
        here = self._scope(scope)
        for span in spans:
            made = span if isinstance(span, str) else self._part(span, here, engine, seen)
            if isinstance(made, str):
                dropped[made] = dropped.get(made, 0) + 1
            else:
                parts.append(made)

    def _scope(self, scope: str) -> _Scope:
        found = self._scopes.get(scope)
        if found is None:
            found = _Scope([kind for kind in self._kinds if kind.said.of_scope(scope)])
            if len(self._scopes) >= MAX_SCOPES:
                self._scopes.clear()
            self._scopes[scope] = found
        return found

    def _part(self, span: SpanFields, scope: _Scope, engine: str, seen: float) -> RequestPart | str:
        attributes = span.attributes
        for kind in scope.named.get(span.name, ()):
            got = kind.look(attributes)
            if got is not None:
                return self._make(span, kind, attributes, got, engine, seen)
        for kind in scope.others:
            if kind.may_be(span) and (got := kind.look(attributes)) is not None:
                return self._make(span, kind, attributes, got, engine, seen)
        return NOT_OURS

    def _make(
        self, span: SpanFields, kind: _Kind, attributes: Attributes, got: Mapping[str, Value], engine: str, seen: float
    ) -> RequestPart | str:
        said = kind.said
        if not said.keep:
            return DETAIL
        start, end = span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9
        if not start <= end or not seen - MAX_AGE <= end <= seen + MAX_AHEAD:
            return TIME
        ids = kind.ids(span.trace_id, got)
        if not ids:
            return NO_IDS
        row: list[Any] = kind.untold.copy()
        row[_SEEN:_TENANT] = (
            seen,
            ids,
            span.span_id.hex(),
            span.parent_span_id.hex(),
            said.called or sys.intern(span.name),
            start,
            end,
            (kind.engine(got) if said.engine else "") or (engine if kind.is_engine else ""),
            kind.role(span.name, got) if kind.tells_role else said.role,
        )
        self._tell(kind, attributes, end - start, row)
        if said.first_token and row[_TTFT] is None:
            row[_TTFT] = _first_token(span, said.first_token)
        if span.status.code == ERROR or kind.tells_end:
            self._judge(span, kind, got, row)
        if not kind.whose.isdisjoint(got):
            self._name(kind, got, row)
        return RequestPart(*row)

    def _tell(self, kind: _Kind, attributes: Attributes, whole: float, row: list[Any]) -> None:
        """Fields of a span that took `whole` seconds."""
        longest = whole + CLOCK_SLACK
        self._durations(kind.durations, attributes, longest, row)
        self._counts(kind.counts, attributes, row)
        phases: dict[str, float] = {}
        self._durations(kind.phases, attributes, longest, phases)
        if kind.said.phase:
            phases[kind.said.phase] = whole
        row[_PHASES] = phases
        for place, keys, convert in kind.words:
            for key in keys:
                if key in attributes and (value := _value(attributes[key])) is not None:
                    made = convert(value)
                    if made is not None:
                        row[place] = sys.intern(made) if type(made) is str else made
                    else:
                        self.implausible += 1
                    break

    def _durations(self, uses: Iterable[_Number], attributes: Attributes, longest: float, into: Any) -> None:
        """Put the durations that a span tells in their places, of which each is `longest` at most."""
        for place, only, ways in uses:
            if not only:
                self._number(place, ways, attributes, longest, into)
            elif only in attributes:
                seconds = attributes[only].double_value
                if 0.0 < seconds <= longest:
                    into[place] = seconds
                else:
                    self._number(place, ways, attributes, longest, into)

    def _counts(self, uses: Iterable[_Number], attributes: Attributes, row: list[Any]) -> None:
        """Put the counts that a span tells in their places."""
        for place, _, ways in uses:
            for key, _ in ways:
                if key in attributes:
                    count = attributes[key].int_value
                    if 0 < count <= MAX_TOKENS:
                        row[place] = count
                    else:
                        self._number(place, ways, attributes, MAX_TOKENS, row)
                    break

    def _number(self, place: Any, ways: _Ways, attributes: Attributes, limit: float, into: Any) -> None:
        """The same, thoroughly, of one number, which may be 0, of any type and in any unit, or none that can be."""
        for key, convert in ways:
            value = _scalar(attributes[key]) if key in attributes else None
            if value is not None:
                made = convert(value)
                if made is not None and made <= limit:
                    into[place] = made
                else:
                    self.implausible += 1
                break

    def _judge(self, span: SpanFields, kind: _Kind, got: Mapping[str, Value], row: list[Any]) -> None:
        """How it ended: an error by its class, and whether the client left."""
        if row[_ERROR] in kind.said.no_error:
            row[_ERROR] = ""
        if not row[_ERROR] and span.status.code == ERROR:
            row[_ERROR] = "error"
        if row[_STATUS] == CLIENT_LEFT or (kind.said.aborted and kind.left(got)):
            row[_ABORTED] = True

    def _name(self, kind: _Kind, got: Mapping[str, Value], row: list[Any]) -> None:
        """Whose it is, as pseudonyms."""
        for place, keys, make in (
            (_TENANT, kind.tenant, self._whose.pseudonym),
            (_SESSION, kind.session, self._whose.session),
        ):
            for key in keys:
                raw = got.get(key)
                if raw is not None and not isinstance(raw, bool) and (name := make(str(raw))):
                    row[place] = name
                    break


class _Scope:
    """The kinds that spans of one instrumentation scope can be of."""

    def __init__(self, kinds: Sequence[_Kind]) -> None:
        self.named: dict[str, list[_Kind]] = {}
        for kind in kinds:
            for name in kind.said.names:
                self.named.setdefault(name, []).append(kind)
        self.others = [kind for kind in kinds if not kind.said.names]


class _Kind:
    """A kind of span, laid out for reading."""

    def __init__(self, said: SpanKind, of: SpanMap, tenant_attributes: Sequence[str]) -> None:
        of_somebody = said.keep and said.observer != "stage"
        self.said = said
        self.untold = list(msgspec.structs.astuple(RequestPart(said.observer, of.system, 0.0)))
        self.tenant = (*tenant_attributes, *of.tenant) if of_somebody else ()
        self.session = of.session if of_somebody else ()
        self.is_engine = of.is_engine
        self.phases = [_duration(phase, keys, said) for phase, keys in said.phases.items()]
        told = said.fields.items()
        self.durations = [_duration(_AT[field], keys, said) for field, keys in told if field in _DURATIONS]
        self.counts = [
            _Number(_AT[field], "", tuple((key, _count) for key in keys)) for field, keys in told if field in _COUNTS
        ]
        self.words = [(_AT[field], keys, _WORDS[field]) for field, keys in said.fields.items() if field in _WORDS]
        self.whose = frozenset((*self.tenant, *self.session))
        keys = (*(key for some in said.ids.values() for key in some), *said.having, *said.engine, *self.whose)
        self._wanted = sorted({*keys, *said.where, *said.matching, *said.roles, *said.aborted})
        self._having = frozenset(said.having)
        self._pattern = re.compile(said.pattern) if said.pattern else None
        self._role_in_name = self._pattern if self._pattern and "role" in self._pattern.groupindex else None
        self.tells_role = bool(said.roles or self._role_in_name)
        self.tells_end = bool(said.aborted or {"error", "status"} & said.fields.keys())
        self._matching = [(attribute, re.compile(pattern)) for attribute, pattern in said.matching.items()]
        self._where = tuple(said.where.items())
        self._conditional = bool(said.where or said.matching)
        self._ids = [(kind, key) for kind, keys in said.ids.items() for key in keys]
        self._wraps = of.wraps

    def may_be(self, span: SpanFields) -> bool:
        """Whether the span's name, and one of the attributes that it must have, are those of this kind."""
        if self._having and not any(key in span.attributes for key in self._having):
            return False
        return self._pattern is None or self._pattern.fullmatch(span.name[:MAX_NAME]) is not None

    def look(self, attributes: Attributes) -> dict[str, Value] | None:
        """The attributes that tell what the span is and whose, of a list its first entry; None where it is of another
        kind."""
        got: dict[str, Value] = {}
        for key in self._wanted:
            if key in attributes and (value := _value(attributes[key])) is not None:
                got[key] = value
        if self._having and self._having.isdisjoint(got):
            return None
        return got if not self._conditional or self._holds(got) else None

    def ids(self, trace: bytes, got: Mapping[str, Value]) -> tuple[str, ...]:
        """By which the part finds others."""
        found = [f"trace:{trace.hex()}"] if len(trace) == 16 and trace != _NO_TRACE else []
        for kind, key in self._ids:
            raw = got.get(key)
            if raw is None:
                continue
            text = _room(raw) if kind == "room" else _id(raw)
            response = ""
            if text and kind == "request":
                text, response = unwrap_id(text, self._wraps)
            if text:
                found.append(f"{kind}:{text}")  # neither is longer than an id may be
            if response:
                found.append(f"response:{response}")
        return tuple(found) if len(self._ids) < 2 else tuple(dict.fromkeys(found))

    def left(self, got: Mapping[str, Value]) -> bool:
        """Whether it says that the client left before the end."""
        return any(str(got.get(attribute, "")) in values for attribute, values in self.said.aborted.items())

    def engine(self, got: Mapping[str, Value]) -> str:
        """What the span itself calls the engine."""
        for key in self.said.engine:
            if key in got and (text := _text(got[key])):
                return text
        return ""

    def role(self, name: str, got: Mapping[str, Value]) -> str:
        """The engine's part in disaggregation, where the span tells it."""
        if self._role_in_name is not None:
            match = self._role_in_name.fullmatch(name[:MAX_NAME])
            return (match["role"] if match else "") or "unified"
        for attribute, means in self.said.roles.items():
            role = means.get(str(got.get(attribute, "")))
            if role:
                return role
        return self.said.role

    def _holds(self, got: Mapping[str, Value]) -> bool:
        for attribute, values in self._where:
            if str(got.get(attribute, "")) not in values:
                return False
        for attribute, pattern in self._matching:
            if attribute not in got or pattern.search(str(got[attribute])) is None:
                return False
        return True


_Ways = tuple[tuple[str, Callable[[Value], float | None]], ...]
"""Attributes that may tell a number, of which the first counts that is there, and what makes it of any type."""


class _Number(NamedTuple):
    """A number that attributes tell."""

    place: Any  # of the part's fields, or a phase
    only: str  # the attribute, where one alone tells it, in seconds
    ways: _Ways


def _duration(place: int | str, keys: Sequence[str], said: SpanKind) -> _Number:
    ways = tuple((key, _milliseconds if key in said.milliseconds else _seconds) for key in keys)
    return _Number(place, keys[0] if len(keys) == 1 and ways[0][1] is _seconds else "", ways)


def _value(holder: Any) -> Value | None:
    """An attribute's value, which most often is a text."""
    return holder.string_value or _scalar(holder)


def _scalar(holder: Any) -> Value | None:
    """An attribute's value, of a list its first; None for another kind of value."""
    which = holder.WhichOneof("value")
    if which == "array_value" and holder.array_value.values:
        holder = holder.array_value.values[0]
        which = holder.WhichOneof("value")
    if which not in _SCALARS:
        return None
    found: Value = getattr(holder, which)
    return found


def unwrap_id(request_id: str, wraps: Sequence[Wrap]) -> tuple[str, str]:
    """A request's id less what its engine put around it, and the id that the response has; empty where none is known.

    >>> unwrapped("cmpl-rq-1-0", (Wrap(prefix="cmpl-", index=True),))
    ('rq-1', 'cmpl-rq-1')
    """
    for wrap in wraps:
        if request_id.startswith(wrap.prefix):
            whole = _INDEX.sub("", request_id) if wrap.index else request_id
            return whole[len(wrap.prefix) :], whole
    return request_id, ""


def _seconds(value: Value) -> float | None:
    if type(value) is float and 0.0 <= value < math.inf:
        return value
    if isinstance(value, str):
        try:
            value = ascii_float(value[:32])
        except ValueError:
            return None
    number = float(value)
    return number if math.isfinite(number) and number >= 0 and not isinstance(value, bool) else None


def _milliseconds(value: Value) -> float | None:
    number = _seconds(value)
    return number / 1000.0 if number is not None else None


def _count(value: Value) -> int | None:
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
    number = _seconds(value)
    return int(number) if number is not None and number <= MAX_TOKENS and number == int(number) else None


def _text(value: Value) -> str | None:
    text = value.strip() if isinstance(value, str) else str(value)
    return text if text.isprintable() and 0 < len(text) <= MAX_TEXT else None


def _word(value: Value) -> str:
    """A class or code. What is no such word might be a message, so it is `other`."""
    text = str(value).strip("[]\"' ").partition(",")[0].strip("\"' ")
    return text if _WORD.fullmatch(text) else "other"


def _flag(value: Value) -> bool | None:
    text = str(value).lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _status(value: Value) -> int | None:
    number = _count(value)
    return number if number is not None and 100 <= number <= 599 else None


def _id(value: Value) -> str:
    text = str(value).strip()
    if not MIN_ID <= len(text) <= MAX_ID or not text.isprintable() or " " in text:
        return ""
    return text if len(text) > _MAX_NO_ID or text.lower() not in _NO_ID else ""


def _room(value: Value) -> str:
    """SGLang's bootstrap room, which spans have as 0x... and requests as a number."""
    try:
        return str(int(str(value)[:32], 0))
    except ValueError:
        return ""


def _first_token(span: SpanFields, names: Sequence[str]) -> float | None:
    """Seconds until the first event of one of the names."""
    times = [event.time_unix_nano for event in span.events if event.name in names]
    took = (min(times) - span.start_time_unix_nano) / 1e9 if times else -1.0
    return took if took >= 0 and min(times) <= span.end_time_unix_nano else None


_DURATIONS = frozenset(("ttft", "itl", "itl_max", "itl_p99"))
_COUNTS = frozenset(("prompt_tokens", "cached_tokens", "external_tokens", "output_tokens"))
_WORDS: dict[str, Callable[[Value], Any]] = {
    **dict.fromkeys(("model", "lora"), _text),
    **dict.fromkeys(("finish", "error"), _word),
    "stream": _flag,
    "status": _status,
}
