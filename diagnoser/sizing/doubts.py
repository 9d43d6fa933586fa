"""What a plan takes for granted and its inputs make doubtful, a sentence each: what is so, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvitals.diagnoser.sizing import roofline
from kvitals.diagnoser.sizing.instance import gap, link_domain
from kvitals.diagnoser.sizing.plan import SizingPlan
from kvitals.diagnoser.sizing.quantity import number, seconds, size


def plan_doubts(of: SizingPlan) -> list[str]:
    """All of a plan."""
    return [*_context(of), *_formats(of), *_domain(of), *_usable(of), *_concurrency(of), *_first_token(of)]


def _context(of: SizingPlan) -> Iterator[str]:
    """Long sequences beyond the model's context; where even the mean is, there is no plan."""
    load, most = of.inputs.workload, of.inputs.context
    if most and load.longest > most:
        yield (
            f"{number(load.longest)} tokens, p95 prompt and p95 answer, are more than the {most:,} tokens of"
            f" {of.inputs.model.name}'s context: engines refuse these requests. If the engine extends the context"
            " (RoPE scaling), give --max-model-len N"
        )


def _formats(of: SizingPlan) -> Iterator[str]:
    into = of.inputs
    peak = {4: into.gpu.flops_4, 8: into.gpu.flops_8}.get(into.weights.bits, into.gpu.flops_16)
    if not peak and into.weights.name != into.model.native:
        yield (
            f"{into.gpu.name} has no {into.weights.bits}-bit units: engines unpack {into.weights.name} weights for"
            " 16-bit arithmetic if they have a kernel for it, so only memory and bandwidth are saved. Check that your"
            " engine supports the format on this GPU"
        )


def _domain(of: SizingPlan) -> Iterator[str]:
    """Layouts whose GPUs send within a step over more than what joins GPUs."""
    gpu, layout = of.inputs.gpu, of.chosen.layout
    together, most = layout.tensor * layout.data, link_domain(gpu)
    if together > most:
        yield (
            f"{layout} needs {together} GPUs in one link domain, and {gpu.interconnect} joins {most} of"
            f" {gpu.name}: the network between nodes is slower than the {size(gpu.scale_up)}/s that this plan assumes."
            f" Use --tp {most} or less, with --pp for more GPUs"
        )


def _usable(of: SizingPlan) -> Iterator[str]:
    if not of.bound and of.usable > of.chosen.rate:
        yield (
            f"the usable {number(of.usable)} requests/s are above the bound of {number(of.chosen.rate)} requests/s of"
            f" step 7 ({of.chosen.layout}, sequences as long as p95, no speculation): check that they belong to one"
            " instance of this layout, and give its hit rate (--hits)"
        )


def _concurrency(of: SizingPlan) -> Iterator[str]:
    seen, into, one = of.inputs.measured, of.inputs, of.chosen
    if seen.c_max is None:
        return
    slots = None if into.slots is None else into.slots * one.layout.data
    if slots is not None and seen.c_max > slots:
        yield f"C_max is {number(seen.c_max)}, but --max-num-seqs lets {slots:,} requests run: the others wait"
    if seen.usable is None:
        return
    load, stays = into.workload, seen.c_max / seen.usable
    alone = roofline.prefill_seconds(one.machine, load.prompt.mean, load.prompt.mean * load.cached)
    alone += (load.output.mean - 1) * gap(one.machine, load, 1)
    if stays < alone:
        yield (
            f"C_max {number(seen.c_max)} at {number(seen.usable)} requests/s is a stay of {seconds(stays)}, but a"
            f" request takes {seconds(alone)} alone by the bounds: check both"
        )


def _first_token(of: SizingPlan) -> Iterator[str]:
    load, front = of.inputs.workload, of.inputs.front_end
    if front and math.isfinite(load.ttft) and front + of.chosen.ttft > load.ttft:
        yield (
            f"{seconds(front)} before the engine and {seconds(of.chosen.ttft)} of p99 prefill exceed the objective of"
            f" {seconds(load.ttft)}: no request may wait. Check --front-end and --slo ttft=TIME"
        )
