"""A whole sizing: every layout against the workload, the one that takes fewest GPUs, the fleet and what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from operator import attrgetter

from kvitals.diagnoser.sizing import memory
from kvitals.diagnoser.sizing.estimate import REACHED, EngineSettings, Interval, default_settings, kv_room
from kvitals.diagnoser.sizing.fleet import NETWORK, Fleet, fleet, typical_price
from kvitals.diagnoser.sizing.instance import MOST_BATCH, Instance, divides, instance, layouts
from kvitals.diagnoser.sizing.memory import AdapterMemory, GpuLayout, Precision, Precisions, Shares, flops
from kvitals.diagnoser.sizing.quantity import number, seconds
from kvitals.diagnoser.sizing.roofline import Machine, PeakShares, prefill_flops
from kvitals.diagnoser.sizing.workload import Workload
from kvitals.rules.catalogue import Gpu, Model, prices_of
from kvitals.series.bounds import Bound

NONE_SERVES = "no layout serves this; with "


class SizingError(ValueError):
    """It can not be sized; the message says what is missing or what does not go. remedies: what would help, where that
    is known."""

    def __init__(self, message: str, remedies: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.remedies = remedies


@dataclass(frozen=True)
class MeasuredInstance:
    """What one instance was seen to do at its objective: requests a second at C_max. c_max, littles_gap: where told.
    prefill: prompt tokens computed a second, decode: tokens made a second, each by a GPU that does nothing else."""

    usable: float | None = None
    c_max: float | None = None
    littles_gap: float | None = None
    prefill: float | None = None
    decode: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Inputs:
    """All that a sizing rests on. price: USD a GPU-hour, None: the catalogue's median. front_end: seconds before the
    engine. layout: the one that is asked for, None: all are tried. least: sequences that an instance has to hold.
    engine: its settings for the estimate, None: vLLM's defaults for the GPU. slots: requests of a replica that run at a
    time, where they are limited. context: the longest sequence of the model, tokens; 0 where unknown."""

    workload: Workload
    model: Model
    gpu: Gpu
    weights: Precision
    kv: Precision
    safety: float
    shares: Shares = field(default_factory=Shares)
    adapters: AdapterMemory = field(default_factory=AdapterMemory)
    reached: PeakShares = field(default_factory=PeakShares)
    measured: MeasuredInstance = field(default_factory=MeasuredInstance)
    price: float | None = None
    front_end: float = 0.0
    network: float = NETWORK
    layout: GpuLayout | None = None
    least: int = 1
    engine: EngineSettings | None = None
    slots: int | None = None
    context: int = 0

    @property
    def settings(self) -> EngineSettings:
        """The engine's settings, as given or as it chooses them."""
        return self.engine or default_settings(self.gpu)


_TOKENS = Bound(1, 1e9, "tokens")
_RATE = Bound(1e-9, 1e6, "per second")
_TOKEN_RATE = Bound(1e-9, 1e12, "tokens per second")
_SHARE = Bound(0, 1)
_WIDTH = Bound(0, 1e7, whole=True)
_PARAMETERS = Bound(0, 1e15)
INPUT_BOUNDS: dict[str, tuple[str, Bound]] = {
    "workload.peak": ("peak requests", _RATE),
    "workload.mean": ("mean requests", _RATE),
    "workload.prompt.mean": ("mean prompt length", _TOKENS),
    "workload.prompt.p95": ("p95 of the prompt length", _TOKENS),
    "workload.prompt.p99": ("p99 of the prompt length", _TOKENS),
    "workload.output.mean": ("mean output length", _TOKENS),
    "workload.output.p95": ("p95 of the output length", _TOKENS),
    "workload.output.p99": ("p99 of the output length", _TOKENS),
    "workload.cached": ("prefix hits", _SHARE),
    "measured.usable": ("usable requests", _RATE),
    "measured.c_max": ("C_max", Bound(1e-9, 1e9, "requests")),
    "measured.prefill": ("prefill rate", _TOKEN_RATE),
    "measured.decode": ("decode rate", _TOKEN_RATE),
    "safety": ("safety factor", Bound(1, 100, "times the peak")),
    "price": ("price", Bound(0, 1e6, "USD per GPU-hour")),
    "network": ("network", Bound(1, 1e15, "bytes/s")),
    "front_end": ("front end", Bound(0, 3600, "seconds")),
    "least": ("requests to hold", Bound(1, 1e6, whole=True)),
    "slots": ("--max-num-seqs", Bound(1, 1e6, whole=True)),
    "context": ("context", Bound(0, 1e9, "tokens", whole=True)),
    "model.layers": ("layers", Bound(0, 1e4, whole=True)),
    "model.window": ("window", Bound(0, 1e9, "tokens", whole=True)),
    "model.query_heads": ("query heads", _WIDTH),
    "model.kv_heads": ("KV heads", _WIDTH),
    "model.head_dim": ("head size", _WIDTH),
    "model.latent": ("latent size", _WIDTH),
    "model.indexer": ("indexer", _WIDTH),
    "model.hidden": ("hidden size", _WIDTH),
    "model.vocab": ("vocabulary", Bound(0, 1e8, whole=True)),
    "model.inner": ("feed-forward width", Bound(0, 1e9, whole=True)),
    "model.experts": ("experts", Bound(0, 1e5, whole=True)),
    "model.used": ("used experts", Bound(0, 1e5, whole=True)),
    "model.parameters": ("parameters", _PARAMETERS),
    "model.active": ("active parameters", _PARAMETERS),
    "model.state": ("recurrent state", Bound(0, 1e15, "bytes")),
}
"""Every number that a sizing takes, by its place in Inputs: its name and its range. None is not known, and passes."""


