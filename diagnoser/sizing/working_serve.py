"""Steps 7 to 13: what one instance does, how many there are, what they cost, and how production shows a mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvitals.diagnoser.sizing import roofline
from kvitals.diagnoser.sizing.estimate import Interval
from kvitals.diagnoser.sizing.fleet import (
    HOURS_A_YEAR,
    NVME,
    Move,
    breaker,
    move_or_compute,
    prefill_to_decode,
    queue_limit,
    tokens_per_gpu_hour,
    usd_per_million,
    whole_ratio,
)
from kvitals.diagnoser.sizing.memory import kv_of_sequence, kv_on_gpu
from kvitals.diagnoser.sizing.plan import SizingPlan
from kvitals.diagnoser.sizing.quantity import number, seconds, several, share, size, usd
from kvitals.diagnoser.sizing.step import SizingLine, SizingStep
from kvitals.rules.catalogue import prices_of

READING = 0.09
"""Seconds a token that a fast reader takes."""
LITTLE_ROOM = 0.2
"""Of the KV memory: with less left, there is no room for prefixes."""
DRIFT_TTFT, DRIFT_USE = 0.3, 0.2
"""Beyond what was measured: where a sizing has to be made again."""
INPUT_LIMIT = (2, 3)
"""Times the prompt's 95th percentile: where requests are refused."""
SMALLEST_CHUNK = 128
_EXPECTED = "at the shares of the peaks and of memory that engines reach, and each with its best layout"


def one_instance(of: SizingPlan) -> SizingStep:
    one, load, on = of.chosen, of.inputs.workload, of.chosen.machine
    step = roofline.step_seconds(on, one.batch, load.context)
    prefill = _prefill(of)
    batch, answer = f"{one.batch:,}", number(load.output.mean)
    limited = "" if of.inputs.slots is None else f", at most {of.inputs.slots:,} by --max-num-seqs"
    lines = (
        SizingLine("one sequence alone", roofline.ceiling(on), "tokens/s", "bandwidth / weights that one step reads"),
        SizingLine("room for KV", one.budget.room * one.layout.gpus, "bytes", f"{size(one.budget.room)} on each GPU"),
        SizingLine("sequences that fit", one.holds, "", f"of {number(load.longest)} tokens"),
        SizingLine("sequences at a time", one.batch, "", f"that fit and meet the objective between tokens{limited}"),
        SizingLine("a step", step, "seconds", f"reads the weights and {batch} x {number(load.context)} tokens of KV"),
        SizingLine(
            "prefill", prefill, "seconds", f"{number(load.new_tokens)} tokens on average, without other requests"
        ),
        SizingLine("prefill, p99 prompt", one.ttft, "seconds", "without other requests: no first token is faster"),
        SizingLine(
            "between tokens", one.itl, "seconds", f"a step with {one.batch - 1:,} / {answer} of a prefill beside it"
        ),
        SizingLine("at most", one.rate, "requests/s", f"{batch} / (prefill + {answer} x {seconds(one.itl)})"),
        *_likely(of),
        *_measured(of),
    )
    if of.bound:
        told = f"{number(one.rate)} requests/s is a bound, not a measurement: sweep one instance (docs/knee.md)."
    else:
        told = f"Usable: {number(of.usable)} requests/s, {share(of.usable / one.rate)} of the bound."
    return SizingStep("One instance", lines, told)


def _likely(of: SizingPlan) -> Iterator[SizingLine]:
    """What an instance of the chosen layout is expected to reach."""
    if (found := of.estimate) is None:
        return
    use = of.inputs.settings
    how = f"on each GPU, with {share(use.utilization)} of it, {use.tokens:,} tokens and {use.slots:,} requests a step"
    room = f"{size(max(found.room.low, 0.0))} to {size(max(found.room.high, 0.0))}"
    yield SizingLine("KV memory, expected", max(found.room.likely, 0.0), "bytes", how, room)
    rates = f"{number(found.rate.low)} to {number(found.rate.high)} requests/s"
    yield SizingLine(
        "expected", found.rate.likely, "requests/s", "at the shares of the peaks that engines reach", rates
    )


def _prefill(of: SizingPlan) -> float:
    load = of.inputs.workload
    return roofline.prefill_seconds(of.chosen.machine, load.prompt.mean, load.prompt.mean * load.cached)


def _measured(of: SizingPlan) -> Iterator[SizingLine]:
    seen = of.inputs.measured
    if seen.usable is None:
        return
    yield SizingLine("measured", seen.usable, "requests/s", seen.source)
    if seen.c_max is not None:
        stay = f"so a request stays for {seconds(seen.c_max / seen.usable)} (Little's law: C_max / rate)"
        yield SizingLine("C_max", seen.c_max, "requests", stay)
    if seen.littles_gap is not None:
        how = "rate x residence must match the counted requests; if they differ by more than 10 to 15 %, measure again"
        yield SizingLine("Little's law", seen.littles_gap, "ratio", how)


