"""Whose connection gives way at the front of the gRPC server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kvitals.agent.collectors import grpc_front
from kvitals.agent.collectors.grpc_front import Front
from kvitals.agent.listeners import LISTENERS


class Transport(asyncio.Transport):
    """An accepted socket of a client."""

    def __init__(self, peer: str) -> None:
        super().__init__({"peername": (peer, 50_000, 0, 0)})
        self.aborted = self.paused = False
        self.written: list[bytes] = []

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections give way at any age."""
    monkeypatch.setattr(grpc_front, "_PATIENCE", {})


async def opened(front: Front, peer: str) -> Transport:
    transport = Transport(peer)
    connection = grpc_front._Connection(front)
    connection.connection_made(transport)
    if not transport.aborted:
        connection.data_received(b"x")
    return transport


@pytest.mark.usefixtures("patient")
async def test_addresses_of_one_ipv6_network_have_one_share(tmp_path: Path) -> None:
    """One machine has a network of 64 bits, so that it would have as many shares as it likes."""
    front = Front(replace(LISTENERS["otlp_grpc"], connections=6, per_peer=4), tmp_path / "none")
    other = [await opened(front, f"2001:db8:0:{n}::1") for n in (1, 2)]
    own = [await opened(front, f"2001:db8::{n:x}") for n in range(1, 21)]
    assert [each.aborted for each in other] == [False, False]
    assert [each.aborted for each in own] == [True] * 16 + [False] * 4
    front.close()


async def test_what_sent_something_just_now_stays(tmp_path: Path) -> None:
    front = Front(replace(LISTENERS["otlp_grpc"], connections=6, per_peer=4), tmp_path / "none")
    own = [await opened(front, "192.0.2.1") for _ in range(8)]
    assert [each.aborted for each in own] == [False] * 4 + [True] * 4
    assert not (await opened(front, "192.0.2.2")).aborted
    front.close()
