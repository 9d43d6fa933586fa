"""Engine logs: the numbers that recorded and modelled lines state, hostile lines, rotation, and what is kept."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitals.agent.collectors import engine_log as module
from kvitals.agent.collectors.engine_log import (
    MAX_LINE,
    EngineLog,
    EngineLogParser,
    FileLog,
    StreamLog,
    open_log,
    read_log,
)
from kvitals.agent.node import Node
from kvitals.agent.records import EngineLogRecord, ScrapeRecord, encode
from kvitals.config import ConfigError, build
from kvitals.rules.engine_log_map import engine_log_maps, load_engine_log_map
from kvitals.series.promql import evaluate, parse

FIXTURES = Path(__file__).parents[2] / "fixtures"
LOGS = FIXTURES / "engine_logs"
TARGET = "http://127.0.0.1:8000/metrics"
VLLM = b"(EngineCore pid=7) INFO 11-23 02:06:13 [core.py:402] "
START = VLLM + b"Initializing a V1 LLM engine (v0.32.0) with config: model='m'"


def lines(name: str) -> list[bytes | None]:
    return [*(LOGS / name).read_bytes().splitlines()]


def test_a_recorded_vllm_log_states_its_start() -> None:
    summary = EngineLogParser().parse(lines("vllm-0.32-cpu.log"), is_past=False)
    assert summary.restarted
    assert summary.startup == {"init_engine": 0.11}
    assert summary.values == {"kv_cache_tokens": 32768, "max_concurrency": 16}
    assert summary.events == {"out_of_memory": 0, "transfer_failure": 0}


def test_vllm_lines_from_issues_and_format_strings() -> None:
    summary = EngineLogParser().parse(lines("vllm-gpu.log"), is_past=False)
    assert summary.startup == {
        "load_weights": 24.84,
        "load_model": 31.657031,
        "compile": 7.51,
        "graph_capture": 17,
        "init_engine": 34.11,
        "load_and_init": 34.11 + 31.657031,
    }
    assert summary.values == {"kv_cache_tokens": 613024, "max_concurrency": 4.68, "expert_balance": 0.5}
    assert summary.events == {"compilation": 1, "out_of_memory": 1, "transfer_failure": 1}


def test_modelled_sglang_lines_count_the_slowest_rank() -> None:
    summary = EngineLogParser().parse(lines("sglang.log"), is_past=False)
    assert summary.startup == {"load_weights": 10.08, "graph_capture": 26.12, "load_and_init": 36.2}
    assert summary.values == {"kv_cache_tokens": 2795207, "expert_balance": 0.612}
    assert summary.events == {"out_of_memory": 1}


def test_lines_of_a_container_runtime() -> None:
    written = b"2026-11-23T02:06:13.123456789Z stdout F " + VLLM + b"Loading weights took 3.50 seconds"
    assert EngineLogParser().parse([written], is_past=False).startup == {"load_weights": 3.5}


@pytest.mark.parametrize(
    "line",
    [
        VLLM + b"Received request cmpl-1: prompt: 'Loading weights took 9999 seconds', params: x",
        VLLM + b"Received request cmpl-1: prompt: 'a during inference: b. This causes a latency spike', params: x",
        b"Loading weights took 9999 seconds",
        b"[2025-10-16 09:06:22] Receive: obj=GenerateReqInput(text='torch.OutOfMemoryError: x')",
        b"[2025-10-16 09:06:22] Receive: obj=GenerateReqInput(text='Load weight end. elapsed=5 s')",
        VLLM + b"Loading weights took " + b"9" * 500 + b" seconds",
        VLLM + b"Loading weights took NaN seconds",
        VLLM + b"Loading weights took -1 seconds",
        VLLM[:-1] + b" " * MAX_LINE + b"Loading weights took 1 seconds",
        b"\xff\x00" * 5000,
        None,
    ],
)
def test_a_line_that_is_not_the_logger_s_states_nothing(line: bytes | None) -> None:
    summary = EngineLogParser().parse([line], is_past=False)
    assert (summary.startup, summary.values, summary.events, summary.matched) == ({}, {}, {}, 0)


def test_a_new_start_forgets_the_phases_before_it() -> None:
    parser = EngineLogParser()
    parser.parse([START, VLLM + b"Loading weights took 90.0 seconds"], is_past=False)
    again = parser.parse([START, VLLM + b"Loading weights took 3.0 seconds"], is_past=False)
    assert again.startup == {"load_weights": 3}


def test_phases_of_one_start_come_over_several_cycles() -> None:
    parser = EngineLogParser()
    parser.parse([START, VLLM + b"Model loading took 1.0 GiB memory and 40.0 seconds"], is_past=False)
    summary = parser.parse([VLLM + b"init engine (profile, create kv cache, warmup model) took 20.0 s"], is_past=False)
    assert summary.startup == {"load_model": 40, "init_engine": 20, "load_and_init": 60}


def test_a_cycle_s_cpu_time_is_bounded() -> None:
    """A log of lines that are as expensive as lines can be, more than a cycle's time has room for."""
    worst = VLLM + b"x" + b" during inference: " * 220
    spent = time.thread_time()
    summary = EngineLogParser().parse(iter([worst] * 200_000), is_past=False)
    assert time.thread_time() - spent < 10 * module.MAX_CYCLE_CPU_SECONDS
    assert 0 < summary.lines < 200_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture
