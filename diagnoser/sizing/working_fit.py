"""Steps 1 to 6: what is asked, on what hardware, what has to fit and over how many GPUs."""

from __future__ import annotations

import math
from dataclasses import replace

from kvitals.diagnoser.sizing import memory, roofline
from kvitals.diagnoser.sizing.instance import Instance, layouts, prefill_beside
from kvitals.diagnoser.sizing.memory import GpuLayout, Precisions, kv_of_sequence, kv_per_token, precision
from kvitals.diagnoser.sizing.plan import Inputs, SizingError, SizingPlan, plan
from kvitals.diagnoser.sizing.quantity import number, seconds, several, share, size
from kvitals.diagnoser.sizing.step import SizingLine, SizingStep
from kvitals.diagnoser.sizing.workload import Lengths, Workload
from kvitals.rules.catalogue import sources

MANY_GPUS = 8
"""From so many on, a second and smaller model beside this one may pay."""
FORMATS = (("bf16", "bf16"), ("bf16", "fp8"), ("fp8", "fp8"), ("int4", "fp8"))
ROWS_BEYOND = 2
"""Layouts of more than so many times the chosen one's GPUs are not told."""


def workload(of: SizingPlan) -> SizingStep:
    load = of.inputs.workload
    lines = (
        SizingLine("peak", load.peak, "requests/s", load.source),
        SizingLine(
            "mean", load.mean, "requests/s", "" if load.mean else "not reported: cost is calculated at the peak"
        ),
        *_lengths("prompt", load.prompt),
        *_lengths("answer", load.output),
        SizingLine(
            "of prompts cached", load.cached, "ratio", f"{number(load.new_tokens)} tokens are computed on average"
        ),
        SizingLine("objective, first token", load.ttft, "seconds", "p99"),
        SizingLine("objective, between tokens", load.itl, "seconds", "p99"),
    )
    return SizingStep("Workload", lines, _sentence(load))


def _lengths(name: str, of: Lengths) -> tuple[SizingLine, SizingLine]:
    tails = f"{number(of.p95)} and {number(of.p99)} tokens"
    return SizingLine(f"{name}, mean", of.mean, "tokens", ""), SizingLine(
        f"{name}, p95 and p99", of.p95, "tokens", of.note, tails
    )


def _sentence(load: Workload) -> str:
    return f"{load.kind[0].upper()}{load.kind[1:]}."


def hardware(of: SizingPlan) -> SizingStep:
    gpu, one = of.inputs.gpu, of.chosen.machine
    peak, weights = f"{number(one.flops / 1e12)} TFLOP/s", of.inputs.weights.name
    ridge = roofline.ridge(one.flops, gpu.bandwidth)
    spent = _in_prefill(of.chosen, of.inputs.workload)
    lines = (
        SizingLine("memory", gpu.hbm, "bytes", f"{gpu.name}: {sources(gpu)}"),
        SizingLine("bandwidth", gpu.bandwidth, "bytes/s", "of its memory"),
        SizingLine("dense peak", one.flops, "FLOP/s", f"with {weights} weights", peak),
        SizingLine(
            "ridge point",
            ridge,
            "FLOP/byte",
            "peak / bandwidth: below this batch memory limits a step, above it arithmetic",
        ),
        SizingLine("between GPUs", gpu.scale_up, "bytes/s", f"{gpu.interconnect}, one direction"),
        SizingLine("time in prefill", spent, "ratio", "share of the work, by the bounds of step 7"),
    )
    if spent > 0.5:
        return SizingStep("Hardware", lines, f"{share(spent)} of the work is prefill, which arithmetic limits.")
    return SizingStep("Hardware", lines, f"{share(1 - spent)} of the work is decoding, which memory bandwidth limits.")


def _in_prefill(one: Instance, load: Workload) -> float:
    """The share of a request's work that is prefill."""
    prefill = roofline.prefill_seconds(one.machine, load.prompt.mean, load.prompt.mean * load.cached)
    return prefill * one.rate


