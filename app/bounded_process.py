"""Heavy work in a process of its own: that process ends at a limit of memory or time, and the agent continues.

found = run_bounded(history_steps, path, now, limits=WorkLimits(60.0))

Function, arguments and result are pickled, so the function is one of a module. The process ends with the one that
started it, and the kernel ends it first where memory runs out.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from kvitals.agent.logger import Logger

T = TypeVar("T")

MEMORY_BYTES = 320 << 20
"""Of data in the process, of which three quarters are resident: with 300 MB of an agent that is below the unit's
MemoryHigh."""
RESULT_BYTES = 64 << 20
"""Of a pickled result, which the agent takes in."""
_ENDS_FIRST = "1000"
"""For the kernel's choice of what to end where memory runs out."""
_MAX_LOG = 4096
_OUT_OF_MEMORY = 3
"""The exit status of work that took more memory than it may."""
_turn = threading.Lock()
"""One such process at a time."""
_log = Logger()


@dataclass(frozen=True)
class WorkLimits:
    """seconds: from the call until the result, waiting for other work included; memory: bytes of data; niceness: as
    that of the caller, and so much more."""

    seconds: float
    memory: int = MEMORY_BYTES
    niceness: int = 10


class WorkLimitError(ValueError):
    """The work did not end within its limits, or failed; the message states which."""


class WorkRefusedError(ValueError):
    """The work has no result; the message states why."""


def run_bounded(work: Callable[..., T], *arguments: object, limits: WorkLimits) -> T:
    """The result of a function in a process of its own. In any thread but the event loop's.

    Raises WorkRefusedError where the function does, and WorkLimitError.
    """
    deadline = time.monotonic() + limits.seconds
    if not _turn.acquire(timeout=limits.seconds):
        raise WorkLimitError(
            f"other work on the history took longer than the limit of {limits.seconds:g} s: ask again later"
        )
    try:
        kind, value = _answer(pickle.dumps((work, arguments, limits)), deadline, limits)
    except OSError as error:  # no process, memory or descriptor left, or a clock that was set meanwhile
        raise WorkLimitError(f"its process cannot be run: {error.strerror or error}") from error
    finally:
        _turn.release()
    if kind == "refused":
        raise WorkRefusedError(value)
    return cast(T, value)


def _answer(task: bytes, deadline: float, limits: WorkLimits) -> tuple[str, Any]:
    """What the process wrote: "done" with the result, or "refused" with the reason. Raises WorkLimitError."""
    ours, theirs = os.pipe()  # the process reads the end of ours once this one, which alone has theirs, is gone
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    try:
        with subprocess.Popen(  # noqa: S603 (this module, and a number)
            [sys.executable, "-P", "-m", "kvitals.app.bounded_process", str(ours)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=(ours,),
            start_new_session=True,
        ) as process:
            try:
                said, problem = process.communicate(task, max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                raise WorkLimitError(f"it takes more than {limits.seconds:g} s") from None
            finally:
                process.kill()
    finally:
        os.close(ours)
        os.close(theirs)
    if process.returncode == 0:
        return cast(tuple[str, Any], pickle.loads(said))  # noqa: S301 (of the process that this one started)
    if process.returncode == _OUT_OF_MEMORY:
        raise WorkLimitError(f"it takes more than {limits.memory >> 20} MB of memory")
    if process.returncode < 0:
        raise WorkLimitError(f"the system ended it with signal {-process.returncode}")
    _log.error("work in a separate process failed", trace=problem.decode(errors="replace")[-_MAX_LOG:])
    raise WorkLimitError("it failed: the log has the reason")


def serve(lifeline: int) -> int:
    """What the process does: one task from standard input. lifeline: a pipe that ends with the process that started
    this one. Returns the exit status."""
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    work, arguments, limits = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 (of the process that started this)
    _limit(limits)
    try:
        answer = _pickled(work, arguments)
    except MemoryError:
        return _OUT_OF_MEMORY
    except Exception:
        sys.stderr.write(traceback.format_exc(limit=-5))
        return 1
    answers.write(answer)
    answers.flush()
    return 0


def _pickled(work: Callable[..., object], arguments: tuple[object, ...]) -> bytes:
    try:
        answer = pickle.dumps(("done", work(*arguments)))
    except WorkRefusedError as error:
        answer = pickle.dumps(("refused", str(error)))
    if len(answer) > RESULT_BYTES:
        raise MemoryError
    return answer


def _limit(limits: WorkLimits) -> None:
    os.nice(limits.niceness)
    with contextlib.suppress(OSError):  # other systems than Linux
        Path("/proc/self/oom_score_adj").write_text(_ENDS_FIRST, encoding="ascii")
    cpu = int(limits.seconds) + 1
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu),
    ):
        resource.setrlimit(kind, (most, most))


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(1)


if __name__ == "__main__":
    from kvitals.app import bounded_process  # the module that tasks refer to, not this copy of it

    sys.exit(bounded_process.serve(int(sys.argv[1])))
