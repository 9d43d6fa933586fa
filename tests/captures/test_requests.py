"""Recordings with requests and spans of real engines, made by tests/lab/requests.

A replay gives the records that the live agent told, they are what the clients' ledgers say, and nothing of users is in
the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvitals.agent.records import decode
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.slow_tail import Recent
from kvitals.series.recordings import CaptureReader
from tests.lab.requests import agreement, checks, pair, stages, tenants
from tests.lab.requests.clients import Seen
from tests.lab.requests.plays import kept
from tests.lab.requests.replayed import records_of, told
from tests.lab.traffic import Prompts, Tenant

FILES = sorted((Path(__file__).parent / "requests").glob("*.kvcap"))
NAMES = [path.stem for path in FILES]
PAIRS = [path for path in FILES if path.stem.startswith("pair")]
FOLDER = Path(__file__).parent / "requests"

A_RUN = 4
"""Token ids in a row that are in no file by chance."""

ASKED: dict[str, tuple[tuple[Tenant, str], ...]] = {
    "agreement": ((agreement.ONE, "agreement"), (agreement.MANY, "agreement")),
    "pair": ((pair.TENANT, "pair"),),
    "pair_router": ((pair.TENANT, "pair"),),
    "stages": ((stages.TENANT, "stages"),),
    "tenants": tuple((tenant, "tenants/0") for tenant in (*tenants.LIGHT, tenants.HEAVY)),
}
"""Who asked in each, and the seed of the prompts."""


@cache
def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.truth.json").read_text())
    return found


@cache
def replayed(name: str) -> dict[str, RequestRecord]:
    return records_of(FOLDER / f"{name}.kvcap")


@cache
def payloads(name: str) -> bytes:
    with CaptureReader.open(FOLDER / f"{name}.kvcap") as reader:
        header = json.dumps(reader.header.meta).encode()
        return header + b"".join(record.payload for record in reader)


def parts(name: str) -> Iterator[RequestPart]:
    with CaptureReader.open(FOLDER / f"{name}.kvcap") as reader:
        for record in map(decode, reader):
            if isinstance(record, PartsRecord):
                yield from record.parts


def ledger(name: str, via: str | None = None) -> list[Seen]:
    rows = [Seen(**one) for one in truth(name)["clients"]]
    return [one for one in rows if via is None or one.via == via]


def paired(name: str, via: str | None = None) -> list[checks.Pair]:
    return checks.pairs(ledger(name, via), {key: told(record) for key, record in replayed(name).items()})


def test_there_is_one_of_each() -> None:
    assert set(NAMES) == set(ASKED)


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_gives_the_records_of_the_live_agent(name: str) -> None:
    live = truth(name)["records"]
    assert len(live) >= len(truth(name)["clients"])
    for one in live:
        again = kept(told(replayed(name)[one["id"]]))
        assert again == {key: value for key, value in one.items() if key != "tenant_name"}


@pytest.mark.parametrize("name", NAMES)
def test_every_request_of_the_clients_has_a_record_whose_phases_add_up(name: str) -> None:
    some = paired(name)
    assert len(some) == len(ledger(name)) > 0
    assert checks.adds_up(name, some).ok


@pytest.mark.parametrize("name", NAMES)
def test_what_was_demanded_when_it_was_recorded_was_so(name: str) -> None:
    assert {check: said for check, (ok, said) in truth(name)["checks"].items() if not ok} == {}


@pytest.mark.parametrize("name", NAMES)
def test_no_name_no_prompt_and_no_token_is_in_the_file(name: str) -> None:
    everything = payloads(name)
    for tenant in {one.tenant for one in ledger(name)} - {""}:
        assert tenant.encode() not in everything
    assert not re.search(rb"Bearer |sk-[A-Za-z0-9]{8}|authorization", everything, re.IGNORECASE)
    for tenant, seed in ASKED[name]:
        prompts = Prompts(tenant, seed)
        assert not has_some_of(prompts.ask(prompts.session()).prompt, everything)


def has_some_of(prompt: list[int], written: bytes) -> bool:
    """Whether some tokens of a prompt stand there, as JSON or msgpack has them."""
    runs = (prompt[start : start + A_RUN] for start in range(0, len(prompt) - A_RUN, A_RUN))  # found in twice as many
    forms = (lambda run: json.dumps(run)[1:-1].encode(), lambda run: msgspec.json.encode(run)[1:-1],
             lambda run: msgspec.msgpack.encode(run)[1:])  # fmt: skip
    return any(form(run) in written for run in runs for form in forms)


def test_tokens_would_be_found() -> None:
    prompt = list(range(300, 340))
    for written in (
        json.dumps({"prompt": prompt}).encode(),
        msgspec.json.encode(prompt),
        msgspec.msgpack.encode(prompt),
    ):
        assert has_some_of(prompt, b"..." + written)
    assert not has_some_of(prompt, json.dumps(prompt[::-1]).encode())


@pytest.mark.parametrize("name", NAMES)
def test_the_texts_of_parts_are_names_and_ids(name: str) -> None:
    found = list(parts(name))
    assert found
    for part in found:
        texts = [value for value in msgspec.structs.astuple(part) if isinstance(value, str)]
        assert all(re.fullmatch(r"[\w./:()| \[\]-]{0,120}", text) for text in (*texts, *part.ids)), part
        assert re.fullmatch(r"(t-[a-z2-7]{10})?", part.tenant)


def test_an_engine_alone_and_with_the_tap_agrees_with_its_clients() -> None:
    through, alone = paired("agreement", "tap"), paired("agreement", "otlp")
    assert checks.cached_as_usage("tap", through).ok
    assert checks.cached_unknown("otlp", alone).ok
    for some in (through, alone):
        assert checks.phase_sources("one engine", some, agreement.ONE_ENGINE).ok


@pytest.mark.parametrize("name", [path.stem for path in PAIRS])
def test_a_pair_is_one_record_with_both_roles_and_a_transfer(name: str) -> None:
    some = paired(name)
    assert all(p.record["engines"] == pair.ROLES for p in some)
    assert checks.phase_sources(name, paired(name, "tap"), pair.BOTH_SIDES).ok
    assert all(len(p.record["spans"]) == 3 for p in some)


def test_stages_of_sglang_are_measured() -> None:
    some = paired("stages", "tap")
    assert checks.phase_sources("stages", some, stages.STAGES).ok
    assert checks.cached_as_usage("stages", some).ok


def test_tenants_have_what_their_clients_did() -> None:
    found, _ = checks.tenants(ledger("tenants"), {key: told(one) for key, one in replayed("tenants").items()})
    assert len(found) == 4
    assert [one.said for one in found if not one.ok] == []


def test_the_slow_ones_waited_behind_the_heavy_tenant() -> None:
    records = replayed("tenants").values()
    heavy = {one["tenant"] for one in truth("tenants")["records"] if one.get("tenant_name") == tenants.HEAVY.name}
    report = Recent(records, min(r.end for r in records), max(r.end for r in records)).explain("ttft")
    assert report.dominant is not None and report.dominant.name == "queue"
    assert report.behind is not None and {report.behind.occupants[0].tenant} == heavy
