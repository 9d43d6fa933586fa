"""What an engine is likely to reach, beside the bound that it cannot pass: the memory that it leaves for KV, and the
shares of the peaks. Every estimate is an interval.

An engine sizes its KV cache when it starts: the share of the GPU that it may use, less what it measures during a dummy
step of `tokens` tokens and `slots` sequences. vLLM's V1 engine measures about 39 bytes for each logit of that step up
to version 0.16 and 15 bytes from 0.17, and reserves CUDA graphs from 0.21. The interval covers all of them. The tests
hold it against figures that engines reported (rules/kv_published.csv).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvitals.diagnoser.sizing.memory import PRECISIONS, GpuLayout, Precisions, weights, weights_on_gpu
from kvitals.diagnoser.sizing.roofline import PeakShares
from kvitals.rules.catalogue import Gpu, Model

GIB = float(1 << 30)
UTILIZATION = 0.9
"""vLLM's --gpu-memory-utilization where nobody sets it; 0.92 in its latest versions."""
LARGE_GPU = 70 * GIB
"""vLLM chooses larger defaults for a GPU with as much memory, except an A100."""
SMALL_SETTINGS, LARGE_SETTINGS = (2048, 256), (8192, 1024)
"""vLLM's --max-num-batched-tokens and --max-num-seqs."""


@dataclass(frozen=True)
class Interval:
    """A value and the bounds that it is expected between."""

    low: float
    likely: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class EngineSettings:
    """utilization: share of a GPU's memory that the engine uses. tokens, slots: of a step, at most."""

    utilization: float
    tokens: int
    slots: int


LOGIT_BYTES = Interval(15.0, 15.5, 39.5)
"""Of each token of the vocabulary and slot, while the sampler is measured: logits, sorted copies, probabilities."""
DRIVER = Interval(0.35 * GIB, 0.5 * GIB, 0.85 * GIB)
"""Of the memory that NVML reports, what no process can have."""
RUNTIME_ALONE = Interval(0.05 * GIB, 0.25 * GIB, 0.5 * GIB)
RUNTIME_TOGETHER = Interval(0.4 * GIB, 2.1 * GIB, 2.4 * GIB)
"""CUDA context and NCCL buffers on each GPU, alone and in a group."""
GRAPHS = Interval(0.0, 0.9 * GIB, 1.9 * GIB)
WEIGHTS = Interval(0.99, 1.0, 1.03)
"""Of the weights by the dimensions: counts of parameters, scales and padding."""
PADDED_EXPERTS = Interval(0.99, 1.05, 1.12)
"""The same of MXFP4 experts, whose kernels pad them."""
ACTIVATION_BYTES = 2.0

REACHED = (PeakShares(0.25, 0.45), PeakShares(0.45, 0.7), PeakShares(0.65, 0.92))
"""Low, likely, high. Arithmetic: MLPerf's results of Llama 2 70B reach 36 to 61 % (rules/published.csv). Memory
bandwidth: an assumption."""


def default_settings(gpu: Gpu) -> EngineSettings:
    """What vLLM's server chooses for a GPU."""
    large = gpu.hbm >= LARGE_GPU and not gpu.name.startswith("A100")
    return EngineSettings(UTILIZATION, *(LARGE_SETTINGS if large else SMALL_SETTINGS))


def kv_room(model: Model, gpu: Gpu, layout: GpuLayout, precisions: Precisions, of: EngineSettings) -> Interval:
    """Bytes that an engine leaves for KV on each GPU. Below 0 it does not start."""
    held = weights_held(model, layout, precisions)
    runtime = RUNTIME_ALONE if layout.gpus == 1 else RUNTIME_TOGETHER
    logits = float(model.vocab * of.slots)
    step = step_activations(model, layout, of.tokens)
    peaks = [max(logits * each, step) for each in (LOGIT_BYTES.low, LOGIT_BYTES.likely, LOGIT_BYTES.high)]
    # The versions that reserve graphs are not those that measure the larger logits.
    most = max(peaks[2], 1.3 * peaks[0] + GRAPHS.high)
    usable = [(gpu.hbm - driver) * of.utilization for driver in (DRIVER.high, DRIVER.likely, DRIVER.low)]
    return Interval(
        usable[0] - held.high - runtime.high - most,
        usable[1] - held.likely - runtime.likely - peaks[1] - GRAPHS.likely,
        usable[2] - held.low - runtime.low - 0.7 * peaks[0],
    )


def weights_held(model: Model, layout: GpuLayout, precisions: Precisions) -> Interval:
    """Bytes of weights on a GPU. The tables of a quantized model stay in 16 bits."""
    least = weights_on_gpu(model, layout, precisions)
    tables = 0.0
    experts_only = precisions.weights == PRECISIONS["mxfp4"].bytes and model.routed
    if precisions.weights < ACTIVATION_BYTES and not experts_only:
        share = least / weights(model, precisions)
        tables = min(model.tables, model.parameters) * (ACTIVATION_BYTES - precisions.weights) * share
    of = PADDED_EXPERTS if experts_only else WEIGHTS
    return Interval(least * of.low, least * of.likely + tables, (least + tables) * of.high)


def step_activations(model: Model, layout: GpuLayout, tokens: int) -> float:
    """Bytes of a step of so many tokens: the gate, up and down parts of the feed-forward layer, and the residual stream
    with its copies, one for each expert that a token passes."""
    wide = 3.0 * model.inner / layout.tensor
    return tokens * ACTIVATION_BYTES * (wide + model.hidden * (3 + max(model.used, 1)))
