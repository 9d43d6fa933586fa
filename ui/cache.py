"""What caches hold and for whom: of a running agent, of a live engine that is listened to, or of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agent.config import Config
from agent.ledger.side import LedgerSide
from agent.service import Node
from series.capture import CaptureReader
from ui.answers import TooLargeError, body_of
from ui.live import Collector
from ui.pipeline import Setup

AGENT_TIMEOUT_SECONDS = 5.0
MAX_DOCUMENT_BYTES = 16 << 20


class CacheError(Exception):
    """An agent answers, and has nothing of the kind; the message says what to do."""


@dataclass(frozen=True)
class Known:
    """The ledger's report (docs/ledger.md) and its cascades (docs/cascade.md); both empty where no engine told of
    blocks."""

    cache: dict[str, Any] = field(default_factory=dict)
    cascades: dict[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()  # what was said while looking

    @property
    def names(self) -> dict[str, str]:
        """What stands for a tenant -> its name, where it may be told."""
        names = self.cache.get("tenant_names", {})
        return names if isinstance(names, dict) else {}


def of_recording(path: Path, setup: Setup) -> Known:
    """Replay a recording, by the objectives of a setup. Raises CaptureError, ConfigError."""
    return _known(*replayed(path, setup))


def replayed(path: Path, setup: Setup | None = None) -> tuple[LedgerSide | None, Sequence[str]]:
    """The ledger at a recording's end, None where it has no KV events, and what was said while looking. Without a setup
    by the defaults. Raises CaptureError, ConfigError."""
    node, last = Node(setup.config, setup.slo_sources) if setup is not None else Node(Config()), 0.0
    with CaptureReader.open(path) as reader:
        node.expect(reader.header.meta)
        for record in reader:
            node.feed(record)
            last = max(last, record.t)
        notes = (f"damaged: {reader.problem}",) if reader.problem else ()
    node.requests.flush()
    if node.ledger is not None:
        node.ledger.flush(last)
    return node.ledger, notes


async def of_engines(setup: Setup, urls: Sequence[str], seconds: float) -> Known:
    """Listen to engines for so long. Raises ConfigError."""
    async with Collector(setup, urls) as collector:
        async for _ in collector.collect(seconds):
            pass
        node = collector.pipeline.node
        return _known(node.ledger, (*collector.said, *collector.complaints()))


async def of_agent(url: str) -> Known | None:
    """Ask a running agent; None where what answers there is none. Raises CacheError."""
    timeout = aiohttp.ClientTimeout(total=AGENT_TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            build, _ = await _get(session, url, "status/buildinfo")
            if build != 200:
                return None
            status, cache = await _get(session, url, "cache")
            if status == 404:
                return Known()
            _, cascades = await _get(session, url, "cascades")
    except TooLargeError as error:
        raise CacheError(f"{url} {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    return Known(_data(cache, url), _data(cascades, url))


async def _get(session: aiohttp.ClientSession, url: str, what: str) -> tuple[int, bytes]:
    async with session.get(f"{url.rstrip('/')}/api/v1/{what}", allow_redirects=False) as response:
        return response.status, await body_of(response, MAX_DOCUMENT_BYTES)


def _data(body: bytes, url: str) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(body)["data"]
        if isinstance(data, dict):
            return data
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        pass
    raise CacheError(f"{url} answers what is no report of a cache: is it a kvitals agent, and a new one?")


def _known(ledger: LedgerSide | None, notes: Sequence[str]) -> Known:
    return Known(notes=notes) if ledger is None else Known(ledger.report(), ledger.cascades.report(), notes)
