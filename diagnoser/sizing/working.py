"""The thirteen steps of a sizing, each as lines with a value and how it was come by.

Each step rests on those before it: what is asked, on what hardware, what has to fit, in which formats, over how many
GPUs, what one instance does, how many there are, what they cost, and how production shows that it was wrong.
"""

from __future__ import annotations

from dataclasses import replace

from kvitals.diagnoser.sizing import working_fit as fit
from kvitals.diagnoser.sizing import working_serve as serve
from kvitals.diagnoser.sizing.plan import SizingPlan
from kvitals.diagnoser.sizing.step import SizingStep

_STEPS = (
    fit.workload,
    fit.hardware,
    fit.models,
    fit.floor,
    fit.formats,
    fit.layout,
    serve.one_instance,
    serve.kv_cache,
    serve.batching,
    serve.curve,
    serve.fleet,
    serve.money,
    serve.validate,
)


def steps(of: SizingPlan) -> list[SizingStep]:
    """All thirteen."""
    return [replace(one(of), number=place) for place, one in enumerate(_STEPS, 1)]
