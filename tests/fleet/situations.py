"""Which recordings a simulated fleet is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvitals.diagnoser.entities import ENTITIES, INFO
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.loader import Knowledge, load
from kvitals.series.promql import expand, parse, selectors
from tests.fleet.backfill import Fleet, fleet
from tests.fleet.loops import Loop, families, pages

ROOT = Path(__file__).parents[2]
HEALTHY = ("app/demo/healthy.kvcap", "tests/captures/others/sglang_healthy.kvcap")
FAULTS = (
    "app/demo/caching_off.kvcap",
    "app/demo/few_slots.kvcap",
    "app/demo/heavy_tenant.kvcap",
    "app/demo/working_set.kvcap",
    "app/demo/unique_prompts.kvcap",
    "tests/captures/others/sglang_working_set.kvcap",
)


def of_families(size: int, planted: int, **more: float | bool) -> Fleet:
    """A fleet as agents export it: the metrics that signals and levers read."""
    knowledge = load()
    wanted = metrics_asked_for(knowledge)
    return _fleet(lambda path: families(path, wanted, knowledge), size, planted, **more)


def of_pages(size: int, planted: int, **more: float | bool) -> Fleet:
    """The same fleet as a Prometheus has it that scrapes the engines themselves."""
    return _fleet(pages, size, planted, raw=True, **more)


def _fleet(read: Callable[[Path], Loop], size: int, planted: int, **more: float | bool) -> Fleet:
    healthy, faults = ([read(ROOT / path) for path in paths] for paths in (HEALTHY, FAULTS))
    return fleet(size, healthy, faults, planted, **more)


def metrics_asked_for(knowledge: Knowledge) -> frozenset[str]:
    """Every metric that a signal, a rule or a lever reads."""
    texts = [
        (text, s.scope) for s in knowledge.signals.values() for text in (s.expr, s.samples.expr if s.samples else "")
    ]
    for lever in knowledge.levers.values():
        own = [lever.in_force, lever.possible, *(t for s in lever.settings for t in (s.when, s.now, s.to))]
        texts += [(text, "engine") for text in own]
    having = {rule.applies.having for rule in knowledge.rules.values()}
    found = {ENTITIES, INFO, *having}
    for text, scope in texts:
        if text:
            values = EvaluationSpan(1000.0).windows.values("fast", scope)
            try:
                found |= {use.name for use in selectors(parse(expand(text, values)))}
            except Exception:
                print("?", text)
    return frozenset(found)
