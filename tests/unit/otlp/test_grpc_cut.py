"""Requests over gRPC that are cut short: they give way, whatever their heads announce."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from otlp_stage import GRPC, call, good, listening, taken
from test_grpc_front import Transport
from test_http2_framing import BEGIN, HEAD, frame, literal

from kvitals.agent.collectors import grpc_front
from kvitals.agent.collectors.grpc_calls import CallTable, OpenCall
from kvitals.agent.collectors.grpc_front import MAX_CALLS, Front
from kvitals.agent.collectors.grpc_turns import HEAD_BYTES_A_TURN
from kvitals.agent.collectors.http2_framing import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    CallHeads,
    Framing,
)
from kvitals.agent.listeners import LISTENERS

BEGUN = frame(HEADERS, END_HEADERS, 1, HEAD)
MESSAGE = bytes(1) + (100).to_bytes(4) + bytes(100)
LARGE_HEAD = literal(b"x", b"y" * 120) * 120


@pytest.mark.parametrize(
    "cut",
    [
        BEGUN + frame(DATA, END_STREAM, 1, MESSAGE)[:-1],
        BEGUN + frame(DATA, 0, 1, MESSAGE[:-1]),
        BEGUN + frame(DATA, 0, 1, MESSAGE[:3]),
        frame(HEADERS, END_STREAM, 1, HEAD[:9]) + frame(CONTINUATION, END_HEADERS, 1, HEAD[9:])[:-1],
    ],
    ids=["within its last frame", "a byte is missing", "within its length", "within its head"],
)
async def test_requests_that_are_cut_short_keep_nobody_out(cut: bytes) -> None:
    """A frame with END_STREAM counted as a whole request before its content had come, and held a place for 10 s."""
    async with listening() as sense:
        held = []
        for _ in range(MAX_CALLS):
            _, writer = await asyncio.open_connection("127.0.0.1", sense.ports[GRPC], local_addr=("127.0.0.2", 0))
            writer.write(BEGIN + cut)
            held.append(writer)
        await asyncio.sleep(0.3)
        for _ in range(5):
            await call(sense, good())
        assert len(taken(sense)[0]) == 5
        for writer in held:
            writer.close()


@pytest.mark.parametrize("size", [1, 4, 7, 1000])
def test_a_request_is_whole_with_the_last_byte_of_its_message(size: int) -> None:
    """It is answered from then on, with or without an end of its stream."""
    sent, at = frame(DATA, 0, 1, MESSAGE[:40]) + frame(DATA, 0, 1) + frame(DATA, 0, 1, MESSAGE[40:]), []
    call = OpenCall()
    framing = Framing(lambda _: None, content=lambda frame, piece, is_last: call.take(frame, piece, is_last, 0.0))
    for start in range(0, len(sent), size):
        framing.feed(sent[start : start + size])
        at += [start] * call.is_whole
    assert at == [(len(sent) - 1) // size * size]


def test_padding_is_no_part_of_a_request() -> None:
    call = OpenCall()
    framing = Framing(lambda _: None, content=lambda frame, piece, is_last: call.take(frame, piece, is_last, 0.0))
    framing.feed(frame(DATA, PADDED, 1, bytes(200)))
    assert not call.is_whole


class Exporter:
    """A connection with calls."""

    peer = "192.0.2.1"

    def __init__(self) -> None:
        self.calls: dict[int, OpenCall] = {}
        self.ended: list[int] = []

    def end_call(self, stream: int) -> None:
        self.ended.append(stream)
        del self.calls[stream]


def test_a_slow_upload_is_answered_before_it_gives_way() -> None:
    """The time for an answer began with the call."""
    table, slow = CallTable[Exporter](1, 1, patience=3.0), Exporter()
    table.begin(slow, 1, 0.0)
    slow.calls[1].end(8.0)
    assert not table.begin(Exporter(), 1, 10.0)
    assert table.begin(Exporter(), 1, 11.5) and slow.ended == [1]


def connected(front: Front, transport: Transport, core: Transport) -> grpc_front._Connection:
    connection = grpc_front._Connection(front)
    connection.connection_made(transport)
    assert connection._task is not None
    connection._task.cancel()  # it would connect to the core
    connection._core = core
    return connection


async def test_large_heads_of_many_connections_are_read_over_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 of 16 KB took 0.12 s of CPU time in one turn of the loop."""
    front, read = Front(LISTENERS["otlp_grpc"], tmp_path / "none"), []
    monkeypatch.setattr(CallHeads, "check", lambda _, block: read.append(len(block)))
    clients = []
    for number in range(24):
        transport = Transport(f"192.0.2.{number}")
        clients.append((connected(front, transport, Transport("core")), transport))
    for connection, _ in clients:
        connection.data_received(BEGIN + frame(HEADERS, END_HEADERS, 1, LARGE_HEAD))
    turns = [len(read)]
    while len(read) < len(clients) and len(turns) < 50:
        await asyncio.sleep(0)
        turns.append(len(read) - sum(turns))
    assert sum(turns) == len(clients)
    assert max(turns) <= HEAD_BYTES_A_TURN // len(LARGE_HEAD) + 1
    assert not any(transport.paused for _, transport in clients)
    front.close()


async def test_a_client_is_read_again_only_once_the_server_takes_more(tmp_path: Path) -> None:
    front = Front(LISTENERS["otlp_grpc"], tmp_path / "none")
    transport, core = Transport("192.0.2.1"), Transport("core")
    connection = connected(front, transport, core)
    side = grpc_front._CoreSide(connection)
    side.pause_writing()
    front.turns.read(connection, HEAD_BYTES_A_TURN)
    connection.data_received(BEGIN)
    await asyncio.sleep(0)
    assert core.written == [BEGIN] and transport.paused
    side.resume_writing()
    assert not transport.paused
    front.close()
