"""What a better hit rate is worth: prefill work and waiting, against how it is today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvitals.kvcache.whatif import ReplayRow


@dataclass(frozen=True)
class Worth:
    """Against the base. prefill_saved: the share of its prefill work, and so of the GPU-hours spent on it, that is not
    done any more, (h2 - h1) / (1 - h1) of the hit rates; negative where more is done, None where there was none.

    seconds_saved: of prefill on one node, for all requests together. ttft_change: the mean over requests, of computing
    alone, without what shorter queues bring besides. Both are None without a prefill rate.
    """

    prefill_saved: float | None
    seconds_saved: float | None
    ttft_change: float | None


def base_of(rows: Sequence[ReplayRow], today: int | None) -> ReplayRow:
    """The row to compare with: of the first policy and routing that with today's capacity, else the first."""
    first = rows[0]
    same = (row for row in rows if (row.policy, row.routing) == (first.policy, first.routing))
    return next((row for row in same if today is not None and row.capacity_blocks == today), first)


def worth(row: ReplayRow, base: ReplayRow, requests: int, prefill_rate: float | None) -> Worth:
    """`prefill_rate` is what one node computes, in prompt tokens a second."""
    saved = base.prefill_tokens - row.prefill_tokens
    seconds = saved / prefill_rate if prefill_rate else None
    return Worth(
        prefill_saved=saved / base.prefill_tokens if base.prefill_tokens else None,
        seconds_saved=seconds,
        ttft_change=-seconds / requests if seconds is not None else None,
    )
