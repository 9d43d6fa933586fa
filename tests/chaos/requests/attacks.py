"""What is sent to hurt. Each returns what it has sent, as far as it matters for counts."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc

from .clients import HOST, PATIENCE, Connection, export, request
from .good import log_line
from .http2 import PATH
from .planted import ANSWER, KEY, MARK, PROMPT, SESSION, tenant
from .spans import export as spans

BATCH = 500
SENDERS = 4
CONNECTIONS = 16
LONG_LINE = 10 << 20
SHORT_PROMPT, LONG_PROMPT = 8 << 10, 3 << 20


async def tenants_by_spans(session: aiohttp.ClientSession, port: int, names: Sequence[str]) -> int:
    """A span for each tenant, in batches as exporters have them. Returns how often they were told to wait."""
    batches = [names[at : at + BATCH] for at in range(0, len(names), BATCH)]
    again = 0

    async def send() -> None:
        nonlocal again
        while batches:
            payload = await asyncio.to_thread(spans, list(batches.pop()))
            again += await export(session, port, payload)

    await asyncio.gather(*(send() for _ in range(SENDERS)))
    return again


def tenants_by_log(file: Path, names: Sequence[str]) -> None:
    """A line for each tenant."""
    with file.open("ab") as log:
        log.writelines(map(log_line, names))


TAP_ATTACKS = {
    "a body that never comes": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
    "63,000 blanks and a control character": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b" " * 63_000 + b"\x01\r\n\r\n",
    "100,000 interim responses": b"POST /v1/chat/completions?interim=100000 HTTP/1.1\r\nHost: x\r\n"
    b"Content-Length: 0\r\n\r\n",
    "chunks of one byte": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 40_000,
}
"""Requests that are meant to hold the tap's loop or its connections."""


async def tenants_by_tap(port: int, names: Sequence[str]) -> list[str]:
    """A request for each tenant, on a few connections. Returns what broke."""
    left, broken = list(names), list[str]()

    async def send() -> None:
        connection = Connection(port)
        while left:
            try:
                await connection.ask(request(left.pop(), events=1))
            except (OSError, EOFError) as error:
                broken.append(repr(error))
        connection.close()

    await asyncio.gather(*(send() for _ in range(CONNECTIONS)))
    return broken


