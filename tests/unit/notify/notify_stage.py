"""Alerts, messages and stand-ins for who is told, for the tests of the pipeline behind an Alertmanager."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from kvitals.app.notify.finding_match import DiagnosisRequest, lead
from kvitals.app.notify.incoming import Alert, Message
from kvitals.app.notify.notice_builder import Diagnosis
from kvitals.app.notify.queue import OpenIncident
from kvitals.rules.finding import Triage

ENGINE = "127.0.0.1:8201/0"
"""Of the recording that ships, app/demo/heavy_tenant.kvcap."""
AT = 1_795_238_990.0
"""Some seconds after that recording's end."""


def alert(code: str = "LAT01", status: str = "firing", severity: str = "ticket", **labels: str) -> Alert:
    """An alert as the generated rules write them."""
    named = {
        "alertname": f"{code}-name", "code": code, "severity": severity, "kind": "symptom", "scope": "engine",
        "engine": ENGINE, **labels,
    }  # fmt: skip
    said = {
        "summary": f"{code} on an engine",
        "description": f"the numbers of {code}",
        "runbook_url": f"https://wiki.example.org/{code}.html",
        "dashboard_url": "https://grafana.example.org/d/kvitals-overview",
    }
    return Alert(status, named, said, "2026-11-21T05:29:30Z", "", "http://prometheus.example.org/graph")  # type: ignore[arg-type]


def message(*alerts: Alert) -> Message:
    return Message(list(alerts), "http://alertmanager.example.org")


def body(*alerts: Alert) -> bytes:
    """The message as an Alertmanager sends it."""
    several = [
        {
            "status": one.status, "labels": one.labels, "annotations": one.annotations, "startsAt": one.starts,
            "endsAt": "0001-01-01T00:00:00Z", "generatorURL": one.url, "fingerprint": one.fingerprint,
        }
        for one in alerts
    ]  # fmt: skip
    told = {"version": "4", "groupKey": "{}", "truncatedAlerts": 0, "status": "firing", "receiver": "kvitals-page"}
    return json.dumps(told | {"externalURL": "http://alertmanager.example.org", "alerts": several}).encode()


def diagnosing(document: Triage | None) -> Callable[[DiagnosisRequest], Any]:
    """A diagnosis that always has this document."""

    async def diagnose(about: DiagnosisRequest) -> Diagnosis:
        if document is None:
            return Diagnosis("not judged: nobody looks")
        return Diagnosis("judged by a test", document, lead(document, about))

    return diagnose


@dataclass
class Stand:
    """Somebody who is told: what came, and what is answered."""

    url: str = ""
    came: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)  # path, headers, body
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # the next ones; then 200
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        self.came.append((request.path, dict(request.headers), json.loads(await request.read())))
        self._some.set()
        return web.Response(status=status, headers=headers, text="said by the stand-in \x1b[2J \u202eok")

    async def count(self, wanted: int) -> None:
        """Wait until so many came."""
        async with asyncio.timeout(20):
            while len(self.came) < wanted:
                self._some.clear()
                await self._some.wait()


@asynccontextmanager
async def stand() -> AsyncIterator[Stand]:
    there = Stand()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", there.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    there.url = f"http://127.0.0.1:{port}"
    try:
        yield there
    finally:
        await runner.cleanup()


def incident(name: str, engine: str, code: str = "") -> OpenIncident:
    return OpenIncident(
        id=name, entity={"engine": engine}, code=code, title="", severity="ticket", began=1.0, told=1.0, explains=[],
        open={},
    )  # fmt: skip
