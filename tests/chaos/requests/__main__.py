"""python -m tests.chaos.requests [NAME...] [--full]"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from . import good, planted
from .limits import GOOD_P99_SECONDS, PAGE_SECONDS, PEAK_MB, RECOVER_SECONDS
from .pages import Page
from .situations import FULL, SETTLED_SECONDS, SITUATIONS, SMALL, Size, Told
from .stage import Fared, Stage, StageError

WARM_SECONDS = 1.0
OURS = 10
"""How nice the attackers are: that they take the cores of the machine that they attack is not what is tested."""


async def run(names: list[str], size: Size, interval: float) -> bool:
    """Whether everything held."""
    with tempfile.TemporaryDirectory(prefix="kvitals-chaos-") as folder:
        stage = Stage(Path(folder), interval)
        async with stage.running():
            os.nice(OURS)
            await asyncio.sleep(WARM_SECONDS)
            await stage.good()
            results = []
            for name in (name for name in SITUATIONS if name in names):
                if name == "agent_killed":
                    results.append(await _ledger(stage))
                results.append(await _one(stage, name, size))
            if "agent_killed" not in names:
                results.append(await _ledger(stage))
            await _keep_pages(stage)
        return all([*results, _disk(stage)])


async def _one(stage: Stage, name: str, size: Size) -> bool:
    told, fared, began = Told(), None, time.monotonic()
    for program in (stage.agent, stage.tap):
        program.forget_peak()
    try:
        await SITUATIONS[name](stage, size, told)
        told.broken += await stage.settled()
        fared = await stage.good()
        stage.check()
    except StageError as error:
        told.broken.append(str(error))
    except Exception as error:
        told.broken.append(f"{type(error).__name__} {error}: {traceback.format_exc()[-800:]}")
    stage.busy_until = time.monotonic()
    used = []
    for program in (stage.agent, stage.tap):
        if program.ended:
            continue
        peak, now = program.megabytes("VmHWM"), program.megabytes()
        most = PEAK_MB[program.name]
        told.expect(peak < most, f"the {program.name} took {peak:.0f} MB of {most:.0f}")
        used.append(f"{program.name} {peak:.0f}/{now:.0f} MB")
    told.expect(
        told.recovered is None or told.recovered < RECOVER_SECONDS or name == "log",
        f"it took {told.recovered or 0:.0f} s to recover",
    )
    if fared is not None:
        _judge_good(told, fared, killed=name == "agent_killed")
        used.append(f"good p99 {fared.p99 * 1e3:.0f} ms, direct {fared.p99_direct * 1e3:.0f}")
        used.append(f"page {max(fared.pages, default=0) * 1e3:.0f} ms at worst")
    recovered = "" if told.recovered is None else f"recovered in {told.recovered:.1f} s"
    _print(name, told, time.monotonic() - began, [*used, recovered])
    return not told.broken


def _judge_good(told: Told, fared: Fared, *, killed: bool) -> None:
    told.expect(not fared.broken, f"{len(fared.broken)} requests of the good client broke: {fared.broken[:1]}")
    added = fared.p99 - fared.p99_direct
    told.expect(added < GOOD_P99_SECONDS, f"the good client's p99 is {added * 1e3:.0f} ms above that without the tap")
    told.expect(killed or not fared.no_page, f"the agent's page did not come {fared.no_page} times")
    worst = max(fared.pages, default=0.0)
    told.expect(killed or worst < PAGE_SECONDS, f"the agent's page took {worst:.1f} s")


async def _ledger(stage: Stage) -> bool:
    """Stop the good client and compare what it sent with what was counted; start it again for who comes after."""
    told, began = Told(), time.monotonic()
    fared = await stage.good("stop")
    pseudonyms = {"tap": good.BY_TAP, "otlp": good.BY_OTLP, "log": good.BY_LOG}
    names = {way: stage.pseudonym(name) for way, name in pseudonyms.items()}

    def counted(now: Page) -> dict[str, float]:
        by = now.by("tenant", "kvitals_tenant_requests_total")
        return {way: by.get(name, 0.0) for way, name in names.items()}

    await stage.until(lambda now: counted(now) == fared.sent, SETTLED_SECONDS)
    dropped = (await stage.tap_page()).total("kvitals_tap_parts_dropped_total")
    found = counted(await stage.page())
    lacks = {way: count - found[way] for way, count in fared.sent.items()}
    told.expect(lacks["otlp"] == lacks["log"] == 0 and 0 <= lacks["tap"] <= dropped, f"counted {found}")
    told.broken += await stage.settled()
    told.said.append("sent " + ", ".join(f"{way} {count}" for way, count in fared.sent.items()))
    told.said.append(f"{lacks['tap']:.0f} are among what the tap said it dropped" if lacks["tap"] else "all counted")
    _print("good client's ledger", told, time.monotonic() - began, [])
    await stage.start_good()
    return not told.broken


async def _keep_pages(stage: Stage) -> None:
    """What a Prometheus or a dashboard would keep of the agent is searched with the rest."""
    (stage.home / "pages").mkdir()
    (stage.home / "pages" / "agent.prom").write_text((await stage.page()).text)
    (stage.home / "pages" / "tap.prom").write_text((await stage.tap_page()).text)


def _disk(stage: Stage) -> bool:
    """Whether nothing that was planted is in what kvitals wrote, and was in what was written for it."""
    told, began = Told(), time.monotonic()
    told.expect(bool(planted.found_in(stage.written)), "nothing was planted, so the search says nothing")
    found = planted.found_in(stage.home)
    told.expect(not found, f"planted texts are on disk: {found[:3]}")
    files, size = planted.size_of(stage.home)
    told.said.append(f"{files} files, {size / 1e3:.0f} KB searched for prompts, keys, sessions, tenants' names")
    _print("on disk", told, time.monotonic() - began, [])
    return not told.broken


def _print(name: str, told: Told, seconds: float, used: list[str]) -> None:
    verdict = "BROKEN" if told.broken else "held"
    print(f"{name:21}{verdict:7}{seconds:5.0f} s  {', '.join(one for one in used if one)}")
    for line in (*told.broken, "; ".join(told.said)):
        print(f"{'':6}{line}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.requests")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SITUATIONS)}; none: all")
    parser.add_argument("--full", action="store_true", help="100,000 tenants, 1 GB: about 6 minutes")
    args = parser.parse_args()
    if unknown := set(args.names) - set(SITUATIONS):
        parser.error(f"no situation is called {', '.join(sorted(unknown))}")
    size, interval = (FULL, 5.0) if args.full else (SMALL, 1.0)
    began = time.monotonic()
    held = asyncio.run(run(args.names or list(SITUATIONS), size, interval))
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'everything held' if held else 'SOMETHING DID NOT HOLD'} in {time.monotonic() - began:.0f} s")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