def garbage() -> dict[str, bytes]:
    """Bodies that are no requests for traces, or strange ones. All are sent as protobuf."""
    chance = random.Random(1)
    good = spans([tenant("garbage")])
    deep = b""
    for _ in range(3000):  # a resource within a resource within ...
        deep = b"\x0a" + _varint(len(deep)) + deep
    value = b"\x0a\x01x"
    for _ in range(2000):  # an attribute that is a list of lists of lists ...
        value = b"\x2a" + _varint(len(value) + 1 + len(_varint(len(value)))) + b"\x0a" + _varint(len(value)) + value
    attribute = _field(1, b"deep") + _field(2, value)
    nested = _field(1, _field(2, _field(2, _field(1, bytes(16)) + _field(9, attribute))))
    text = f'{MARK}\0\r\n\x1b[2J{{}}"\\ \u202e\U0001f4a9' * 2000
    return {
        "nothing": b"",
        "random bytes": chance.randbytes(100_000),
        "3 MB of random bytes": chance.randbytes(3 << 20),
        "text": PROMPT.encode() * 100,
        "JSON": json.dumps({"resourceSpans": [], "prompt": PROMPT}).encode(),
        "truncated": good[: len(good) // 2],
        "one byte less": good[:-1],
        "wrong wire types": good.replace(b"\x0a", b"\x08").replace(b"\x12", b"\x15"),
        "a length beyond the end": b"\x0a\xff\xff\xff\xff\x0f" + good,
        "a negative length": b"\x0a" + b"\xff" * 9 + b"\x01" + good,
        "a varint without an end": b"\x0a" + b"\xff" * 1000,
        "groups without an end": b"\x0b" * 100_000,
        "nested 3000 deep": deep,
        "a value nested 2000 deep": nested,
        "absurd strings": spans([text[:60_000]]).replace(b"tiny", b"\xf0\x9f\x92\xa9"),
        "a name of 60 KB": spans(["x" * 60_000]),
        "a name of 300 KB": spans([f"{MARK}" * 30_000]),
        "names that are no UTF-8": good.replace(MARK.encode(), b"\xff\xfe" + bytes(len(MARK) - 2)),
        "a million empty spans": _field(1, _field(2, b"\x12\x00" * 1_000_000)),
        "a million empty resources": b"\x0a\x00" * 1_000_000,
        "two million empty attributes": _field(1, _field(2, _field(2, b"\x4a\x00" * 2_000_000))),
        "bits flipped": bytes(byte ^ (chance.random() < 0.02) for byte in good),
    }


@dataclass(frozen=True)
class Odd:
    """A request over HTTP that is odd in another way than its protobuf."""

    name: str
    body: bytes
    headers: dict[str, str]


def odd_requests() -> list[Odd]:
    """Bad content types, bad JSON, bad packing."""
    good, json_, proto = spans([tenant("odd")]), "application/json", "application/x-protobuf"
    plain = {"Content-Type": proto}
    return [
        Odd("no content type", good, {"Content-Type": ""}),
        Odd("a web form", b"a=" + MARK.encode(), {"Content-Type": "application/x-www-form-urlencoded"}),
        Odd("a content type of 4 KB", good, {"Content-Type": "x" * 4000}),
        Odd("JSON that is none", b"{" + MARK.encode(), {"Content-Type": json_}),
        Odd("JSON of another kind", b'[1, 2, "%s"]' % MARK.encode(), {"Content-Type": json_}),
        Odd("JSON nested 100,000 deep", b"[" * 100_000, {"Content-Type": json_}),
        Odd("JSON with wrong types", b'{"resourceSpans": {"scopeSpans": 7}}', {"Content-Type": json_}),
        Odd("JSON with an absurd number", b'{"resourceSpans": [{"a": 1e999999}]}' * 1, {"Content-Type": json_}),
        Odd("JSON that is no UTF-8", b'{"resourceSpans": "\xff\xfe"}', {"Content-Type": json_}),
        Odd("protobuf called JSON", good, {"Content-Type": json_}),
        Odd("gzip that is none", good, {**plain, "Content-Encoding": "gzip"}),
        Odd("gzip cut off", gzip.compress(good)[:-20], {**plain, "Content-Encoding": "gzip"}),
        Odd("packed as br", good, {**plain, "Content-Encoding": "br"}),
        Odd("5 MB", bytes(5 << 20), plain),
    ]


async def send_garbage_over_http(session: aiohttp.ClientSession, port: int, rounds: int) -> Counter[str]:
    """All of it, several times. Returns how it was answered: status, or `hung up`."""
    answered: Counter[str] = Counter()
    requests = [Odd(name, body, {"Content-Type": "application/x-protobuf"}) for name, body in garbage().items()]
    for one in (*requests, *odd_requests()) * rounds:
        try:
            url = f"http://{HOST}:{port}/v1/traces"
            async with session.post(url, data=one.body, headers=one.headers) as answer:
                await answer.read()
                answered[str(answer.status)] += 1
        except aiohttp.ClientError:
            answered["hung up"] += 1
    return answered


async def send_garbage_over_grpc(port: int, rounds: int) -> Counter[str]:
    """Likewise; returns the codes. Then bytes that are no HTTP/2 at all."""
    answered: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.unary_unary(PATH.decode())
        for body in list(garbage().values()) * rounds:
            try:
                await call(body, timeout=PATIENCE)
                answered["OK"] += 1
            except grpc.aio.AioRpcError as error:
                answered[error.code().name] += 1
    for data in (os.urandom(65536), b"GET / HTTP/1.1\r\n\r\n", PROMPT.encode() * 1000):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(data)
        writer.close()
    return answered


@dataclass
class Written:
    """What a log got."""

    size: int = 0
    good: int = 0
    too_long: int = 0
    not_json: int = 0


class Flood:
    """A log of any size, made as it is written: lines with prompts, lines that are too long, none at all, garbage."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.written = Written()
        self._made = self._lines()

    def write(self, size: int) -> None:
        """So many bytes more, and the line to its end. Blocking."""
        with self.file.open("ab", buffering=1 << 20) as log:
            until = self.written.size + size
            while self.written.size < until:
                for piece in next(self._made):
                    log.write(piece)
                    self.written.size += len(piece)

    def without_newline(self, size: int) -> None:
        """So many bytes of one line, and then its end."""
        block = (PROMPT * (1 + (1 << 20) // len(PROMPT))).encode()
        with self.file.open("ab", buffering=0) as log:
            for _ in range(size // len(block)):
                log.write(block)
                self.written.size += len(block)
            log.write(b"\n")
        self.written.too_long += 1

    def rotate(self) -> None:
        """Rename and create anew."""
        self.file.rename(self.file.with_suffix(".jsonl.1"))
        self.file.touch()

    def truncate(self) -> None:
        os.truncate(self.file, 0)

    def _lines(self) -> Iterator[Sequence[bytes]]:
        """Over and over: 10 MB in short lines, some garbage, one of 3 MB and then one of 10 MB."""
        short, long = ((PROMPT * (size // len(PROMPT))) for size in (SHORT_PROMPT, LONG_PROMPT))
        longest = (PROMPT * (LONG_LINE // len(PROMPT) + 1)).encode()
        garbage = (b"{" + MARK.encode(), b"[" * 50_000, os.urandom(300).replace(b"\n", b""), b"\0" * 4096, b"null")
        while True:
            for _ in range(1200):
                self.written.good += 1
                yield (_litellm(short),)
            for line in garbage:
                self.written.not_json += 1
                yield (line + b"\n",)
            self.written.good += 1
            yield (_litellm(long),)
            self.written.too_long += 1
            yield (b'{"messages": "', longest, b'"}\n')


def _litellm(prompt: str) -> bytes:
    """A line as LiteLLM's callbacks get it, with prompt, answer and key."""
    now, call = time.time(), uuid.uuid4().hex
    said = {
        **{"id": f"chatcmpl-{call}", "litellm_call_id": call, "call_type": "acompletion", "stream": True},
        **{"status": "success", "startTime": now - 1.0, "endTime": now, "completionStartTime": now - 0.8},
        **{"model": "tiny", "api_base": "http://10.0.0.1:8000/v1", "prompt_tokens": 100, "completion_tokens": 10},
        **{"messages": [{"role": "user", "content": prompt}], "response": {"choices": [{"message": ANSWER}]}},
        **{"metadata": {"user_api_key_team_id": tenant("flood"), "user_api_key": KEY}, "session_id": SESSION},
    }
    return json.dumps(said).encode() + b"\n"


async def until_true(true: Callable[[], bool], seconds: float) -> bool:
    """Whether it became so in that time."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.05)
    return True


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes((*made, number))
