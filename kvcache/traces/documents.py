"""Trace formats whose records have lists, or that are one JSON document: read whole, bounded in size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from kvitals.kvcache.traces.json_lines import Count, Id, Name, Time
from kvitals.kvcache.traces.prompts import TEXT_BLOCK, HashedPrompt
from kvitals.kvcache.traces.request import TimeUnit, TraceError, TraceRequest, TraceUnits

MAX_BYTES = 512 << 20
MAX_DEPTH = 8
"""Of sub-agents in a WEKA trace."""

Record = TypeVar("Record", bound=msgspec.Struct)


class BenchResult(msgspec.Struct):
    input_lens: list[Count]
    output_lens: list[Count] = msgspec.field(default_factory=list)
    start_times: list[Time] = msgspec.field(default_factory=list)


class WekaRequest(msgspec.Struct):
    t: Time = 0.0
    tokens: Count = msgspec.field(name="in", default=0)
    output: Count | None = msgspec.field(name="out", default=None)
    hash_ids: list[Id] = msgspec.field(default_factory=list)
    requests: list[WekaRequest] = msgspec.field(default_factory=list)
    type: str = "n"


class WekaTrace(msgspec.Struct):
    id: Name
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    requests: list[WekaRequest]
    hash_id_scope: str = "local"


class ShareGptMessage(msgspec.Struct):
    sender: str = msgspec.field(name="from")
    value: str | None = None


class ShareGpt(msgspec.Struct):
    conversations: list[ShareGptMessage]
    id: Name | None = None


class WildChatMessage(msgspec.Struct):
    role: str
    content: str | None = None


class WildChat(msgspec.Struct):
    conversation: list[WildChatMessage]
    conversation_hash: str | None = None


class GenaiRequest(msgspec.Struct):
    timestamp: Time
    request_inputs: dict[str, Any] = msgspec.field(default_factory=dict)


class GenaiExperiment(msgspec.Struct):
    requests: list[GenaiRequest]


class GenaiExport(msgspec.Struct):
    experiments: list[GenaiExperiment]


class PerfInfo(msgspec.Struct):
    input_tokens: Count = 0
    output_tokens: Count | None = None


class PerfRequest(msgspec.Struct):
    start_time: Time
    info: PerfInfo | None = None


@dataclass(frozen=True)
class DocumentFormat(Generic[Record]):
    """A format. marks: keys of its records. requests: those of all records."""

    units: TraceUnits
    marks: tuple[str, ...]
    record: type[Record]
    requests: Callable[[Iterable[Record], str], Iterator[TraceRequest]]

    def decode(self, data: bytes, name: str) -> list[Record]:
        """The records of a file: one object, a list of them, or one a line. Raises TraceError."""
        decoder = msgspec.json.Decoder(self.record)
        try:
            if data.lstrip()[:1] == b"[":
                return list(msgspec.json.Decoder(list[self.record]).decode(data))  # type: ignore[name-defined]
            try:
                return [decoder.decode(data)]
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                return list(decoder.decode_lines(data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{name}: not a {self.units.format} file: {error}") from error


def _bench(records: Iterable[BenchResult], name: str) -> Iterator[TraceRequest]:
    for record in records:
        rows = len(record.input_lens)
        for column in (record.output_lens, record.start_times):
            if column and len(column) != rows:
                raise TraceError(f"{name}: {rows} input_lens, but another list has {len(column)} values")
        for row, tokens in enumerate(record.input_lens):
            time = record.start_times[row] if record.start_times else None
            yield TraceRequest(time, tokens, record.output_lens[row] if record.output_lens else None)


def _weka(records: Iterable[WekaTrace], name: str) -> Iterator[TraceRequest]:
    """Ids of the scope `local` mean something in their own trace alone, so each trace gets ids of its own."""
    codes: dict[tuple[int, int], int] = {}
    for number, record in enumerate(records):
        scope = number if record.hash_id_scope == "local" else -1
        for request in _flat(record.requests, 0, name):
            chain = [codes.setdefault((scope, id_), len(codes)) for id_ in request.hash_ids]
            yield TraceRequest(request.t, request.tokens, request.output, chain, (number, record.id), record.block_size)


def _flat(requests: list[WekaRequest], depth: int, name: str) -> Iterator[WekaRequest]:
    if depth > MAX_DEPTH:
        raise TraceError(f"{name}: sub-agents nested more than {MAX_DEPTH} deep")
    for request in requests:
        if request.requests:
            yield from _flat(request.requests, depth + 1, name)
        elif request.type != "subagent":
            yield request


def _sharegpt(records: Iterable[ShareGpt], _name: str) -> Iterator[TraceRequest]:
    for number, record in enumerate(records):
        turns = [
            (one.sender in ("gpt", "chatgpt", "assistant", "bing", "bard"), one.value) for one in record.conversations
        ]
        yield from _turns(turns, number)


def _wildchat(records: Iterable[WildChat], _name: str) -> Iterator[TraceRequest]:
    for number, record in enumerate(records):
        yield from _turns([(one.role == "assistant", one.content) for one in record.conversation], number)


def _turns(messages: list[tuple[bool, str | None]], session: int) -> Iterator[TraceRequest]:
    """Each answer was asked for with all messages before it."""
    prompt = HashedPrompt()
    for answer, text in messages:
        if answer and prompt.tokens:
            made = HashedPrompt()
            made.extend(text or "")
            yield TraceRequest(None, prompt.tokens, made.tokens, tuple(prompt.chain), session)
        prompt.extend(("A:" if answer else "U:") + (text or "") + "\n")


def _genai(records: Iterable[GenaiExport], _name: str) -> Iterator[TraceRequest]:
    """Prompts are payloads: their text is hashed. Experiments follow one another."""
    for record in records:
        for experiment in record.experiments:
            for request in experiment.requests:
                prompt = HashedPrompt()
                prompt.extend(_payload_text(request.request_inputs.get("payload")))
                yield TraceRequest(request.timestamp, prompt.tokens, None, tuple(prompt.chain))


def _payload_text(payload: object) -> str:
    """The text of an OpenAI payload, which GenAI-Perf stores as a string."""
    if not isinstance(payload, str):
        return ""
    try:
        sent = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload
    if not isinstance(sent, dict):
        return payload
    messages = sent.get("messages")
    if isinstance(messages, list):
        return "".join(f"{one.get('role')}:{one.get('content')}\n" for one in messages if isinstance(one, dict))
    return str(sent.get("prompt") or sent.get("text_input") or payload)


def _inference_perf(records: Iterable[PerfRequest], _name: str) -> Iterator[TraceRequest]:
    for record in records:
        if record.info is not None and record.info.input_tokens:
            yield TraceRequest(record.start_time, record.info.input_tokens, record.info.output_tokens)


def _text(name: str, time_unit: TimeUnit) -> TraceUnits:
    return TraceUnits(name, time_unit, TEXT_BLOCK, fixed=True, estimated_tokens=True)


DOCUMENT_FORMATS: tuple[DocumentFormat[Any], ...] = (
    DocumentFormat(TraceUnits("vLLM or SGLang bench", "s", None), ("input_lens", "ttfts"), BenchResult, _bench),
    DocumentFormat(TraceUnits("WEKA", "s", 64), ("hash_id_scope", "requests"), WekaTrace, _weka),
    DocumentFormat(_text("ShareGPT", "none"), ("conversations", "from"), ShareGpt, _sharegpt),
    DocumentFormat(_text("WildChat", "none"), ("conversation", "role"), WildChat, _wildchat),
    DocumentFormat(_text("GenAI-Perf", "ns"), ("experiments", "requests"), GenaiExport, _genai),
    DocumentFormat(
        TraceUnits("llm-d inference-perf", "s", None), ("start_time", "end_time", "info"), PerfRequest, _inference_perf
    ),
)
