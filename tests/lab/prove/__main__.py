"""`kvitals prove` on a real vLLM, with changes drawn at random.

python -m tests.lab.prove --seed 1 --each 12 --out DIR [--lock FILE]     # 12 of each kind, resumable
python -m tests.lab.prove --kill                                         # the prover is killed in the middle
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..engines import Engines
from ..incidents.recording import turn
from ..paths import HOME, LabError
from ..product import kvitals_command
from .plays import CHANGES, RIGHT, drawn
from .stand_prove import Played, kill, play

LONGEST_HARM_S = 60.0
WRONG_IN_36 = 3
BUDGET_S = 86_400.0


async def main(given: argparse.Namespace) -> bool:
    """Play what is not in the folder yet; whether everything there is as it has to be."""
    given.out.mkdir(parents=True, exist_ok=True)
    kvitals, began = kvitals_command(given.kvitals), time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        if given.kill:
            async with turn(given.lock), Engines() as lab:
                seconds = await kill(lab, CHANGES[6], given.seed, kvitals, Path(home))
            print(f"the prover was killed: the engine is back after {seconds:.1f} s")
            return True
        for number, change in drawn(given.seed, given.each):
            file = given.out / f"{number}-{change.name}.json"
            if file.exists() or time.monotonic() - began > given.seconds:
                continue
            try:
                async with turn(given.lock), Engines() as lab:
                    played = await play(lab, change, number, kvitals, Path(home))
            except LabError as error:
                print(f"{number} {change.name}: {error}", file=sys.stderr)
                continue
            file.write_text(json.dumps(asdict(played), indent=1) + "\n")
            print(line(played), flush=True)
    return report(given.seed, [read(file) for file in sorted(given.out.glob(f"{given.seed}???-*.json"))])


def read(file: Path) -> Played:
    return Played(**json.loads(file.read_text()))


def line(played: Played) -> str:
    mark = "right" if played.is_right else "WRONG"
    harm = f", {played.harmed_seconds:.0f} s until back" if played.state == "rolled back" else ""
    return f"{mark} {played.kind} {played.name}: {played.verdict}, {played.state}{harm}. {played.conclusion}"


def report(seed: int, played: Sequence[Played]) -> bool:
    """Print the table; whether the requirements hold for what was played."""
    table = Counter((one.kind, one.verdict) for one in played)
    verdicts = ("worked", "in part", "no effect", "worse", "undecided")
    print(f"\nseed {seed}: {len(played)} changes, {sum(one.is_right for one in played)} right")
    print(f"{'':<10}" + "".join(f"{verdict:>11}" for verdict in verdicts))
    for kind in RIGHT:
        print(f"{kind:<10}" + "".join(f"{table[kind, verdict]:>11}" for verdict in verdicts))
    false = [one.name for one in played if one.kind != "helpful" and one.verdict == "worked"]
    broken = [one for one in played if one.document["guard_rail"]]
    late = [one.name for one in broken if one.harmed_seconds > LONGEST_HARM_S]
    lost = [one.name for one in played if not one.is_back]
    longest = max((one.harmed_seconds for one in broken), default=0.0)
    print(f"called worked, and did not: {false or 'none'}; not as it has to be in the end: {lost or 'none'}")
    print(f"guard rail broke: {len(broken)}; longest time until the engine was back: {longest:.0f} s")
    enough = sum(not one.is_right for one in played) <= WRONG_IN_36 * max(len(played), 12) / 36
    return bool(played) and not false and not late and not lost and enough


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="python -m tests.lab.prove")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--each", type=int, default=12, help="changes of each kind (12)")
    arguments.add_argument("--out", type=Path, default=HOME / "prove")
    arguments.add_argument("--seconds", type=float, default=BUDGET_S, help="begin no further change after so many")
    arguments.add_argument("--kill", action="store_true", help="kill the prover in the middle of a harmful change")
    arguments.add_argument("--lock", type=Path, help="one after another with other users of this file")
    arguments.add_argument("--kvitals")
    sys.exit(0 if asyncio.run(main(arguments.parse_args())) else 1)
