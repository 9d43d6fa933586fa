"""Lines of a request log to parts, by a log map. Pure; lines are redacted here.

    reader = LineReader(shipped("nginx"), tenants)
    made = reader.read(b'{"status":"200", ...}', seen=time.time())     # a part, or why there is none

Each value is brought into the type of its field: a number within its bounds, an id, a word. So what a prompt or an
answer is can not come out of here, whatever a map names. Tenants and sessions become pseudonyms at once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import translate
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from kvitals.agent.requests.observation import MAX_ID, RequestPart, identity
from kvitals.rules.log_map import IdKind, LogMap, Value, values
from kvitals.series.ascii_numbers import ascii_float, is_digits
from kvitals.series.undecodable import UNDECODABLE

NOT_JSON, NOT_A_REQUEST, NO_IDENTITY = "not_json", "not_a_request", "no_identity"
"""Why a line gives no part: it is no JSON object, it is of something else by the map's `where`, or it has neither a
time nor an id."""

MAX_TEXT = 200
MAX_TOKENS = 1_000_000_000
MAX_SECONDS = 7 * 24 * 3600.0
MAX_AHEAD = 3600.0
"""Seconds that a log's clock may be ahead of ours. A request that has not been yet is in no log."""
TIME_SLACK = 0.002
"""Seconds by which the rounding of times makes a part of a request longer than the whole."""
MIN_ID = 4
"""Characters of an id. Requests that are called `1` by two clients are not one request."""

_TIMES = (946_684_800.0, 4_102_444_800.0)  # the years 2000 to 2099: others are another unit
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_ABSENT = frozenset(("", "-", "null", "None"))
_ROLES = ("prefill", "decode", "unified")
_WORD = re.compile(r"[A-Za-z0-9_.:,/-]{1,80}")
_NAME = re.compile(r"[!-~]{1,200}")
_TRACE = re.compile(r"(?!0{32})[0-9a-f]{32}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")

_CRI = re.compile(rb"\d{4}-\S{5,40} (?:stdout|stderr) F ")
_DOCKER = {"log", "stream", "time"}

_decode = msgspec.json.Decoder().decode

Raw = str | int | float | bool


class LinePseudonyms(Protocol):
    """Makes the pseudonyms of tenants and sessions; empty for one who is nobody."""

    def pseudonym(self, raw: str) -> str: ...
    def session(self, raw: str) -> str: ...


