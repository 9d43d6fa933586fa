"""The block ledger over HTTP.

GET /api/v1/cache: residency, blame, curves and tenants, as JSON (docs/ledger.md)
GET /api/v1/cascades: eviction cascades with their stages, what set them off and who, as JSON (docs/cascade.md)
GET /api/v1/accesses?engine=LABEL&since=TIME: the latest look-ups with the blocks of their prompts, as `pack` makes them
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from kvitals.agent.exports import wire
from kvitals.agent.exports.answers import document_answer, packed_answer, refusal
from kvitals.agent.exports.requests_api import is_local
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.ledger.packed import pack

PACKED_TYPE = "application/x-msgpack"


@dataclass(frozen=True)
class LedgerApi:
    """What the API needs of the ledger."""

    side: Callable[[], LedgerSide | None]
    resolve: Callable[[str], str | None] = lambda _: None  # a tenant's name, for this machine's users alone


def add_ledger_routes(router: web.UrlDispatcher, ledger: LedgerApi) -> None:
    """Serve what the ledger knows."""

    async def cache(request: web.Request) -> web.Response:
        side = ledger.side()
        if side is None:
            return refusal(404, _NOTHING)
        told = side.report()
        if is_local(request):
            names = {name: found for name in told["tenants"] if (found := ledger.resolve(name)) is not None}
            told["tenant_names"] = names
        return await document_answer(lambda: told)

    async def cascades(_: web.Request) -> web.Response:
        side = ledger.side()
        if side is None:
            return refusal(404, _NOTHING)
        told = side.cascades.report()
        return await document_answer(lambda: told)

    async def accesses(request: web.Request) -> web.Response:
        if unknown := request.query.keys() - {"engine", "since"}:
            return refusal(400, f"unknown parameter {sorted(unknown)[0]!r}: choose one of engine, since")
        try:
            since = wire.read_time(request.query["since"]) if "since" in request.query else None
        except ValueError as error:
            return refusal(400, f'invalid parameter "since": {error}')
        side = ledger.side()
        found = side.accesses() if side is not None else None
        if found is None:
            return refusal(404, _NOTHING)
        engine = request.query.get("engine")
        body = await asyncio.to_thread(lambda: pack(found.select(engine=engine, since=since)))
        return packed_answer(body, PACKED_TYPE)

    router.add_get("/api/v1/cache", cache)
    router.add_get("/api/v1/cascades", cascades)
    router.add_get("/api/v1/accesses", accesses)


_NOTHING = "no engine has reported a lookup yet: see `kvitals check` for the flag that makes it publish KV events"