def log(path: Path) -> Iterator[EngineLog]:
    opened = open_log(str(path))
    yield opened
    opened.close()


def append(path: Path, *written: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(line + b"\n" for line in written)


OOM = VLLM + b"torch.OutOfMemoryError: CUDA out of memory."


def test_events_from_before_the_agent_are_not_counted_and_the_start_is_known(path: Path) -> None:
    append(path, START, VLLM + b"Loading weights took 3.0 seconds", OOM)
    log, parser = FileLog(path), EngineLogParser()
    first = read_log(log, parser, TARGET, 1.0)
    assert (first.startup, first.events["out_of_memory"]) == ({"load_weights": 3}, 0)
    append(path, OOM)
    assert read_log(log, parser, TARGET, 2.0).events == {"out_of_memory": 1}
    log.close()


def test_a_past_of_several_cycles_is_past_until_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CYCLE_BYTES", 1 << 20)
    append(path, *[OOM + b" " * 1000] * 4000)
    log, parser = FileLog(path), EngineLogParser()
    for t in range(6):
        assert read_log(log, parser, TARGET, float(t)).events.get("out_of_memory", 0) == 0
    append(path, OOM)
    assert read_log(log, parser, TARGET, 9.0).events == {"out_of_memory": 1}
    log.close()


def test_rotation_and_truncation_lose_no_event(log: EngineLog, path: Path) -> None:
    parser = EngineLogParser()
    assert read_log(log, parser, TARGET, 0.0).reason == "files"
    append(path, OOM)
    assert read_log(log, parser, TARGET, 1.0).events == {"out_of_memory": 1}
    append(path, OOM)
    path.rename(path.with_suffix(".1"))
    append(path, OOM, OOM)
    assert read_log(log, parser, TARGET, 2.0).events == {"out_of_memory": 3}
    path.write_bytes(b"")
    read_log(log, parser, TARGET, 3.0)
    append(path, OOM)
    assert read_log(log, parser, TARGET, 4.0).events == {"out_of_memory": 1}


def test_a_stream_is_read_without_waiting_for_its_writer() -> None:
    reading, writing = os.pipe()
    log, parser = StreamLog(reading), EngineLogParser()
    assert read_log(log, parser, TARGET, 0.0).lines == 0
    os.write(writing, OOM[:30])
    assert read_log(log, parser, TARGET, 1.0).events == {}
    os.write(writing, OOM[30:] + b"\n" + b"x" * 10_000 + b"\n")
    assert read_log(log, parser, TARGET, 2.0).events == {"out_of_memory": 1}
    os.close(writing)
    ended = read_log(log, parser, TARGET, 3.0)
    assert (ended.state, ended.reason) == ("failed", "ended")
    log.close()


def value(node: Node, query: str, t: float) -> list[float]:
    result = evaluate(parse(query), node.window, t)
    assert not isinstance(result, float)
    return [float(v) for v in result.values]


def test_records_become_series_of_the_engine() -> None:
    node = Node(build({}))
    node.expect({"targets": [{"url": TARGET, "name": "a"}]})
    body = (FIXTURES / "exposition" / "vllm-0.32-after.prom").read_bytes()
    records = [
        EngineLogRecord(t=2.0, target=TARGET, restarted=True, events={"compilation": 0, "no_such": 5}),
        EngineLogRecord(t=4.0, target=TARGET, startup={"init_engine": 9.0, "no_such": 1.0}, values={"no_such": 1.0}),
        EngineLogRecord(t=6.0, target=TARGET, events={"compilation": 3, "out_of_memory": 2}),
        EngineLogRecord(t=8.0, target=TARGET),
    ]
    node.ingest_recorded(encode(ScrapeRecord(t=1.0, target=TARGET, body=body)))
    for record in records:
        node.ingest_recorded(encode(record))
    engines = value(node, 'count by (engine) ({__name__=~"kvitals_(startup_seconds|compilations_total)"})', 8.0)
    assert engines == [2]
    assert value(node, 'kvitals_startup_seconds{phase="init_engine"}', 8.0) == [9]
    assert value(node, "increase(kvitals_compilations_total[7s])", 8.0)[0] > 0
    assert value(node, 'kvitals_engine_log_events_total{event="out_of_memory"}', 6.0) == [0]
    assert value(node, 'kvitals_engine_log_events_total{event="out_of_memory"}', 8.0) == [2]
    assert value(node, '{phase="no_such"}', 8.0) == value(node, '{event="no_such"}', 8.0) == []


def test_the_agent_follows_the_log_that_a_target_names(path: Path) -> None:
    async def cycles() -> list[EngineLogRecord]:
        node = Node(build({"target": [{"url": "http://127.0.0.1:1", "log": str(path)}]}))
        await node.open()
        append(path, START, VLLM + b"Loading weights took 3.0 seconds")
        try:
            return [record for record in await node.collect() if isinstance(record, EngineLogRecord)]
        finally:
            await node.close()

    (record,) = asyncio.run(cycles())
    assert record.startup == {"load_weights": 3}
    assert b"Loading" not in encode(record).payload, "a record has no text of the log"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "compressed", "missing"])
