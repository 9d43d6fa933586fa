"""The loop's delay is measured, a stall names its function, and health follows from cycles."""

import asyncio
import errno
import gc
import os
import socket
import time
import weakref
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
    assert health.problem == "no verdict for 11 s (11 s are allowed); see the log for the reason"
    assert not health.halt, "a new process would meet the same input: systemd is not asked for one"
    health.judged()
    assert not health.problem
    health.ended()
    assert health.problem and health.halt


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


@pytest.mark.parametrize("ends", ["client", "server"])
def test_a_connection_is_freed_once_it_has_ended(ends: str) -> None:
    """A cycle would stay until a collection, or for good where one set it aside while the connection was open."""
    kept: list[weakref.ref[asyncio.BaseTransport]] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(weakref.ref(writer.transport))
        if ends == "client":
            await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()

    async def connect() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        for _ in range(5):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            if ends == "server":
                await reader.read()
            writer.close()
            await writer.wait_closed()
            del reader, writer
        await asyncio.sleep(0.2)
        server.close()
        assert len(kept) == 5
        assert [one for one in kept if one() is not None] == []

    gc.collect()
    gc.disable()
    try:
        loop_watch.run(connect())
    finally:
        gc.enable()


def test_a_stall_is_logged_at_once_where_it_is_much_longer_than_the_one_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def stall() -> None:
        loop_watch.begin()
        for seconds in (0.1, 0.1, 0.3):
            await asyncio.sleep(0.01)
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
        await asyncio.sleep(0.01)

    loop_watch.run(stall())
    assert capsys.readouterr().out.count("event loop stalled") == 2
