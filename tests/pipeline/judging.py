"""Every message beside the truth: the right pool, the right cause, and pages in time."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kvitals.dashboards import boards
from kvitals.dashboards.alerts_options import Options
from kvitals.rules.loader import load
from tests.boards.asking import Asked, asked, draws, series
from tests.pipeline.incidents import PlannedIncident
from tests.pipeline.stack import SCRAPE_SECONDS, Stack
from tests.support import grafana

PAGE_SECONDS = 30.0
"""From a page's alert to the message at PagerDuty."""


@dataclass(frozen=True)
class Subject:
    """What a message says: the engine's address and the pool that it names, and the code of its cause."""

    engine: str
    pool: str
    code: str
    title: str


@dataclass
class Verdict:
    """What is wrong, by line, and the counts of what was seen."""

    wrong: list[str] = field(default_factory=list)
    table: list[tuple[str, ...]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)  # seconds from a page's alert to PagerDuty
    links: list[tuple[int, int]] = field(default_factory=list)  # panels that draw behind each link of an alert, of all


@dataclass(frozen=True)
class Truth:
    """Where each engine is, and which of them have an incident."""

    pools: Mapping[str, str]  # engine's address -> pool
    sick: Mapping[str, PlannedIncident]

    def faults(self, said: Subject) -> Iterator[str]:
        """What a message says that is not so."""
        if said.engine:
            yield from self._of_engine(said)
            return
        incidents = [incident for incident in self.sick.values() if incident.pool == said.pool]
        if not said.pool:
            yield "names no pool"
        elif not incidents:
            yield f"pool {said.pool} is healthy"
        elif said.code and not any(said.code in incident.causes for incident in incidents):
            yield f"cause {said.code} is not one of the pool's incidents"

    def _of_engine(self, said: Subject) -> Iterator[str]:
        pool, incident = self.pools.get(said.engine), self.sick.get(said.engine)
        if pool is None:
            yield f"names the unknown engine {said.engine}"
            return
        if said.pool != pool:
            yield f"names pool {said.pool or '(none)'} and not {pool}"
        if incident is None:
            yield "is about a healthy engine"
        elif said.code and said.code not in incident.causes:
            yield f"names cause {said.code} and not {' or '.join(sorted(incident.causes))}"


def judge(stack: Stack) -> Verdict:
    """Messages of all three receivers, and the pages' times, beside the truth of a stack that has run."""
    truth = Truth({engine.address: engine.pool for engine in stack.engines}, stack.sick)
    verdict = Verdict()
    readers = {
        "webhook": (stack.webhook, of_notice),
        "pagerduty": (stack.pagerduty, of_pagerduty),
        "slack": (stack.slack, of_slack),
    }
    for receiver, (recorder, read) in readers.items():
        for message in recorder.messages:
            said = read(message.body)
            verdict.counts[receiver] += 1
            if said is None:
                continue
            for fault in truth.faults(said):
                at = message.at - stack.started
                verdict.wrong.append(f"{receiver} at {at:.0f} s: {said.title} {said.engine or said.pool}: {fault}")
    _undelivered(stack, verdict)
    _late_pages(stack, truth, verdict)
    _incidents(stack, verdict)
    _links(stack, verdict)
    return verdict


def of_notice(body: Mapping[str, Any]) -> Subject:
    entity = body["entity"]
    return Subject(_address(entity.get("engine", "")), _pool(body["where"]), body["code"], body["title"])


def of_pagerduty(body: Mapping[str, Any]) -> Subject | None:
    """None for the end of an incident, which PagerDuty knows by its key."""
    if body["event_action"] != "trigger":
        return None
    payload = body["payload"]
    code = payload["class"] if re.fullmatch("[A-Z]{3}[0-9]{2}", payload["class"]) else ""
    engine = re.search(r"engine (\S+)", payload["source"])
    return Subject(_address(engine[1]) if engine else "", payload["group"], code, payload["summary"][:60])


def of_slack(body: Mapping[str, Any]) -> Subject:
    """Slack's headline ends with whose trouble it is; its cause is judged at the webhook, by its code."""
    text = body["text"]
    where = re.search(r"\(([^()]*)\)[^()]*$", text)
    engine = re.search(r"engine (\S+)", where[1]) if where else None
    return Subject(_address(engine[1]) if engine else "", _pool(where[1]) if where else "", "", text[:60])


def _pool(where: str) -> str:
    named = re.search(r"pool (\S+)", where)
    return named[1] if named else ""


def _address(engine: str) -> str:
    return engine.partition("/")[0]


def _undelivered(stack: Stack, verdict: Verdict) -> None:
    """Messages that the webhook got and Slack did not, although Slack was away only for a time."""
    notices = len({message.body["id"] for message in stack.webhook.messages})
    if (missing := notices - len(stack.slack.messages)) > 0:
        verdict.wrong.append(f"slack got {missing} messages fewer than the webhook")
    verdict.counts["refused by slack"] = stack.slack.refused


