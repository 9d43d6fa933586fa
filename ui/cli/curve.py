"""`kvitals whatif --curve`: the hit rate that each size of cache would have had."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from kvitals.app.lookups import Lookups
from kvitals.diagnoser.sizing.quantity import several
from kvitals.kvcache.prefix_lru import dense_codes
from kvitals.kvcache.sampling import MIN_ROOM
from kvitals.kvcache.whatif import ReplayPlan, ReplayRow
from kvitals.ui.cli.accesses import head, replay_plan, trace_document
from kvitals.ui.cli.output import PrintedDocument, emit
from kvitals.ui.formats import bar, short

PER_OCTAVE = 8
MOST_LINES = 12
WIDTH = 32
SHARES = (0.5, 0.9)
"""Of the attainable rate: for these a size is named."""


def run(subject: Lookups, args: argparse.Namespace) -> int:
    """Print the curve of recorded accesses. Raises UsageError."""
    rows = replay_plan(
        subject, ReplayPlan(capacities=_capacities(subject, args.sample), rate=args.sample, seed=args.seed)
    )

    def show(console: Console) -> None:
        head(subject, console)
        for line in plot(rows, subject.today):
            console.print(line)
        console.print()
        for sentence in _enough(rows, subject):
            console.print(sentence)

    def encode() -> str:
        return "[\n" + ",\n".join(json.dumps(_point(row, subject)) for row in rows) + "\n]"

    emit(PrintedDocument("Hit rate by size of the cache", show, encode), args.output)
    return 0


def plot(rows: Sequence[ReplayRow], today: int | None) -> list[Text]:
    """A bar for each size, twice the one before, for today's and for an endless cache; `rows` are as `replay_plan`."""
    doubled = [row for row in rows if row.capacity_blocks is not None and row.capacity_blocks.bit_count() == 1]
    shown = {row.capacity_blocks for row in doubled[-MOST_LINES:]} | {today, None}
    top = max(rows[-1].token_hit_rate, 1e-9)
    lines = [Text(f"{'blocks':>14} {'tokens':>9}   tokens hit", style="bold")]
    for row in (row for row in rows if row.capacity_blocks in shown):
        blocks, tokens = "endless", ""
        if row.capacity_blocks is not None:
            blocks, tokens = f"{row.capacity_blocks:,}", short(row.capacity_blocks * row.block_size)
        here = row.capacity_blocks is not None and row.capacity_blocks == today
        line = Text(f"{blocks:>14} {tokens:>9}   ")
        line.append(f"{bar(row.token_hit_rate / top, WIDTH)} ", style="bold" if here else "cyan")
        line.append(f"{row.token_hit_rate:.2%}" + (f" ± {row.error:.2%}" if row.sample_rate < 1 else ""))
        lines.append(line.append("  today", style="bold") if here else line)
    return lines


def _capacities(of: Lookups, sample: float) -> tuple[int | None, ...]:
    """Sizes evenly spaced by ratio, powers of two among them, up to all blocks that there are; today's; endless. Of a
    sample only sizes that it can estimate."""
    blocks = int(np.count_nonzero(np.bincount(dense_codes(of.accesses.block))))
    least = math.ceil(PER_OCTAVE * math.log2(MIN_ROOM / sample)) if 0 < sample < 1 else 0
    steps = range(least, math.floor(PER_OCTAVE * math.log2(max(blocks, 1))) + 1)
    sizes = {round(2 ** (step / PER_OCTAVE)) for step in steps} | ({of.today} if of.today is not None else set())
    return (*sorted(sizes), None)


def _enough(rows: Sequence[ReplayRow], of: Lookups) -> list[str]:
    """How much memory is enough, and what today's misses."""
    attainable = rows[-1].token_hit_rate
    if not attainable:
        return ["No prompt begins like an earlier prompt, so no cache would have a hit."]
    sizes = [row for row in rows if row.capacity_blocks is not None]
    told = []
    for share in SHARES:
        least = next((row.capacity_blocks for row in sizes if row.token_hit_rate >= share * attainable), None)
        if least is not None:
            size = f"{several(least, 'block')}, {short(least * of.accesses.block_size)} tokens"
            told.append(f"{share:.0%} of the attainable rate ({attainable:.2%}) needs about {size}.")
    told += [
        f"Today's {several(row.capacity_blocks, 'block')} reach "
        f"{percent_short_of(row.token_hit_rate / attainable, (*SHARES, 1.0))} of the attainable rate."
        for row in sizes
        if row.capacity_blocks is not None and row.capacity_blocks == of.today
    ]
    return told


def percent_short_of(share: float, limits: Sequence[float]) -> str:
    """A share in percent, to a tenth. What falls short of a limit is never printed as the limit."""
    text = f"{100 * share:.1f}%"
    if any(share < limit and text == f"{100 * limit:.1f}%" for limit in limits):
        return f"{math.floor(1000 * share + 1e-9) / 10:.1f}%"
    return text


def _point(row: ReplayRow, of: Lookups) -> dict[str, Any]:
    return {
        "capacity_blocks": row.capacity_blocks,
        "block_size": row.block_size,
        "sample_rate": row.sample_rate,
        "seed": row.seed,
        "token_hit_rate": round(row.token_hit_rate, 6),
        "error": round(row.error, 6),
        "observed": of.accesses.observed,
        **trace_document(of),
    }
