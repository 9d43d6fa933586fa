"""Recordings as they are judged under the defaults, each once in a process: several files of tests ask about one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from unittest import mock

from kvitals.app.pipeline import STEP_SECONDS, Setup
from kvitals.app.sources.recording import NOW, Moments, RecordingVerdict, judge_recording
from kvitals.config import Config
from kvitals.rules.loader import load

CAPTURES = Path(__file__).parents[1] / "captures"
MAX_KEPT = 8
"""Verdicts that are remembered: each keeps its pipeline, which takes some 10 MB."""
_kept: list[tuple[tuple[object, ...], Setup, RecordingVerdict]] = []


@cache
def setup() -> Setup:
    """The rules that ship, under the default configuration."""
    return Setup(load(), Config())


@lru_cache(maxsize=MAX_KEPT)
def judged(name: str, step: float = STEP_SECONDS) -> RecordingVerdict:
    """A recording below tests/captures, such as `ledger/thrash`, at its end. step: seconds between judgements.

    What it returns is shared: a test that observes another moment replays the recording for itself.
    """
    return judge_recording(CAPTURES / f"{name}.kvcap", setup(), step=step)


def judge(path: Path, under: Setup, moments: Moments = NOW, step: float = STEP_SECONDS) -> RecordingVerdict:
    """`judge_recording`, which remembers the last verdicts: the same file under an equal setup is judged once.

    What it returns is shared. Raises as `judge_recording` does.
    """
    there = path.stat()
    key = (path.absolute(), there.st_mtime_ns, there.st_size, moments, step)
    for i, (asked, setup_then, verdict) in enumerate(_kept):
        if asked == key and setup_then == under:
            _kept.append(_kept.pop(i))
            return verdict
    verdict = judge_recording(path, under, moments, step)
    _kept.append((key, under, verdict))
    del _kept[:-MAX_KEPT]
    return verdict


@contextmanager
def judged_once(*commands: ModuleType) -> Iterator[None]:
    """Modules that judge recordings by `judge` meanwhile."""
    with ExitStack() as patches:
        for module in commands:
            patches.enter_context(mock.patch.object(module, "judge_recording", judge))
        yield
