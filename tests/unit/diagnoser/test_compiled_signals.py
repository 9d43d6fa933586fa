"""A signal that is compiled once and given its windows later is the signal compiled for these windows."""

from __future__ import annotations

import msgspec
import pytest

from kvitals.diagnoser.batch_signals import Ahead
from kvitals.rules.compiled_signal import STAND_INS, WindowDurations, compile_signal, selections, with_windows
from kvitals.rules.expressions import expression
from kvitals.rules.loader import load
from kvitals.rules.model import Signal
from kvitals.series.window import Window

SIGNALS = load().signals
NAMES = ("window", "resolution", "baseline")
TEMPLATES = {name: compile_signal(signal, STAND_INS, expression) for name, signal in SIGNALS.items()}


@pytest.mark.parametrize("windows", [WindowDurations(), WindowDurations("12s", "12s", "12s")], ids=["usual", "cold"])
def test_a_template_with_windows_is_the_compiled_signal(windows: WindowDurations) -> None:
    for name, found in with_windows(TEMPLATES, windows).items():
        compiled = compile_signal(SIGNALS[name], windows)
        assert found == compiled, name
        assert found.reads == compiled.reads == selections(compiled.expr), name
        assert found.signals == compiled.signals, name


def test_a_signal_without_windows_is_its_template() -> None:
    compiled = with_windows(TEMPLATES, WindowDurations("30s"))
    named = {name for name, signal in SIGNALS.items() if any(f"${w}" in text(signal) for w in NAMES)}
    assert {name for name in SIGNALS if compiled[name] is not TEMPLATES[name]} == named
    assert named < SIGNALS.keys()


def text(signal: Signal) -> str:
    return signal.expr if signal.samples is None else f"{signal.expr} {signal.samples.expr}"


def test_recordings_share_what_is_compiled_of_the_same_knowledge() -> None:
    windows, own = WindowDurations("17s"), load()
    own.signals["ttft_p50_seconds"] = msgspec.structs.replace(own.signals["ttft_mean_seconds"], expr="vector(1)")
    one, other, changed, live = (Ahead(knowledge, Window(60, 10)) for knowledge in (load(), load(), own, load()))
    for signals in (one, other, changed):
        signals.foresee([])
    compiled = one._with_windows(windows)
    assert other._with_windows(windows) is compiled
    assert live._with_windows(windows) is not compiled
    assert live._with_windows(windows) == compiled
    assert str(changed._with_windows(windows)["ttft_p50_seconds"].expr) == "vector(1)"
