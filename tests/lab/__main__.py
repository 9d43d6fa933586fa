"""The lab's command line: `python -m tests.lab --help`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from . import tables
from .engines import Engines
from .install import DEFAULT, RECIPES, install
from .knee.proof import prove
from .ledger.__main__ import main as ledger
from .paths import WRONG, LabError
from .product import Verdict, kvitals_command, record, triage
from .requests.plays import PLAYS, put_on, table
from .scenario import PHASES, SYSTEMS, Scenario, load_scenario, names
from .stage import Stage
from .systems import ON_FORK_SERVER

SETUP_LIMIT_S = 420.0
"""A whole scenario may take this long beyond its phases."""
LIVE_BASELINE_S = 8.0
LIVE_SETTLE_S = 8.0
LIVE_LIMIT_S = 150.0
REPORT_EVERY_S = 10.0


async def run(name: str, phase_s: float | None) -> None:
    """Play a scenario and print what was done and what the engine said of it."""
    scenario = load_scenario(name)
    seconds = phase_s or scenario.phase_s
    async with asyncio.timeout(SETUP_LIMIT_S + 2 * seconds), Stage(scenario) as stage:
        for phase in PHASES:
            _say(f"{name}: {phase}, {seconds:g} s ...")
            await stage.play(phase, seconds)
        await stage.settle()
        print(tables.truth(stage.truth()))


async def up(name: str) -> None:
    """Engines and the base load of a scenario until Ctrl-C."""
    scenario = load_scenario(name)
    async with Stage(scenario) as stage:
        print(f"clients send to {' '.join(stage.site.doors)}")
        for server in stage.servers:
            print(f"{server.name}  metrics: {server.url}/metrics, log: {server.log}")
        _say(f"{name}: base load is on; Ctrl-C ends it")
        async with stage.playing("baseline") as played:
            while True:
                await asyncio.sleep(REPORT_EVERY_S)
                print(tables.so_far(played.load.truth()), flush=True)


async def record_scenario(name: str, out: Path, phase_s: float | None, kvitals: Sequence[str]) -> None:
    """Play a scenario while the product records it; leaves NAME.kvcap and NAME.truth.json."""
    scenario = load_scenario(name)
    seconds = phase_s or scenario.phase_s
    capture = out / f"{name}.kvcap"
    async with asyncio.timeout(SETUP_LIMIT_S + 2 * seconds), Stage(scenario) as stage:
        _say(f"{name}: recording {2 * seconds:g} s to {capture}")
        recording = asyncio.create_task(record(kvitals, stage.servers, capture, 2 * seconds))
        playing = asyncio.create_task(_play_all(stage, seconds))
        await _all_or_nothing(recording, playing)
        await stage.settle()
        truth = stage.truth()
    (out / f"{name}.truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    print(tables.truth(truth))


async def live(chosen: Sequence[str], kvitals: Sequence[str]) -> bool:
    """Have the product diagnose each scenario while it happens. True when every verdict was right."""
    outcomes: list[tables.Outcome] = []
    scenarios = [load_scenario(name) for name in chosen]
    async with contextlib.AsyncExitStack() as undo:
        lab = None
        if any(scenario.system in ON_FORK_SERVER for scenario in scenarios):
            lab = await undo.enter_async_context(Engines())
        for scenario in scenarios:
            _say(f"{scenario.name} ...")
            outcomes.append(await _judged(scenario, lab, kvitals))
    print(tables.outcomes(outcomes))
    return all(outcome.ok for outcome in outcomes)


async def _judged(scenario: Scenario, lab: Engines | None, kvitals: Sequence[str]) -> tables.Outcome:
    try:
        async with asyncio.timeout(LIVE_LIMIT_S):
            verdict = await _diagnose(scenario, lab, kvitals)
    except (LabError, TimeoutError) as error:
        return tables.Outcome(scenario, None, str(error) or f"not done in {LIVE_LIMIT_S:g} s")
    kept = None if verdict.right_for(scenario) else _keep(scenario, verdict)
    return tables.Outcome(scenario, verdict, document=kept)


def _keep(scenario: Scenario, verdict: Verdict) -> Path:
    """Write a wrong verdict's document where it can be read after the engines are gone."""
    WRONG.mkdir(parents=True, exist_ok=True)
    file = WRONG / f"{scenario.name}.json"
    file.write_text(json.dumps(verdict.document, indent=1) + "\n")
    return file


async def _diagnose(scenario: Scenario, lab: Engines | None, kvitals: Sequence[str]) -> Verdict:
    async with Stage(scenario, lab) as stage:
        await stage.play("baseline", LIVE_BASELINE_S)
        async with stage.playing("incident"):
            await asyncio.sleep(LIVE_SETTLE_S)
            return await triage(kvitals, stage.servers, scenario.slo)


