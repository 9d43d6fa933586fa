"""On a loop, the expressions of signals are evaluated in a thread: one over many series takes half a second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvitals.agent.workers import Worker
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import Config
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import load
from kvitals.series.promql import Moment
from kvitals.series.slices import in_slices

AT = 1_790_000_000.0


async def test_expressions_are_compiled_read_and_evaluated_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, set[str]] = {}

    def watch(owner: type, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **more: Any) -> Any:
            ran.setdefault(name, set()).add(threading.current_thread().name)
            return real(*args, **more)

        monkeypatch.setattr(owner, name, watched)

    for owner, name in ((Signals, "_compile"), (Signals, "_evaluate"), (Moment, "prepare")):
        watch(owner, name)
    pipeline = Pipeline(Setup(load(), Config()), DocumentSource("agent", "here"))
    await in_slices(pipeline.observe_steps(EvaluationSpan(AT, 60.0, 900.0)), Worker("judging").run)
    assert ran == {name: {"kvitals-judging"} for name in ("_compile", "_evaluate", "prepare")}
