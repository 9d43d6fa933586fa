"""Alerts on what is no engine, and on engines that are gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvitals.app.identity import KnownEngine, known_engine
from kvitals.app.notify import diagnosis
from kvitals.app.notify.diagnosis import OfFleet
from kvitals.app.notify.finding_match import diagnosis_request
from kvitals.app.notify.incident_tracker import Rules, close_if_over, settle
from kvitals.app.notify.incoming import Alert
from kvitals.app.notify.notice import Notice
from kvitals.app.pipeline import FAST_SECONDS
from kvitals.app.sources.prometheus_fleet import NoEnginesError
from kvitals.rules.finding import Triage
from tests.unit.notify.notify_stage import AT, ENGINE, alert, message
from tests.unit.notify.test_fleet_looks import SETUP, Judged

URL = "http://127.0.0.1:1"
BEGAN = AT - 300.0
STARTS = "2026-11-21T05:24:50Z"


class EndedFleet:
    """Stands for a Prometheus whose engine is gone since `until`; `other`: whether another engine is there."""

    def __init__(self, document: Triage, monkeypatch: pytest.MonkeyPatch, *, until: float, other: bool = True) -> None:
        self.document, self.until, self.other = document, until, other
        self.judged: list[float] = []
        monkeypatch.setattr(diagnosis, "judge_server", self.judge)
        monkeypatch.setattr(diagnosis, "server_engines", self.engines)
        self.fleet = OfFleet(diagnosis.PrometheusAccess(URL), SETUP)

    def judge(self, access: Any, setup: Any, at: float, *, place: Any) -> Judged:
        self.judged.append(at)
        return Judged(self.document, self.engines(access, setup, at))

    def engines(self, access: Any, setup: Any, at: float) -> list[KnownEngine]:
        names = [*([ENGINE] if at <= self.until else []), *(["another"] if self.other else [])]
        if not names:
            raise NoEnginesError("this server has no engine metrics")
        return [known_engine({"engine": name, "pool": "chat"}) for name in names]

    async def message(self, fired: Alert) -> Notice:
        (notice,) = (await settle(message(fired), AT, (), self.fleet, Rules(3600.0))).notices
        return notice


def gone() -> Alert:
    return msgspec.structs.replace(alert("TEL01", kind="telemetry", severity="page"), starts=STARTS)


@pytest.mark.parametrize("labels", [{"instance": "10.0.0.9:9100"}, {"target": "https://example.org"}, {"node": "db1"}])
async def test_an_alert_on_what_is_no_engine_is_not_judged(
    labels: dict[str, str], full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the fleet took longer than the alert waits, so the reason never came."""
    server = EndedFleet(full_cache, monkeypatch, until=AT)
    monkeypatch.setattr(server, "engines", lambda *_: [known_engine({"engine": ENGINE, "pool": "chat", "node": "n1"})])
    monkeypatch.setattr(diagnosis, "server_engines", server.engines)
    notice = await server.message(Alert("firing", {"alertname": "DiskFull", **labels}))
    ((name, value),) = labels.items()
    assert notice.judged == f"not diagnosed: {URL} has no engine with these labels: {name} {value}"
    assert not server.judged


@pytest.mark.parametrize("other", [True, False])
@pytest.mark.parametrize(("until", "at"), [(BEGAN, BEGAN), (BEGAN - 40.0, BEGAN - FAST_SECONDS)])
async def test_an_engine_that_is_gone_is_judged_as_its_alert_began_or_before(
    until: float, at: float, full_cache: Triage, monkeypatch: pytest.MonkeyPatch, *, other: bool
) -> None:
    """Its message had no cause: it was looked up where it no longer was."""
    server = EndedFleet(full_cache, monkeypatch, until=until, other=other)
    notice = await server.message(gone())
    assert server.judged == [AT, at]
    assert notice.code == "KVC01" and notice.verdict == full_cache.causes[0].conclusion
    assert notice.title == "TEL01 on an engine; before: KV cache full: requests wait for blocks"
    assert notice.judged.endswith("; the engine is gone since") and notice.where == f"engine {ENGINE} · pool chat"


async def test_an_engine_that_is_gone_does_not_end_its_incident(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = msgspec.structs.replace(full_cache, causes=[], symptoms=[], telemetry=[], notes=[], healthy=True)
    server = EndedFleet(healthy, monkeypatch, until=BEGAN)
    settled = await settle(message(gone()), AT, (), server.fleet, Rules(3600.0))
    (incident,) = settled.incidents.values()
    found = await server.fleet(diagnosis_request([gone()], incident.entity, AT))
    assert found.document is not None and close_if_over(incident, found, AT).over == []


async def test_an_engine_that_was_never_there_is_not_judged(
    full_cache: Triage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EndedFleet(full_cache, monkeypatch, until=AT)
    notice = await server.message(alert(engine="elsewhere:1"))
    assert notice.judged == f"not diagnosed: {URL} has no engine with these labels: engine elsewhere:1"
    assert not server.judged
