"""Requests of a running agent or of a recording, and why the slow ones among them are slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kvitals.agent.node import Node
from kvitals.agent.requests.first_token_flame import FirstTokenFlame, first_token_flame
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.slow_tail import TailReport
from kvitals.agent.requests.store import MAX_RECORDS
from kvitals.app.agent_client import AgentClient, TailAnswer
from kvitals.app.sources.recording import ended_node
from kvitals.config import Config

MAX_ASKED = 1000
"""Requests that an agent answers with at once."""


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
    notes: Sequence[str] = ()  # what could not be read of a recording


def of_agent(url: str, asked: RequestQuery) -> RequestAnswer:
    """Ask a running agent. Raises AgentError."""
    return of_client(AgentClient(url), asked)


def of_client(client: AgentClient, asked: RequestQuery) -> RequestAnswer:
    """Ask the agent of a client. Raises AgentError."""
    parameters: dict[str, str] = {"tenant": asked.tenant} if asked.tenant else {}
    if asked.name:
        parameters["id"] = asked.name
    else:
        parameters |= {"slowest": str(asked.slowest)} if asked.slowest else {"newest": str(asked.newest)}
    listed = client.requests(parameters)
    explained = client.tails({"scope": "node"}) if _wants_tails(asked) else TailAnswer()
    return RequestAnswer([NamedRequest(*one) for one in listed], explained.reports, explained.tenant_names)


def of_recording(path: Path, asked: RequestQuery, config: Config) -> RequestAnswer:
    """Stitch the requests of a recording anew, to its end. Raises CaptureError, ConfigError."""
    ended = ended_node(path, config)
    return replace(of_node(ended.node, asked), notes=[loss.text for loss in ended.losses])


def flame_of_agent(url: str) -> FirstTokenFlame:
    """Where the newest requests of an agent waited for their first tokens, `MAX_ASKED` at most. Raises AgentError."""
    records = [record for record, _ in AgentClient(url).requests({"newest": str(MAX_ASKED)})]
    ends = [record.end for record in records]
    return first_token_flame(records, min(ends, default=0.0), max(ends, default=0.0))


def flames_of_recording(
    path: Path, config: Config, windows: Sequence[tuple[float, float]]
) -> tuple[list[FirstTokenFlame], Sequence[str]]:
    """The same of the requests of a recording that ended within each of some windows, seconds since the epoch, and what
    could not be read of it. Of more than `store.MAX_RECORDS` requests those that ended last. Raises CaptureError,
    ConfigError."""
    ended = ended_node(path, config)
    records = list(ended.node.requests.store.newest(MAX_RECORDS))
    return [first_token_flame(records, start, end) for start, end in windows], [loss.text for loss in ended.losses]


def of_node(node: Node, asked: RequestQuery) -> RequestAnswer:
    """What a node knows of requests."""
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
    """What explains the slow ones of the node's latest minutes, as the agent answers."""
    return [report for report in node.requests.tails.reports if report.over.get("scope") == "node"]
