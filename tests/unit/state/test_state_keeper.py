"""State over a restart: one agent at a time has it, a slow or full disk holds up nothing, and that is reported."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from kvitals.app import state
from kvitals.app.state import StateKeeper, load_state
from kvitals.diagnoser.judgement import Memory
from tests.unit.history.history_stage import until

NOW = 1_800_000_000.0


def memory(since: float = NOW) -> dict[str, Memory]:
    return {"KVC01": Memory(true_since=since, last_true=NOW)}


def test_saved_state_is_there_after_a_restart(tmp_path: Path) -> None:
    said: list[str] = []
    keeper = StateKeeper(tmp_path / "new" / "state.json", said.append)
    assert keeper.open(NOW) == {}
    keeper.save(memory())
    keeper.close()
    again = StateKeeper(tmp_path / "new" / "state.json", said.append)
    assert again.open(NOW) == memory()
    again.close()
    assert not said


def test_a_second_agent_runs_without_and_overwrites_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    first, second = (StateKeeper(tmp_path / "state.json", said.append) for _ in range(2))
    first.open(NOW)
    first.save(memory())
    assert second.open(NOW) == {}
    assert "another agent uses" in said[0]
    assert "XDG_STATE_HOME" in said[0]
    second.save(memory(NOW - 99))
    second.close()
    first.close()
    assert load_state(tmp_path / "state.json", NOW) == memory()
    third = StateKeeper(tmp_path / "state.json", said.append)
    assert third.open(NOW) == memory()
    third.close()


def test_a_disk_that_hangs_holds_up_no_cycle_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(state, "replace_file", lambda *_: hangs.wait(60))
    monkeypatch.setattr(state, "CLOSE_SECONDS", 0.05)
    keeper = StateKeeper(tmp_path / "state.json", lambda _: None)
    keeper.open(NOW)
    busy = time.process_time()
    for number in range(100):
        keeper.save(memory(NOW - number))
    keeper.close()
    assert time.process_time() - busy < 5
    hangs.set()


def test_a_disk_that_is_full_is_reported_once_and_again_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    keeper = StateKeeper(tmp_path / "state.json", said.append)
    keeper.open(NOW)
    full = threading.Event()
    full.set()
    original, tried = state.replace_file, []

    def replace(path: Path, content: bytes) -> None:
        tried.append(content)
        if full.is_set():
            raise OSError(28, os.strerror(28))
        original(path, content)

    monkeypatch.setattr(state, "replace_file", replace)
    for number in range(3):
        keeper.save(memory(NOW - number))
        until(lambda wanted=number + 1: len(tried) == wanted, "not tried")  # type: ignore[misc]
    full.clear()
    keeper.save(memory(NOW - 9))
    keeper.close()
    assert "No space left" in said[0]
    assert said[1:] == ["state: saved again"]
    assert load_state(tmp_path / "state.json", NOW) == memory(NOW - 9)


def test_a_fifo_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.json")
    assert load_state(tmp_path / "state.json", NOW) == {}
    os.mkfifo(tmp_path / "state.lock")
    keeper = StateKeeper(tmp_path / "state.json", lambda _: None)
    keeper.open(NOW)
    keeper.save(memory())
    keeper.close()
    assert load_state(tmp_path / "state.json", NOW) == memory()
