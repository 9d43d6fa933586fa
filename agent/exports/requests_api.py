"""Requests over HTTP: what is known of them, and parts that others send, such as the tap.

GET /api/v1/requests?slowest=20 | newest=20 | id=ID, each with tenant=PSEUDONYM and since=TIME
GET /api/v1/tail?scope=node: why the slow ones of the last minutes are slow
POST /api/v1/parts: a PartsRecord as msgpack, from this machine, or with the configured token
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from kvitals.agent.exports import wire
from kvitals.agent.exports.answers import document_answer, refusal
from kvitals.agent.inbound import has_token
from kvitals.agent.listeners import has_proxy_header
from kvitals.agent.request_body import BodyError, read_body
from kvitals.agent.requests.observation import PartsRecord, is_bounded
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.request_families import Exemplar
from kvitals.agent.requests.slow_tail import OFS, TailReport
from kvitals.agent.requests.store import Store
from kvitals.agent.workers import Worker
from kvitals.config.hosts import is_loopback
from kvitals.series.promql import Expr, Selector
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.undecodable import UNDECODABLE

PARTS_TYPE = "application/x-msgpack"
MAX_ASKED = 1000
FEW = 20
SCOPES = ("engine", "pool", "node")
"""What a tail can be of."""

MAX_PARTS = 5000
_LARGE_BODY = 64 * 1024
"""Bytes of a message beyond which it is parsed in a thread: 1 MB of parts takes 0.1 s."""
"""In one message. A larger one is refused as too large."""

MAX_BODY_BYTES = 1 << 20
BODY_SECONDS = 10.0
RETRY_SECONDS = "5"

_SOURCE = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TAKEN_SOURCES = frozenset(("otlp",))
_decoder = msgspec.msgpack.Decoder(PartsRecord)


@dataclass(frozen=True)
class Requests:
    """What the API needs of the request side."""

    store: Callable[[], Store]
    exemplars: Callable[[], Iterable[tuple[Labels, Exemplar]]] = tuple
    tails: Callable[[], Iterable[TailReport]] = tuple
    resolve: Callable[[str], str | None] = lambda _: None  # a tenant's name, for this machine's users alone
    take: Callable[[PartsRecord], bool] | None = None  # keeps parts, or says that there is no room; None: takes none
    token_file: Path | None = None  # of those who may send parts from elsewhere


class BadRequestError(Exception):
    """What was asked for can not be, and why."""


def add_routes(router: web.UrlDispatcher, requests: Requests) -> None:
    """Serve requests, and take parts where they are taken."""

    async def listed(request: web.Request) -> web.Response:
        try:
            found = _asked(requests.store(), request)
        except BadRequestError as error:
            return refusal(400, str(error))
        names = _names({record.tenant for record in found if record.tenant}, requests.resolve, request)
        kept = len(requests.store())
        return await document_answer(lambda: {"requests": [_told(record, names) for record in found], "kept": kept})

    async def tails(request: web.Request) -> web.Response:
        try:
            found = _tails(requests.tails(), request)
        except BadRequestError as error:
            return refusal(400, str(error))
        names = _names(tenants_in(found), requests.resolve, request)
        return await document_answer(
            lambda: {"reports": [_told_tail(report) for report in found], "tenant_names": names}
        )

    router.add_get("/api/v1/requests", listed)
    router.add_get("/api/v1/tail", tails)
    if requests.take is not None:
        router.add_post("/api/v1/parts", _Taking(requests.take, requests.token_file).handle)


def exemplars(found: Iterable[tuple[Labels, Exemplar]], expr: Expr, start: float, end: float) -> list[dict[str, Any]]:
    """Exemplars of the series that an expression reads, as Prometheus answers query_exemplars."""
    wanted = [node.all_matchers() for node in expr.walk() if isinstance(node, Selector)]
    answer = []
    for labels, exemplar in found:
        if start <= exemplar.t <= end and any(all(m.matches(labels) for m in matchers) for matchers in wanted):
            told = {"labels": {"trace_id": exemplar.trace}, "value": wire.value(exemplar.value)}
            answer.append({"seriesLabels": dict(labels), "exemplars": [told | {"timestamp": exemplar.t}]})
    return sorted(answer, key=lambda one: (one["seriesLabels"][METRIC_NAME], sorted(one["seriesLabels"].items())))


def tenants_in(reports: Iterable[TailReport]) -> set[str]:
    """The tenants that reports speak of, by what stands for them."""
    found: set[str] = set()
    for report in reports:
        found |= {one.value for one in report.groups.get("tenant", ())}
        found |= {one.tenant for one in report.behind.occupants} if report.behind is not None else set()
        found |= {record.tenant for record in report.worst}
    return found


def is_local(request: web.Request) -> bool:
    """Whether a request comes from this machine and no proxy stands between."""
    return is_loopback(request.remote or "") and not has_proxy_header(request.headers)


class _Taking:
    """Takes parts that others send."""

    def __init__(self, take: Callable[[PartsRecord], bool], token_file: Path | None) -> None:
        self._take = take
        self._token_file = token_file
        self._parser = Worker("parts")

    async def handle(self, request: web.Request) -> web.Response:
        if not is_local(request) and not self._is_admitted(request):
            return refusal(
                403, "parts are accepted from this machine, or with the token from `parts_token_file` in [agent]"
            )
        if request.content_type != PARTS_TYPE:  # what a browser's page could send across sites is none
            return refusal(415, f"send {PARTS_TYPE}")
        try:
            body = await read_body(request, MAX_BODY_BYTES, BODY_SECONDS)
        except BodyError as error:
            return refusal(error.status, str(error))
        record = await self._parser.run(lambda: _read_parts(body)) if len(body) > _LARGE_BODY else _read_parts(body)
        if isinstance(record, web.Response):
            return record
        if not self._take(record):
            return refusal(
                429, "too many parts wait to be ingested; send them again", headers={"Retry-After": RETRY_SECONDS}
            )
        return web.Response(status=202)

    def _is_admitted(self, request: web.Request) -> bool:
        return self._token_file is not None and has_token(request.headers.get("Authorization", ""), self._token_file)


def _read_parts(body: bytes) -> PartsRecord | web.Response:
    """The record of a message, or why it is refused."""
    try:
        record = _decoder.decode(body)
    except UNDECODABLE as error:
        return refusal(400, f"no PartsRecord: {error}")
    if len(record.parts) > MAX_PARTS:
        return refusal(413, f"{len(record.parts)} parts in one message: send at most {MAX_PARTS}")
    if not _SOURCE.fullmatch(record.source) or record.source in _TAKEN_SOURCES:
        return refusal(400, "source must be a name of lower-case letters, digits, _ and -, such as tap")
    bad = next((i for i, part in enumerate(record.parts) if not is_bounded(part)), None)
    if bad is not None:
        return refusal(400, f"part {bad} has too long a text, too many ids or phases, or an invalid time")
    return record


def _tails(reports: Iterable[TailReport], request: web.Request) -> list[TailReport]:
    """Those that are asked for: of one scope, of one engine, of one of the two times."""
    query = request.query
    if unknown := query.keys() - {"of", "scope", "engine"}:
        raise BadRequestError(f"unknown parameter {sorted(unknown)[0]!r}: the parameters are of, scope and engine")
    for name, known in (("of", OFS), ("scope", SCOPES)):
        if name in query and query[name] not in known:
            raise BadRequestError(f"{name} is one of {', '.join(known)}")
    wanted = {name: query[name] for name in ("scope", "engine") if name in query}
    return [
        report
        for report in reports
        if query.get("of", report.of) == report.of and wanted.items() <= report.over.items()
    ]


def _asked(store: Store, request: web.Request) -> list[RequestRecord]:
    query = request.query
    if unknown := query.keys() - {"slowest", "newest", "tenant", "since", "id"}:
        raise BadRequestError(
            f"unknown parameter {sorted(unknown)[0]!r}: choose one of slowest, newest, id, tenant, since"
        )
    tenant = query.get("tenant")
    try:
        since = wire.read_time(query["since"]) if "since" in query else 0.0
    except ValueError as error:
        raise BadRequestError(f'invalid parameter "since": {error}') from None
    if name := query.get("id"):
        found = [one for one in store.find(name)[:MAX_ASKED] if tenant in (None, one.tenant)]
    elif "slowest" in query:
        found = store.slowest(_count(query["slowest"]), tenant, since)
    else:
        found = store.newest(_count(query.get("newest", str(FEW))), tenant)
    return [one for one in found if one.end >= since]


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= MAX_ASKED:
        raise BadRequestError(f"ask for 1 to {MAX_ASKED} requests")
    return int(text)


def _names(tenants: Iterable[str], resolve: Callable[[str], str | None], request: web.Request) -> dict[str, str]:
    """Tenants' names by what stands for them, for who asks from this machine."""
    if not is_local(request):
        return {}
    return {tenant: name for tenant in sorted(tenants) if (name := resolve(tenant)) is not None}


def _told_tail(report: TailReport) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(report)
    return told | {"sentence": report.sentence}


def _told(record: RequestRecord, names: Mapping[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(record)
    told["outcome"] = record.outcome
    if (name := names.get(record.tenant)) is not None:
        told["tenant_name"] = name
    return told
