"""Reads answers as they pass by: when output came, how much, what the engine says it used, and no text.

Knows the streams and bodies of OpenAI's completions, chat, responses and embeddings, of Anthropic's messages and of
SGLang's generate. Of an answer it holds one event, or a body of `MAX_BODY` bytes, at a time.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvitals.agent.requests.record import CONTEXT_LENGTH
from kvitals.series.undecodable import UNDECODABLE

MAX_EVENT = 256 * 1024
"""Bytes of one event; what is longer is not looked into."""
MAX_BODY = 256 * 1024
"""Bytes of a JSON body that are read as a whole; of a longer one its end is searched for the usage."""
TAIL = 16 * 1024
MAX_CHOICES = 1024
"""Choices of an event or a body that are read; the rest is not."""
MAX_GAPS = 4096
"""Gaps between outputs that are kept; from there on every second, fourth, ... is."""

_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_USAGE = b'"usage"'
_DONE = b"[DONE]"
_ENDS = ("message_stop", "response.completed", "response.incomplete", "response.failed")
_NO_OUTPUT = frozenset(("role", "type", "stop_reason", "stop_sequence"))  # what else a delta may have
_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "max_output_tokens": "length"}
MAX_MESSAGE = 1000
_TOO_LONG = re.compile(  # vLLM and SGLang; TGI
    r"(maximum|model's) context length|maximum model length|"
    r"`inputs` must have less than [0-9]+ tokens|`inputs` tokens \+ `max_new_tokens` must be"
)
_decode = msgspec.json.decode


@dataclass
class AnswerFacts:
    """What an answer said of itself. None is unknown."""

    model: str = ""
    id: str = ""
    finish: str = ""
    error: str = ""  # a type or code, never a message
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    unread: int = 0  # events that could not be read
    ended: bool = False  # it said that nothing more comes

    def read(self, data: Mapping[str, Any]) -> bool:
        """Take what an event or a body tells. Whether there is output in it."""
        self._read_head(data)
        for name in ("response", "message"):  # OpenAI's responses, Anthropic's message_start
            if name in data and isinstance(inner := data[name], dict):
                self._read_head(inner)
        if "meta_info" in data:
            self._read_meta(data["meta_info"])
        if "error" in data or data.get("object") == "error":
            self._read_error(data.get("error", data))
        if data.get("type") in _ENDS:
            self.ended = True
        output = _has_output(data)
        choices = data.get("choices")
        for choice in choices[:MAX_CHOICES] if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._read_finish(choice.get("finish_reason"))
                output = output or _has_output(choice)
        if isinstance(delta := data.get("delta", data), dict):  # Anthropic's, streamed and whole
            self._read_finish(delta.get("stop_reason"))
        return output

    def _read_head(self, told: Mapping[str, Any]) -> None:
        if not self.model:
            self.model = _line(told.get("model"))
        if not self.id:
            self.id = _line(told.get("id"))
        if "usage" in told:
            self._read_usage(told["usage"])
        if isinstance(why := told.get("incomplete_details"), dict):
            self._read_finish(why.get("reason"))

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        self.output_tokens = _count(usage, "completion_tokens", "output_tokens", default=self.output_tokens)
        prompt = _count(usage, "prompt_tokens", "input_tokens", default=None)
        cached = _count(usage, "cache_read_input_tokens", default=None)
        if prompt is not None and cached is not None:  # Anthropic counts what was cached, and what will be, beside it
            prompt += cached + (_count(usage, "cache_creation_input_tokens", default=0) or 0)
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        self.cached_tokens = self.cached_tokens if cached is None else cached
        for details in (usage.get("prompt_tokens_details"), usage.get("input_tokens_details")):
            if isinstance(details, dict):
                self.cached_tokens = _count(details, "cached_tokens", default=self.cached_tokens)

    def _read_meta(self, meta: object) -> None:
        """SGLang's own."""
        if not isinstance(meta, dict):
            return
        self.id = _line(meta.get("id")) or self.id
        self.prompt_tokens = _count(meta, "prompt_tokens", default=self.prompt_tokens)
        self.output_tokens = _count(meta, "completion_tokens", default=self.output_tokens)
        self.cached_tokens = _count(meta, "cached_tokens", default=self.cached_tokens)
        reason = meta.get("finish_reason")
        if isinstance(reason, dict):
            self._read_finish(reason.get("type"))

    def _read_finish(self, reason: object) -> None:
        if word := _word(reason):
            self.finish = _FINISH.get(word, word)

    def _read_error(self, error: object) -> None:
        if not error:
            return
        told = error if isinstance(error, dict) else {}
        if told.get("code") == CONTEXT_LENGTH or _is_too_long(told.get("message", error)):
            self.error = CONTEXT_LENGTH
            return
        self.error = _word(told.get("type")) or _word(told.get("code")) or "error"


def _has_output(data: Mapping[str, Any]) -> bool:
    """Whether something that a model made is in an event, or in one of its choices."""
    delta = data.get("delta")
    if isinstance(delta, dict):  # chat; Anthropic's content_block_delta
        return any(value and name not in _NO_OUTPUT for name, value in delta.items())
    if isinstance(kind := data.get("type"), str) and kind.endswith(
        ".done"
    ):  # OpenAI's responses say all of it once more
        return False
    return bool(delta or data.get("text") or data.get("token_ids") or data.get("output_ids"))


