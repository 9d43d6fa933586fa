"""Recorded incidents through the whole chain, all real processes: replaying agents, Prometheus, Alertmanager,
`kvitals notify`, and somebody who is told with the cause.

Rules and Alertmanager's configuration are the generated ones, with the exceptions that test_live.py names.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards.alertmanager import configuration
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_yaml import dump
from tests.alerts import promtool
from tests.alerts.servers import ROOT, Replay, alertmanager, ended, free_port, posted, prometheus_config, replaying
from tests.alerts.test_live import _rules, _states
from tests.oracle.oracle_server import prometheus

REPLAYS = (
    Replay("cascade", "tests/captures/ledger/thrash.kvcap", 0.25, 0.2),
    Replay("queue", "app/demo/few_slots.kvcap", 0.25, 0.3),
    Replay("dead", "tests/captures/others/pd_dead_prefill.kvcap", 2.5, 0.5),
    Replay("healthy", "app/demo/healthy.kvcap", 2.0, 0.2),
)
SECONDS = 116.0
"""As long as the shortest of the recordings that have to last."""

START_SECONDS = 60.0
GRACE_SECONDS = 30.0
"""For a cause that is found when an incident is looked at again."""


@dataclass
class Told:
    """What came, in order, each with the time that it came."""

    port: int = 0
    came: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def of(self, cluster: str) -> list[tuple[float, dict[str, Any]]]:
        return [(at, one) for at, one in self.came if one["entity"].get("cluster") == cluster]

    def codes(self, cluster: str) -> set[str]:
        return {one["code"] for _, one in self.of(cluster)}


@contextmanager
def stand_in() -> Iterator[Told]:
    told = Told()
    with posted(lambda at, body: told.came.append((at, body))) as told.port:
        yield told


@contextmanager
def notifying(folder: Path, port: int, prometheus_port: int, told: Told) -> Iterator[None]:
    """`kvitals notify` for the fleet that a Prometheus has."""
    config = folder / "kvitals.toml"
    hook = f'[[notify.webhook]]\nurl = "http://127.0.0.1:{told.port}/"\n'
    config.write_text(f'[notify]\ndirectory = "spool"\n{hook}')
    command = [
        sys.executable, "-m", "kvitals.ui.cli.main", "notify", "--prometheus", f"http://127.0.0.1:{prometheus_port}",
        "--listen", f"127.0.0.1:{port}", "--config", str(config),
    ]  # fmt: skip
    with (folder / "notify.log").open("wb") as out, ended(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)):
        yield


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("it did not begin to listen")


def _without_targets(folder: Path, rules: Sequence[Path], manager: int) -> str:
    """The configuration of a Prometheus that is told of its targets later: everything else runs by then."""
    config = json.loads(prometheus_config({}, rules, manager))
    (job,) = config["scrape_configs"]
    del job["static_configs"]
    job["file_sd_configs"] = [{"files": [str(folder / "targets.json")], "refresh_interval": "1s"}]
    return json.dumps(config)


def scrape(folder: Path, ports: Mapping[str, int]) -> None:
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"cluster": name}} for name, port in ports.items()]
    part = folder / "targets.part"
    part.write_text(json.dumps(targets))
    part.replace(folder / "targets.json")


@dataclass(frozen=True)
class Seen:
    told: Told
    began: float
    states: dict[tuple[str, str, str], float]
    log: str

    def since(self, cluster: str, alert: str, state: str) -> float:
        return round(self.states[cluster, alert, state] - self.began, 1)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("pipeline")
    with ExitStack() as stack:
        told = stack.enter_context(stand_in())
        hook = free_port()
        config = configuration(promtool.knowledge(), Options(receiver=f"http://127.0.0.1:{hook}/api/v1/notify"))
        manager = stack.enter_context(alertmanager(folder, dump(config)))
        ports = {replay.cluster: stack.enter_context(replaying(replay, folder)) for replay in REPLAYS}
        server = stack.enter_context(prometheus(folder, _without_targets(folder, _rules(folder), manager)))
        stack.enter_context(notifying(folder, hook, server.port, told))
        wait_for_port(hook)
        scrape(folder, ports)
        began = time.time()  # the recordings begin with the first scrape
        time.sleep(max(0.0, began + SECONDS - time.time()))
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and "SCH01" not in told.codes("queue"):
            time.sleep(0.5)
        states = dict(_states(server, began))
    for at, one in told.came:
        codes = " ".join(alert["code"] for alert in one["alerts"])
        print(
            f"\n{at - began:6.1f} s  {one['where']}  {one['change']}: {one['code'] or '-'} {one['title']} [{codes}]",
            end="",
        )
    return Seen(told, began, states, (folder / "notify.log").read_text())


CASCADE = ("KVC05", "TEN02")
"""The cascade, or the tenant that set it off, where the moment that is judged shows both."""


def codes_of(message: dict[str, Any]) -> set[str]:
    return {one["code"] for one in message["alerts"]}


def test_the_cascade_is_told_with_its_cause_before_first_tokens_are_late(seen: Seen) -> None:
    told = [(at, one) for at, one in seen.told.of("cascade") if one["code"] in CASCADE and "KVC05" in codes_of(one)]
    at = told[0][0] - seen.began
    missed, counted = (seen.since("cascade", "LAT01-ttft-slo-breach", state) for state in ("pending", "firing"))
    print(f"\nthe cascade's message was there at {at:.1f} s; objective missed at {missed} s; TTFT alert at {counted} s")
    assert at < counted


def test_the_growing_queue_is_told_with_the_slots(seen: Seen) -> None:
    assert "SCH01" in seen.told.codes("queue"), seen.told.of("queue")
    message = next(one for _, one in seen.told.of("queue") if one["code"] == "SCH01")
    assert any("--max-num-seqs" in one["setting"] for one in message["actions"])


def test_the_dead_target_is_told(seen: Seen) -> None:
    assert seen.told.codes("dead") & {"TEL01", "PDX06"}, seen.told.of("dead")


def test_health_is_silent(seen: Seen) -> None:
    assert seen.told.of("healthy") == []


def test_messages_say_why_with_numbers_and_where_to_read_on(seen: Seen) -> None:
    for _, one in seen.told.came:
        if one["status"] == "resolved":
            continue
        assert one["judged"].startswith("diagnosed from http://127.0.0.1:"), (one, seen.log)
        if one["code"]:
            assert one["verdict"] and one["numbers"], one
            assert any(link["title"].startswith("Runbook") for link in one["links"])


def test_each_incident_is_told_once_for_each_change(seen: Seen) -> None:
    changes = [(one["incident"], one["change"], one["code"], one["severity"]) for _, one in seen.told.came]
    assert len(changes) == len(set(changes)), changes
