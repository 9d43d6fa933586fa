"""The loop's delay is measured, a stall names its function, and health follows from cycles."""

import asyncio
import errno
import os
import socket
import time
from pathlib import Path

import pytest

from kvitals.agent import loop_watch, systemd
from kvitals.agent.health import Health
from kvitals.agent.log_limit import LogLimit


def hold_up(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def stalled() -> loop_watch.LoopWatch:
    hold_up(0.3)  # before it counts
    loop_watch.begin()
    await asyncio.sleep(0.01)
    hold_up(0.3)
    await asyncio.sleep(0.01)
    watch = loop_watch.current()
    assert watch is not None
    return watch


def test_a_stall_is_measured_and_named() -> None:
    watch = loop_watch.run(stalled())
    longest = watch.longest()
    assert longest is not None and longest.seconds >= 0.3 and 0.0 < longest.cpu_seconds <= longest.seconds
    assert watch.stalls >= 1
    assert longest.where.startswith("stalled in ") and "hold_up" in longest.where
    assert watch.values()["kvitals_loop_stall_seconds"] == longest.seconds


async def test_a_loop_that_is_not_watched_has_no_watch() -> None:
    loop_watch.begin()
    assert loop_watch.current() is None


def test_watching_costs_next_to_nothing() -> None:
    async def idle() -> None:
        loop_watch.begin()
        before = time.process_time()
        await asyncio.sleep(2.0)
        spent.append(time.process_time() - before)

    spent: list[float] = []
    loop_watch.run(idle())
    assert spent[0] < 0.02  # 1 % of a core, on a machine that does other things


def test_health_is_what_cycles_did() -> None:
    now = [100.0]
    health = Health(lambda: 2.0, lambda: now[0])
    assert not health.problem
    now[0] += 10.9
    assert not health.problem
    now[0] += 0.2
    assert "no cycle has completed for 11 s" in health.problem
    health.completed()
    assert not health.problem
    health.ended()
    assert health.problem


def test_systemd_is_told_by_path_and_by_abstract_name(tmp_path: Path) -> None:
    for address, bound in ((f"{tmp_path}/s", f"{tmp_path}/s"), (f"@kvitals-{os.getpid()}", f"\0kvitals-{os.getpid()}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(bound)
            manager.settimeout(5.0)
            assert systemd.notify(systemd.READY, {"NOTIFY_SOCKET": address})
            assert manager.recv(64) == b"READY=1"
    assert not systemd.notify(systemd.READY, {})
    assert not systemd.notify(systemd.READY, {"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert systemd.watchdog_seconds({"WATCHDOG_USEC": "30000000"}) == 30.0
    assert systemd.watchdog_seconds({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) is None
    assert systemd.watchdog_seconds({}) is None


async def report_errors(*errors: OSError) -> None:
    for error in errors:
        asyncio.get_running_loop().call_exception_handler({"message": "cannot accept", "exception": error})


def test_connections_that_cannot_be_accepted_are_one_line_of_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "_not_accepted", LogLimit(loop_watch.log.error))
    loop_watch.run(report_errors(*[OSError(errno.EMFILE, "Too many open files")] * 500))
    assert capsys.readouterr().out.count("connections are not accepted") == 1
    assert not caplog.records
    loop_watch.run(report_errors(OSError(errno.EIO, "other")))
    assert len(caplog.records) == 1


def test_a_line_counts_those_that_were_left_out() -> None:
    lines: list[dict[str, object]] = []
    now = [0.0]
    warn = LogLimit(lambda event, **fields: lines.append({"event": event, **fields}), lambda: now[0])
    for now[0] in (0.0, 1.0, 59.0, 60.0):
        warn("busy", peer="a")
    assert lines == [{"event": "busy", "peer": "a"}, {"event": "busy", "peer": "a", "similar_lines_omitted": 2}]
