"""One sample gate: the evaluator, recording rules and board queries judge a signal from the same count on."""

from __future__ import annotations

from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.queries import Queries
from kvitals.dashboards.recording_rules import definition
from kvitals.diagnoser.signals import with_enough_samples
from kvitals.rules.compiled_signal import compile_signal, sample_gate
from kvitals.rules.loader import SIGNAL_PREFIX, load
from kvitals.series.promql import Binary, NumberLiteral, Selector, parse
from kvitals.series.types import Labels

KNOWLEDGE = load()
ENTITY = Labels({"engine": "e"})


def test_every_surface_has_the_gate_of_the_compiled_signal() -> None:
    queries, wrong = Queries(KNOWLEDGE), []
    for name, signal in KNOWLEDGE.signals.items():
        if signal.samples is None:
            continue
        enough = sample_gate(signal.samples)
        recorded = parse(definition(signal, Options()))
        board = parse(queries.signal(name, now=True).expr.replace("[$__interval", "[1m").replace("$", ""))
        for surface, expr in (("recording rule", recorded), ("board", board), ("source", compile_signal(signal).gated)):
            if isinstance(expr, Selector) and expr.name == SIGNAL_PREFIX + name:
                continue  # a long query of a board reads the recorded signal, whose rule has the gate
            gates = {n.right.value for n in expr.walk() if isinstance(n, Binary) and isinstance(n.right, NumberLiteral)}
            if enough not in gates:
                wrong.append(f"{name}: {surface} has no gate at {enough:g}")
    assert wrong == []


def test_the_evaluator_judges_half_a_sample_early_as_the_others_do() -> None:
    signal = next(s for s in KNOWLEDGE.signals.values() if s.samples is not None and s.samples.min == 20)
    for count, judged in ((19.7, True), (19.5, True), (19.4, False)):
        known = with_enough_samples(signal, {ENTITY: 1.0}, {ENTITY: count})
        assert (ENTITY in known.values) is judged
        assert (ENTITY in known.too_few) is not judged
