"""As much HTTP/2 as a call of gRPC takes whose bytes no library would send, such as a gzip bomb made beforehand."""

from __future__ import annotations

import asyncio
import struct
import zlib

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATH = b"/opentelemetry.proto.collector.trace.v1.TraceService/Export"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW, MAX_FRAME = 65535, 16384


def zeros(megabytes: int) -> bytes:
    """So many megabytes of zeros as gzip."""
    packer, block = zlib.compressobj(9, wbits=31), bytes(1 << 20)
    return b"".join([*(packer.compress(block) for _ in range(megabytes)), packer.flush()])


def message(data: bytes, packed: bool) -> bytes:
    """A message of gRPC."""
    return struct.pack(">BI", packed, len(data)) + data


async def call(port: int, body: bytes, *, ends: bool = True, seconds: float = 20.0) -> str:
    """Make one call; returns how it ended: answered, refused, or some other way. ends: false for one whose request is
    never whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(seconds):
            return await _call(reader, writer, body, ends)
    except (OSError, EOFError):
        return "hung up"
    finally:
        writer.close()


async def _call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, ends: bool) -> str:
    fields = (
        *((b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH), (b":authority", b"chaos")),
        *((b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"grpc-encoding", b"gzip")),
    )
    head = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)  # literal, not to be remembered
    writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, head))
    windows, sent, answered = {0: INITIAL_WINDOW, 1: INITIAL_WINDOW}, 0, False
    while True:
        while sent < len(body) and (size := min(*windows.values(), MAX_FRAME, len(body) - sent)) > 0:
            end = END_STREAM if ends and sent + size == len(body) else 0
            writer.write(frame(DATA, end, 1, body[sent : sent + size]))
            sent += size
            windows = {stream: left - size for stream, left in windows.items()}
        await writer.drain()
        raw = await reader.readexactly(9)
        length, kind, flags, stream = int.from_bytes(raw[:3]), raw[3], raw[4], int.from_bytes(raw[5:]) & 0x7FFFFFFF
        payload = await reader.readexactly(length)
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, length, 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == 4:  # the window of a stream at its beginning
                    windows[1] += value - INITIAL_WINDOW
            writer.write(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            writer.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream in windows:
            windows[stream] += int.from_bytes(payload) & 0x7FFFFFFF
        elif kind == RST_STREAM:
            return f"reset, code {int.from_bytes(payload)}"
        elif kind == GOAWAY:
            return f"go away, code {int.from_bytes(payload[4:8])}"
        elif kind == DATA:
            answered = True
        elif kind == HEADERS and flags & END_STREAM:
            return "answered" if answered else "refused"


def _text(text: bytes) -> bytes:
    assert len(text) < 127
    return bytes((len(text),)) + text


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload
