"""A review of a week of a simulated fleet in a real Prometheus: are its totals right, and what does it take.

    python -m benchmarks.review                        40 engines for 7 days, a sample a minute
    python -m benchmarks.review --engines 4 --days 2

The engines are recordings of real ones that go on (`tests/fleet/week.py`), written with promtool: they work by day and
do nothing by night, each from another hour on. What the review says is held against sums over the generated numbers
themselves, with arithmetic of its own. Exits with 1 where a total is off, or the review takes longer than a minute.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvitals.config import SloTable
from kvitals.diagnoser.review.result import Review
from kvitals.rules.loader import load
from kvitals.series.types import Floats, Labels
from tests.fleet.week import DAY, HOUR, Engine, Stretch, asked_for, backfill, courses, stretches
from tests.oracle.oracle_server import prometheus

ROOT = Path(__file__).parents[1]
BEGIN = 1_767_225_600.0 - 3 * DAY  # 2025-12-29T00:00:00Z, a Monday
INTERVAL = 60.0
BUDGET_SECONDS = 60.0
OFF = 0.001
"""By which a total may differ, as a share of it."""
USD = {"H100": 2.0, "L40S": 1.0}
RECORDINGS = ("app/demo/healthy.kvcap", "app/demo/few_slots.kvcap", "tests/captures/ledger/thrash.kvcap")
PLACES = (
    {"pool": "chat", "hardware": "NVIDIA H100 80GB HBM3"},
    {"pool": "code", "hardware": "NVIDIA L40S"},
)


@dataclass(frozen=True)
class Made:
    """A fleet as series: of each engine the values at the times."""

    times: Floats
    engines: list[dict[Labels, Floats]]

    def gained(self, metric: str, **labels: str) -> float:
        """By how much a counter of all engines rose, over gaps and restarts, of which there are none here."""
        total = 0.0
        for of in self.engines:
            for key, values in of.items():
                if key.name == metric and all(key.get(name, "") == value for name, value in labels.items()):
                    there = values[np.isfinite(values)]
                    total += float(there[-1] - there[0]) if len(there) else 0.0
        return total


def make(engines: int, days: float, begin: float = BEGIN, interval: float = INTERVAL) -> Made:
    """A fleet of so many engines. Every fourth is not watched for the last two hours."""
    knowledge, wanted, slo = load(), asked_for(), SloTable(ttft_p99_seconds=0.5, itl_p99_seconds=0.3)
    pairs = [stretches(ROOT / path, slo, knowledge, wanted) for path in RECORDINGS]
    times = begin + np.arange(0.0, days * DAY + interval / 2, interval)
    made = []
    for number in range(engines):
        work, idle = pairs[number % len(pairs)]
        labels = {  # a node each: what a node says of itself is one series, and not one of each engine
            "engine": f"10.0.{number // 250}.{number % 250}:8000", "node": f"node-{number:02}",
            **PLACES[number % 2], "model": "qwen", "instance": f"node-{number:02}:9477", "job": "kvitals",
        }  # fmt: skip
        away = ((days * DAY - 2 * HOUR, np.inf),) if number % 4 == 3 else ()
        made.append(courses(Engine(labels, _schedule(number, days, work, idle), away), times, begin))
    return Made(times, made)


def _schedule(number: int, days: float, work: Stretch, idle: Stretch) -> list[tuple[float, Stretch]]:
    """Work from some hour of the day on, for eight to fourteen hours, and nothing for the rest of it."""
    first, hours = 5 + number % 5, 8 + number % 7
    schedule = [(0.0, idle)]
    for day in range(int(np.ceil(days))):
        schedule += [(day * DAY + first * HOUR, work), (day * DAY + (first + hours) * HOUR, idle)]
    return schedule


def expected(made: Made) -> dict[str, float]:
    """The totals, straight from the numbers."""
    hours, busy, usd = 0.0, 0.0, 0.0
    for of in made.engines:
        key, values = next((k, v) for k, v in of.items() if k.name == "kvitals_requests_running")
        there = np.isfinite(values)
        own = float(made.times[there][-1] - made.times[0]) / HOUR
        price = next(usd for name, usd in USD.items() if name in key["hardware"])
        hours, usd = hours + own, usd + own * price
        busy += own * float(np.mean(values[there][1:] > 0))  # of the minutes that end then
    bounds = {"ttft": 0.5, "itl": 0.3}
    found = {
        "gpu_hours": hours,
        "usd": usd,
        "busy_share": busy / hours,
        "output_tokens": made.gained("kvitals_generation_tokens_total"),
        "prompt_tokens": made.gained("kvitals_prompt_tokens_total"),
        "cached_tokens": made.gained("kvitals_prefix_hit_tokens_total"),
        "tenant_output": sum(
            made.gained("kvitals_tenant_output_tokens_total", tenant=tenant) for tenant in _tenants(made)
        ),
    }
    for name, bound in bounds.items():
        within = made.gained(f"kvitals_{name}_seconds_bucket", le=f"{bound:g}")
        found[f"{name}_within"] = within / made.gained(f"kvitals_{name}_seconds_bucket", le="+Inf")
    return found


def _tenants(made: Made) -> set[str]:
    return {
        key.get("tenant", "") for of in made.engines for key in of if key.name == "kvitals_tenant_output_tokens_total"
    }


def said(review: Review) -> dict[str, float]:
    """The same totals as the review has them."""
    total = review.total
    within = {one.name: one.within for one in review.goodput.objectives}
    return {
        "gpu_hours": total.gpu_hours,
        "usd": total.usd or 0.0,
        "busy_share": total.busy_share or 0.0,
        "output_tokens": total.output_tokens,
        "prompt_tokens": total.prompt_tokens,
        "cached_tokens": total.cached_tokens or 0.0,
        "tenant_output": sum(row.output_tokens for row in review.chargeback.rows if not row.tenant.startswith("(seen")),
        "ttft_within": within["ttft_p99"] or 0.0,
        "itl_within": within["itl_p99"] or 0.0,
    }


def wrong(review: Review, made: Made) -> list[str]:
    """Totals that are off, and sums that do not add up."""
    found, should = said(review), expected(made)
    off = [
        f"{name}: {found[name]:,.6g} and not {value:,.6g}"
        for name, value in should.items()
        if abs(found[name] - value) > OFF * max(abs(value), 1e-9)
    ]
    parts = sum(one.gpu_hours for one in review.ledger)
    if abs(parts - review.total.gpu_hours) > 1e-6 * parts:
        off.append(f"the parts of the ledger are {parts:,.6g} GPU-hours")
    cents = [row.usd_cents or 0 for row in review.chargeback.rows]
    if sum(cents) != review.chargeback.total_cents:
        off.append(f"tenants pay {sum(cents)} cents of {review.chargeback.total_cents}")
    for kind in ("pool", "model", "tier"):
        several = sum(one.work.output_tokens for one in review.groups if one.kind == kind)
        if abs(several - review.total.output_tokens) > 1e-6 * several:
            off.append(f"by {kind} there are {several:,.6g} output tokens")
    return off


def take(port: int, made: Made, out: Path) -> tuple[Review, float]:
    """The review as the command makes it, and its wall seconds."""
    import msgspec

    from kvitals.ui.cli.main import main as command

    end = float(made.times[-1])
    prices = [word for name, usd in USD.items() for word in ("--price", f"{name}={usd}")]
    arguments = [
        "review", "--prometheus", f"http://127.0.0.1:{port}", "--prometheus-timeout", "120s", "--out", str(out),
        "--from", f"{made.times[0]:.0f}", "--to", f"{end:.0f}", "--slo", "ttft=500ms", "--slo", "itl=300ms", *prices,
    ]  # fmt: skip
    began = time.monotonic()
    try:
        command(arguments)
    except SystemExit as exit_:
        if exit_.code:
            raise RuntimeError(f"the review ended with {exit_.code}") from None
    took = time.monotonic() - began
    return msgspec.json.decode((out / "review.json").read_bytes(), type=Review), took


def run(engines: int, days: float, out: Path | None) -> int:
    with tempfile.TemporaryDirectory(prefix="kvitals-week-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        began = time.monotonic()
        made = make(engines, days)
        samples = backfill(made.engines, made.times, folder / "data")
        print(f"{engines} engines, {days:g} days, {samples:,} samples, written in {time.monotonic() - began:.0f} s")
        with prometheus(folder) as server:
            before = time.process_time()
            review, took = take(server.port, made, out or folder / "review")
            cpu = time.process_time() - before
    off = wrong(review, made)
    found, should = said(review), expected(made)
    for key, value in should.items():
        print(f"  {key:14} {found[key]:>20,.6g}  {value:>20,.6g}  {found[key] / value - 1:+.5%}")
    for line in off:
        print(f"WRONG {line}", file=sys.stderr)
    verdict = "right" if not off else "WRONG"
    print(f"review: {took:.1f} s (budget {BUDGET_SECONDS:.0f} s), {cpu:.1f} s of CPU here; {verdict}")
    return 0 if not off and took <= BUDGET_SECONDS else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engines", type=int, default=40)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--out", type=Path, help="keep the documents there")
    args = parser.parse_args(arguments)
    return run(args.engines, args.days, args.out)


if __name__ == "__main__":
    sys.exit(main())
