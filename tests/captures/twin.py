"""The twin's predictions beside recorded changes of a real vLLM: `python -m tests.captures.twin [--presents]`.

Each recording has an engine before and after a change of one flag. The twin predicts the time after from the time
before, and the time before from the time after, each from nothing but the other. Every third prediction is held out:
none of the twin's constants was chosen on it. With --presents the recorded incidents show how often the twin reproduces
the present, which is what it has to do before it predicts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvitals.app.engine_twin import engine_lookups, forecasts, twin_subjects
from kvitals.app.pipeline import Setup
from kvitals.app.timeseries_sources import TimeseriesSource, of_recording
from kvitals.config import Config
from kvitals.diagnoser.twin.forecast import TwinDocument, Values, measured_quantities
from kvitals.rules.loader import load

CAPTURES = Path(__file__).parent
CHANGES = ("slots_raised", "slots_lowered", "blocks_in_vain", "blocks_raised")
"""Recordings whose load is the same before and after."""
FLAGS = {"max_num_seqs": ("max-num-seqs", "slots"), "num_gpu_blocks_override": ("num-gpu-blocks-override", "kv_blocks")}
SCORED = {"itl_p50_seconds": 0.15, "ttft_p50_seconds": 0.25, "finished_per_second": 0.10}
"""Quantities and the relative errors that count as close."""
NOTICEABLE = 0.05
"""Relative change above which a quantity changed."""
HELD_OUT = 3


@dataclass(frozen=True)
class TwinScore:
    """One prediction beside what came of it. held_out: by its place."""

    name: str
    document: TwinDocument
    actual: Values
    held_out: bool

    @property
    def predicted(self) -> bool:
        """Whether there was a prediction."""
        return not self.document.no_prediction

    def rows(self) -> Iterator[tuple[str, float, float, float, float, float]]:
        """Name, before, predicted, low, high and actual of each quantity that is scored."""
        for row in self.document.quantities:
            actual = self.actual[row.name]
            if row.name in SCORED and actual and row.predicted and row.measured and row.low is not None:
                assert row.high is not None
                yield row.name, row.measured, row.predicted, row.low, row.high, actual

    def directions(self) -> list[bool]:
        """Of each quantity whose whole range is on one side of its value before: whether it went there."""
        return [
            (low > before) == (actual > before)
            for _, before, _, low, high, actual in self.rows()
            if low > before or high < before
        ]

    def unstated(self) -> int:
        """Quantities that changed noticeably although the range has their value before, so that no direction was
        predicted."""
        return sum(
            low <= before <= high and abs(actual - before) > NOTICEABLE * before
            for _, before, _, low, high, actual in self.rows()
        )

    def close(self, name: str) -> list[bool]:
        """Whether a quantity was close."""
        return [
            abs(predicted - actual) <= SCORED[name] * actual
            for row, _, predicted, _, _, actual in self.rows()
            if row == name
        ]

    def inside(self) -> list[bool]:
        """Whether the range holds what came."""
        return [low <= actual <= high for _, _, _, low, high, actual in self.rows()]


def scores() -> list[TwinScore]:
    """All predictions, in both directions."""
    several = [
        (f"{name} {direction}", *pair)
        for name in CHANGES
        for direction, pair in zip(("forward", "back"), _both(name), strict=True)
    ]
    return [
        TwinScore(name, document, actual, number % HELD_OUT == HELD_OUT - 1)
        for number, (name, document, actual) in enumerate(several)
    ]


def _both(name: str) -> list[tuple[TwinDocument, Values]]:
    path = CAPTURES / "changes" / f"{name}.kvcap"
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    ((changed, value),) = truth["changed"].items()
    flag, fact = FLAGS[changed]
    accesses = engine_lookups(path)
    with of_recording(path, Setup(load(), Config())) as of:
        before = replace(of, end=truth["ended"])
        after = replace(of, start=truth["back"])
        was = twin_subjects(before)[0].facts[fact]
        return [
            (forecasts(before, [f"{flag}={value}"], accesses)[0], _actual(after)),
            (forecasts(after, [f"{flag}={was:.0f}"], accesses)[0], _actual(before)),
        ]


def _actual(of: TimeseriesSource) -> Values:
    return measured_quantities(twin_subjects(of)[0])


def share(values: Sequence[bool]) -> str:
    """`3 of 4`."""
    return f"{sum(values)} of {len(values)}"


def report(several: Sequence[TwinScore]) -> None:
    """Print a line for each prediction and quantity, then the sums."""
    for score in several:
        print(f"{score.name}{' (held out)' if score.held_out else ''}: {score.document.no_prediction or 'predicted'}")
        for name, before, predicted, low, high, actual in score.rows():
            print(
                f"  {name:22} before {before:9.4g}  predicted {predicted:9.4g} ({low:.4g} to {high:.4g})"
                f"  came {actual:9.4g}"
            )
    for title, chosen in (
        ("tuned on", [score for score in several if not score.held_out]),
        ("held out", [score for score in several if score.held_out]),
    ):
        print(f"{title}: {share([score.predicted for score in chosen])} predicted")
        print(
            f"  direction {share([right for score in chosen for right in score.directions()])}; none predicted where it"
            f" changed by more than {NOTICEABLE:.0%}: {sum(score.unstated() for score in chosen)}"
        )
        for name, tolerance in SCORED.items():
            print(
                f"  {name} within {tolerance:.0%}: {share([close for score in chosen for close in score.close(name)])}"
            )
        print(f"  inside the range: {share([inside for score in chosen for inside in score.inside()])}")


def presents() -> Iterator[tuple[str, str]]:
    """Each recorded incident of one vLLM, and why its present is not reproduced; empty where it is."""
    setup = Setup(load(), Config())
    for path in sorted((CAPTURES / "incidents").glob("*-1.kvcap")):
        with of_recording(path, setup) as of:
            subjects = twin_subjects(of)
            if len(subjects) == 1 and subjects[0].system == "vllm" and "slots" in subjects[0].facts:
                document = forecasts(of, [f"max-num-seqs={subjects[0].facts['slots']:.0f}"])[0]
                yield path.stem, document.no_prediction


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scores."""
    parser = argparse.ArgumentParser(prog="python -m tests.captures.twin", description=__doc__)
    parser.add_argument("--presents", action="store_true", help="how often the present of an incident is reproduced")
    if parser.parse_args(arguments).presents:
        reasons = dict(presents())
        for name, reason in reasons.items():
            print(f"{name}: {reason or 'reproduced'}")
        print(f"reproduced: {share([not reason for reason in reasons.values()])}")
        return 0
    report(scores())
    return 0


if __name__ == "__main__":
    sys.exit(main())