async def _play_all(stage: Stage, seconds: float) -> None:
    for phase in PHASES:
        await stage.play(phase, seconds)


async def _all_or_nothing(*tasks: asyncio.Task[None]) -> None:
    """Wait for all; when one fails, end the others and raise its error."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def requests(chosen: Sequence[str], kvitals: Sequence[str], out: Path | None) -> bool:
    """Play what proves the request side. True when everything was as it should be."""
    ok = True
    for name in chosen:
        _say(f"{name} ...")
        found = await put_on(name, kvitals, out)
        print(table(name, found), end="\n\n", flush=True)
        ok = ok and all(one.ok for one in found)
    return ok


def knee(out: Path | None, kvitals: Sequence[str]) -> bool:
    """Sweep a real engine over concurrency. True when the product's knee and C_max are those of other sweeps."""
    with contextlib.ExitStack() as undo:
        folder = out or Path(undo.enter_context(tempfile.TemporaryDirectory()))
        found = prove(folder.resolve(), kvitals)
    print(table("knee", found))
    return all(one.ok for one in found)


def list_scenarios() -> None:
    print(tables.scenarios([load_scenario(name) for name in names()]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="Real engines in known trouble.")
    commands = parser.add_subparsers(dest="command", required=True)
    installer = commands.add_parser("install", help="install engines and make the model, where they are missing")
    installer.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(RECIPES)} (vllm)")
    commands.add_parser("list", help="what situations there are")
    scenario = argparse.ArgumentParser(add_help=False)
    scenario.add_argument("scenario", choices=names(), metavar="SCENARIO", help="see `list`")
    phases = argparse.ArgumentParser(add_help=False)
    phases.add_argument("--phase-seconds", type=float, help="length of each phase (default: the scenario's)")
    product = argparse.ArgumentParser(add_help=False)
    product.add_argument("--kvitals", help="the product's command (see README)")
    commands.add_parser("up", parents=[scenario], help="engines and base load until Ctrl-C")
    commands.add_parser("run", parents=[scenario, phases], help="play a scenario, print the ground truth")
    recording = commands.add_parser(
        "record", parents=[scenario, phases, product], help="play a scenario while the product records it"
    )
    recording.add_argument("--out", type=Path, required=True, metavar="DIR")
    judged = commands.add_parser("live", parents=[product], help="is the product right, live?")
    judged.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all on these systems")
    judged.add_argument(
        "--system", action="append", choices=SYSTEMS, help="where no scenario is named: all of this system (vllm)"
    )
    proven = commands.add_parser("requests", parents=[product], help="is each request's record right, live?")
    proven.add_argument("plays", nargs="*", metavar="PLAY", help=f"of {', '.join(PLAYS)} (all)")
    proven.add_argument(
        "--out", type=Path, metavar="DIR", help="record them there, and demand that the replay is the same"
    )
    swept = commands.add_parser("knee", parents=[product], help="is the operating point right? Sweeps of a real vLLM")
    swept.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder for sweeps; one that is there is not made anew"
    )
    commands.add_parser("ledger", add_help=False, help="is the block ledger right? see `ledger --help`")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = _parser().parse_args(words[:1] if words[:1] == ["ledger"] else words)
    try:
        match args.command:
            case "install":
                install(args.systems or DEFAULT)
            case "list":
                list_scenarios()
            case "up":
                _serve(up(args.scenario))
            case "run":
                _serve(run(args.scenario, args.phase_seconds))
            case "record":
                kvitals = kvitals_command(args.kvitals)
                out = args.out.resolve()
                out.mkdir(parents=True, exist_ok=True)
                _serve(record_scenario(args.scenario, out, args.phase_seconds, kvitals))
            case "live":
                chosen = args.scenarios or names(args.system or DEFAULT)
                return 0 if _serve(live(chosen, kvitals_command(args.kvitals))) else 1
            case "ledger":
                return ledger(words[1:])
            case "knee":
                return 0 if knee(args.out, kvitals_command(args.kvitals)) else 1
            case "requests":
                if unknown := [name for name in args.plays if name not in PLAYS]:
                    raise LabError(f"no play called {', '.join(unknown)}; there are {', '.join(PLAYS)}")
                folder = args.out.resolve() if args.out else None
                if folder is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                chosen = args.plays or list(PLAYS)
                return 0 if _serve(requests(chosen, kvitals_command(args.kvitals), folder)) else 1
    except (LabError, TimeoutError) as error:
        print(f"lab: {error or 'took too long'}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("ended")
        return 130
    return 0


def _serve(task: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; SIGTERM winds everything down in order as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    return asyncio.run(_interruptible(task))


async def _interruptible(task: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.get_running_loop()
    current = asyncio.current_task()
    assert current is not None
    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGTERM, current.cancel)
    return await task


def _say(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
