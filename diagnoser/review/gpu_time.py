"""Where the time of the GPUs went. The parts add up to all of it; what nobody tells is a part of its own.

An engine runs many requests at once, and no metric says which kernel was for whom. So busy time is shared out: first
what aborted requests took, by their share of all requests; then prefill and decode, by the requests' time in each; of
prefill what was computed once before; of decode the positions of drafts that were thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvitals.diagnoser.review.review_steps import ReviewArrays
from kvitals.series.types import Floats

PARTS = ("idle", "aborted", "reprefill", "drafts", "prefill", "decode", "unattributed")
WASTE = ("idle", "aborted", "reprefill", "drafts")
FEW_LOST = 0.005
"""Requests that got a first token and never ended, of all: so few may be at the edges of what was seen."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class GpuTimeLedger:
    """GPU-hours by part, [step, engine] each, and what could not be told: part -> why."""

    gpu_hours: Floats
    parts: Mapping[str, Floats]
    gpus: Floats  # of each engine, as told or assumed
    assumed: Mask  # of each engine, whether its count of GPUs is assumed
    unknown: Mapping[str, str]


def ledger(seen: ReviewArrays, gpus: float) -> GpuTimeLedger:
    """`gpus`: of an engine that does not tell how many it has."""
    count, assumed = _gpus(seen, gpus)
    hours = count * seen.data["seen"] / 3600
    busy = seen.data["busy"]
    told = np.isfinite(busy)
    idle = np.where(told, hours * (1 - np.nan_to_num(busy)), 0.0)
    left = np.where(told, hours - idle, 0.0)
    aborted = left * _aborted(seen)
    left = left - aborted
    prefill, decode = (np.nan_to_num(seen.data[name]) for name in ("prefill", "decode"))
    both = prefill + decode
    phased = both > 0
    in_prefill = np.where(phased, left * prefill / np.where(phased, both, 1.0), 0.0)
    in_decode = np.where(phased, left - in_prefill, 0.0)
    again, thrown = in_prefill * recomputed_share(seen), in_decode * _rejected(seen)
    parts = {
        "idle": idle,
        "aborted": aborted,
        "reprefill": again,
        "drafts": thrown,
        "prefill": in_prefill - again,
        "decode": in_decode - thrown,
        "unattributed": np.where(told, np.where(phased, 0.0, left), hours),
    }
    return GpuTimeLedger(hours, parts, count[-1] if len(count) else count, assumed, _unknown(seen))


def recomputed_share(seen: ReviewArrays) -> Floats:
    """Share of the prompt tokens that were computed whose KV the cache had had before; 0 where that is not told."""
    again = np.nan_to_num(seen.data["refaulted"]) - np.nan_to_num(seen.data["refaulted_below"])
    computed = np.nan_to_num(seen.data["looked_up"] - seen.data["hit"])
    return np.where(computed > 0, np.clip(again / np.where(computed > 0, computed, 1.0), 0.0, 1.0), 0.0)


def _gpus(seen: ReviewArrays, otherwise: float) -> tuple[Floats, Mask]:
    """GPUs of each engine in each step: as told then, else as told at another time, else as assumed."""
    told = seen.data["gpus"]
    known: Mask = np.asarray(np.isfinite(told).any(axis=0), dtype=np.bool_)
    usual = np.array([np.nanmedian(told[:, i]) if known[i] else otherwise for i in range(told.shape[1])])
    return np.where(np.isfinite(told), told, usual[None, :]), ~known


def _aborted(seen: ReviewArrays) -> Floats:
    """Share of each engine's requests that were left before their end: as counted, else those that got a first token
    and did not finish (vLLM counts no aborts). A request that still runs has no end yet: as many as ever ran at once
    may be open at the end, and as many that were preempted as ever waited."""
    total = {name: np.nansum(seen.data[name], axis=0) for name in ("aborted", "finished", "first_tokens", "preempted")}
    running, waiting = (np.nan_to_num(seen.data[name]).max(axis=0, initial=0.0) for name in ("running", "waiting"))
    lost = total["first_tokens"] - total["finished"] - running - np.minimum(waiting, total["preempted"])
    begun = np.maximum(total["first_tokens"], total["finished"])
    begun = np.maximum(begun, 1.0)
    share = np.maximum(total["aborted"], lost) / begun
    share = np.where(share < FEW_LOST, total["aborted"] / begun, share)
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)


def _rejected(seen: ReviewArrays) -> Floats:
    """Share of the positions that decoding computed which were drafts that the model did not take."""
    thrown = np.clip(np.nan_to_num(seen.data["drafted"]) - np.nan_to_num(seen.data["accepted"]), 0.0, None)
    all_ = thrown + np.nan_to_num(seen.data["output"])
    return np.where(all_ > 0, thrown / np.where(all_ > 0, all_, 1.0), 0.0)


def _unknown(seen: ReviewArrays) -> dict[str, str]:
    said = {}
    if not seen.known("refaulted"):
        said["reprefill"] = "no KV events, so prefill includes what was computed twice"
    if not seen.known("drafted"):
        said["drafts"] = "no engine reports drafts: speculation is off or not reported"
    if not seen.known("finished"):
        said["aborted"] = "no engine reports how requests ended"
    if not (seen.known("prefill") and seen.known("decode")):
        said["prefill"] = "no engine reports how long prefill and decode take, so busy time is not divided"
    return said