def kv_cache(of: SizingPlan) -> SizingStep:
    one, load, gpu = of.chosen, of.inputs.workload, of.inputs.gpu
    on, spread = one.machine, one.layout
    each = kv_on_gpu(on.model, load.context, on.precisions.kv, spread.tensor, spread.pipeline)
    left = max(0.0, 1 - one.batch * each / one.budget.room)
    swap, disk = (_move(of, rate) for rate in (gpu.host_link * spread.gpus, NVME))
    host = f"{size(swap.bytes)} of a mean prompt at {size(gpu.host_link)}/s for each GPU"
    lines = (
        SizingLine(
            "left for prefixes", left, "ratio", "of the KV memory, with the sequences of step 7 at half their length"
        ),
        SizingLine("computing", swap.computing, "seconds", "a mean prompt, at least"),
        SizingLine("from host memory", swap.moving, "seconds", host),
        SizingLine("from NVMe", disk.moving, "seconds", f"the same at {size(NVME)}/s"),
    )
    told = ["Enable prefix caching, and send requests of a session to the same engine."]
    if left < LITTLE_ROOM:
        told.append(f"Less than {share(LITTLE_ROOM)} is left for prefixes: use FP8 KV, or fewer sequences at a time.")
    if swap.pays:
        told.append("A host tier returns a prefix faster than the GPU computes it.")
    else:
        told.append(
            "By the bounds, computing a prefix is as fast as loading it from a host tier: measure before you add one."
        )
    return SizingStep("KV cache", lines, " ".join(told))


def _move(of: SizingPlan, bandwidth: float) -> Move:
    """A mean prompt's KV, moved or computed."""
    on, tokens = of.chosen.machine, of.inputs.workload.prompt.mean
    computing = roofline.prefill_seconds(on, tokens)
    return move_or_compute(kv_of_sequence(on.model, tokens, on.precisions.kv), bandwidth, computing)


def batching(of: SizingPlan) -> SizingStep:
    one, load, seen = of.chosen, of.inputs.workload, of.inputs.measured
    gpus, step = one.layout.gpus, roofline.step_seconds(one.machine, one.batch, load.context)
    prefill = seen.prefill or load.new_tokens / _prefill(of) / gpus
    decode = seen.decode or one.batch / step / gpus
    pd = prefill_to_decode(load.new_tokens, load.output.mean, prefill, decode)
    whole = "{}:{}".format(*whole_ratio(pd))
    how = f"({number(load.new_tokens)} / {number(prefill)}) / ({number(load.output.mean)} / {number(decode)})"
    moved = _move(of, of.inputs.network)
    carried = f"{size(moved.bytes)} of a mean prompt at {size(of.inputs.network)}/s; computing it takes "
    lines = (
        SizingLine("prefill, a GPU", prefill, "tokens/s", "measured" if seen.prefill else "bound"),
        SizingLine("decode, a GPU", decode, "tokens/s", "measured" if seen.decode else "bound"),
        SizingLine("P:D", pd, "", f"{how}, if they are parted", f"{number(pd)}, in whole GPUs {whole}"),
        SizingLine("moving KV", moved.moving, "seconds", f"{carried}{seconds(moved.computing)} at least"),
        *_chunk(of, step),
    )
    told = ["Continuous batching, chunked prefill."]
    if of.bound:
        told.append("By the bounds both objectives hold, so separate prefill and decode engines are not needed.")
    if math.isfinite(load.itl) and load.itl < READING:
        told.append(
            f"People do not read faster than {seconds(READING)} per token: a looser objective serves more requests."
        )
    return SizingStep("Batching and disaggregation", lines, " ".join(told))


def _chunk(of: SizingPlan, step: float) -> Iterator[SizingLine]:
    """The chunk of prefill that leaves a step within the objective between tokens, where a whole prompt does not."""
    load, whole = of.inputs.workload, of.chosen.ttft
    if not math.isfinite(load.itl) or whole + step <= load.itl:
        return
    fits = (load.itl - step) * load.prompt.p99 * (1 - load.cached) / whole
    if fits >= SMALLEST_CHUNK:
        how = f"at most: one whole p99 prompt delays tokens by {seconds(whole)}; the objective is {seconds(load.itl)}"
        yield SizingLine("chunk of prefill", roofline.power_of_two_below(fits), "tokens", how)


def curve(of: SizingPlan) -> SizingStep:
    if of.bound:
        line = SizingLine("usable", of.usable, "requests/s", "still only the bound of step 7")
        told = (
            "Measure one instance as it will run, with these lengths and bursts, after 1,000 warm-up requests; "
            "then give --usable-rate (`kvitals knee` reports it)."
        )
    else:
        line = SizingLine("usable", of.usable, "requests/s", of.inputs.measured.source)
        told = "Measured in the current configuration. After any change of steps 5 to 9, measure again before you buy."
    return SizingStep("The final curve", (line,), told)


