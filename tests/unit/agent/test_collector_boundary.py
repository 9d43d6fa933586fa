"""Each collector alone: one that raises or hangs is reported, and ends or holds up nothing else."""

import asyncio
import errno
import threading
import time
from pathlib import Path

import psutil
import pytest

from kvitals.agent.collectors.boundary import HUNG, TOO_MANY_FILES, CollectorRun, Collectors, reason_of
from kvitals.agent.node import Node
from kvitals.agent.records import ProbeRecord, Record
from kvitals.agent.threaded_resolver import ThreadedResolver
from kvitals.agent.workers import Worker, WorkerHungError
from kvitals.config import AgentTable, Config
from kvitals.series.promql import evaluate
from kvitals.series.window import Window

DEAD = "http://127.0.0.1:9"


def record(target: str = "x") -> Record:
    return ProbeRecord(t=1.0, target=target, answered=True, seconds=0.1)


async def good() -> list[Record]:
    return [record()]


def values(window: Window, family: str) -> dict[str, float]:
    found = evaluate(family, window, 2.0)
    assert not isinstance(found, float)
    return {labels["collector"]: value for labels, value in found}


async def test_a_collector_that_raises_ends_nothing_and_is_reported() -> None:
    window = Window(60.0, 100)
    collectors = Collectors(window, {"node": "n"})

    async def bad() -> list[Record]:
        raise psutil.AccessDenied(1)

    async def starved() -> list[Record]:
        raise OSError(errno.EMFILE, "Too many open files")

    runs = {
        ("bad", ""): CollectorRun(bad, 1.0),
        ("starved", ""): CollectorRun(starved, 1.0),
        ("good", ""): CollectorRun(good, 1.0),
    }
    assert await collectors.gather(runs) == [record()]
    collectors.write(1.0)
    assert values(window, "kvitals_collector_success") == {"bad": 0.0, "starved": 0.0, "good": 1.0}
    assert collectors.failing == {("bad", ""): "error", ("starved", ""): TOO_MANY_FILES}
    assert set(values(window, "kvitals_collector_duration_seconds")) == {"bad", "starved", "good"}


async def test_a_collector_whose_thread_hangs_holds_up_no_other_and_starts_no_second_thread() -> None:
    window = Window(60.0, 100)
    collectors = Collectors(window, {})
    free, worker, calls = threading.Event(), Worker("stuck"), 0

    def hang() -> list[Record]:
        nonlocal calls
        calls += 1
        free.wait(60.0)
        return [record("late")]

    runs = {("stuck", ""): CollectorRun(lambda: worker.run(hang), 0.1), ("good", ""): CollectorRun(good, 1.0)}
    before = set(threading.enumerate())
    for _ in range(5):
        assert await collectors.gather(runs, 0.05) == [record()]
        await asyncio.sleep(0.03)
    assert collectors.failing == {("stuck", ""): HUNG}
    assert calls == 1 and len(set(threading.enumerate()) - before) == 1
    free.set()
    await asyncio.sleep(0.1)
    assert record("late") in await collectors.gather(runs, 0.05)  # what it brings late is not lost
    assert not collectors.failing


async def test_a_collector_that_is_late_comes_with_the_next_cycle() -> None:
    collectors = Collectors(Window(60.0, 100), {})

    async def slow() -> list[Record]:
        await asyncio.sleep(0.1)
        return [record("slow")]

    runs = {("slow", ""): CollectorRun(slow, 5.0)}
    assert await collectors.gather(runs, 0.01) == []
    assert not collectors.failing
    await asyncio.sleep(0.15)
    assert await collectors.gather(runs, 0.01) == [record("slow")]


async def test_a_collector_that_was_late_misses_no_cycle_behind_that() -> None:
    collectors, slow, begun = Collectors(Window(60.0, 100), {}), asyncio.Event(), list[int]()

    async def read() -> list[Record]:
        begun.append(len(begun))
        if len(begun) == 1:
            await slow.wait()
        return [record(f"run {begun[-1]}")]

    runs = {("late", ""): CollectorRun(read, 60.0)}
    assert await collectors.gather(runs, 0.01) == []
    slow.set()
    await asyncio.sleep(0.05)
    assert await collectors.gather(runs, 0.01) == [record("run 0")]
    await asyncio.sleep(0.05)
    assert begun == [0, 1]  # what was late is taken, and the run of this cycle begins
    assert await collectors.gather(runs, 60.0) == [record("run 1"), record("run 2")]


