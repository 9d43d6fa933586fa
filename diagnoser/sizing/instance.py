"""One instance of a model: the layouts that there are, what each holds, and the rate that it can not pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvitals.diagnoser.sizing import memory
from kvitals.diagnoser.sizing.memory import AdapterMemory, GpuLayout, MemoryBudget, Precisions, Shares, precision
from kvitals.diagnoser.sizing.quantity import seconds, several
from kvitals.diagnoser.sizing.roofline import Machine, PrefillBeside, prefill_flops, prefill_seconds, step_seconds
from kvitals.diagnoser.sizing.workload import Workload
from kvitals.rules.catalogue import Gpu, Model

NODE = 8
"""GPUs of a node where nothing joins them but PCIe."""
MOST_STAGES = 16
MOST_BATCH = 100_000
SHORTER_PROMPTS = "shorter prompts (--prompt)"


@dataclass(frozen=True)
class Instance:
    """A layout under a workload. holds: sequences of the longest that memory is reserved for. batch: sequences at a
    time, rate: requests a second, itl: seconds between tokens then; all bounds. ttft: of a prompt at the 99th
    percentile that nothing holds up. why: it can not serve the workload; remedies: what would help; empty where it can.
    """

    machine: Machine
    budget: MemoryBudget
    holds: int
    batch: int
    rate: float
    itl: float
    ttft: float
    why: str
    remedies: tuple[str, ...]

    @property
    def layout(self) -> GpuLayout:
        return self.machine.layout


def link_domain(gpu: Gpu) -> int:
    """GPUs that are joined by the links that a plan assumes: a domain, or a node over PCIe."""
    return gpu.domain if gpu.joined else NODE


def layouts(model: Model, gpu: Gpu) -> Iterator[GpuLayout]:
    """Layouts by GPUs: tensor parallelism within what joins GPUs, then stages of that; for models with experts also
    replicas of attention in their place. It must divide the query heads, and KV heads must divide it or be divided by
    it."""
    degrees = [n for n in range(1, link_domain(gpu) + 1) if divides(model, n)]
    for gpus in degrees:
        yield GpuLayout(gpus)
        if model.routed and gpus.bit_count() == 1:
            yield from (GpuLayout(gpus // replicas, 1, replicas) for replicas in _replicas(gpus, degrees))
    most = min(MOST_STAGES, model.layers)
    yield from (GpuLayout(degrees[-1], 2**i) for i in range(1, int(math.log2(most)) + 1))


def _replicas(gpus: int, degrees: list[int]) -> list[int]:
    """Replicas of attention, each of a degree that divides the heads, that so many GPUs can be."""
    return [gpus // tensor for tensor in degrees if tensor < gpus and gpus % tensor == 0]


def divides(model: Model, tensor: int) -> bool:
    """Whether heads can be spread over so many GPUs."""
    if not model.query_heads:
        return tensor.bit_count() == 1
    if model.query_heads % tensor:
        return False
    return not model.kv_heads or model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0


def instance(
    machine: Machine, of: Workload, shares: Shares, adapters: AdapterMemory, least: int = 1, slots: int = MOST_BATCH
) -> Instance:
    """What one instance can do at most. least: sequences that it has to hold; slots: that run at a time at most."""
    model, gpu, layout = machine.model, machine.gpu, machine.layout
    room = memory.budget(model, gpu, layout, machine.precisions, shares, adapters)
    holds = memory.sequences(model, room.room, of.longest, machine.precisions.kv, layout)
    ttft = prefill_seconds(machine, of.prompt.p99, of.prompt.p99 * of.cached)
    batch = _batch(machine, of, min(holds, slots, MOST_BATCH))
    itl = gap(machine, of, max(batch, 1))
    rate = batch / (_prefill(machine, of) + of.output.mean * itl)
    why = _lacks(room, machine.precisions, holds, least, batch, itl, ttft, of)
    if slots < least and not why[0]:
        why = (
            f"{several(slots, 'request')} at a time (--max-num-seqs), of {least:,} to hold",
            ("a larger --max-num-seqs",),
        )
    return Instance(machine, room, holds, batch, rate, itl, ttft, *why)


def prefill_beside(machine: Machine, of: Workload, batch: float) -> PrefillBeside:
    """The prefill in a mean step of so many sequences: while one makes its answer, each of the others comes once."""
    share = (batch - 1) / of.output.mean
    work = prefill_flops(machine.model, of.prompt.mean, of.prompt.mean * of.cached)
    return PrefillBeside(share * work, share * of.new_tokens)


def gap(machine: Machine, of: Workload, batch: float) -> float:
    """Mean seconds between tokens with so many sequences at a time: a step, with the prefills that it has beside its
    decoding."""
    return step_seconds(machine, batch, of.context, prefill_beside(machine, of, batch))


def _prefill(machine: Machine, of: Workload) -> float:
    return prefill_seconds(machine, of.prompt.mean, of.prompt.mean * of.cached)


def _batch(machine: Machine, of: Workload, most: int) -> int:
    """The most sequences that memory holds and with which the gaps keep the objective. Gaps grow with them."""
    if most < 1 or gap(machine, of, 1) > of.itl:
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if gap(machine, of, middle) <= of.itl else (low, middle - 1)
    return low


def _lacks(
    room: MemoryBudget, formats: Precisions, holds: int, least: int, batch: int, itl: float, ttft: float, of: Workload
) -> tuple[str, tuple[str, ...]]:
    """Why it can not serve, and what would help beside more GPUs; empty where it can."""
    if room.room <= 0:
        return "the weights do not fit", _smaller_weights(formats)
    if holds < least:
        why = f"room for {holds:,} of {several(least, 'sequence')} of {of.longest:,.0f} tokens"
        smaller = ("smaller keys and values (--kv fp8)",) if formats.kv > precision("fp8").bytes else ()
        return why, (*smaller, SHORTER_PROMPTS, *(("a smaller --hold",) * (least > 1)))
    if batch < 1:
        why = f"a token takes {seconds(itl)} even with one request, above the objective"
        return why, (*_smaller_weights(formats), "a longer objective (--slo itl=TIME)")
    if ttft > of.ttft:
        why = f"the p99 prompt takes {seconds(ttft)} to compute even with one request, above the objective"
        return why, (SHORTER_PROMPTS, "more of them cached (--hits)", "a longer objective (--slo ttft=TIME)")
    return "", ()


def _smaller_weights(formats: Precisions) -> tuple[str, ...]:
    """The next smaller format of the weights, if there is one."""
    smaller = next((name for name in ("fp8", "int4") if precision(name).bytes < 0.9 * formats.weights), None)
    return () if smaller is None else (f"smaller weights (--weights {smaller})",)