class Gaps:
    """Gaps between outputs: their mean, largest and 99th percentile, in bounded memory."""

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0.0
        self._sum = 0.0
        self._kept = array("f")
        self._stride = 1

    def add(self, seconds: float) -> None:
        if self.count % self._stride == 0:
            if len(self._kept) >= MAX_GAPS:
                self._kept = self._kept[::2]
                self._stride *= 2
            self._kept.append(seconds)
        self.count += 1
        self._sum += seconds
        self.largest = max(self.largest, seconds)

    @property
    def mean(self) -> float | None:
        return self._sum / self.count if self.count else None

    @property
    def p99(self) -> float | None:
        """The nearest rank, as precise as what was kept."""
        ordered = sorted(self._kept)
        if not ordered:
            return None
        return min(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], self.largest)  # kept less precisely


@dataclass
class Events:
    """A stream of server-sent events. Times are seconds of one clock."""

    said: AnswerFacts = field(default_factory=AnswerFacts)
    first_output: float | None = None
    gaps: Gaps = field(default_factory=Gaps)
    _last_output: float = 0.0
    _line: bytearray = field(default_factory=bytearray)  # the one under way
    _data: list[bytes] = field(default_factory=list)  # lines of the event under way
    _size: int = 0  # bytes of the event under way
    _began: float | None = None  # when its first byte came

    def feed(self, piece: bytes, now: float) -> None:
        """More of the stream, that came at `now`. Takes time linear in the piece, however long the current line is."""
        first, *lines = piece.split(b"\n")
        self._line += first
        if lines:
            self._end_line(now)
            *lines, last = lines
            for line in lines:
                self._on_line(line, now)
            self._line += last
        if self._line and self._began is None:
            self._began = now
        if self._size + len(self._line) > MAX_EVENT:
            self._size += len(self._line)
            self._line.clear()

    def _end_line(self, now: float) -> None:
        line = bytes(self._line)
        self._line.clear()
        self._on_line(line, now)

    def _on_line(self, line: bytes, now: float) -> None:
        if line in (b"", b"\r"):
            if self._size:
                self._dispatch()
                self._data.clear()
                self._size = 0
            self._began = None
            return
        if self._began is None:
            self._began = now
        self._size += len(line) + 1
        if self._size <= MAX_EVENT and line.startswith(b"data:"):
            self._data.append(line[5:].strip())

    def _dispatch(self) -> None:
        if self._size > MAX_EVENT:
            self.said.unread += 1
            return
        data = b"\n".join(self._data)
        if data == _DONE:
            self.said.ended = True
        elif data:
            try:
                told = _decode(data)
            except UNDECODABLE:
                told = None
            if not isinstance(told, dict):
                self.said.unread += 1
            elif self.said.read(told) and self._began is not None:
                self._on_output(self._began)

    def _on_output(self, now: float) -> None:
        if self.first_output is None:
            self.first_output = now
        else:
            self.gaps.add(now - self._last_output)
        self._last_output = now


@dataclass
class Whole:
    """A JSON body."""

    said: AnswerFacts = field(default_factory=AnswerFacts)
    _body: bytearray = field(default_factory=bytearray)
    _cut: bool = False  # only the end of it is there

    def feed(self, piece: bytes, _: float) -> None:
        """More of the body."""
        self._body += piece
        if len(self._body) > MAX_BODY:
            self._cut = True
        if self._cut and len(self._body) > TAIL:
            del self._body[:-TAIL]

    def end(self) -> None:
        """No more comes."""
        try:
            told = {"usage": _last_usage(bytes(self._body))} if self._cut else _decode(self._body)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            self.said.read(told)
        else:
            self.said.unread = 1  # SGLang's list of several answers too: its counts are of one each
        self._body.clear()


def _last_usage(end: bytes) -> object:
    """The usage near the end of a body. A text of the answer can not be taken for it: its quotes are escaped."""
    at = end.rfind(_USAGE)
    rest = end[at + len(_USAGE) :].lstrip() if at >= 0 else b""
    if not rest.startswith(b":"):
        return None
    found, _ = json.JSONDecoder().raw_decode(rest[1:].lstrip().decode(errors="replace"))
    return found


def _count(told: Mapping[str, Any], *names: str, default: int | None) -> int | None:
    for name in names:
        value = told.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
            return value
    return default


def _is_too_long(message: object) -> bool:
    """Whether an engine says that a request does not fit its context: by its words, since it has no code for that."""
    return isinstance(message, str) and _TOO_LONG.search(message[:MAX_MESSAGE]) is not None


def _word(value: object) -> str:
    """A class or code; anything that might be a sentence is left out."""
    if value is None:
        return ""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return text if _WORD.fullmatch(text) else ""


def _line(value: object, limit: int = 200) -> str:
    return value[:limit] if isinstance(value, str) and value.isprintable() else ""
