"""Trace formats with one JSON object a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from kvitals.kvcache.traces.prompts import TEXT_BLOCK, HashedPrompt
from kvitals.kvcache.traces.request import MAX_TOKENS, TraceError, TraceRequest, TraceUnits

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e20)]
Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Name = str | int
Line = TypeVar("Line", bound=msgspec.Struct)


class KvitalsLine(msgspec.Struct):
    """The header of `kvitals gate extract`, or one of its requests."""

    kvitals_load: int | None = None
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] | None = None
    at: Time | None = None
    prompt_tokens: Count = 0
    output_tokens: Count | None = None
    blocks: list[Id] = []
    session: str | None = None


class MooncakeLine(msgspec.Struct):
    timestamp: Time
    input_length: Count
    hash_ids: list[Id]
    output_length: Count | None = None
    session_id: Name | None = None


class BailianLine(msgspec.Struct):
    chat_id: int
    timestamp: Time
    input_length: Count
    hash_ids: list[Id]
    parent_chat_id: int = -1
    output_length: Count | None = None


class AiperfMeasure(msgspec.Struct):
    value: Annotated[float, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    unit: Literal["tokens"] = "tokens"


class AiperfMetadata(msgspec.Struct):
    request_start_ns: Time
    conversation_id: str | None = None
    benchmark_phase: str | None = None


class AiperfMetrics(msgspec.Struct):
    input_sequence_length: AiperfMeasure | None = None
    output_sequence_length: AiperfMeasure | None = None


class AiperfLine(msgspec.Struct):
    metadata: AiperfMetadata
    metrics: AiperfMetrics


class DynamoReplay(msgspec.Struct):
    trace_block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    input_length: Count
    input_sequence_hashes: list[int]  # of 64 bits without a sign, which a constraint cannot express


class DynamoRequest(msgspec.Struct):
    request_received_ms: Time | None = None
    output_tokens: Count | None = None
    replay: DynamoReplay | None = None


class DynamoContext(msgspec.Struct):
    session_id: str | None = None


class DynamoLine(msgspec.Struct):
    event_type: str
    event_time_unix_ms: Time = 0.0
    request: DynamoRequest | None = None
    agent_context: DynamoContext | None = None


class SglangMeta(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class SglangOut(msgspec.Struct):
    meta_info: SglangMeta = msgspec.field(default_factory=SglangMeta)


class SglangLine(msgspec.Struct):
    timestamp: str
    event: str
    out: SglangOut | None = None


class PromptLine(msgspec.Struct):
    timestamp: Time
    input: str
    session_id: Name | None = None


@dataclass(frozen=True)
class LineFormat(Generic[Line]):
    """A format. marks: keys that a line has, by which it is recognised. requests: those of decoded lines."""

    units: TraceUnits
    marks: tuple[str, ...]
    line: type[Line]
    requests: Callable[[Iterable[tuple[str, Line]]], Iterator[TraceRequest]]

    def read(self, lines: Iterable[tuple[str, bytes]], name: str) -> Iterator[TraceRequest]:
        """Requests of lines, each with its place in the file. Raises TraceError."""
        return self.requests(self._decoded(lines, name))

    def _decoded(self, lines: Iterable[tuple[str, bytes]], _name: str) -> Iterator[tuple[str, Line]]:
        decode = msgspec.json.Decoder(self.line).decode
        for where, line in lines:
            try:
                yield where, decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise TraceError(f"{where}: not a request of a {self.units.format} trace: {error}") from error


def _kvitals(lines: Iterable[tuple[str, KvitalsLine]]) -> Iterator[TraceRequest]:
    size: int | None = None
    for where, one in lines:
        if one.kvitals_load is not None:
            size = one.block_tokens
        elif one.at is None:
            raise TraceError(f"{where}: not a request of a kvitals load: no `at`")
        else:
            yield TraceRequest(one.at, one.prompt_tokens, one.output_tokens, one.blocks, one.session, size)


def _mooncake(lines: Iterable[tuple[str, MooncakeLine]]) -> Iterator[TraceRequest]:
    for _, one in lines:
        yield TraceRequest(one.timestamp, one.input_length, one.output_length, one.hash_ids, one.session_id)


def _bailian(lines: Iterable[tuple[str, BailianLine]]) -> Iterator[TraceRequest]:
    """A session is the chain of parents up to its first turn."""
    roots: dict[int, int] = {}
    for _, one in lines:
        parent = one.parent_chat_id
        root = one.chat_id if parent < 0 else roots.get(parent, parent)
        roots[one.chat_id] = root
        yield TraceRequest(one.timestamp, one.input_length, one.output_length, one.hash_ids, root)


def _aiperf(lines: Iterable[tuple[str, AiperfLine]]) -> Iterator[TraceRequest]:
    """Requests of the warm-up and failed ones, which have no lengths, are left out."""
    for _, one in lines:
        length, made, metadata = one.metrics.input_sequence_length, one.metrics.output_sequence_length, one.metadata
        if length is None or metadata.benchmark_phase == "warmup":
            continue
        output = None if made is None else round(made.value)
        yield TraceRequest(metadata.request_start_ns, round(length.value), output, (), metadata.conversation_id)


def _dynamo(lines: Iterable[tuple[str, DynamoLine]]) -> Iterator[TraceRequest]:
    """Only `request_end` records with `replay` hold a prompt."""
    for where, one in lines:
        request = one.request
        if one.event_type != "request_end" or request is None or request.replay is None:
            continue
        replay = request.replay
        hashes = replay.input_sequence_hashes
        if hashes and not 0 <= min(hashes) <= max(hashes) < 1 << 64:
            raise TraceError(f"{where}: not a request of a Dynamo request trace: an id of more than 64 bits")
        time = one.event_time_unix_ms if request.request_received_ms is None else request.request_received_ms
        session = one.agent_context.session_id if one.agent_context is not None else None
        yield TraceRequest(time, replay.input_length, request.output_tokens, hashes, session, replay.trace_block_size)


def _sglang(lines: Iterable[tuple[str, SglangLine]]) -> Iterator[TraceRequest]:
    clock = IsoClock()
    for where, one in lines:
        if one.event != "request.finished" or one.out is None or one.out.meta_info.prompt_tokens is None:
            continue
        meta = one.out.meta_info
        yield TraceRequest(clock.seconds(one.timestamp, where), meta.prompt_tokens or 0, meta.completion_tokens)


def _prompts(lines: Iterable[tuple[str, PromptLine]]) -> Iterator[TraceRequest]:
    for _, one in lines:
        prompt = HashedPrompt()
        prompt.extend(one.input)
        yield TraceRequest(one.timestamp, prompt.tokens, None, prompt.chain, one.session_id)


class IsoClock:
    """The dates of one file: all with a time zone, or all without and then in UTC."""

    def __init__(self) -> None:
        self._zoned: bool | None = None

    def seconds(self, text: str, where: str) -> float:
        """Seconds since the epoch of `2023-11-16 18:15:46.6805900`, with any number of digits. Raises TraceError."""
        whole, _, rest = text.strip().partition(".")
        digits = len(rest) - len(rest.lstrip("0123456789"))
        fraction, zone = rest[:digits], rest[digits:]
        try:
            moment = datetime.fromisoformat(whole + zone.replace("Z", "+00:00"))
            zoned = moment.tzinfo is not None
            seconds = (moment if zoned else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError) as error:
            raise TraceError(f"{where}: {text[:40]!r} is not a time such as 2023-11-16 18:15:46.68") from error
        if self._zoned not in (None, zoned):
            has, others = ("a", "no") if zoned else ("no", "a")
            raise TraceError(
                f"{where}: {text[:40]!r} has {has} time zone, the times before it have {others} time zone: write all "
                f"of them alike"
            )
        self._zoned = zoned
        return seconds + (float("0." + fraction) if fraction else 0.0)


LINE_FORMATS: tuple[LineFormat[Any], ...] = (
    LineFormat(TraceUnits("Bailian", "s", 16), ("chat_id", "hash_ids"), BailianLine, _bailian),
    LineFormat(TraceUnits("Mooncake", "ms", 512), ("timestamp", "input_length", "hash_ids"), MooncakeLine, _mooncake),
    LineFormat(TraceUnits("Dynamo request", "ms", 16), ("schema", "event_type", "request"), DynamoLine, _dynamo),
    LineFormat(TraceUnits("AIPerf", "ns", None), ("metadata", "metrics"), AiperfLine, _aiperf),
    LineFormat(TraceUnits("SGLang request log", "s", None), ("timestamp", "event", "rid"), SglangLine, _sglang),
    LineFormat(
        TraceUnits("LMCache agent", "us", TEXT_BLOCK, fixed=True, estimated_tokens=True),
        ("timestamp", "input", "session_id"),
        PromptLine,
        _prompts,
    ),
    LineFormat(TraceUnits("kvitals load", "s", 16), ("kvitals_load", "block_tokens"), KvitalsLine, _kvitals),
)
