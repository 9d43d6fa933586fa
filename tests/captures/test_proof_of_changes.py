"""The decision of `kvitals prove` on recorded changes of a real vLLM, read block by block as they were."""

import json
from pathlib import Path

import pytest

from kvitals.app.pipeline import Setup
from kvitals.app.prove.replica import Replica
from kvitals.config import Config
from kvitals.diagnoser import change_effect
from kvitals.diagnoser.change_effect import BeforeAfter
from kvitals.diagnoser.change_proof import ALPHA, ProofEffect, ProofVerdict, SignalTrial, decide, signals_to_test
from kvitals.rules.loader import load
from kvitals.series.recordings import CaptureReader

CHANGES = Path(__file__).with_name("changes")
BLOCK_SECONDS = 4.0
SETUP = Setup(load(), Config())


def answer(name: str) -> ProofVerdict:
    """The answer by the end of a recording, or before it."""
    truth = json.loads((CHANGES / f"{name}.truth.json").read_text())
    replica = Replica(SETUP, "http://127.0.0.1:8000", 300.0)
    before, after, tests = [], [], []
    with CaptureReader.open(CHANGES / f"{name}.kvcap") as reader:
        replica.pipeline.node.expect(reader.header.meta)
        start = due = 0.0
        for record in reader:
            start = start or record.t
            due = due or record.t + 2 * BLOCK_SECONDS
            while record.t > due:
                replica.last = due
                block = replica.of_engine(replica.values(due, BLOCK_SECONDS))
                if due < truth["ended"]:
                    before.append(block)
                    whole = replica.values(due, due - start)
                elif due > truth["back"] + change_effect.SETTLE_SECONDS + BLOCK_SECONDS:
                    after.append(block)
                    tests = tests or begun(replica, before, start, truth["ended"])
                    for one in tests:
                        one.read([values[one.tested.name] for values in after if one.tested.name in values])
                    now = replica.values(due, len(after) * BLOCK_SECONDS)
                    if found := decide(effects(replica, tests, whole, now), unlike(replica, whole, now), last=False):
                        return found[0]
                due += BLOCK_SECONDS
            replica.pipeline.node.ingest_recorded(record)
    found = decide(effects(replica, tests, whole, now), unlike(replica, whole, now), last=True)
    assert found is not None
    return found[0]


def begun(replica: Replica, before: list[dict[str, float]], start: float, ended: float) -> list[SignalTrial]:
    """The tests of the signals of the lever that the change pulled."""
    change = replica.change_since(start)
    assert change is not None
    sides = BeforeAfter(lambda text: replica.number(text, ended), lambda text: replica.number(text, replica.last))
    levers = change_effect.pulled_levers(change, SETUP.knowledge, sides)
    tested = signals_to_test(levers, [], SETUP.knowledge.signals)
    trials = [
        SignalTrial(one, ALPHA / len(tested), [block[one.name] for block in before if one.name in block])
        for one in tested
    ]
    for one in trials:
        one.end_before()
    return trials


def unlike(replica: Replica, before: change_effect.Values, after: change_effect.Values) -> str:
    return change_effect.unlike(replica.entity, before, after)


def effects(
    replica: Replica, tests: list[SignalTrial], before: change_effect.Values, after: change_effect.Values
) -> list[ProofEffect]:
    was, now = replica.of_engine(before), replica.of_engine(after)
    return [one.effect(was.get(one.tested.name), now.get(one.tested.name)) for one in tests]


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("blocks_raised", {"worked"}),
        ("slots_raised", {"worked", "undecided"}),  # seven blocks after it, on a busy machine
        ("slots_lowered", {"worse"}),
        ("blocks_in_vain", {"no effect", "undecided"}),
        ("load_changed", {"undecided"}),
    ],
)
def test_a_recorded_change_has_its_answer(name: str, verdicts: set[str]) -> None:
    assert answer(name) in verdicts
