"""The incident benchmark's command line: `python -m tests.lab.incidents --help`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ..paths import LabError
from ..product import kvitals_command
from .incident import Incident, held_out, load, names
from .judging import judge, runs
from .others import SAID, ask_all, compared
from .recording import CAPTURES, diagnose_all, record_all
from .tables import live_rows, rows, summary

TEN = (
    *("slots_few", "kv_full_long_answers", "caching_off", "working_set", "documents", "hang_ups", "lora_slots"),
    *("busy_inside", "engine_dead", "slots_and_caching_off"),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.incidents", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the incidents and their labels")
    recording = commands.add_parser("record", help="induce and record")
    recording.add_argument("incidents", nargs="*", metavar="NAME", help="default: all")
    recording.add_argument("--seed", type=int, default=1, help="which run of each, where NAME-SEED does not say (1)")
    recording.add_argument("--out", type=Path, default=CAPTURES, metavar="DIR")
    recording.add_argument("--kvitals", help="the product's command")
    recording.add_argument("--lock", type=Path, metavar="FILE", help="held during each, where others measure here too")
    replaying = commands.add_parser("replay", help="judge the recordings, and print how right it was")
    replaying.add_argument("incidents", nargs="*", metavar="NAME", help="default: all that are recorded")
    replaying.add_argument("--captures", type=Path, default=CAPTURES, metavar="DIR")
    replaying.add_argument("--only", choices=("tuned", "held-out"), help="of the recordings")
    others = commands.add_parser("others", help="what other published tools say of the recordings")
    others.add_argument("incidents", nargs="*", metavar="NAME", help="default: all that are recorded")
    others.add_argument("--captures", type=Path, default=CAPTURES, metavar="DIR")
    others.add_argument(
        "--kept", type=Path, default=SAID, metavar="FILE", help="what they said, so as not to ask again"
    )
    living = commands.add_parser("live", help="induce anew, and diagnose while they last")
    living.add_argument("incidents", nargs="*", metavar="NAME", default=TEN, help="default: ten of several families")
    living.add_argument("--seed", type=int, default=4, help="which run of each (4, which no recording is of)")
    living.add_argument("--kvitals", help="the product's command")
    living.add_argument("--lock", type=Path, metavar="FILE", help="held during each, where others measure here too")
    return parser


async def live(chosen: Sequence[str], seed: int, kvitals: Sequence[str], lock: Path | None) -> bool:
    """True when all were induced and every first cause was right."""
    incidents = [one_run(name, seed) for name in chosen]
    said = [pair async for pair in diagnose_all(incidents, kvitals, lock)]
    table, wrong = live_rows(said)
    print(table)
    return wrong == 0 and len(said) == len(incidents)


def replay(chosen: Sequence[str], folder: Path, only: str | None = None) -> bool:
    """True when every first cause was right, and the healthy were called healthy."""
    captures = [f for f in recorded(chosen, folder) if only is None or kept(f) is (only == "held-out")]
    with ProcessPoolExecutor() as workers:
        outcomes = list(workers.map(judge, captures))
    print(rows(outcomes), summary(outcomes), sep="\n\n")
    return all(one.score.first and one.score.health for one in outcomes)


def recorded(chosen: Sequence[str], folder: Path) -> list[Path]:
    """By name of an incident, or of one run of it."""
    captures = [f for f in runs(folder) if not chosen or {f.stem, f.stem.rpartition("-")[0]} & set(chosen)]
    if not captures:
        raise LabError(f"nothing of that is recorded in {folder}: python -m tests.lab.incidents record")
    return captures


def one_run(name: str, seed: int) -> Incident:
    """`name` may say another seed: slots_few-2."""
    incident, _, own = name.partition("-")
    return load(incident, int(own) if own.isdigit() else seed)


def kept(capture: Path) -> bool:
    """Held out, and never the reason of a change."""
    return held_out().get(capture.stem.rpartition("-")[0]) == ""


def list_all() -> None:
    for name in names():
        one = load(name, 1)
        label = " ".join(one.label.first) or "nothing"
        kept = " (held out)" if held_out().get(name) == "" else ""
        print(f"{name:26}{one.scenario.system:8}{one.family:12}{label:28}{one.scenario.wrong}{kept}")


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        match args.command:
            case "list":
                list_all()
            case "record":
                chosen = [one_run(name, args.seed) for name in args.incidents or names()]
                args.out.mkdir(parents=True, exist_ok=True)
                out = args.out.resolve()
                failed = asyncio.run(record_all(chosen, kvitals_command(args.kvitals), out, args.lock))
                return 1 if failed else 0
            case "replay":
                return 0 if replay(args.incidents, args.captures, args.only) else 1
            case "live":
                right = asyncio.run(live(args.incidents, args.seed, kvitals_command(args.kvitals), args.lock))
                return 0 if right else 1
            case "others":
                captures = recorded(args.incidents, args.captures)
                print(compared(captures, asyncio.run(ask_all(captures, args.kept))))
    except (LabError, TimeoutError) as error:
        print(f"incidents: {error or 'took too long'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
