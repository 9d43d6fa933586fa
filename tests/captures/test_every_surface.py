"""Five recordings at their end through every surface: command, API document, page and findings have the same figures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest

from kvitals.app import cache as caches
from kvitals.app import ledger as lookups
from kvitals.app import requests
from kvitals.app.pipeline import Setup
from kvitals.app.sources.live import AgentClient
from kvitals.app.sources.recording import Judged, judge_recording
from kvitals.config import Config
from kvitals.rules.loader import load
from kvitals.ui.web.sources.recording import Recording
from tests.support.served import served

FOLDER = Path(__file__).parent
RECORDINGS = [
    "ledger/thrash",
    "ledger/sglang",
    "incidents/uneven-1",
    "incidents/sglang_slots-1",
    "requests/tenants",
]
WITH_EVENTS = RECORDINGS[:2]
SLOWEST = requests.Asked(slowest=20)


@cache
def setup() -> Setup:
    return Setup(load(), Config())


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.kvcap"


@cache
def judged(name: str) -> Judged:
    return judge_recording(path_of(name), setup(), step=15.0)


@cache
def page(name: str) -> Recording:
    source = Recording(path_of(name), name, setup())
    assert source._done.wait(600)
    return source


def as_json(document: object) -> object:
    """A document as it leaves: tuples are lists, structs are objects."""
    return msgspec.json.decode(msgspec.json.encode(document))


def differing(one: object, other: object, where: str = "") -> list[str]:
    """Where two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys(), key=str)
        return [line for key in keys for line in differing(one.get(key), other.get(key), f"{where}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for i, (a, b) in pairs for line in differing(a, b, f"{where}[{i}]")]
    return [] if one == other else [f"{where}: {one!r:.80} and {other!r:.80}"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_demo_agent_answers_what_the_commands_say_of_the_file(name: str) -> None:
    """Rows 8 to 10: curve, tenants' holdings and tail of requests at a recording's end."""
    blocks = caches.of_recording(path_of(name), setup())
    known = requests.of_recording(path_of(name), SLOWEST, setup().config)
    with served(judged(name).pipeline) as url:
        there, asked = caches.of_agent(url), requests.of_agent(url, SLOWEST)
        document = AgentClient(url).findings()
    assert there is not None
    wrong = differing(as_json(blocks.cache), {k: v for k, v in there.cache.items() if k != "tenant_names"})
    wrong += differing(as_json(blocks.cascades), there.cascades)
    wrong += differing(as_json(known.tails), as_json(asked.tails), "tail")
    wrong += differing(as_json(known.requests), as_json(asked.requests), "requests")
    wrong += differing(as_json(judged(name).document), as_json(document), "triage")
    assert wrong == []


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_page_shows_what_the_commands_say_of_the_file(name: str) -> None:
    blocks = caches.of_recording(path_of(name), setup())
    known = requests.of_recording(path_of(name), SLOWEST, setup().config)
    shown, asked = page(name).blocks(), page(name).requests(SLOWEST)
    wrong = differing(as_json(blocks.cache), as_json(shown.cache))
    wrong += differing(as_json(blocks.cascades), as_json(shown.cascades))
    wrong += differing(as_json(known.tails), as_json(asked.tails), "tail")
    wrong += differing(as_json(known.requests), as_json(asked.requests), "requests")
    assert wrong == []


@pytest.mark.parametrize("name", WITH_EVENTS)
def test_what_if_replays_the_same_lookups_everywhere(name: str) -> None:
    of_file = lookups.of_recording(path_of(name))
    with served(judged(name).pipeline) as url:
        of_agent = lookups.of_agent(url)
    shown = page(name).lookups()
    for other in (of_agent, shown):
        assert (len(other.accesses), other.accesses.references, other.pool) == (
            len(of_file.accesses),
            of_file.accesses.references,
            of_file.pool,
        )
