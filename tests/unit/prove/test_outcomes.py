"""A proof comes into the history of the agent, and so into the review."""

import os
from pathlib import Path

import msgspec

from kvitals.app.prove_outcomes import OUTCOMES, collected_outcomes, is_kept_by_agent, leave_outcome
from kvitals.diagnoser.review.events import noted_events
from kvitals.series.files import lock_file
from kvitals.series.history.schema import LOCK
from tests.unit.prove.proofs import proof


def test_a_proof_is_an_event_of_the_history_and_of_the_review(tmp_path: Path) -> None:
    history = tmp_path / "history.db"
    assert not leave_outcome(history, proof())  # there is none
    history.touch()
    assert leave_outcome(history, proof())
    (event,) = collected_outcomes(tmp_path / OUTCOMES)
    assert (event.kind, event.source, event.t) == ("outcome", "prove", proof().ended)
    assert event.text.startswith("engine, slots 2 → 16: The change worked")
    (shown,) = noted_events([event])
    assert (shown.kind, shown.who, shown.text) == ("outcome", "engine", event.text)
    assert collected_outcomes(tmp_path / OUTCOMES) == []  # once


def test_what_is_no_proof_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / OUTCOMES
    assert collected_outcomes(folder) == []
    folder.mkdir()
    (folder / "a.json").write_text("no json")
    (folder / "b.json").write_bytes(msgspec.json.encode({"version": "1.0"}))
    (folder / "c.json").mkdir()
    assert collected_outcomes(folder) == []
    assert [path.name for path in folder.iterdir()] == ["c.json"]


def test_a_history_that_no_agent_writes_is_known_as_such(tmp_path: Path) -> None:
    """The proof of an agent with another history was left where nobody read it, and said to be written down."""
    history = tmp_path / "history.db"
    history.touch()
    assert not is_kept_by_agent(history)
    lock = lock_file(tmp_path / LOCK)
    assert is_kept_by_agent(history)
    os.close(lock)
    assert not is_kept_by_agent(history)