class LineReader:
    """Reads the lines of one log. For one thread at a time."""

    def __init__(self, log: LogMap, whose: LinePseudonyms, tenant: Sequence[str] = ()) -> None:
        """`tenant`: keys that name the tenant in place of the map's."""
        self._log = log
        self._whose = whose
        self._where = _Condition(log.where)
        self._fields = {name: [_Getter(v) for v in values(spec)] for name, spec in log.fields.items()}
        self._phases = {name: [_Getter(v) for v in values(spec)] for name, spec in log.phases.items()}
        self._ids = [(kind, _Getter(v)) for kind, spec in log.ids.items() for v in values(spec)]
        self._tenant = [_Getter(v) for v in values(tuple(tenant) or log.tenant)]
        self._session = [_Getter(v) for v in values(log.session)]
        self.unreadable: Counter[str] = Counter()
        """Fields whose value cannot be what the map says, or cannot be beside the others of its line, and how often;
        the part goes without it."""

    def read(self, line: bytes, seen: float) -> RequestPart | str:
        """The part that a line is, or why it is none. `seen`: when it was read, seconds since the epoch."""
        data = _parsed(line)
        if data is None:
            return NOT_JSON
        if not self._where.holds(data):
            return NOT_A_REQUEST
        told: dict[str, Any] = {name: self._first(name, getters, data) for name, getters in self._fields.items()}
        told = {name: made for name, made in told.items() if made is not None}
        self._complete(told, seen)
        ids = self._identities(data)
        if not ids and "start" not in told and "end" not in told:
            return NO_IDENTITY
        phases: dict[str, float] = {
            name: seconds
            for name, getters in self._phases.items()
            if (seconds := self._first("duration", getters, data, f"phases.{name}")) is not None
        }
        self._refuse_impossible(told, phases)
        return RequestPart(
            observer=self._log.observer,
            system=self._log.system,
            seen=seen,
            ids=ids,
            tenant=_someone(self._tenant, data, self._whose.pseudonym),
            session=_someone(self._session, data, self._whose.session),
            phases=phases,
            **told,
        )

    def _first(self, field: str, getters: Sequence[_Getter], data: Mapping[str, Any], name: str = "") -> Any:
        """The first value that is there, as its field has it; None where there is none that can be read."""
        convert = _CONVERT[field]
        for getter in getters:
            raw = getter.get(data)
            if raw is None:
                continue
            made = convert(raw, getter.value)
            if made is not None:
                return made
            self.unreadable[name or field] += 1
        return None

    def _complete(self, told: dict[str, Any], seen: float) -> None:
        """Times from durations and the other way round: they are of one clock."""
        for name in ("start", "end", "first_token"):
            if told.get(name, seen) > seen + MAX_AHEAD:
                self._refuse(told, name)
        duration, first = told.pop("duration", None), told.pop("first_token", None)
        start, end = told.get("start"), told.get("end")
        if duration is not None and start is None and end is not None:
            start = told["start"] = end - duration
        elif duration is not None and end is None and start is not None:
            end = told["end"] = start + duration
        if start is not None and end is not None and not 0.0 <= end - start <= MAX_SECONDS:
            self.unreadable["end"] += 1
            del told["start"], told["end"]
        elif first is not None and start is not None:
            if first >= start:
                told.setdefault("ttft", first - start)
            else:
                self.unreadable["first_token"] += 1

    def _refuse_impossible(self, told: dict[str, Any], phases: dict[str, float]) -> None:
        """Leave out values that cannot be beside the others: a part that is more than its whole."""
        prompt = told.get("prompt_tokens")
        for name in ("cached_tokens", "external_tokens"):
            if prompt is not None and told.get(name, 0) > prompt:
                self._refuse(told, name)
        start, end = told.get("start"), told.get("end")
        if start is None or end is None:
            return
        whole_seconds = start == int(start) or end == int(end)
        longest = end - start + (1.0 if whole_seconds else TIME_SLACK)
        for name in ("ttft", "itl", "itl_max"):
            if told.get(name, 0.0) > longest:
                self._refuse(told, name)
        for name in [name for name, seconds in phases.items() if seconds > longest]:
            self._refuse(phases, name, f"phases.{name}")

    def _refuse(self, told: dict[str, Any], field: str, name: str = "") -> None:
        del told[field]
        self.unreadable[name or field] += 1

    def _identities(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for kind, getter in self._ids:
            raw = getter.get(data)
            if raw is None:
                continue
            text = "" if isinstance(raw, bool) else _id(kind, str(raw))
            if text:
                found[identity(kind, text)] = None
            else:
                self.unreadable[f"ids.{kind}"] += 1
        return tuple(found)


class _Getter:
    """Finds one value."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._at = _key(value.key)
        self._when = _Condition(value.when) if value.when else None
        self._values = [(_matcher(pattern), meant) for pattern, meant in value.values.items()]
        self._none = _ABSENT.union(value.none)

    def get(self, data: Mapping[str, Any]) -> Raw | None:
        raw = self._at(data)
        if self._when is not None and not self._when.holds(data):
            return None
        if self._values:
            text = _text_of(raw)
            return next((meant for matches, meant in self._values if matches(text)), None)
        if not isinstance(raw, Raw):
            return None
        if isinstance(raw, str):
            raw = self._taken(raw.strip())
            return None if raw in self._none else raw
        return None if str(raw) in self._none else raw

    def _taken(self, text: str) -> str:
        value = self.value
        if value.take == "last":
            text = text.rpartition(",")[2].strip()
        elif value.take == "address":
            text = _address(text)
        elif value.take == "trace" and text not in self._none:
            match = _TRACEPARENT.fullmatch(text)
            text = match[1] if match else "?"
        if value.after:
            before = next((one for one in value.after if text.startswith(one)), None)
            text = "" if before is None else text.removeprefix(before)
        return text


class _Condition:
    """Each of some keys has one of the values."""

    def __init__(self, said: Mapping[str, Sequence[str]]) -> None:
        self._said = [(_key(key), [_matcher(pattern) for pattern in patterns]) for key, patterns in said.items()]

    def holds(self, data: Mapping[str, Any]) -> bool:
        for at, patterns in self._said:
            text = _text_of(at(data))
            if not any(matches(text) for matches in patterns):
                return False
        return True


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line as an object.

    What container runtimes put around a line is taken off. Bytes that are no UTF-8, as a client can put them into a
    header, are replaced. NULs, as they stand before what is written to a file that was truncated, are left away.
    """
    line = line.strip(b"\0 \t\r")
    if not line.startswith(b"{"):
        match = _CRI.match(line)
        line = line[match.end() :] if match else line
    data = _json(line)
    if data is not None and data.keys() == _DOCKER and isinstance(data["log"], str):
        return _json(data["log"].encode())
    return data


def _json(line: bytes) -> dict[str, Any] | None:
    for errors in ("strict", "replace"):
        try:
            data = _decode(line if errors == "strict" else line.decode(errors=errors))
        except UNDECODABLE:
            continue
        return data if isinstance(data, dict) else None
    return None


def _key(key: str) -> Callable[[Any], Any]:
    """Finds what stands at a key; None where there is nothing."""
    parts = key.split(".")
    if len(parts) == 1:
        return lambda data: data.get(key) if isinstance(data, dict) else None
    rests = [(".".join(parts[i:]), part) for i, part in enumerate(parts)]

    def find(data: Any) -> Any:
        for rest, part in rests:
            if isinstance(data, dict):
                if rest in data:
                    return data[rest]
                data = data.get(part)
            elif isinstance(data, list) and is_digits(part) and len(part) < 4 and int(part) < len(data):
                data = data[int(part)]
            else:
                return None
        return data

    return find


def _matcher(pattern: str) -> Callable[[str], Any]:
    return re.compile(translate(pattern)).match if any(c in pattern for c in "*?[") else pattern.__eq__


def _text_of(raw: object) -> str:
    """A value for comparison, with JSON's words; empty for what is none."""
    if isinstance(raw, bool):
        return "true" if raw else "false"
    return str(raw)[:1000] if isinstance(raw, Raw) else ""


def _someone(getters: Sequence[_Getter], data: Mapping[str, Any], make: Callable[[str], str]) -> str:
    for getter in getters:
        raw = getter.get(data)
        if raw is not None and not isinstance(raw, bool) and (name := make(str(raw))):
            return name
    return ""


def _id(kind: IdKind, text: str) -> str:
    if kind == "trace":
        text = text.lower().replace("-", "")
        return text if _TRACE.fullmatch(text) else ""
    return text if MIN_ID <= len(text) <= MAX_ID and _NAME.fullmatch(text) else ""


def _address(url: str) -> str:
    """Host and port of a URL, and nothing of a user or password in it."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if host and port else host


def _number(raw: Raw) -> float | None:
    if isinstance(raw, bool):
        return None
    try:
        number = ascii_float(raw) if isinstance(raw, str) else float(raw)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _seconds(raw: Raw, value: Value) -> float | None:
    number = _number(raw)
    seconds = None if number is None else number * _UNITS[value.unit]
    return seconds if seconds is not None and 0 <= seconds <= MAX_SECONDS else None


def _time(raw: Raw, value: Value) -> float | None:
    number = _number(raw)
    if number is not None:
        at = number * _UNITS[value.unit]
    else:
        try:
            moment = datetime.fromisoformat(str(raw)[:64])
            at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    return at if _TIMES[0] <= at < _TIMES[1] else None


def _count(raw: Raw, value: Value) -> int | None:
    number = _number(raw)
    return int(number) if number is not None and 0 <= number <= MAX_TOKENS and number.is_integer() else None


def _status(raw: Raw, value: Value) -> int | None:
    number = _count(raw, value)
    return number if number is not None and 100 <= number <= 599 else None


def _flag(raw: Raw, value: Value) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get(str(raw).lower())


def _word(raw: Raw, value: Value) -> str | None:
    return raw if isinstance(raw, str) and _WORD.fullmatch(raw) else None


def _name(raw: Raw, value: Value) -> str | None:
    return raw if isinstance(raw, str) and len(raw) <= MAX_TEXT and _NAME.fullmatch(raw) else None


def _role(raw: Raw, value: Value) -> str | None:
    return raw if isinstance(raw, str) and raw in _ROLES else None


_CONVERT: dict[str, Callable[[Raw, Value], Any]] = {
    **dict.fromkeys(("start", "end", "first_token"), _time),
    **dict.fromkeys(("duration", "ttft", "itl", "itl_max"), _seconds),
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "external_tokens", "output_tokens"), _count),
    **dict.fromkeys(("model", "lora", "engine"), _name),
    **dict.fromkeys(("finish", "error"), _word),
    **dict.fromkeys(("stream", "aborted"), _flag),
    "role": _role,
    "status": _status,
}