def models(of: SizingPlan) -> SizingStep:
    gpus = of.fleet.gpus
    line = SizingLine("GPUs of this fleet", gpus, "", f"consider a second, smaller model above {MANY_GPUS}")
    if gpus <= MANY_GPUS:
        answer = "One model: a second fleet costs more work than it can save here."
    else:
        answer = (
            "Telemetry does not show which requests a smaller model could answer. If it could answer some, size "
            "each fleet by its own share of the peak; in a cascade the small model gets the whole peak."
        )
    return SizingStep("One model or several", (line,), answer)


def floor(of: SizingPlan) -> SizingStep:
    into, model = of.inputs, of.inputs.model
    load, shares, adapters = into.workload, into.shares, into.adapters
    weights, active = memory.weights(model, Precisions(2.0, 2.0)), shares.activations or 0.0
    token, each = kv_per_token(model, 2.0), kv_of_sequence(model, load.longest, 2.0)
    parameters = f"{number(model.parameters / 1e9)} G parameters x 2 bytes"
    total = weights + active + adapters.total + each * into.least
    usable = into.gpu.hbm * (1 - shares.overhead)
    by_bytes = math.ceil(total / usable)
    window = f"; {model.sliding} layers stop at {model.window:,}" if model.sliding else ""
    loaded = (SizingLine("adapters", adapters.total, "bytes", f"{adapters.most} at a time x {size(adapters.bytes)}"),)
    recurrent = (
        SizingLine(
            "recurrent state", model.state, "bytes", "of each sequence, whatever its length; included in the line above"
        ),
    )
    measured = (SizingLine("activations", active, "bytes", "as given"),)
    reserved = (SizingLine("overhead", shares.overhead, "ratio", "of each GPU's memory, as given"),)
    lines = (
        SizingLine("weights", weights, "bytes", parameters),
        SizingLine("KV of a token", token, "bytes", _kv_formula(into), f"{token:,.0f} bytes"),
        SizingLine(
            "KV of a sequence", each, "bytes", f"{number(load.longest)} tokens, p95 prompt and p95 answer{window}"
        ),
        *(recurrent if model.state else ()),
        SizingLine("KV in all", each * into.least, "bytes", f"x {into.least:,} at a time"),
        *(measured if active else ()),
        *(loaded if adapters.most else ()),
        *(reserved if shares.overhead else ()),
        SizingLine("GPUs by bytes alone", by_bytes, "", f"{size(total)} / {size(usable)}, rounded up"),
    )
    least = smallest(into, "bf16", "bf16")
    if least is None:
        return SizingStep("Memory floor, 16 bit", lines, "In 16 bit no layout fits it.")
    more = "" if least.gpus == by_bytes else _why_more(into)
    return SizingStep("Memory floor, 16 bit", lines, f"In 16 bit it needs {several(least.gpus, 'GPU')}, {least}{more}.")


def _why_more(into: Inputs) -> str:
    heads = f": tensor parallelism must divide {into.model.query_heads} heads" if into.model.query_heads else ""
    return heads + (", and every GPU holds the latent KV" if into.model.latent else "")


def _kv_formula(into: Inputs) -> str:
    model, layers = into.model, into.model.full + into.model.sliding
    if model.latent:
        text = f"{layers} layers x {model.latent} (latent and rope) x 2 bytes"
    else:
        text = f"2 x {layers} layers x {model.kv_heads} KV heads x {model.head_dim} x 2 bytes"
    return text + (f" + {model.layers} x {model.indexer} of the indexer" if model.indexer else "")


def smallest(into: Inputs, weights: str, cache: str) -> GpuLayout | None:
    """The layout of fewest GPUs that holds as many sequences as asked for, in these formats."""
    precisions = Precisions(precision(weights).bytes, memory.kv_precision(into.model, cache).bytes)
    for one in layouts(into.model, into.gpu):
        room = memory.budget(into.model, into.gpu, one, precisions, into.shares, into.adapters).room
        if memory.sequences(into.model, room, into.workload.longest, precisions.kv, one) >= into.least:
            return one
    return None


