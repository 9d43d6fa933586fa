"""Requests of a running agent or of a recording."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agent.config import Config
from agent.requests.record import RequestRecord
from agent.service import Node
from series.capture import CaptureReader

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


async def of_agent(url: str, asked: Asked) -> list[Told]:
    """Ask a running agent. Raises RequestsError."""
    parameters: dict[str, str] = {"tenant": asked.tenant} if asked.tenant else {}
    if asked.name:
        parameters["id"] = asked.name
    else:
        parameters |= {"slowest": str(asked.slowest)} if asked.slowest else {"newest": str(asked.newest)}
    timeout = aiohttp.ClientTimeout(total=AGENT_TIMEOUT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url.rstrip('/')}/api/v1/requests", params=parameters, allow_redirects=False) as response,
        ):
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > MAX_DOCUMENT_BYTES:
                    raise RequestsError(
                        f"{url} answers more than {MAX_DOCUMENT_BYTES >> 20} MB: ask for fewer requests"
                    )
            if response.status != 200:
                raise RequestsError(f"{url} answers {response.status}: is it a kvitals agent, and a new one?")
        document = msgspec.json.decode(body, type=_Answer)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise RequestsError(
            f"no agent answers at {url} ({type(error).__name__}): start one with `kvitals run`"
        ) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestsError(f"{url} answers what is no list of requests: is it a kvitals agent?") from error
    return [
        Told(msgspec.convert(one, RequestRecord), str(one.get("tenant_name", ""))) for one in document.data.requests
    ]


def of_recording(path: Path, asked: Asked) -> list[Told]:
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
    return [Told(record) for record in found]


class _Data(msgspec.Struct):
    requests: list[dict[str, Any]]


class _Answer(msgspec.Struct):
    data: _Data
