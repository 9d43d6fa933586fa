"""Requests of a running agent or of a recording, and why the slow ones among them are slow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.slow_tail import OFS, Recent, TailReport
from kvitals.agent.requests.store import MAX_RECORDS
from kvitals.agent.service import Node
from kvitals.app.agent_client import AgentClient, TailAnswer
from kvitals.config import Config
from kvitals.series.recordings import CaptureReader


@dataclass(frozen=True)
class RequestQuery:
    """Which requests are wanted: one by its id or trace id, else the slowest or the newest."""

    name: str = ""
    slowest: int = 0
    newest: int = 0
    tenant: str = ""


class NamedRequest(msgspec.Struct, frozen=True):
    """A request, and its tenant's name where it may be told."""

    record: RequestRecord
    tenant_name: str = ""


@dataclass(frozen=True)
class RequestAnswer:
    """Requests, and what explains the slow ones where the slowest were asked for."""

    requests: list[NamedRequest]
    tails: list[TailReport]
    tenant_names: dict[str, str]  # what stands for a tenant -> its name, where it may be told


def of_agent(url: str, asked: RequestQuery) -> RequestAnswer:
    """Ask a running agent. Raises AgentError."""
    parameters: dict[str, str] = {"tenant": asked.tenant} if asked.tenant else {}
    if asked.name:
        parameters["id"] = asked.name
    else:
        parameters |= {"slowest": str(asked.slowest)} if asked.slowest else {"newest": str(asked.newest)}
    client = AgentClient(url)
    listed = client.requests(parameters)
    explained = client.tails({"scope": "node"}) if _wants_tails(asked) else TailAnswer()
    return RequestAnswer([NamedRequest(*one) for one in listed], explained.reports, explained.tenant_names)


def of_recording(path: Path, asked: RequestQuery) -> RequestAnswer:
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
    return RequestAnswer([NamedRequest(record) for record in found], _tails_of(node) if _wants_tails(asked) else [], {})


def _wants_tails(asked: RequestQuery) -> bool:
    """What explains the slow ones is known of all tenants' requests together."""
    return bool(asked.slowest) and not asked.name and not asked.tenant


def _tails_of(node: Node) -> list[TailReport]:
    """What explains the slow ones of a whole recording."""
    records = node.requests.store.newest(MAX_RECORDS)
    if not records:
        return []
    recent = Recent(records, min(r.end for r in records), max(r.end for r in records))
    return [recent.explain(of, node.requests.objective, over={"scope": "node"}) for of in OFS]