def formats(of: SizingPlan) -> SizingStep:
    into = of.inputs
    chosen = into.weights.name, into.kv.name
    lines = []
    for weights, cache in dict.fromkeys((*((one, _kv_name(into, two)) for one, two in FORMATS), chosen)):
        least = smallest(into, weights, cache)
        mark = "  (chosen)" if (weights, cache) == chosen else ""
        fits = "does not fit" if least is None else f"{several(least.gpus, 'GPU')} at least"
        how = _fleet_in(of, weights, cache)
        lines.append(
            SizingLine(f"{weights} weights, {cache} KV{mark}", least.gpus if least else None, "GPUs", how, fits)
        )
    units = [name for name, peak in (("FP8", into.gpu.flops_8), ("FP4", into.gpu.flops_4)) if peak]
    if units:
        says = f"{into.gpu.name} computes natively in {' and '.join(units)}."
    else:
        says = f"{into.gpu.name} has no 8-bit units: smaller weights save memory and bandwidth, but no arithmetic."
    return SizingStep(
        "Formats", tuple(lines), f"{says} Check the quality of answers; for KV formats use long contexts."
    )


def _kv_name(into: Inputs, name: str) -> str:
    return memory.kv_precision(into.model, name).name


def _fleet_in(of: SizingPlan, weights: str, cache: str) -> str:
    """What the whole fleet would be in other formats, by the bounds of each."""
    asked = replace(of.inputs, weights=precision(weights), kv=precision(cache), layout=None)
    try:
        other = plan(replace(asked, measured=replace(asked.measured, usable=None)))
    except SizingError as error:
        return str(error).partition(": ")[2]
    return f"the bounds give a fleet of {other.fleet.gpus:,}: {other.fleet.instances:,} x {other.chosen.layout}"


def layout(of: SizingPlan) -> SizingStep:
    gpu, chosen = of.inputs.gpu, of.chosen
    lines = [_tried(one, chosen) for one in of.tried if one.layout.gpus <= ROWS_BEYOND * chosen.layout.gpus]
    if chosen.layout.tensor * chosen.layout.data > 1:
        tokens = chosen.batch + prefill_beside(chosen.machine, of.inputs.workload, chosen.batch).tokens
        sent = roofline.link_seconds(chosen.machine, tokens / chosen.layout.data)
        how = (
            f"{seconds(sent)} of a step of {seconds(chosen.itl)} with the prefill in it, at {size(gpu.scale_up)}/s,"
            " without latency"
        )
        lines.append(SizingLine("between GPUs", sent / chosen.itl, "ratio", how))
    if (stages := chosen.layout.pipeline) > 1:
        how = f"({stages} - 1) / ({stages} + {stages} - 1), with a batch for each stage"
        lines.append(SizingLine("bubble", roofline.bubble(stages, stages), "ratio", how))
    warning = (
        " Over PCIe, more than TP2 rarely helps: measure it." if chosen.layout.tensor > 2 and not gpu.joined else ""
    )
    if of.inputs.layout is not None:
        return SizingStep("Parallelism", tuple(lines), f"{chosen.layout}, as it runs or as requested.{warning}")
    by = "" if of.bound else " that fits"
    why = "needs the fewest GPUs for the whole fleet" if of.bound else "is the smallest"
    return SizingStep("Parallelism", tuple(lines), f"{chosen.layout} {why}{by}.{warning}")


def _tried(one: Instance, chosen: Instance) -> SizingLine:
    name = f"{one.layout}" + ("  (chosen)" if one is chosen else "")
    if one.why:
        return SizingLine(name, None, "requests/s", one.why, "no")
    reach = f"each GPU at most; {one.holds:,} sequences fit, {number(one.rate)} requests/s of the instance"
    return SizingLine(name, one.rate / one.layout.gpus, "requests/s", reach)
