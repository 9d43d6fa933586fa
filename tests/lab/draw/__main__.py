"""Drawn incidents: `python -m tests.lab.draw play --seed 1000 --number 10`, `... score`, `... show --seed 1000`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ..paths import LabError
from ..product import kvitals_command
from .grammar import SYSTEMS, Drawn, draw
from .play import RESULTS, digest, play_all
from .score import read, report, score


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        match args.command:
            case "play":
                failed = asyncio.run(play_all(_drawn(args), kvitals_command(args.kvitals), args.out))
                print(*failed, sep="\n", end="\n" if failed else "", file=sys.stderr)
                return 1 if failed else 0
            case "score":
                with ProcessPoolExecutor(max_workers=2) as workers:
                    scored = list(workers.map(score, read(args.out)))
                now = digest()
                print(report([s for s in scored if not args.unseen or s.played.digest == now]))
            case "show":
                for one in _drawn(args):
                    faults = ", ".join(f"{fault.name} {strength:g}" for fault, strength in one.faults)
                    print(f"{one.seed} {one.system}: {faults or 'no fault'}, {one.course}\n  {one.plan()}")
    except (LabError, TimeoutError) as error:
        print(f"draw: {error or 'took too long'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _drawn(args: argparse.Namespace) -> list[Drawn]:
    return [draw(seed, args.system) for seed in range(args.seed, args.seed + args.number)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.draw", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (("play", "play incidents, each with all its arms"), ("show", "what seeds draw")):
        one = commands.add_parser(name, help=does)
        one.add_argument("--seed", type=int, required=True, help="the first one")
        one.add_argument("--number", type=int, default=1, metavar="N", help="how many, seed after seed (1)")
        one.add_argument("--system", choices=SYSTEMS, default="", help="default: drawn")
        one.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
        one.add_argument("--kvitals", help="the product's command")
    scoring = commands.add_parser("score", help="the verdicts of today's rules and code on what was played")
    scoring.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    scoring.add_argument("--unseen", action="store_true", help="only what was played under these very rules and code")
    return parser


if __name__ == "__main__":
    sys.exit(main())
