"""What a reload changes in the senses of requests, and that a refused one changes nothing."""

import time
from pathlib import Path

import aiohttp
import msgspec
import pytest

from kvitals.agent.request_collectors import RequestSenses
from kvitals.config import Config, ConfigError, Otlp, RequestLog, TenantsTable
from tests.unit.otlp.span_fixtures import protobuf, request, span

PLAIN = Config(otlp=Otlp(grpc="", http="127.0.0.1:0"), tenants=TenantsTable(names="plain", attributes=("a.tenant",)))


async def tenant_of_a_span(senses: RequestSenses) -> str:
    """The tenant of a span with two attributes that may name one."""
    assert senses._otlp is not None
    (port,) = senses._otlp.ports.values()
    said = span("llm_request", at=time.time(), gen_ai__request__id="chatcmpl-1", a__tenant="ann", b__tenant="bob")
    async with aiohttp.ClientSession() as session:
        headers = {"Content-Type": "application/x-protobuf"}
        url = f"http://127.0.0.1:{port}/v1/traces"
        async with session.post(url, data=protobuf(request(said)), headers=headers) as answer:
            assert answer.status == 200
    (part,) = (part for record in await senses.collectors["otlp"]() for part in record.parts)
    return part.tenant


async def test_a_reload_reads_tenants_of_spans_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    senses = RequestSenses(tmp_path)
    await senses.open(PLAIN)
    try:
        assert await tenant_of_a_span(senses) == "ann"
        others = TenantsTable(names="plain", attributes=("b.tenant",))
        senses.configure(msgspec.structs.replace(PLAIN, tenants=others))
        assert await tenant_of_a_span(senses) == "bob"
    finally:
        await senses.close()


async def test_a_refused_reload_changes_no_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    senses = RequestSenses(tmp_path)
    await senses.open(PLAIN)
    try:
        broken = RequestLog(path=tmp_path / "log", mapping=tmp_path / "missing.yaml")
        others = TenantsTable(attributes=("b.tenant",))
        with pytest.raises(ConfigError):
            senses.configure(msgspec.structs.replace(PLAIN, tenants=others, request_logs=(broken,)))
        assert await tenant_of_a_span(senses) == "ann"
    finally:
        await senses.close()


def test_a_refused_first_configuration_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    senses = RequestSenses(tmp_path)
    broken = RequestLog(path=tmp_path / "log", mapping=tmp_path / "missing.yaml")
    refused = Config(request_logs=(broken,), tenants=TenantsTable(names="plain"))
    with pytest.raises(ConfigError):
        senses.configure(refused)
    assert senses.tenants().pseudonym("ann") != "ann"  # names are no more plain than they were
