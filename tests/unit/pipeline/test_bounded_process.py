"""Work in a process of its own ends at its limits, and with the process that started it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvitals.app.bounded_process import WorkLimitError, WorkLimits, WorkRefusedError, run_bounded
from tests.unit.history.history_stage import until
from tests.unit.pipeline import bounded_tasks as tasks

LIMITS = WorkLimits(60.0)


def test_the_result_comes_from_another_process() -> None:
    number, pid = run_bounded(tasks.place, 1, limits=LIMITS)
    assert number == 2
    assert pid != os.getpid()


def test_a_reason_comes_back() -> None:
    with pytest.raises(WorkRefusedError, match="there is nothing"):
        run_bounded(tasks.refuse, limits=LIMITS)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (tasks.fill_memory, "takes more than 320 MB of memory"),
        (tasks.large_result, "takes more than 320 MB of memory"),
        (tasks.fail, "the log has the reason"),
    ],
)
def test_work_beyond_its_limits_ends(work: Callable[[], object], said: str) -> None:
    with pytest.raises(WorkLimitError, match=said):
        run_bounded(work, limits=LIMITS)


@pytest.mark.system
def test_work_beyond_its_time_ends(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(WorkLimitError, match="more than 4 s"):
        run_bounded(tasks.sleep, tmp_path / "pid", limits=WorkLimits(4.0))
    assert time.monotonic() - begun < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = (
        "from pathlib import Path; from kvitals.app.bounded_process import WorkLimits, run_bounded;"
        " from tests.unit.pipeline import bounded_tasks as tasks;"
        f" run_bounded(tasks.sleep, Path({str(file)!r}), limits=WorkLimits(60.0))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as parent:
        until(lambda: file.exists() and file.read_text() != "", "not begun")
        parent.send_signal(signal.SIGKILL)
    pid = int(file.read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), "it goes on")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
@pytest.mark.parametrize("step", ["communicate", "__init__"])
def test_a_process_that_cannot_be_run_is_a_limit(number: int, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set while the agent waited for the process ended a thread with a traceback."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    class Failing(subprocess.Popen[bytes]):
        _child_created = False  # of a process that was not started

    setattr(Failing, step, failing)
    monkeypatch.setattr(subprocess, "Popen", Failing)
    with pytest.raises(WorkLimitError, match=os.strerror(number)):
        run_bounded(tasks.place, 1, limits=LIMITS)
    monkeypatch.undo()
    assert run_bounded(tasks.place, 1, limits=LIMITS)[0] == 2, "it is the next one's turn"
