"""Every query of the agents' boards on a real Prometheus that holds agents' windows, and on the agents themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.diagnoser.inspect import inspect
from kvitals.rules.finding import DocumentSource
from kvitals.rules.inspection import InspectedTarget
from tests.boards import manifest, test_live
from tests.boards.asking import Asked, Series, asked, differences, draws, series
from tests.boards.sources import Replayed
from tests.oracle.oracle_server import Prometheus

STEP = 15.0
TOLERANCE = 1e-9
LEAST_DRAWN = 0.9

Answers = dict[tuple[str, Asked], Series]
"""By the replay's name and the query."""


@pytest.fixture(scope="session")
def answers(built: dict[str, Any], replayed: dict[str, Replayed], stored: Prometheus) -> Answers:
    """What Prometheus says to each query on each replay. That it takes all of them is part of the tests."""
    found = {}
    for name, one in replayed.items():
        for query in asked(built):
            path, form = query.parameters(one.start, one.end, STEP, cluster=name)
            found[name, query] = series(stored.ask(path, **form))
    return found


def test_the_panels_draw_that_must(built: dict[str, Any], answers: Answers) -> None:
    places = dict.fromkeys(query.place for query in asked(built))
    drawn = {
        place: sorted({name for (name, query), found in answers.items() if query.place == place and draws(found)})
        for place in places
    }
    found = {place: names for place, names in drawn.items() if names}
    assert manifest.kept("drawn", found) == found
    assert len(found) >= LEAST_DRAWN * len(places), sorted(places.keys() - found.keys())
    assert manifest.read()["lacking"].keys() == places.keys() - found.keys()


@pytest.mark.parametrize(
    ("part", "names"), [("lacking", None), ("raw_lacking", (*test_live.ENGINES, *test_live.BESIDE))]
)
def test_what_panels_lack_is_absent_by_check(
    part: str, names: tuple[str, ...] | None, replayed: dict[str, Replayed]
) -> None:
    targets = list(_inspected(one for name, one in replayed.items() if names is None or name in names))
    live = {f.family for target in targets for f in target.families if f.state == "live"}
    told = {f.family for target in targets for f in target.families} - live
    facts = {fact.fact for target in targets for fact in target.facts}
    for place, lacking in manifest.read()[part].items():
        assert lacking["families"] or lacking.get("facts") or lacking.get("history"), place
        assert not live & set(lacking["families"]), place
        assert not facts & set(lacking.get("facts", [])), place
        if "by" not in lacking:  # on a page; else it is made by a part of the agent that a replay does not have
            assert told & set(lacking["families"]) or not lacking["families"], place


def _inspected(replayed: Iterable[Replayed]) -> Iterator[InspectedTarget]:
    for one in replayed:
        assert one.pipeline.span is not None
        yield from inspect(one.pipeline.judge, one.pipeline.span, DocumentSource("capture", one.name)).targets


@pytest.mark.parametrize("name", [*manifest.read().get("replays", [])])
async def test_the_agent_answers_as_prometheus_does(
    name: str, built: dict[str, Any], replayed: dict[str, Replayed], answers: Answers
) -> None:
    one = replayed[name]
    app = build_app(ApiParts(one.pipeline, {}, findings=lambda: None, ready=lambda: True, clock=lambda: one.end))
    wrong = []
    async with TestServer(app) as server, ClientSession() as session:
        for query in asked(built):
            path, form = query.parameters(one.start, one.end, STEP)
            async with session.post(server.make_url(f"/api/v1/{path}"), data=form) as answer:
                mine = series(await answer.json())
            wrong += [f"{query.place} {query.ref}: {d}" for d in differences(mine, answers[name, query], TOLERANCE)]
    assert not wrong, "\n".join(wrong[:10])


def test_every_replay_is_compared(replayed: dict[str, Replayed]) -> None:
    assert manifest.kept("replays", sorted(replayed)) == sorted(replayed)
