"""Requests of a running agent or of a recording, and why the slow ones among them are slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agent.config import Config
from agent.requests.record import RequestRecord
from agent.requests.store import MAX_RECORDS
from agent.requests.tail import OFS, Recent, TailReport
from agent.service import Node
from series.capture import CaptureReader
from ui.answers import TooLargeError, body_of

AGENT_TIMEOUT_SECONDS = 5.0
MAX_DOCUMENT_BYTES = 8 << 20


class RequestsError(Exception):
    """There is nobody to ask, or no such request; the message says what to do."""


@dataclass(frozen=True)
class Asked:
    """Which requests are wanted: one by its id or trace id, else the slowest or the newest."""

    name: str = ""
    slowest: int = 0
    newest: int = 0
    tenant: str = ""


class Told(msgspec.Struct, frozen=True):
    """A request, and its tenant's name where it may be told."""

    record: RequestRecord
    tenant_name: str = ""


@dataclass(frozen=True)
class Found:
    """Requests, and what explains the slow ones where the slowest were asked for."""

    requests: list[Told]
    tails: list[TailReport]
    tenant_names: dict[str, str]  # what stands for a tenant -> its name, where it may be told


async def of_agent(url: str, asked: Asked) -> Found:
    """Ask a running agent. Raises RequestsError."""
    parameters: dict[str, str] = {"tenant": asked.tenant} if asked.tenant else {}
    if asked.name:
        parameters["id"] = asked.name
    else:
        parameters |= {"slowest": str(asked.slowest)} if asked.slowest else {"newest": str(asked.newest)}
    timeout = aiohttp.ClientTimeout(total=AGENT_TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            listed = await _get(session, url, "requests", parameters)
            tails = await _get(session, url, "tail", {"scope": "node"}) if _wants_tails(asked) else b""
        requests = msgspec.json.decode(listed, type=_Answer).data.requests
        explained = msgspec.json.decode(tails, type=_TailAnswer).data if tails else _Tails()
    except TooLargeError as error:
        raise RequestsError(f"{url} {error}: ask for fewer requests") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise RequestsError(f"no agent answers at {url}: start one with `kvitals run`") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestsError(f"{url} answers what is no list of requests: is it a kvitals agent?") from error
    told = [Told(msgspec.convert(one, RequestRecord), str(one.get("tenant_name", ""))) for one in requests]
    return Found(told, explained.reports, explained.tenant_names)


async def _get(session: aiohttp.ClientSession, url: str, what: str, parameters: Mapping[str, str]) -> bytes:
    """An agent's answer. Raises RequestsError, and what sessions raise."""
    address = f"{url.rstrip('/')}/api/v1/{what}"
    async with session.get(address, params=parameters, allow_redirects=False) as response:
        body = await body_of(response, MAX_DOCUMENT_BYTES)
        if response.status != 200:
            raise RequestsError(f"{url} answers {response.status}: is it a kvitals agent, and a new one?")
        return body


def of_recording(path: Path, asked: Asked) -> Found:
    """Stitch the requests of a recording anew. Raises CaptureError, ConfigError."""
    node = Node(Config())
    with CaptureReader.open(path) as reader:
        node.expect(reader.header.meta)
        for record in reader:
            node.feed(record)
    node.requests.flush()
    store, tenant = node.requests.store, asked.tenant or None
    if asked.name:
        found = store.find(asked.name)
    elif asked.slowest:
        found = store.slowest(asked.slowest, tenant)
    else:
        found = store.newest(asked.newest, tenant)
    return Found([Told(record) for record in found], _tails_of(node) if _wants_tails(asked) else [], {})


def _wants_tails(asked: Asked) -> bool:
    """What explains the slow ones is known of all tenants' requests together."""
    return bool(asked.slowest) and not asked.name and not asked.tenant


def _tails_of(node: Node) -> list[TailReport]:
    """What explains the slow ones of a whole recording."""
    records = node.requests.store.newest(MAX_RECORDS)
    if not records:
        return []
    recent = Recent(records, min(r.end for r in records), max(r.end for r in records))
    return [recent.explain(of, node.requests.objective, over={"scope": "node"}) for of in OFS]


class _Data(msgspec.Struct):
    requests: list[dict[str, Any]]


class _Answer(msgspec.Struct):
    data: _Data


class _Tails(msgspec.Struct):
    reports: list[TailReport] = []
    tenant_names: dict[str, str] = {}


class _TailAnswer(msgspec.Struct):
    data: _Tails