def _late_pages(stack: Stack, truth: Truth, verdict: Verdict) -> None:
    """Each alert that pages is in a page at PagerDuty within `PAGE_SECONDS`, its own or an earlier one that goes on."""
    events = [
        (message.at, said) for message in stack.pagerduty.messages if (said := of_pagerduty(message.body)) is not None
    ]
    for fired, labels in _pages_fired(stack):
        engine, pool = _address(labels.get("engine", "")), labels.get("pool", "")
        times = [at for at, said in events if (said.engine == engine if engine else said.pool == pool)]
        name = f"{labels['alertname']} {engine or pool}"
        if not times:
            verdict.wrong.append(f"{name} fired at {fired - stack.started:.0f} s and no page left")
            continue
        latency = max(0.0, min(times) - fired)
        verdict.latencies.append(latency)
        if latency > PAGE_SECONDS:
            verdict.wrong.append(f"{name}: the page left {latency:.0f} s after the alert")


def _pages_fired(stack: Stack) -> Iterator[tuple[float, Mapping[str, str]]]:
    """When each page's alert began to fire, as Prometheus recorded it; without those that a page may still follow."""
    answer = stack.server.ask(
        "query_range",
        query='ALERTS{alertstate="firing",severity="page"}',
        start=f"{stack.started}",
        end=f"{max(stack.started, time.time() - PAGE_SECONDS)}",
        step="1",
    )
    for fired in answer["data"]["result"]:
        yield float(fired["values"][0][0]), fired["metric"]


def is_about(said: Subject, address: str, incident: PlannedIncident) -> bool:
    """Whether a message is about an incident: it names the sick engine, or its pool with the incident's cause. Another
    cause on the pool may be that of the other incident there; `Truth` judges it."""
    if said.engine:
        return said.engine == address
    return said.pool == incident.pool and said.code in incident.causes


def not_checked(body: Mapping[str, Any], incident: PlannedIncident) -> bool:
    """Whether a notice names no cause and says that the incident's was not checked."""
    return not body["code"] and any(code in text for text in body["unknown"] for code in incident.causes)


def _incidents(stack: Stack, verdict: Verdict) -> None:
    """A row for each incident: its truth, its messages, and when its cause was named first."""
    for engine in stack.engines:
        if (incident := stack.sick.get(engine.address)) is None:
            continue
        mine = [m for m in stack.webhook.messages if is_about(of_notice(m.body), engine.address, incident)]
        codes = [of_notice(m.body).code for m in mine]
        began = stack.started + engine.onset
        blind = stack.raw and incident.needs_agent
        right = [
            m.at
            for m, code in zip(mine, codes, strict=True)
            if m.at >= began and (not_checked(m.body, incident) if blind else code in incident.causes)
        ]
        after = f"{right[0] - stack.started - engine.onset:.0f} s" if right else "-"
        after += " (not checked)" if blind and right else ""
        told = " ".join(dict.fromkeys(code or "-" for code in codes)) or "silent"
        verdict.table.append(
            (incident.pool, incident.name, " ".join(sorted(incident.causes)), told, f"{len(mine)}", after)
        )
        if not right:
            wanted = "says that its cause was not checked" if blind else "names its cause"
            verdict.wrong.append(f"{incident.name} ({incident.pool}): no message {wanted}")


def _links(stack: Stack, verdict: Verdict) -> None:
    """Each board that the link of a firing alert leads to has panels that draw, with the variables of the link."""
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.server.port}/api/v1/alerts", timeout=30) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    made = boards.built(load(), "runbooks", Options(scrape_seconds=SCRAPE_SECONDS).fast_seconds)
    names = {board["uid"]: Path(path).stem for path, board in made.items()}
    queries = asked(made)
    for url in sorted({alert["annotations"]["dashboard_url"] for alert in alerts if alert["state"] == "firing"}):
        link = urlsplit(url)
        engine = dict(parse_qsl(link.query)).get("var-engine", "")
        name = names.get(link.path.rpartition("/")[2], "")
        drawn = _drawn(stack, [query for query in queries if query.board == name], engine)
        verdict.links.append((sum(drawn.values()), len(drawn)))
        if not any(drawn.values()):
            verdict.wrong.append(f"the link {link.path}?{link.query} leads to no panel that draws")


def _drawn(stack: Stack, queries: Sequence[Asked], engine: str) -> dict[str, bool]:
    """Which panels draw over the last minute. engine: the value that a link selects, or empty for all."""
    now, chosen = time.time(), {"engine": grafana.chosen(engine)} if engine else {}
    drawn: dict[str, bool] = {}
    for query in queries:
        path, form = query.parameters(now - 60.0, now, query.least_step, **chosen)
        drawn[query.place] = drawn.get(query.place, False) or draws(series(stack.server.ask(path, **form)))
    return drawn
