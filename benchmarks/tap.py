"""What the tap adds to requests: to a quiet one's latency, and to every chunk of 64 streams.

    python -m benchmarks.tap [--streams 64] [--rounds 15] [--seconds 3] [--lockstep] [--beside NAME=URL]

A process of its own plays an engine: it answers each request with server-sent events at a fixed interval, each with
the time at which it was sent, on the clock that all processes of a machine share. A client measures when each arrives,
directly and through `kvitals tap` (parts to an agent that is not there: the buffer fills), and through nginx where it
is installed; by turns, in several rounds of one run, so that what else the machine does falls on all of them.

What is added to a chunk is the difference of the quantiles of its delay to the direct way in the same round, and of all
rounds the median: on a machine that does other things too, single rounds are lost to them. --lockstep: all streams send
at the same instants rather than spread over the interval, so that each chunk waits for those before it. Exits with 1
when a budget does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import processes

MEDIAN_BUDGET = 0.001  # seconds added to a quiet request
CHUNK_BUDGET = 0.001  # seconds added to a chunk's delay at p99
EVENTS_PER_SECOND = 50
QUIET_EVENTS = 4
FIRST_PORT = 19600
UPSTREAM, TAP, ADMIN, NGINX = (FIRST_PORT + i for i in range(4))

_EVENT = (
    b'data: {"id":"chatcmpl-0f3cb5a6a1e84bd1a2d2f4d2b7a3c9f0","object":"chat.completion.chunk","created":1763712000,'
    b'"model":"tiny","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}],"sent":%d}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-0f3cb5a6a1e84bd1a2d2f4d2b7a3c9f0","object":"chat.completion.chunk","created":1763712000,'
    b'"model":"tiny","choices":[],"usage":{"prompt_tokens":480,"total_tokens":500,"completion_tokens":20}}\n\n'
    b"data: [DONE]\n\n"
)
_SENT = re.compile(rb'"sent":(\d+)')
_BODY = json.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "word " * 480}]}).encode()


class _Upstream(asyncio.Protocol):
    """Answers each request with the number of events that its path ends with."""

    def __init__(self, lockstep: bool) -> None:
        self._lockstep = lockstep
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._buffer.endswith(_BODY):
            return
        self._left = int(self._buffer.split(b" ", 2)[1].rpartition(b"=")[2])
        self._buffer = b""
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        loop, step = asyncio.get_running_loop(), 1 / EVENTS_PER_SECOND
        self._due = (loop.time() // step + 2) * step if self._lockstep else loop.time() + step
        self._timer = loop.call_at(self._due, self._send)

    def _send(self) -> None:
        event = _EVENT % time.monotonic_ns()
        self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
        self._left -= 1
        if self._left:
            self._due += 1 / EVENTS_PER_SECOND
            self._timer = asyncio.get_running_loop().call_at(self._due, self._send)
        else:
            self._transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(_LAST), _LAST))


class _Client(asyncio.Protocol):
    """One request after the other on one connection; the delay of every event, in seconds."""

    def __init__(self, port: int) -> None:
        self.delays: list[float] = []
        self._host = b"127.0.0.1:%d" % port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(RuntimeError("the connection was lost"))
            self._ended.exception()

    async def ask(self, events: int) -> float:
        """Seconds from the request to the last byte of its answer."""
        self._ended = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._transport.write(
            b"POST /v1/chat/completions?events=%d HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer sk-benchmark\r\nx-tenant-id: benchmark\r\nContent-Length: %d\r\n\r\n%s"
            % (events, self._host, len(_BODY), _BODY)
        )
        await self._ended
        return time.perf_counter() - began

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        self.delays += [(now - int(sent)) / 1e9 for sent in _SENT.findall(data)]
        if data.endswith(b"0\r\n\r\n"):
            self._ended.set_result(None)

    def close(self) -> None:
        self._transport.close()


async def _connect(port: int) -> _Client:
    _, client = await asyncio.get_running_loop().create_connection(lambda: _Client(port), "127.0.0.1", port)
    return client


async def quiet(ports: dict[str, int], requests: int) -> dict[str, list[float]]:
    """Seconds of each of `requests` a way, one at a time, the ways by turns."""
    clients = {name: await _connect(port) for name, port in ports.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(requests):
        for name, client in clients.items():
            took = await client.ask(QUIET_EVENTS)
            seconds[name].append(took - QUIET_EVENTS / EVENTS_PER_SECOND)
    for client in clients.values():
        client.close()
    return seconds


async def streams(port: int, count: int, seconds: float, lockstep: bool) -> list[float]:
    """The delays of all events of `count` streams at a time, in seconds."""

    async def one(number: int) -> list[float]:
        client = await _connect(port)
        if not lockstep:
            await asyncio.sleep(number / count / EVENTS_PER_SECOND)
        await client.ask(int(seconds * EVENTS_PER_SECOND))
        client.close()
        return client.delays

    return [delay for delays in await asyncio.gather(*map(one, range(count))) for delay in delays]


@contextmanager
def _tap() -> Iterator[subprocess.Popen[bytes]]:
    command = [
        *(str(Path(sys.executable).with_name("kvitals")), "tap", f"--listen=127.0.0.1:{TAP}"),
        *(f"--upstream=http://127.0.0.1:{UPSTREAM}", f"--admin=127.0.0.1:{ADMIN}", "--agent=http://127.0.0.1:9"),
    ]
    with tempfile.TemporaryDirectory() as home, subprocess.Popen(command, env={"XDG_STATE_HOME": home}) as process:
        try:
            processes.wait(f"http://127.0.0.1:{ADMIN}/metrics")
            yield process
        finally:
            process.terminate()


@contextmanager
def _nginx(binary: str) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "nginx.conf")
        config.write_text(
            f"daemon off; master_process off; pid {directory}/pid; error_log stderr error;\n"
            "events { worker_connections 1024; }\n"
            f"http {{ access_log off; client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;\n"
            f"upstream engine {{ server 127.0.0.1:{UPSTREAM}; keepalive 128; }}\n"
            f"server {{ listen 127.0.0.1:{NGINX}; location / {{ proxy_pass http://engine; proxy_http_version 1.1;\n"
            'proxy_set_header Connection ""; proxy_buffering off; } } }\n'
        )
        with subprocess.Popen([binary, "-c", str(config), "-p", directory]) as process:
            try:
                _wait_for_port(NGINX)
                yield process
            finally:
                process.terminate()


def _wait_for_port(port: int) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port}")


@dataclass
class Measured:
    """Of each way: seconds of quiet requests, delays of chunks by round; of proxies the CPU seconds of all chunks."""

    quiet: dict[str, list[float]]
    rounds: list[dict[str, list[float]]]
    cpu: dict[str, float]

    def chunks(self, name: str) -> list[float]:
        return [delay for one in self.rounds for delay in one[name]]


def measure(args: argparse.Namespace) -> Measured:
    """All ways by turns."""
    ports = {"direct": UPSTREAM, "kvitals tap": TAP}
    pids: dict[str, int] = {}
    with ExitStack() as stack:
        lockstep = ("--lockstep",) if args.lockstep else ()
        stack.enter_context(processes.child("benchmarks.tap", "--serve", *lockstep))
        pids["kvitals tap"] = stack.enter_context(_tap()).pid
        if nginx := shutil.which("nginx"):
            ports["nginx"] = NGINX
            pids["nginx"] = stack.enter_context(_nginx(nginx)).pid
        for way in args.beside:
            name, _, url = way.partition("=")
            ports[name] = int(url.rpartition(":")[2])
        measured = Measured(asyncio.run(quiet(ports, args.requests)), [], dict.fromkeys(pids, 0.0))
        for _ in range(args.rounds):
            delays: dict[str, list[float]] = {}
            for name, port in ports.items():
                before = processes.cpu_seconds(pids[name]) if name in pids else 0.0
                delays[name] = asyncio.run(streams(port, args.streams, args.seconds, args.lockstep))
                if name in pids:
                    measured.cpu[name] += processes.cpu_seconds(pids[name]) - before
            measured.rounds.append(delays)
    return measured


async def serve(lockstep: bool) -> None:
    """The engine that is none, until it is ended. Prints `ready`."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Upstream(lockstep), "127.0.0.1", UPSTREAM, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