@dataclass(frozen=True)
class FleetEstimate:
    """What is likely needed, beside the bound. gpus: of the fleet; infinite where no layout serves with what is left
    for KV. room: bytes for KV on each GPU of the bound's layout; rate: requests a second of an instance of it."""

    gpus: Interval
    room: Interval
    rate: Interval


@dataclass(frozen=True)
class SizingPlan:
    """The outcome. tried: every layout, by GPUs. usable: requests a second of one instance; `bound` when that is what
    it can not pass rather than what was measured, so that the fleet is the least there can be. estimate: beside a
    bound."""

    inputs: Inputs
    tried: tuple[Instance, ...]
    chosen: Instance
    usable: float
    fleet: Fleet
    price: float | None
    bound: bool
    estimate: FleetEstimate | None

    @property
    def usd_per_hour(self) -> float | None:
        return None if self.price is None else self.price * self.fleet.gpus


def plan(of: Inputs) -> SizingPlan:
    """Size it. Raises SizingError where no layout serves the workload."""
    if why := _cannot(of):
        raise SizingError(why)
    tried = tuple(tried_one(of, one) for one in ([of.layout] if of.layout else layouts(of.model, of.gpu)))
    good = [one for one in tried if not one.why]
    if not good:
        raise _none(of, tried)
    if of.measured.usable is not None and of.layout is None:
        good = good[:1]  # what was measured is of one layout: the smallest, unless said otherwise
    chosen = min(good, key=lambda one: (_fleet(of, one).gpus, one.layout.gpus))
    if why := _impossible(of, chosen):
        raise SizingError(f"{of.model.name} on {of.gpu.name}: {why}")
    price = of.price if of.price is not None else typical_price(prices_of(of.gpu))
    usable = _usable(of, chosen)
    bound = of.measured.usable is None
    likely = estimate(of, chosen) if bound else None
    return SizingPlan(of, tried, chosen, usable, _fleet(of, chosen), price, bound, likely)


def estimate(of: Inputs, chosen: Instance) -> FleetEstimate:
    """The fleet at the shares of the peaks and of memory that engines reach, from the best to the worst."""
    options = [of.layout] if of.layout else list(layouts(of.model, of.gpu))
    fleets, rates = [], []
    for case in range(len(REACHED)):
        tried = [_reached(of, one, case) for one in options]
        fleets.append(min((_fleet(of, one).gpus for one in tried if not one.why and one.rate > 0), default=math.inf))
        mine = _reached(of, chosen.layout, case)
        rates.append(0.0 if mine.why else mine.rate)
    return FleetEstimate(Interval(*reversed(fleets)), _room(of, chosen.layout), Interval(*rates))


def _room(of: Inputs, layout: GpuLayout) -> Interval:
    """Bytes for KV on each GPU, at most what the reserves leave that were given for the bound."""
    precisions = Precisions(of.weights.bytes, of.kv.bytes)
    room = kv_room(of.model, of.gpu, layout, precisions, of.settings)
    given = memory.budget(of.model, of.gpu, layout, precisions, of.shares, of.adapters)
    left = given.room + given.adapters
    return Interval(min(room.low, left), min(room.likely, left), min(room.high, left))


def _reached(of: Inputs, layout: GpuLayout, case: int) -> Instance:
    """An instance in the low, the likely or the high case."""
    made = machine(of, layout)
    room = _room(of, layout)
    left = (room.low, room.likely, room.high)[case]
    held = memory.weights_on_gpu(of.model, layout, made.precisions)
    shares = Shares(overhead=1 - (held + left) / of.gpu.hbm)
    reached = REACHED[case] if of.reached == PeakShares() else of.reached
    slots = of.settings.slots * layout.data
    return instance(replace(made, reached=reached), of.workload, shares, of.adapters, of.least, slots)