def test_a_path_that_is_no_log_is_a_failed_collector_with_a_reason(kind: str, tmp_path: Path) -> None:
    """A pipe or a device as `log` was in no family of the agent."""
    path = {"device": Path("/dev/zero")}.get(kind, tmp_path / "engine.log")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "compressed":
        path.write_bytes(b"\x1f\x8b\x08\x00")

    async def cycles() -> Node:
        node = Node(build({"target": [{"url": "http://127.0.0.1:1", "log": str(path)}]}))
        await node.open()
        try:
            for _ in range(2):
                await node.collect()
        finally:
            await node.close()
        return node

    node = asyncio.run(cycles())
    failing = '{collector="engine_log",reason="unusable"}'
    assert value(node, f"kvitals_collector_failing{failing}", time.time()) == ([] if kind == "missing" else [1])
    assert value(node, 'kvitals_collector_success{collector="engine_log"}', time.time()) == [float(kind == "missing")]


@pytest.mark.parametrize("log", ["relative.log", "journal:", "journal:--help", "journal:a b", "/var/*/x.log", "/a\0b"])
def test_a_log_that_cannot_be_followed_is_refused(log: str) -> None:
    with pytest.raises(ConfigError, match="invalid log"):
        build({"target": [{"url": "http://127.0.0.1:1", "log": log}]})


@pytest.mark.parametrize("log", ["/var/log/a*.log", "journal:vllm@0.service", "-"])
def test_a_log_that_can_be_followed(log: str) -> None:
    assert build({"target": [{"url": "http://127.0.0.1:1", "log": log}]}).targets[0].log == log


def test_each_map_that_ships_loads_and_each_pattern_has_a_line() -> None:
    assert [one.system for one in engine_log_maps()] == ["sglang", "vllm"]
    written = b"".join(path.read_bytes() for path in LOGS.glob("*.log")).decode()
    unseen = {p.has for one in engine_log_maps() for p in one.patterns if p.has not in written}
    assert unseen == {  # forms that no fixture has, taken from the sources or other logs
        "torch.compile took",
        "Initial profiling/warmup run took",
        "not enough GPU memory",
        "less than desired GPU memory utilization",
        "CUDA graph end",
        "max_total_num_tokens=",
    }


def test_a_map_that_is_wrong_is_refused_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    head = "system: mine\ntitle: Mine\nsource: x\nprefix: ''\npatterns:\n"
    file.write_text(head + "  - {has: abcd, match: 'abcd(', event: compilation}\n")
    with pytest.raises(ValueError, match="invalid regular expression"):
        load_engine_log_map(file)
    file.write_text(head + "  - {has: abcd, match: abcd, phase: compile}\n")
    with pytest.raises(ValueError, match="needs NUMBER"):
        load_engine_log_map(file)
