"""Recorded incidents through real processes: replaying agent, Prometheus, Alertmanager, and someone who is told.

The generated rules and the generated Alertmanager configuration are used as they are, with three exceptions, since the
recordings are one to two minutes long: burn rates are recorded each second instead of each minute, they page after 5 s
instead of 2 to 15 minutes, and Alertmanager adds new alerts to a group after 2 s instead of 1 minute. With the real
interval, an alert that fires a second after its group's first message comes when the recording has ended. Every other
`for` is the real one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards.alertmanager import configuration
from kvitals.dashboards.alerts_burn import RATES
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_yaml import dump
from tests.alerts import promtool
from tests.alerts.servers import Receiver, Replay, alertmanager, prometheus_config, receiver, replaying
from tests.oracle.oracle_server import Prometheus, prometheus

REPLAYS = (
    Replay("cascade", "tests/captures/ledger/thrash.kvcap", 0.25, 0.2),
    Replay("queue", "app/demo/few_slots.kvcap", 0.25, 0.3),
    Replay("full", "app/demo/heavy_tenant.kvcap", 0.5, 0.5),
    Replay("dead", "tests/captures/others/pd_dead_prefill.kvcap", 2.5, 0.5),
    Replay("healthy", "app/demo/healthy.kvcap", 2.0, 0.2),
)
SECONDS = 116.0
"""As long as the shortest of the recordings that have to last."""

BURN_FOR = "5s"
GROUP_INTERVAL = "2s"


@dataclass
class Seen:
    """What came of it: messages, and the course of every alert in Prometheus."""

    receiver: Receiver
    began: float
    states: Mapping[tuple[str, str, str], float]  # cluster, code or alert's name, state -> when it began

    def told(self, cluster: str) -> dict[str, float]:
        """Seconds from the start to the first message of each code; burn rates as `LAT01 burn`."""
        found: dict[str, float] = {}
        for one in self.receiver.of(cluster):
            name = f"{one.code} burn" if "burn" in one.labels else one.code
            found.setdefault(name, round(one.at - self.began, 1))
        return found

    def since(self, cluster: str, alert: str, state: str) -> float:
        return round(self.states[cluster, alert, state] - self.began, 1)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("chain")
    with ExitStack() as stack:
        told = stack.enter_context(receiver())
        config = configuration(promtool.knowledge(), Options(receiver=f"http://127.0.0.1:{told.port}/"))
        config["route"]["group_interval"] = GROUP_INTERVAL
        manager = stack.enter_context(alertmanager(folder, dump(config)))
        ports = {replay.cluster: stack.enter_context(replaying(replay, folder)) for replay in REPLAYS}
        server = stack.enter_context(prometheus(folder, prometheus_config(ports, _rules(folder), manager)))
        began = time.time()  # the recordings begin with the first scrape
        time.sleep(max(0.0, began + SECONDS - time.time()))
        states = _states(server, began)
    yield Seen(told, began, states)


def _rules(folder: Path) -> list[Path]:
    """The generated rules, less the waiting of burn rates."""
    recording, alerting = promtool.shipped()
    for group in recording["groups"]:
        if group["name"] == RATES:
            group["interval"] = "1s"
    for group in alerting["groups"]:
        for rule in group["rules"]:
            if "burn" in rule["labels"]:
                rule["for"] = BURN_FOR
    files = [folder / "recording.yaml", folder / "alerts.yaml"]
    for path, groups in zip(files, (recording, alerting), strict=True):
        path.write_text(dump(groups))
    return files


def _states(server: Prometheus, began: float) -> dict[tuple[str, str, str], float]:
    """When each alert was first pending and first firing."""
    answer = server.ask("query_range", query="ALERTS", start=f"{began}", end=f"{time.time()}", step="1")
    found: dict[tuple[str, str, str], float] = {}
    for series in answer["data"]["result"]:
        metric = series["metric"]
        key = (metric.get("cluster", ""), metric["alertname"], metric["alertstate"])
        first = float(series["values"][0][0])
        found[key] = min(first, found.get(key, first))
    return found


def test_the_full_cache_is_told_of(seen: Seen) -> None:
    assert "KVC01" in seen.told("full")


def test_the_growing_queue_is_told_of(seen: Seen) -> None:
    told = seen.told("queue")
    assert "SCH01" in told or "LAT01 burn" in told
    assert "KVC01" not in told


def test_the_dead_target_is_told_of(seen: Seen) -> None:
    assert {"TEL01", "PDX06"} <= seen.told("dead").keys()


def test_the_cascade_is_told_of_before_first_tokens_are_late(seen: Seen) -> None:
    """The message about the cascade is there before the objective is missed, and long before that counts."""
    told = seen.told("cascade")["KVC05"]
    missed, counted = (seen.since("cascade", "LAT01-ttft-slo-breach", state) for state in ("pending", "firing"))
    print(f"\ncascade told at {told} s; objective missed at {missed} s; TTFT alert at {counted} s")
    assert told < missed < counted


def test_health_is_silent(seen: Seen) -> None:
    assert seen.receiver.of("healthy") == []


def test_messages_say_what_with_numbers(seen: Seen) -> None:
    for one in seen.receiver.told:
        said: dict[str, Any] = dict(one.annotations)
        assert {"summary", "description", "runbook_url", "dashboard_url"} <= said.keys()
        assert "<error" not in said["description"], said
        assert "%!" not in said["description"]
        assert "{{" not in "".join(said.values())
        assert not re.search(r"\d\.\d+[mun]\b", said["description"]), said  # 238.1m for 0.24
