"""A message names the cause that the document's verdict names, also where other causes stand between."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvitals.app.identity import known_engine
from kvitals.app.notify import diagnosis
from kvitals.app.notify.finding_match import diagnosis_request, lead
from kvitals.app.notify.incident_tracker import Rules, settle
from kvitals.rules.finding import Entity, Finding, Triage
from kvitals.rules.loader import load
from tests.unit.notify.notify_stage import AT, ENGINE, alert, diagnosing, message

RULES = Rules(3600.0)


def finding(of: Triage, code: str, *explained: Finding, **other: Any) -> Finding:
    """A cause on the engine that explains others."""
    return msgspec.structs.replace(
        of.causes[0], code=code, id=code, title=f"title of {code}", explains=[one.code for one in explained],
        explained=[one.id for one in explained], **other,
    )  # fmt: skip


def judged(document: Triage) -> Any:
    async def diagnose(about: Any) -> Any:
        return diagnosis._diagnosis("judged", document, about, [known_engine({"engine": ENGINE})], load(), elsewhere="")

    return diagnose


async def test_a_slow_replica_that_explains_its_full_cache_is_the_cause(full_cache: Triage) -> None:
    """The verdict named the replica, the message the cache and its levers."""
    late = finding(full_cache, "LAT01", kind="symptom")
    cache = finding(full_cache, "KVC01", late)
    slow = finding(full_cache, "ENG10", cache)
    document = msgspec.structs.replace(full_cache, causes=[slow, cache], symptoms=[late])
    for code in ("LAT01", "KVC01"):
        (notice,) = (await settle(message(alert(code)), AT, (), judged(document), RULES)).notices
        assert (notice.code, notice.title) == ("ENG10", "title of ENG10"), code
        assert not any(one.startswith("the cause:") for one in notice.unknown)
    alone = msgspec.structs.replace(document, causes=[finding(full_cache, "ENG10", late)])
    (notice,) = (await settle(message(alert("LAT01")), AT, (), judged(alone), RULES)).notices
    assert notice.code == "" and notice.unknown[0].startswith("the cause: ENG10 states a condition")
    other = finding(full_cache, "KVC01", late)
    beside = msgspec.structs.replace(document, causes=[finding(full_cache, "ENG10", late), other])
    (notice,) = (await settle(message(alert("LAT01")), AT, (), judged(beside), RULES)).notices
    assert notice.code == "KVC01", "what explains no cause leaves open why"


async def test_a_cause_explains_an_alert_by_way_of_another_cause(full_cache: Triage) -> None:
    """LAT16 got KVC09, which KVC01 explains."""
    stall = finding(full_cache, "LAT16", kind="symptom")
    preempted = finding(full_cache, "KVC09", stall)
    cache = finding(full_cache, "KVC01", preempted)
    document = msgspec.structs.replace(full_cache, causes=[cache, preempted], symptoms=[stall])
    first = await settle(message(alert("LAT16")), AT, (), diagnosing(document), RULES)
    (notice,) = first.notices
    assert notice.code == "KVC01"
    assert [one.partition(" ")[0] for one in notice.explains] == ["KVC09", "LAT16"]
    known = list(first.incidents.values())
    later = await settle(message(alert("KVC09")), AT + 30, known, diagnosing(document), RULES)
    again = await settle(message(alert("LAT16", number="2")), AT + 60, known, diagnosing(document), RULES)
    assert not later.notices and not again.notices, "the cause explains both"


@pytest.mark.parametrize(("kind", "code"), [("node", "GPU05"), ("pool", "ENG01")])
def test_a_cause_on_the_node_that_explains_one_on_the_engine_comes_first(
    kind: str, code: str, full_cache: Triage
) -> None:
    stuck = finding(full_cache, "ENG01")
    fault = finding(full_cache, "GPU05", stuck, entity=Entity(kind, {kind: "a"}, "a"))
    document = msgspec.structs.replace(full_cache, causes=[fault, stuck], symptoms=[])
    engines = [known_engine({"engine": ENGINE, kind: "a"})]
    found = lead(document, diagnosis_request([alert()], alert().entity, AT), engines)
    assert found is not None and found.code == code
