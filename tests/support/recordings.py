"""Recordings as they are judged or read to their ends, each once: several tests ask about one.

Ends and pipelines are shared by the tests of a process. Documents are shared by all processes of a run of pytest, in a
folder that is thrown away after it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar
from unittest import mock

import msgspec

from kvitals.app.pipeline import STEP_SECONDS, Pipeline, Setup
from kvitals.app.sources.recording import (
    NOW,
    Moments,
    RecordingEnd,
    RecordingVerdict,
    ended_node,
    judge_recording,
)
from kvitals.app.sources.recording import verdicts as judge_moments
from kvitals.config import Config
from kvitals.rules.finding import Triage
from kvitals.rules.loader import load
from kvitals.series.files import replace_file

RUN_FOLDER = "KVITALS_TEST_RUN"
"""The environment variable of the folder of a run of pytest (tests/conftest.py)."""
CAPTURES = Path(__file__).parents[1] / "captures"
MAX_KEPT = 8
"""Verdicts and ends that are remembered: each keeps its pipeline, which takes some 10 MB."""

T = TypeVar("T")


class _Kept(Generic[T]):
    """The last answers about files, by what was asked. What was asked with need not be hashable."""

    def __init__(self) -> None:
        self._kept: list[tuple[object, T]] = []

    def get(self, path: Path, asked: object, make: Callable[[], T]) -> T:
        """The answer for the same file, as long as it is not written anew."""
        there = path.stat()
        key = (path.absolute(), there.st_mtime_ns, there.st_size, asked)
        for i, (known, answer) in enumerate(self._kept):
            if known == key:
                self._kept.append(self._kept.pop(i))
                return answer
        made = make()
        self._kept.append((key, made))
        del self._kept[:-MAX_KEPT]
        return made


class SharedVerdict(RecordingVerdict):
    """A verdict whose document may be another process's: its recording is judged here once its pipeline is asked."""

    def __init__(self, document: Triage, judged: Callable[[], RecordingVerdict]) -> None:
        for name, value in (("_judged", judged), ("document", document)):
            object.__setattr__(self, name, value)

    @cached_property
    def pipeline(self) -> Pipeline:  # type: ignore[override]
        return self._judged().pipeline


_verdicts = _Kept[RecordingVerdict]()
_ends = _Kept[RecordingEnd]()
_courses = _Kept[list[tuple[float, Triage]]]()


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
    return _verdicts.get(path, (moments, step, under), lambda: _shared_verdict(path, under, moments, step))


def _shared_verdict(path: Path, under: Setup, moments: Moments, step: float) -> RecordingVerdict:
    """A verdict with the document that a process of this run has written, or writes here."""
    file = _file_of(path, under, moments, step)
    if file is None:
        return judge_recording(path, under, moments, step)
    if not file.exists():
        verdict = judge_recording(path, under, moments, step)
        replace_file(file, msgspec.json.encode(verdict.document))
        return verdict
    document = msgspec.json.decode(file.read_bytes(), type=Triage)
    return SharedVerdict(document, lambda: judge_recording(path, under, moments, step))


def _file_of(path: Path, under: Setup, moments: Moments, step: float) -> Path | None:
    """Where the processes of a run keep a document, by all that it is made of; None for rules of one's own."""
    folder = os.environ.get(RUN_FOLDER, "")
    if not folder or under.knowledge != load() or under.directories:
        return None
    asked = repr((path.name, under.config, sorted(under.slo_sources.items()), moments, step))
    content = hashlib.sha256(path.read_bytes() + asked.encode())
    return Path(folder) / f"{content.hexdigest()}.json"


def end(path: Path, config: Config, slo_sources: Mapping[str, str] | None = None) -> RecordingEnd:
    """`ended_node`, which remembers the last ends as `judge` does verdicts. What it returns is shared.

    Raises as `ended_node` does.
    """
    return _ends.get(path, (config, dict(slo_sources or {})), lambda: ended_node(path, config, slo_sources))


def verdicts(path: Path, under: Setup) -> Iterator[tuple[float, Triage]]:
    """The documents of `verdicts`, which are remembered as `judge` remembers one. What it yields is shared.

    Raises as `replay_moments` does.
    """
    yield from _courses.get(path, under, lambda: list(judge_moments(path, under)))


@dataclass(frozen=True)
class JudgedMoment:
    """What is asked of a pipeline that stands at a moment: its document."""

    document: Triage

    def triage(self) -> Triage:
        return self.document


def replay_moments(path: Path, under: Setup) -> Iterator[tuple[float, JudgedMoment]]:
    """`replay_moments` from the remembered documents, for what asks each moment for its document only."""
    for at, document in verdicts(path, under):
        yield at, JudgedMoment(document)


_SHARED = {"judge_recording": judge, "ended_node": end, "verdicts": verdicts, "replay_moments": replay_moments}


@contextmanager
def judged_once(*commands: ModuleType) -> Iterator[None]:
    """Modules that judge recordings by `judge` and read them to their ends by `end` meanwhile."""
    with ExitStack() as patches:
        for module in commands:
            there = [(name, shared) for name, shared in _SHARED.items() if hasattr(module, name)]
            assert there, f"{module.__name__} neither judges a recording nor reads one to its end"
            for name, shared in there:
                patches.enter_context(mock.patch.object(module, name, shared))
        yield