def _cannot(of: Inputs) -> str:
    """What is missing or does not go, and what to give; empty where it can be sized."""
    model, layout = of.model, of.layout
    for place, (name, bound) in INPUT_BOUNDS.items():
        value = attrgetter(place)(of)
        try:
            if value is not None:
                bound.check(name, value)
        except ValueError as error:
            return f"{model.name}: {error}"
    known = model.latent or (model.kv_heads and model.head_dim)
    load, mean = of.workload, of.workload.prompt.mean + of.workload.output.mean
    asked = [name for name in (of.weights.name, of.kv.name) if name == "nvfp4"]
    wrong = (
        (not 0 <= of.workload.cached < 1, "some tokens of a prompt are always computed: hits must be below 100 %"),
        (min(of.reached.compute, of.reached.memory) <= 0, "a share of a peak must be above 0"),
        (
            0 < of.context < mean,
            f"a mean prompt and its answer have {mean:,.0f} tokens, more than its context of {of.context:,}: engines"
            " refuse them. Give shorter lengths, or --max-model-len N if the engine extends the context (RoPE scaling)",
        ),
        (
            math.isfinite(load.ttft) and of.front_end >= load.ttft,
            f"{seconds(of.front_end)} before the engine leave nothing of the first-token objective of"
            f" {seconds(load.ttft)}; write --front-end with its unit, such as 40ms",
        ),
        (bool(asked) and of.gpu.name.startswith("MI"), f"{of.gpu.name} does not support nvfp4; use mxfp4 or fp8"),
        (
            of.kv.name == "nvfp4" and not of.gpu.flops_4,
            f"{of.gpu.name} has no FP4 units, which nvfp4 KV needs; use --kv fp8",
        ),
        (not model.parameters or not model.active, "its parameters are unknown; give --dims parameters=N,active=N"),
        (model.active > model.parameters, "active parameters exceed all parameters: check active"),
        (
            0 < model.query_heads < model.kv_heads,
            f"{model.kv_heads:,} KV heads for {model.query_heads:,} attention heads; there cannot be more",
        ),
        (model.used > max(model.experts, 1), "a token uses more experts than there are; check experts and used"),
        (not model.hidden, "its hidden size is unknown; give --dims hidden=N"),
        (not model.layers or min(model.full, model.sliding) < 0, "its layers do not add up; check layers and sliding"),
        (not known, "its KV heads are unknown; give --dims kv_heads=N,head_dim=N, or latent=N"),
        (layout is not None and layout.pipeline > model.layers, f"{layout}: it has {model.layers} layers"),
        (
            layout is not None and layout.data > 1 and not model.routed,
            f"{layout}: its experts are unknown; give --dims experts=N,used=N, or omit --dp",
        ),
        (
            layout is not None and not divides(model, layout.tensor),
            f"{layout}: its {model.query_heads} heads and {model.kv_heads} KV heads cannot be divided that way",
        ),
    )
    return next((f"{model.name}: {why}" for is_so, why in wrong if is_so), "")


def _impossible(of: Inputs, one: Instance) -> str:
    """Which of the measured rates no GPU can reach, whatever its settings, and what to check; empty where none."""
    load, seen, model = of.workload, of.measured, of.model
    peak = max(of.gpu.flops_16, of.gpu.flops_8, of.gpu.flops_4)
    work = prefill_flops(model, load.prompt.mean, load.prompt.mean * load.cached)
    token = 2 * max(model.active - model.vocab * model.hidden, 0.0)
    each = work + max(load.output.mean - 1, 0.0) * token
    limits = (
        ("requests/s", "--usable-rate", seen.usable, one.layout.gpus, each, f"one instance of {one.layout}"),
        ("prompt tokens/s", "--prefill-rate", seen.prefill, 1, work / max(load.new_tokens, 1e-9), "one GPU"),
        ("tokens/s", "--decode-rate", seen.decode, 1, token, "one GPU"),
    )
    for unit, option, rate, gpus, flop, of_what in limits:
        if rate is not None and flop and rate * flop > gpus * peak:
            return (
                f"{number(rate)} {unit} of {of_what} are impossible: its arithmetic ends at"
                f" {number(gpus * peak / flop)} {unit}. Check {option}, --hits, --tp and the GPU that was measured"
            )
    return ""


def tried_one(of: Inputs, layout: GpuLayout) -> Instance:
    """One layout of these inputs."""
    slots = MOST_BATCH if of.slots is None else of.slots * layout.data
    return instance(machine(of, layout), of.workload, of.shares, of.adapters, of.least, slots)


def machine(of: Inputs, layout: GpuLayout) -> Machine:
    """The instance of these inputs, in one layout."""
    precisions = Precisions(of.weights.bytes, of.kv.bytes)
    return Machine(of.model, of.gpu, layout, precisions, flops(of.gpu, of.weights), of.reached)


def _usable(of: Inputs, one: Instance) -> float:
    return one.rate if of.measured.usable is None else of.measured.usable


def _fleet(of: Inputs, one: Instance) -> Fleet:
    return fleet(of.workload.peak, _usable(of, one), one.layout.gpus, of.safety)


def _none(of: Inputs, tried: tuple[Instance, ...]) -> SizingError:
    """Why no layout serves, by the one that came closest."""
    best = max(tried, key=lambda one: (one.budget.room > 0, one.holds > 0, one.batch > 0, one.layout.gpus))
    asked = "" if len(tried) == 1 else NONE_SERVES
    remedies = best.remedies if of.layout is None else ("more GPUs (--tp, --pp)", *best.remedies)
    return SizingError(f"{of.model.name} on {of.gpu.name}: {asked}{best.layout}, {best.why}", remedies)