def _added(rounds: Sequence[dict[str, list[float]]], name: str, quantile: float) -> float:
    """Seconds added to a quantile of the delays, in the median of the rounds."""
    return float(np.median([np.quantile(one[name], quantile) - np.quantile(one["direct"], quantile) for one in rounds]))


def _table(title: str, samples: dict[str, list[float]], rounds: Sequence[dict[str, list[float]]]) -> None:
    print(f"\n{title + ', ms':32}    p50       p99   added: p50     p99    samples")
    for name, some in samples.items():
        own = [float(np.quantile(some, quantile)) for quantile in (0.5, 0.99)]
        added = [_added(rounds, name, quantile) for quantile in (0.5, 0.99)]
        row = "".join(f"{value * 1e3:10.3f}" for value in (*own, *added))
        print(f"{name:29}{row}{len(some):10}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=200, help="quiet requests a way")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round, a way")
    parser.add_argument("--lockstep", action="store_true")
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=URL", help="another proxy to it")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.lockstep))
        return 0
    measured = measure(args)
    _table(f"{args.requests} quiet requests", measured.quiet, [measured.quiet])
    chunks = {name: measured.chunks(name) for name in measured.quiet}
    _table(f"chunks of {args.streams} streams", chunks, measured.rounds)
    spent = {name: seconds / len(chunks[name]) * 1e6 for name, seconds in measured.cpu.items()}
    print(
        f"\nload of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; what waits for a core waits longer"
    )
    print("CPU of the proxy, microseconds a chunk: " + ", ".join(f"{n} {us:.0f}" for n, us in spent.items()))
    median = _added([measured.quiet], "kvitals tap", 0.5)
    late = _added(measured.rounds, "kvitals tap", 0.99)
    held = median < MEDIAN_BUDGET and late < CHUNK_BUDGET
    print(
        f"budgets: {median * 1e3:.3f} ms of {MEDIAN_BUDGET * 1e3:g} at the median of a quiet request, "
        f"{late * 1e3:.3f} ms of {CHUNK_BUDGET * 1e3:g} at p99 of a chunk: {'hold' if held else 'DO NOT HOLD'}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
