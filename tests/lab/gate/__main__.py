"""Plays each recorded incident with request records against a fresh vLLM of its configuration.

python -m tests.lab.gate [RUN ...] [--out DIR] [--lock FILE]     # resumable: what is in DIR is not played again
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvitals.agent.records import PartsRecord, decode
from kvitals.series.recordings import CaptureReader

from ..engines import Engines
from ..incidents.judging import incident_of
from ..incidents.recording import CAPTURES, turn
from ..paths import HOME, LabError
from ..product import kvitals_command, slo_arguments
from ..systems import site_of

LIMIT_S = 240.0
HIT_POINTS, TTFT_SHARE = 0.02, 0.2
WANTED_SHARE = 0.9
"""18 of 20."""


def with_requests(captures: Sequence[Path]) -> list[Path]:
    """The recordings that have observations of requests."""
    return [capture for capture in captures if _has_parts(capture)]


def _has_parts(capture: Path) -> bool:
    with CaptureReader.open(capture) as reader:
        return any(isinstance(known, PartsRecord) and known.parts for known in map(decode, reader))


async def play(capture: Path, kvitals: Sequence[str]) -> dict[str, Any]:
    """The gate's answer for one incident. Raises LabError."""
    scenario = incident_of(capture).scenario
    async with Engines() as lab, site_of(scenario, lab) as site:
        command = [*kvitals, "gate", "--against", site.watched[0].url, str(capture), "--json"]
        process = await asyncio.create_subprocess_exec(
            *command, *slo_arguments(scenario.slo), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if not out:
        raise LabError(f"kvitals gate failed with exit code {process.returncode}: {err.decode()[-1000:]}")
    answer: dict[str, Any] = json.loads(out)["incidents"][0]
    return answer


def checks(answer: dict[str, Any]) -> dict[str, bool | None]:
    """Whether the play has the recording's first cause, hit rate and TTFT; None: not judged, or not reported."""
    recorded, candidate = answer["recorded"], answer["candidate"]
    if not candidate:
        return {"cause": None, "hit rate": None, "TTFT": None}
    hit, other_hit = recorded["hit_rate"], candidate["hit_rate"]
    ttft, other_ttft = recorded["ttft_p50"], candidate["ttft_p50"]
    return {
        "cause": _first(recorded) == _first(candidate),
        "hit rate": None if None in (hit, other_hit) else abs(hit - other_hit) <= HIT_POINTS,
        "TTFT": None if None in (ttft, other_ttft) else abs(other_ttft / ttft - 1) <= TTFT_SHARE,
    }


def _first(figures: dict[str, Any]) -> str:
    return str(figures["causes"][0]["code"]) if figures["causes"] else "-"


def line(name: str, answer: dict[str, Any]) -> str:
    if not answer["candidate"]:
        return f"{name}: not judged: {answer['why']}"
    sides = [answer["recorded"], answer["candidate"]]
    shown = [f"{_first(side)}, hit rate {side['hit_rate']}, TTFT p50 {side['ttft_p50']} s" for side in sides]
    failed = [check for check, holds in checks(answer).items() if holds is False]
    return f"{name}: {answer['outcome']}. {shown[0]} -> {shown[1]}; differs: {', '.join(failed) or 'nothing'}"


def report(answers: Sequence[dict[str, Any]]) -> bool:
    """Print the counts; whether the share of equal first causes is reached."""
    all_checks = [checks(answer) for answer in answers]
    for check in ("cause", "hit rate", "TTFT"):
        known = [one[check] for one in all_checks if one[check] is not None]
        print(f"{check}: the same in {sum(map(bool, known))} of {len(known)}, {len(answers) - len(known)} not judged")
    same = sum(one["cause"] is True for one in all_checks)
    return bool(answers) and same >= WANTED_SHARE * len(answers)


async def main(given: argparse.Namespace) -> bool:
    given.out.mkdir(parents=True, exist_ok=True)
    captures = [CAPTURES / f"{run}.kvcap" for run in given.runs] or with_requests(sorted(CAPTURES.glob("*.kvcap")))
    kvitals, began = kvitals_command(given.kvitals), time.monotonic()
    for capture in captures:
        file = given.out / f"{capture.stem}.json"
        if file.exists() or time.monotonic() - began > given.seconds:
            continue
        try:
            async with turn(given.lock):
                answer = await play(capture, kvitals)
        except (LabError, TimeoutError) as error:
            print(f"{capture.stem}: {error or 'not done in time'}", file=sys.stderr)
            continue
        file.write_text(json.dumps(answer, indent=1) + "\n")
    files = [file for capture in captures if (file := given.out / f"{capture.stem}.json").exists()]
    answers = [json.loads(file.read_text()) for file in files]
    for file, answer in zip(files, answers, strict=True):
        print(line(file.stem, answer))
    print(f"{len(answers)} of {len(captures)} incidents with request records played")
    return report(answers)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="python -m tests.lab.gate")
    arguments.add_argument("runs", nargs="*", metavar="RUN", help="recorded incidents (default: all with requests)")
    arguments.add_argument("--out", type=Path, default=HOME / "gate")
    arguments.add_argument("--seconds", type=float, default=86_400.0, help="begin no further play after so many")
    arguments.add_argument("--lock", type=Path, help="one after another with other users of this file")
    arguments.add_argument("--kvitals")
    sys.exit(0 if asyncio.run(main(arguments.parse_args())) else 1)
