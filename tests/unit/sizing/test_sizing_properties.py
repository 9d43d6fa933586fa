"""What holds of every sizing, whatever the model, the GPU and the workload."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvitals.diagnoser.sizing import roofline
from kvitals.diagnoser.sizing.fleet import fleet, whole_ratio
from kvitals.diagnoser.sizing.instance import layouts
from kvitals.diagnoser.sizing.memory import (
    GpuLayout,
    Precisions,
    flops,
    kv_of_sequence,
    kv_on_gpu,
    kv_per_token,
    precision,
)
from kvitals.diagnoser.sizing.plan import Inputs, MeasuredInstance, SizingError, SizingPlan, plan
from kvitals.diagnoser.sizing.roofline import Machine, PeakShares
from kvitals.diagnoser.sizing.working import steps
from kvitals.diagnoser.sizing.workload import Lengths, Workload
from kvitals.rules import catalogue
from kvitals.rules.catalogue import Gpu, Model

MODELS = st.sampled_from(catalogue.models())
GPUS = st.sampled_from(catalogue.gpus())
FEW = settings(max_examples=40, deadline=None)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    def lengths(least: float, most: float) -> Lengths:
        mean = draw(st.floats(least, most))
        return Lengths(mean, mean * draw(st.floats(1, 4)), mean * draw(st.floats(4, 8)))

    peak = draw(st.floats(0.1, 500))
    return Workload(
        peak=peak,
        mean=draw(st.one_of(st.none(), st.floats(0.05, 1).map(lambda share: peak * share))),
        prompt=lengths(16, 4_000),
        output=lengths(2, 1_000),
        cached=draw(st.floats(0, 0.9)),
        ttft=draw(st.sampled_from((2.0, 10.0, math.inf))),
        itl=draw(st.sampled_from((0.05, 0.2, math.inf))),
        source="drawn",
    )


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    names = draw(st.sampled_from((("bf16", "bf16"), ("fp8", "fp8"), ("int4", "fp8"))))
    return Inputs(
        draw(workloads()),
        draw(MODELS),
        draw(GPUS),
        *(precision(name) for name in names),
        safety=draw(st.floats(1.0, 1.5)),
    )


def planned(of: Inputs) -> SizingPlan:
    try:
        return plan(of)
    except SizingError:
        assume(False)
        raise AssertionError from None


@FEW
@given(inputs(), st.floats(1, 10))
def test_more_load_never_takes_fewer_gpus(of: Inputs, times: float) -> None:
    more = replace(of, workload=replace(of.workload, peak=of.workload.peak * times))
    assert planned(more).fleet.gpus >= planned(of).fleet.gpus


@FEW
@given(inputs(), st.floats(1, 4))
def test_looser_objectives_never_take_more_gpus(of: Inputs, times: float) -> None:
    load = of.workload
    looser = replace(of, workload=replace(load, itl=load.itl * times, ttft=load.ttft * times))
    assert planned(looser).fleet.gpus <= planned(of).fleet.gpus


@FEW
@given(inputs())
def test_a_plan_fits_divides_the_heads_and_carries_the_peak(of: Inputs) -> None:
    found = planned(of)
    one, model = found.chosen, of.model
    assert one.budget.room > 0 and 1 <= one.batch <= one.holds
    if model.query_heads:
        assert model.query_heads % one.layout.tensor == 0
    assert found.fleet.instances * found.usable >= of.workload.peak * of.safety * (1 - 1e-9)
    assert (found.fleet.instances - 1) * found.usable < of.workload.peak * of.safety
    assert one.itl <= of.workload.itl and one.ttft <= of.workload.ttft


@FEW
@given(inputs())
def test_little_holds_of_a_plan(of: Inputs) -> None:
    """Requests at a time are the rate times how long each stays: its prefill, then a gap for each token."""
    one = planned(of).chosen
    load = of.workload
    prefill = roofline.prefill_seconds(one.machine, load.prompt.mean, load.prompt.mean * load.cached)
    assert one.rate * (prefill + load.output.mean * one.itl) == pytest.approx(one.batch)


@FEW
@given(inputs())
def test_thirteen_steps_tell_numbers(of: Inputs) -> None:
    told = steps(planned(of))
    assert [step.number for step in told] == list(range(1, 14))
    for step in told:
        assert step.answer.endswith(".")
        for line in step.lines:
            assert line.told and "nan" not in line.told
            assert line.value is None or not math.isnan(line.value)


@FEW
@given(inputs(), st.floats(0.2, 0.9))
def test_what_is_reached_of_the_peaks_makes_a_bound_smaller(of: Inputs, share: float) -> None:
    found = planned(of)
    less = planned(replace(of, layout=found.chosen.layout, reached=PeakShares(share, share)))
    assert less.usable <= found.usable


@FEW
@given(inputs(), st.floats(0.5, 100))
def test_what_was_measured_goes_before_the_bound(of: Inputs, usable: float) -> None:
    found = planned(replace(of, measured=MeasuredInstance(usable=usable)))
    assert found.usable == usable and not found.bound


@given(MODELS, st.floats(1, 200_000), st.sampled_from((2.0, 1.0, 0.5625)))
def test_kv_on_a_gpu_is_between_a_share_and_all_of_it(model: Model, context: float, element: float) -> None:
    whole = kv_of_sequence(model, context, element)
    for tensor in (1, 2, 4, 8, 16):
        here = kv_on_gpu(model, context, element, tensor)
        assert whole / tensor * (1 - 1e-9) <= here <= whole * (1 + 1e-9)
        if model.latent:
            assert here == pytest.approx(whole)


@given(MODELS, st.floats(1, 100_000), st.floats(1, 100_000))
def test_kv_grows_with_context_and_no_faster_than_a_token_each(model: Model, short: float, more: float) -> None:
    before, after = kv_of_sequence(model, short, 2.0), kv_of_sequence(model, short + more, 2.0)
    assert before < after <= before + more * kv_per_token(model, 2.0) * (1 + 1e-9)


@given(MODELS, GPUS)
def test_every_layout_divides_the_heads(model: Model, gpu: Gpu) -> None:
    for one in layouts(model, gpu):
        assert not model.query_heads or model.query_heads % one.tensor == 0
        assert one.pipeline <= model.layers


@given(MODELS, GPUS, st.integers(1, 512), st.integers(1, 512), st.floats(16, 32_000))
def test_a_larger_step_takes_longer_and_each_token_less(m: Model, gpu: Gpu, b: int, more: int, context: float) -> None:
    one = Machine(m, gpu, GpuLayout(1), Precisions(2.0, 2.0), flops(gpu, precision("bf16")))
    small, large = (roofline.step_seconds(one, n, context) for n in (b, b + more))
    assert large >= small * (1 - 1e-9)
    assert large / (b + more) <= small / b * (1 + 1e-9)


@given(st.floats(1e-4, 1e3))
def test_the_whole_ratio_never_gives_prefill_less(wanted: float) -> None:
    p, d = whole_ratio(wanted)
    assert p / d >= wanted * (1 - 1e-6)
    assert p / d <= max(2 * wanted, wanted + 1)


@given(st.floats(0.1, 1e4), st.floats(0.01, 1e3), st.integers(1, 64), st.floats(1, 2))
def test_a_fleet_is_whole_instances(peak: float, usable: float, each: int, safety: float) -> None:
    found = fleet(peak, usable, each, safety)
    assert found.gpus % each == 0
    assert found.instances * usable >= peak * safety * (1 - 1e-6)
