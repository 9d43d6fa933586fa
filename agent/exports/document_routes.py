"""Answers that are documents made elsewhere: findings, rules, build information, health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from kvitals.agent.exports.answers import ApiError, document_answer, json_answer, packed_answer, refusal

SPOKEN_VERSION = "2.42.0"
"""The version of Prometheus whose API this is; Grafana decides by it what it may ask for."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RuleGroups = list[dict[str, Any]]
T = TypeVar("T")


def build_info(version: str) -> dict[str, str]:
    """The build as Prometheus describes its own, with the version of kvitals as revision."""
    return {
        "version": SPOKEN_VERSION,
        "revision": f"kvitals {version}".strip(),
        "branch": "",
        "buildUser": "",
        "buildDate": "",
        "goVersion": "",
    }


async def _now(value: T | Awaitable[T]) -> T:
    """A value that is there, or is being made."""
    return await value if isinstance(value, Awaitable) else value


def rules_route(
    rules: Callable[[], RuleGroups | Awaitable[RuleGroups]], shown: Callable[[RuleGroups], object]
) -> Handler:
    """Rule groups, or what `shown` makes of them."""

    async def handle(_: web.Request) -> web.Response:
        groups = await _now(rules())
        return await document_answer(lambda: shown(groups))

    return handle


def alerts_of(groups: RuleGroups) -> object:
    """The alerts of all rules, as Prometheus lists them."""
    return {"alerts": [alert for group in groups for rule in group["rules"] for alert in rule["alerts"]]}


def data_route(data: Callable[[], object]) -> Handler:
    """What `data` returns on the loop."""

    async def handle(_: web.Request) -> web.Response:
        return json_answer(data())

    return handle


def findings_route(findings: Callable[[], bytes | Awaitable[bytes | None] | None]) -> Handler:
    """The triage document; 503 before the first window is complete."""

    async def handle(_: web.Request) -> web.Response:
        document = await _now(findings())
        if document is None:
            raise ApiError("unavailable", "no findings yet: the first window is not complete")
        return packed_answer(document)

    return handle


def index_route(router: web.UrlDispatcher, version: str) -> Handler:
    """The paths that are served: as links for a browser, else as JSON."""

    async def handle(request: web.Request) -> web.Response:
        known = sorted({r.resource.canonical for r in router.routes() if r.method == "GET" and r.resource is not None})
        if "text/html" not in request.headers.get("Accept", ""):
            return json_answer({"version": version, "paths": known})
        rows = "".join(
            f'<li><a href="{path}">{path}</a></li>' if "{" not in path else f"<li>{path}</li>" for path in known
        )
        page = f"<!doctype html><title>kvitals</title><h1>kvitals {version}: API</h1><ul>{rows}</ul>"
        return web.Response(text=page, content_type="text/html")

    return handle


def slow_document_route(document: Callable[[], bytes] | None) -> Handler:
    """A document that takes long: one is calculated at a time. None: 404, as no history is kept."""
    busy = asyncio.Lock()

    async def handle(_: web.Request) -> web.Response:
        if document is None:
            return refusal(404, "this agent keeps no history; start it with [history] enabled", "not_found")
        if busy.locked():
            raise ApiError("unavailable", "another client waits for the same document: try again in a few seconds")
        async with busy:
            try:
                return json_answer(msgspec.Raw(await asyncio.to_thread(document)))
            except ValueError as error:
                raise ApiError("execution", str(error)) from None

    return handle


def health_route(problem: Callable[[], str]) -> Handler:
    """200, or 503 with the problem."""

    async def handle(_: web.Request) -> web.Response:
        if found := problem():
            return web.Response(text=f"kvitals is not Healthy: {found}.\n", status=503)
        return web.Response(text="kvitals is Healthy.\n")

    return handle


def state_route(is_so: Callable[[], bool], word: str) -> Handler:
    """200 where it is so, else 503."""

    async def handle(_: web.Request) -> web.Response:
        if is_so():
            return web.Response(text=f"kvitals is {word}.\n")
        return web.Response(text=f"kvitals is not {word} yet.\n", status=503)

    return handle