async def test_a_failure_that_goes_on_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    collectors = Collectors(Window(60.0, 100), {})
    for _ in range(50):
        with collectors.guard("history"):
            raise RuntimeError("no room")
    assert capsys.readouterr().out.count("[warning  ] collector failed") == 1


async def test_an_exception_behind_another_tells_of_the_descriptors() -> None:
    try:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError as error:
            raise RuntimeError("processes") from error
    except RuntimeError as error:
        assert reason_of(error) == TOO_MANY_FILES


async def test_a_node_goes_on_beside_collectors_that_raise_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(Config(agent=AgentTable(discover=False)))
    await node.open([DEAD])
    free = threading.Event()

    def no_descriptor(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("kvitals.agent.collectors.host.HostSense.read", lambda *_: free.wait(60.0))
    monkeypatch.setattr("psutil.process_iter", no_descriptor)
    monkeypatch.setattr("kvitals.agent.node_collectors.NODE_DEADLINE", 0.3)
    try:
        for _ in range(3):
            began = time.monotonic()
            records = await node.collect(1.0)
            assert time.monotonic() - began < 5.0
            assert [one for one in records if one.target == f"{DEAD}/metrics"]
        assert node.collectors.failing["host", ""] == HUNG
        assert node.collectors.failing["processes", ""] == TOO_MANY_FILES
        assert ("scrape", f"{DEAD}/metrics") not in node.collectors.failing
    finally:
        free.set()
        await node.close()


async def test_a_worker_withdraws_what_it_had_not_begun() -> None:
    free, worker, done = threading.Event(), Worker("busy"), list[int]()
    first = asyncio.ensure_future(worker.run(lambda: free.wait(10.0)))
    await asyncio.sleep(0.05)
    with pytest.raises(WorkerHungError):
        await worker.run(lambda: done.append(1), 0.05)
    free.set()
    assert await first
    assert await worker.run(lambda: 7, 1.0) == 7
    assert done == []


async def test_a_name_server_that_hangs_holds_up_no_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    free, resolve = threading.Event(), ThreadedResolver()
    found = [(2, 1, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr("kvitals.agent.threaded_resolver.RESOLVE_SECONDS", 0.05)
    monkeypatch.setattr(
        "kvitals.agent.threaded_resolver.socket.getaddrinfo",
        lambda host, *_, **__: free.wait(10.0) and found if host == "slow" else found,
    )
    for _ in range(3):
        with pytest.raises(OSError, match="not answer"):
            await resolve.resolve("slow", 80)
    assert (await resolve.resolve("quick", 80))[0]["host"] == "127.0.0.1"
    free.set()


async def test_targets_files_that_hang_or_are_pipes_are_one_line_each(tmp_path: Path) -> None:
    import os

    pipe, file = tmp_path / "pipe", tmp_path / "targets"
    os.mkfifo(pipe)
    file.write_text(f"{DEAD}\n")
    node = Node(Config(agent=AgentTable(targets_file=(pipe, file), discover=False)))
    said = await node.open(patient=True)
    assert node.targets == [DEAD]
    assert [line for line in said if "pipe" in line and "not a regular file" in line]
    assert node.sources.failing == ("files",)
    await node.close()


async def test_a_collector_that_was_late_delays_one_cycle() -> None:
    collectors, slow = Collectors(Window(60.0, 100), {}), asyncio.Event()

    async def late() -> list[Record]:
        await slow.wait()
        return [record("late")]

    runs = {("late", ""): CollectorRun(late, 60.0), ("good", ""): CollectorRun(good, 60.0)}
    assert await collectors.gather(runs, 0.2) == [record()]
    began = time.monotonic()
    assert await collectors.gather(runs, 60.0) == [record()]  # not waited for again
    assert time.monotonic() - began < 30.0
    slow.set()
    await asyncio.sleep(0.05)
    assert record("late") in await collectors.gather(runs, 60.0)
    await asyncio.sleep(0.05)
    for _ in range(2):  # it is begun, and taken in time: from then on it is waited for
        found = await collectors.gather(runs, 60.0)
        await asyncio.sleep(0.05)
    assert found == [record("late"), record()]