def fleet(of: SizingPlan) -> SizingStep:
    load, made = of.inputs.workload, of.fleet
    needed = load.peak * of.inputs.safety / of.usable
    how = f"{number(load.peak)} x {of.inputs.safety:g} / {number(of.usable)} = {number(needed)}, rounded up"
    lines: tuple[SizingLine, ...] = (
        SizingLine("instances", made.instances, "", how),
        SizingLine("GPUs", made.gpus, "", f"{made.instances:,} x {made.gpus_each}"),
    )
    told = f"{several(made.instances, 'instance')} of {of.chosen.layout}, {several(made.gpus, 'GPU')}."
    if of.estimate is not None:
        likely = of.estimate.gpus
        lines = (*lines, SizingLine("GPUs, expected", _finite(likely.likely), "", _EXPECTED, format_expected(likely)))
        told += f" Expected: {format_expected(likely)}."
    return SizingStep("Fleet", lines, f"At least {told}" if of.bound else told)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def format_expected(gpus: Interval) -> str:
    """`6 GPUs (4 to 9)`; where no layout serves in a case, that is said."""
    if not math.isfinite(gpus.low):
        return "no layout serves at the shares of the peaks that engines reach"
    best = several(round(gpus.low), "GPU")
    if not math.isfinite(gpus.likely):
        return f"no layout serves at the likely shares of the peaks, {best} at the best"
    likely = several(round(gpus.likely), "GPU")
    if not math.isfinite(gpus.high):
        return f"{likely}, {best} at the best shares of the peaks; no layout serves at the lowest"
    return f"{likely} ({gpus.low:,.0f} to {gpus.high:,.0f})"


def money(of: SizingPlan) -> SizingStep:
    load, gpus = of.inputs.workload, of.fleet.gpus
    if of.price is None or of.usd_per_hour is None:
        line = SizingLine("a GPU-hour", None, "usd", "the catalogue has no price; give --price")
        return SizingStep("Cost", (line,), "Unknown without a price.")
    rate = load.mean or load.peak
    made, both = rate * load.output.mean, rate * (load.output.mean + load.prompt.mean)
    when = "on average" if load.mean else "at constant peak load; with a mean rate a token costs more"
    lines = (
        SizingLine("a GPU-hour", of.price, "usd", _priced(of)),
        SizingLine("an hour", of.usd_per_hour, "usd", f"x {several(gpus, 'GPU')}"),
        SizingLine("a year", of.usd_per_hour * HOURS_A_YEAR, "usd", f"x {HOURS_A_YEAR:,} hours"),
        SizingLine("1M tokens made", usd_per_million(of.price, gpus, made), "usd", f"{number(made)} tokens/s {when}"),
        SizingLine(
            "1M of all tokens", usd_per_million(of.price, gpus, both), "usd", f"prompts too, {number(both)} tokens/s"
        ),
        SizingLine("a GPU makes", tokens_per_gpu_hour(made, gpus), "tokens/h", "of those served"),
    )
    return SizingStep("Cost", lines, f"{'At least ' if of.bound else ''}{usd(of.usd_per_hour)} per hour.")


def _priced(of: SizingPlan) -> str:
    if of.inputs.price is not None:
        return "as given or configured"
    known = sorted(prices_of(of.inputs.gpu), key=lambda one: one.usd_per_hour)
    low, high = (f"{usd(one.usd_per_hour)} ({one.basis}, {one.as_of})" for one in (known[0], known[-1]))
    return f"median of {len(known)} in the catalogue, {low} to {high}" if len(known) > 1 else f"catalogue, {low}"


def validate(of: SizingPlan) -> SizingStep:
    load = of.inputs.workload
    low, high = (number(factor * load.prompt.p95) for factor in INPUT_LIMIT)
    limit = INPUT_LIMIT[0] * load.prompt.p95
    lines = (
        SizingLine(
            "input limit", limit, "tokens", "2 to 3 times the p95 prompt, at the gateway", f"{low} to {high} tokens"
        ),
        *_queue(of),
        SizingLine(
            "utilization", DRIFT_USE, "ratio", "below the benchmark's at a similar rate: size again", "20 points"
        ),
    )
    told = "In the first week of traffic, compare with the measurement at a similar mix of lengths (rule CAP05 does)."
    return SizingStep("Guardrails and validation", lines, told)


def _queue(of: SizingPlan) -> Iterator[SizingLine]:
    load, front = of.inputs.workload, of.inputs.front_end
    if not math.isfinite(load.ttft):
        return
    limit = queue_limit(load.ttft, of.chosen.ttft, front, of.usable)
    opens = breaker(limit)
    how = f"({seconds(load.ttft)} - {seconds(of.chosen.ttft)} of p99 prefill - {seconds(front)} before the engine)"
    yield SizingLine("queue limit", math.floor(limit), "waiting", f"{how} x {number(of.usable)}/s, of each instance")
    yield SizingLine("breaker", opens[0], "waiting", "80 to 90 % of it", f"{opens[0]} to {opens[1]} waiting")
    drift = f"{share(DRIFT_TTFT)} above the objective that it was measured at; above that, size again"
    yield SizingLine("first token, p99", load.ttft * (1 + DRIFT_TTFT), "seconds", drift)
