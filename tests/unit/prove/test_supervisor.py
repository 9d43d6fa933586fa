"""The process that acts: whatever happens to the prover, the engine is back as it was."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitals.app.prove.actuator import CommandError, parse_command, run_command
from kvitals.app.prove.journal import Journal, lock_trials, read_journal
from kvitals.app.prove.supervised import SupervisorGoneError, supervised_change
from kvitals.app.prove.supervisor import Assignment

WAIT_SECONDS = 60.0
SETTINGS = "settings"
"""The file that stands for the engine's configuration."""


def writes(folder: Path, text: str) -> tuple[str, ...]:
    """A command that gives the engine a configuration."""
    return ("sh", "-c", f"echo {text} > {folder / SETTINGS}")


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    descriptor = lock_trials(tmp_path)
    assert descriptor is not None
    yield descriptor
    os.close(descriptor)


def assigned(folder: Path, **other: object) -> Assignment:
    (folder / SETTINGS).write_text("old\n")
    given = {"apply": writes(folder, "new"), "rollback": writes(folder, "old"), "limit": 20.0}
    return Assignment(**{**given, "journal": str(folder / "trial.json"), "engine": "e", **other})  # type: ignore[arg-type]


def settings(folder: Path) -> str:
    return (folder / SETTINGS).read_text().strip()


def journal(folder: Path) -> Journal:
    found = read_journal(folder / "trial.json")
    assert found is not None
    return found


async def test_a_change_that_is_left_stays(tmp_path: Path, lock: int) -> None:
    async with supervised_change(assigned(tmp_path), lock) as change:
        assert (await change.apply()).succeeded
        assert journal(tmp_path).is_open
        await change.leave()
    assert (settings(tmp_path), journal(tmp_path).state) == ("new", "kept")


async def test_a_change_is_taken_back_when_asked(tmp_path: Path, lock: int) -> None:
    async with supervised_change(assigned(tmp_path), lock) as change:
        await change.apply()
        assert settings(tmp_path) == "new"
        assert (await change.rollback()).succeeded
    assert (settings(tmp_path), journal(tmp_path).state) == ("old", "rolled back")


async def test_an_error_in_the_prover_takes_the_change_back(tmp_path: Path, lock: int) -> None:
    with pytest.raises(ZeroDivisionError):
        async with supervised_change(assigned(tmp_path), lock) as change:
            await change.apply()
            raise ZeroDivisionError
    assert (settings(tmp_path), journal(tmp_path).state) == ("old", "rolled back")


async def test_a_prover_that_ends_before_it_changed_anything_runs_no_rollback(tmp_path: Path, lock: int) -> None:
    async with supervised_change(assigned(tmp_path, rollback=writes(tmp_path, "never")), lock):
        pass
    assert settings(tmp_path) == "old"
    assert not (tmp_path / "trial.json").exists()


PROVER = """
import asyncio, sys
from pathlib import Path
import msgspec
from kvitals.app.prove.journal import lock_trials
from kvitals.app.prove.supervised import supervised_change
from kvitals.app.prove.supervisor import Assignment

async def main():
    given = msgspec.json.decode(sys.argv[1], type=Assignment)
    async with supervised_change(given, lock_trials(Path(given.journal).parent)) as change:
        print("begun", flush=True)
        await change.apply()
        print("applied", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("said", ["begun", "applied"])
def test_a_prover_that_is_killed_leaves_the_engine_as_it_was(tmp_path: Path, said: str) -> None:
    """SIGKILL while the command runs, and after it."""
    slow = ("sh", "-c", f"echo half > {tmp_path / SETTINGS}; sleep {300 if said == 'begun' else 0}")
    given = assigned(tmp_path, apply=slow, limit=400.0)
    text = json.dumps({name: getattr(given, name) for name in given.__struct_fields__})
    prover = subprocess.Popen([sys.executable, "-c", PROVER, text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert prover.stdout is not None
    with prover.stdout:
        for line in prover.stdout:
            if line.decode().strip() == said:
                break
        deadline = time.monotonic() + WAIT_SECONDS
        while settings(tmp_path) != "half" and time.monotonic() < deadline:
            time.sleep(0.05)
        prover.send_signal(signal.SIGKILL)
        prover.wait()
    while (settings(tmp_path), journal(tmp_path).state) != ("old", "rolled back"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while (lock := lock_trials(tmp_path)) is None:  # the supervisor keeps it until it is done
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.close(lock)


async def test_a_supervisor_that_is_killed_is_noticed(tmp_path: Path, lock: int) -> None:
    async with supervised_change(assigned(tmp_path), lock) as change:
        await change.apply()
        os.kill(journal(tmp_path).pid, signal.SIGKILL)
        with pytest.raises(SupervisorGoneError):
            await change.rollback()
        deadline = time.monotonic() + WAIT_SECONDS
        while change.alive:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
    assert journal(tmp_path).is_open  # so that the next proof refuses to begin


@pytest.mark.system
async def test_a_rollback_that_fails_is_tried_again(tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt fails, the second one works."""
    script = (
        f"test -e {tmp_path / 'tried'} || {{ touch {tmp_path / 'tried'}; exit 7; }}; echo old > {tmp_path / SETTINGS}"
    )
    async with supervised_change(assigned(tmp_path, rollback=("sh", "-c", script)), lock) as change:
        await change.apply()
        done = await asyncio.wait_for(change.rollback(), WAIT_SECONDS)
    assert done.succeeded and settings(tmp_path) == "old"


def test_a_command_is_ended_at_its_limit_with_all_it_started(tmp_path: Path) -> None:
    done = run_command(("sh", "-c", f"sleep 300 & echo $! > {tmp_path / 'child'}; echo begun; wait"), 1.0)
    assert not done.succeeded and "limit of 1 s" in done.sentence and "begun" in done.sentence
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + WAIT_SECONDS
    while Path(f"/proc/{child}/stat").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_output_is_bounded_and_its_end_is_kept() -> None:
    done = run_command(("sh", "-c", "yes | head -c 10000000; echo the end"), 60.0)
    assert done.succeeded and len(done.output) <= 4000 and done.output.endswith("the end\n")


def test_a_command_that_leaves_a_daemon_is_done_when_it_ends() -> None:
    begun = time.monotonic()
    done = run_command(("sh", "-c", "setsid sleep 20 & echo started"), 60.0)
    assert done.succeeded and time.monotonic() - begun < 15


def test_a_command_that_is_missing_is_named() -> None:
    done = run_command(("/no/such/command",), 5.0)
    assert done.code is None and "/no/such/command cannot be started" in done.sentence


def test_words_are_split_and_nothing_is_expanded() -> None:
    assert parse_command("set 'a b' $HOME; *", "--apply") == ("set", "a b", "$HOME;", "*")
    for wrong in ("", "  ", "echo 'open"):
        with pytest.raises(CommandError, match="--apply"):
            parse_command(wrong, "--apply")
