"""Calls of one address without end, and the calls of another one beside them."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import grpc
import pytest
from otlp_stage import EXPORT, GRPC, good, listening, taken
from test_grpc_cut import Exporter
from test_http2_framing import BEGIN, HEAD, frame

from kvitals.agent.collectors.grpc_calls import CallTable
from kvitals.agent.collectors.grpc_turns import (
    CONNECTION_BYTES_A_TURN,
    CONNECTION_HEADS,
    HEAD_BYTES_A_TURN,
    HEADS_AT_ONCE,
    LEAST_HEAD_BYTES,
    CallTurns,
)
from kvitals.agent.collectors.http2_framing import CANCEL, END_HEADERS, END_STREAM, HEADERS, reset
from tests.support.processes import ended

GOAWAY = 7

FLOOD = """
import contextlib, itertools, socket, sys, threading
port, begin, kind, connections = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3], int(sys.argv[4])
whole, begun, reset, goaway = (bytes.fromhex(each) for each in sys.argv[5:])

def numbered(frame, stream):
    return frame[:5] + stream.to_bytes(4) + frame[9:]

def sent(first):
    if kind == "calls":
        return b"".join(numbered(whole, first + 2 * n) for n in range(20))
    if kind == "resets":
        return b"".join(numbered(begun, first + 2 * n) + numbered(reset, first + 2 * n) for n in range(50))
    return goaway + numbered(whole, first + 1)

def flood():
    while True:
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.2", 0))
            one.settimeout(10)
            one.connect(("127.0.0.1", port))
            one.sendall(begin)
            for first in itertools.count(1, 100):
                one.sendall(sent(first))

for _ in range(connections):
    threading.Thread(target=flood, daemon=True).start()
print("flooding", flush=True)
sys.stdin.read()
"""


def flood(port: int, kind: str, connections: int) -> subprocess.Popen[bytes]:
    frames = (
        frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD),
        frame(HEADERS, END_HEADERS, 1, HEAD),
        reset(1, CANCEL),
        frame(GOAWAY, 0, 0, bytes(8) + b"d" * 8000),
    )
    words = [str(port), BEGIN.hex(), kind, str(connections), *(each.hex() for each in frames)]
    return subprocess.Popen(
        [sys.executable, "-c", FLOOD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


@pytest.mark.system
@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("kind", ["calls", "resets", "of servers"])
async def test_calls_of_one_address_without_end_leave_others_theirs(kind: str, connections: int) -> None:
    """They were cancelled or refused, or waited for 5 s: heads took all of the time, and calls without a message all
    places."""
    async with listening() as sense, grpc.aio.insecure_channel(f"127.0.0.1:{sense.ports[GRPC]}") as channel:
        export = channel.unary_unary(EXPORT)
        await export(good(), timeout=20)
        with flood(sense.ports[GRPC], kind, connections) as other, ended(other):
            assert other.stdout is not None
            assert await asyncio.to_thread(other.stdout.readline) == b"flooding\n"
            await asyncio.sleep(1)
            for _ in range(25):
                await export(good(), timeout=10)
                await asyncio.sleep(0.05)
        assert len(taken(sense)[0]) == 26


class Connection:
    """A connection whose client sends heads without end."""

    def __init__(self, turns: CallTurns, peer: str, size: int = 20) -> None:
        self.turns, self.peer, self.size = turns, peer, size
        self.followed: list[int] = []
        self.was_read = asyncio.Event()

    def follow(self) -> None:
        self.was_read.set()
        self.followed.append(1)
        while self.turns.read(self, self.size):
            self.followed[-1] += 1


async def test_a_turn_of_the_loop_is_shared_among_connections() -> None:
    turns = CallTurns(asyncio.get_running_loop())
    of_one, of_turn = CONNECTION_BYTES_A_TURN // LEAST_HEAD_BYTES, HEAD_BYTES_A_TURN // LEAST_HEAD_BYTES
    clients = [Connection(turns, f"192.0.2.{number}") for number in range(12)]
    for client in clients:
        if turns.may_read(client):
            client.follow()
    assert [sum(client.followed) for client in clients] == [of_one] * (of_turn // of_one) + [0] * 4
    for _ in range(10):
        await asyncio.sleep(0)
    read = [sum(client.followed) for client in clients]
    assert max(read) - min(read) <= 2 * of_one < min(read)  # those before had two turns before the others came
    for client in clients:
        turns.leave(client)


async def test_an_address_that_used_up_its_account_is_read_later_and_others_now() -> None:
    turns = CallTurns(asyncio.get_running_loop())
    one, other = Connection(turns, "192.0.2.1"), Connection(turns, "192.0.2.2")
    turns.spend(one.peer, HEADS_AT_ONCE)
    assert not turns.may_read(one) and turns.may_read(other)
    async with asyncio.timeout(5):
        await one.was_read.wait()
    turns.leave(one)


async def test_connections_that_end_at_once_use_up_the_account_of_their_address() -> None:
    turns = CallTurns(asyncio.get_running_loop())
    for _ in range(int(HEADS_AT_ONCE / CONNECTION_HEADS) - 1):
        await turns.connects("192.0.2.1")
    assert turns.debt("192.0.2.1") <= 0
    turns.spend("192.0.2.1", 1e9)
    assert 0.5 < turns.debt("192.0.2.1") <= 1.01  # whatever it sent
    assert turns.debt("192.0.2.2") <= 0


async def test_accounts_of_addresses_that_went_away_are_dropped() -> None:
    turns = CallTurns(asyncio.get_running_loop())
    for number in range(5000):
        turns.spend(f"2001:db8:{number:x}::1", 0.0)
    assert len(turns._accounts) <= 1024


def of(peer: str) -> Exporter:
    exporter = Exporter()
    exporter.peer = peer
    return exporter


def test_an_address_has_a_share_of_the_calls_and_none_with_more_takes_from_one_with_fewer() -> None:
    table, many, few, third = CallTable[Exporter](4, 3, patience=3.0), of("192.0.2.1"), of("192.0.2.2"), of("192.0.2.3")
    for stream in (1, 3, 5):
        assert table.begin(many, stream, 0.0)
        many.calls[stream].end(0.0)
    assert not table.begin(many, 7, 0.0)  # all its calls are being answered, and one place is left to others
    assert table.begin(few, 1, 0.0)
    assert not table.begin(third, 1, 0.0) and few.ended == []  # its only call waits, those of `many` do not
    assert table.begin(third, 1, 4.0) and many.ended == [1]
    assert few.ended == []
