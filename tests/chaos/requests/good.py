"""The good client: it sends requests through the tap, spans over OTLP and lines into a log, and keeps a ledger.

    python -m tests.chaos.requests.good '{"tap": 1, "engine": 2, "otlp": 3, "agent": 4, "log": "/tmp/good.jsonl"}'

A line on its input asks how it fares, in JSON: latencies since it was asked last, and all that was sent. After `stop`
it sends nothing more, says it once more and ends. It is a process of its own, so that what it measures is not its
attackers' work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import aiohttp

from .clients import Connection, export, page, request
from .planted import tenant
from .spans import export as spans

BY_TAP, BY_OTLP, BY_LOG = (tenant(f"good-{way}") for way in ("tap", "otlp", "log"))
STREAMS = 2
PAUSE = 0.06
SPANS = 5


def log_line(whose: str) -> bytes:
    """A request as nginx logs it, with a prompt that it should not have."""
    said = {
        **{"time": f"{time.time():.3f}", "request_time": "0.500", "status": "200", "method": "POST"},
        **{"uri": "/v1/chat/completions", "upstream_addr": "10.0.0.1:8000", "request_id": uuid.uuid4().hex},
        **{"traceparent": "", "tenant": whose, "session": "", "completion": "OK"},
    }
    return json.dumps(said).encode() + b"\n"


class Good:
    """All that the good client does."""

    def __init__(self, tap: int, engine: int, otlp: int, agent: int, log: str) -> None:
        self._tap, self._engine, self._otlp, self._agent, self._log = tap, engine, otlp, agent, Path(log)
        self._stopped = False
        self.sent = {"tap": 0, "otlp": 0, "log": 0}
        self.broken: list[str] = []
        self.latencies: list[float] = []
        self.direct: list[float] = []  # of the same requests without the tap, to be compared with
        self.pages: list[float] = []  # seconds of each page of the agent
        self.no_page = 0
        self.otlp_again = 0

    async def run(self) -> None:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), timeout=aiohttp.ClientTimeout(total=10)
        ) as session:
            tasks = [
                *(asyncio.create_task(self._stream()) for _ in range(STREAMS)),
                *(asyncio.create_task(self._compare()) for _ in range(STREAMS)),
                asyncio.create_task(self._export(session)),
                asyncio.create_task(self._write()),
            ]
            looking = asyncio.create_task(self._look(session))
            print("ready", flush=True)
            while (line := await asyncio.to_thread(sys.stdin.readline)) and line.strip() != "stop":
                self._say()
            self._stopped = True
            await asyncio.gather(*tasks)
            looking.cancel()
            self._say()

    def _say(self) -> None:
        now = {
            **{
                "sent": self.sent,
                "broken": self.broken,
                "latencies": self.latencies,
                "direct": self.direct,
                "pages": self.pages,
            },
            **{"no_page": self.no_page, "otlp_again": self.otlp_again},
        }
        print(json.dumps(now), flush=True)
        self.broken, self.latencies, self.direct, self.pages, self.no_page, self.otlp_again = [], [], [], [], 0, 0

    async def _stream(self) -> None:
        connection, said = Connection(self._tap), request(BY_TAP)
        while not self._stopped:
            began = time.perf_counter()
            self.sent["tap"] += 1
            try:
                answer = await connection.ask(said)
                if b" 200 OK" not in answer[:20] or answer.count(b"data: ") != 7:
                    self.broken.append(repr(answer[:80]))
            except (OSError, EOFError) as error:
                self.broken.append(repr(error))
            self.latencies.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)
        connection.close()

    async def _compare(self) -> None:
        connection, said = Connection(self._engine), request(BY_TAP)
        while not self._stopped:
            began = time.perf_counter()
            await connection.ask(said)
            self.direct.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)
        connection.close()

    async def _export(self, session: aiohttp.ClientSession) -> None:
        while not self._stopped:
            self.otlp_again += await export(session, self._otlp, spans([BY_OTLP] * SPANS))
            self.sent["otlp"] += SPANS
            await asyncio.sleep(0.5)

    async def _write(self) -> None:
        with self._log.open("ab", buffering=0) as file:
            while not self._stopped:
                file.write(log_line(BY_LOG))
                self.sent["log"] += 1
                await asyncio.sleep(0.1)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                _, took = await page(session, self._agent)
                self.pages.append(took)
            except (aiohttp.ClientError, TimeoutError):
                self.no_page += 1
            await asyncio.sleep(0.5)


def main(told: dict[str, Any]) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Good(**told).run())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
