"""The sense as a whole: records, places over restarts, how a log fares, and what it costs at most."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvitals.agent.collectors import request_log as module
from kvitals.agent.collectors.request_log import DROPPED, RequestLogs
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.tenant_names import TenantNames
from kvitals.config import ConfigError, RequestLog, TenantsTable

TENANTS = TenantNames(TenantsTable(), bytes(32))
MAPPING = """system: mine
title: Mine
fields: {end: t, prompt_tokens: n, cached_tokens: cached}
ids: {request: id}
tenant: who
"""


@pytest.fixture
def config(tmp_path: Path) -> RequestLog:
    (tmp_path / "mine.yaml").write_text(MAPPING)
    (tmp_path / "log").touch()
    return RequestLog(path=tmp_path / "log", mapping=tmp_path / "mine.yaml")


def started(config: RequestLog, tmp_path: Path) -> RequestLogs:
    logs = RequestLogs(TENANTS, tmp_path / "state")
    logs.configure([config])
    return logs


def write(config: RequestLog, *ids: str, **other: Any) -> None:
    with config.path.open("a") as file:
        file.writelines(json.dumps({"t": time.time(), "id": one, "who": "acme"} | other) + "\n" for one in ids)


async def ids(logs: RequestLogs) -> list[str]:
    (record,) = await logs.read()
    return [part.ids[0].removeprefix("request:") for part in record.parts]


async def test_a_record_a_look(config: RequestLog, tmp_path: Path) -> None:
    logs = started(config, tmp_path)
    (record,) = await logs.read()
    assert (record.source, record.parts, record.dropped, record.state) == ("mine", (), {}, "ok")
    write(config, "rq-1", "rq-2")
    (record,) = await logs.read()
    assert [part.ids for part in record.parts] == [("request:rq-1",), ("request:rq-2",)]
    assert record.parts[0].tenant == TENANTS.pseudonym("acme")
    assert (await logs.read())[0].parts == ()
    logs.close()


async def test_stopped_it_goes_on_exactly_there(config: RequestLog, tmp_path: Path) -> None:
    logs = started(config, tmp_path)
    await logs.read()
    write(config, "rq-1")
    assert await ids(logs) == ["rq-1"]
    logs.close()
    write(config, "rq-2")
    again = started(config, tmp_path)
    assert await ids(again) == ["rq-2"]
    again.close()


async def test_killed_it_repeats_one_look_and_loses_none(config: RequestLog, tmp_path: Path) -> None:
    logs = started(config, tmp_path)
    await logs.read()
    for one in ("rq-1", "rq-2", "rq-3"):
        write(config, one)
        assert await ids(logs) == [one]
    again = started(config, tmp_path)  # the first was not closed
    assert await ids(again) == ["rq-3"]
    again.close()
    logs.close()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b'{"a": [{"inode": "x"}]}', b"[" * 10_000])
async def test_places_that_are_damaged_are_as_none(content: bytes, config: RequestLog, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "request_logs.json").write_bytes(content)
    write(config, "old")
    logs = started(config, tmp_path)
    assert await ids(logs) == []
    logs.close()


async def test_places_that_can_not_be_kept_are_said(config: RequestLog, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, where a folder should be")
    logs = started(config, tmp_path)
    await logs.read()
    (record,) = await logs.read()
    assert (record.state, record.reason) == ("partial", "state")
    assert "cannot be written" in record.message
    logs.close()


async def test_the_state_file_holds_no_line(config: RequestLog, tmp_path: Path) -> None:
    logs = started(config, tmp_path)
    await logs.read()
    write(config, "rq-1")
    await logs.read()
    logs.close()
    kept = (tmp_path / "state" / "request_logs.json").read_text()
    assert "rq-1" not in kept and "acme" not in kept and "inode" in kept


async def test_the_wrong_format_is_said(config: RequestLog, tmp_path: Path) -> None:
    logs = started(config, tmp_path)
    await logs.read()
    with config.path.open("a") as file:
        file.write('127.0.0.1 - - [21/Nov/2026] "POST /v1/completions"\n' * 3)
    (record,) = await logs.read()
    assert (record.state, record.reason, record.dropped) == ("failed", "no_lines_fit", {"not_json": 3})
    assert record.dropped.keys() <= DROPPED.keys()
    write(config, "rq-1", n="many")
    (record,) = await logs.read()
    assert (record.state, record.reason) == ("partial", "unreadable_values")
    assert "prompt_tokens (1)" in record.message
    write(config, "rq-1", n=10, cached=20)
    (record,) = await logs.read()
    assert (record.state, record.reason) == ("partial", "unreadable_values")
    assert "cached_tokens (1)" in record.message and record.parts[0].cached_tokens is None
    write(config, "rq-2")
    assert (await logs.read())[0].state == "ok"
    logs.close()


async def test_a_log_that_is_not_there(config: RequestLog, tmp_path: Path) -> None:
    config.path.unlink()
    logs = started(config, tmp_path)
    (record,) = await logs.read()
    assert (record.state, record.reason) == ("unknown", "files")
    write(config, "rq-1")
    assert await ids(logs) == ["rq-1"]
    logs.close()


async def test_one_broken_log_leaves_others(
    config: RequestLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = RequestLogs(TENANTS, tmp_path / "state")
    other = RequestLog(path=tmp_path / "other", format="nginx", name="other")
    logs.configure([other, config])
    real = RequestLogs._read_one

    def broken(self: RequestLogs, one: Any, t: float) -> PartsRecord:
        if one.name == "other":
            raise RuntimeError("a fault")
        return real(self, one, t)

    monkeypatch.setattr(RequestLogs, "_read_one", broken)
    await logs.read()
    write(config, "rq-1")
    first, second = await logs.read()
    assert (first.state, first.reason, len(second.parts)) == ("failed", "internal", 1)
    logs.close()


async def test_a_look_takes_only_so_many_parts_and_the_next_goes_on(
    config: RequestLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LOOK_PARTS", 10)
    logs = started(config, tmp_path)
    await logs.read()
    write(config, *(f"rq-{n}" for n in range(25)))
    found = [await ids(logs) for _ in range(4)]
    assert [len(one) for one in found] == [10, 10, 5, 0]
    assert [one for look in found for one in look] == [f"rq-{n}" for n in range(25)]
    logs.close()


async def test_a_backlog_is_said(config: RequestLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOOK_BYTES", 1 << 20)
    logs = started(config, tmp_path)
    await logs.read()
    with config.path.open("a") as file:
        for n in range(8):
            file.write(json.dumps({"t": time.time(), "id": f"rq-{n}", "text": "x" * (1 << 20)}) + "\n")
    (record,) = await logs.read()
    assert (record.state, record.reason) == ("partial", "behind")
    logs.close()


async def test_a_file_system_that_hangs_does_not_hold_up_others(
    config: RequestLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    free = threading.Event()
    look = RequestLogs._look
    monkeypatch.setattr(RequestLogs, "_look", lambda self, logs: free.wait(30) and look(self, logs))
    logs = started(config, tmp_path)
    for _ in range(2):
        (record,) = await logs.read()
        assert (record.state, record.reason, record.parts) == ("failed", "hanging", ())
    free.set()
    while (await logs.read())[0].reason == "hanging":
        pass
    logs.close()


async def test_configured_anew(config: RequestLog, tmp_path: Path) -> None:
    logs = started(config, tmp_path)
    await logs.read()
    write(config, "rq-1")
    logs.configure([config])
    assert await ids(logs) == ["rq-1"]
    bad = RequestLog(path=tmp_path / "log", mapping=tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"\[\[request_log\]\] none: .*cannot be read"):
        logs.configure([bad])
    write(config, "rq-2")
    assert await ids(logs) == ["rq-2"]
    logs.configure([])
    assert await logs.read() == []
    logs.close()


async def test_a_record_has_no_name_and_can_be_kept(config: RequestLog, tmp_path: Path) -> None:
    logs = started(config, tmp_path)
    await logs.read()
    write(config, "rq-1")
    (record,) = await logs.read()
    packed = msgspec.msgpack.encode(record)
    assert msgspec.msgpack.decode(packed, type=PartsRecord) == record
    assert b"acme" not in packed
    logs.close()
