"""python -m tests.chaos.faults [NAME...]"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
import tomllib
import traceback
from pathlib import Path

from .situations import LONG, ON_REAL_ENGINES, SITUATIONS
from .stage import CannotRunError, Stage, StageError, Told

AT_ONCE = 4
NOT_RUN = Path(__file__).with_name("not_run.toml")
EVERY = SITUATIONS | ON_REAL_ENGINES | LONG


async def one(name: str, excused: dict[str, str]) -> list[str]:
    """Run a situation and print what came of it; what did not hold."""
    told, began, verdict = Told(), time.monotonic(), "held"
    with tempfile.TemporaryDirectory(prefix="kvitals-chaos-") as folder:
        stage = Stage(Path(folder))
        try:
            async with stage.running():
                await EVERY[name](stage, told)
                await stage.loops_were_free(told)
        except CannotRunError as error:
            if name in excused:
                verdict = "not run"
                told.said = [f"{error}; {excused[name]}"]
            else:
                told.broken.append(
                    f"cannot run here: {error}. Give it that, or list it in {NOT_RUN.name}, with a reason"
                )
        except StageError as error:
            told.broken.append(str(error))
        except Exception as error:
            told.broken.append(f"{type(error).__name__} {error}: {traceback.format_exc()[-1200:]}")
        broken = [f"{name}: {line}" for line in told.broken]
        if told.broken:
            verdict = "BROKEN"
            told.broken += _last_words(Path(folder))
    print(f"{name:22}{verdict:8}{time.monotonic() - began:5.0f} s  {'; '.join(told.said)}")
    for line in told.broken:
        print(f"{'':6}{line}")
    sys.stdout.flush()
    return broken


def _last_words(folder: Path) -> list[str]:
    """What agents said last."""
    logs = sorted(folder.glob("agent*.log"))
    return [f"{one.name}: " + "\n".join(one.read_text(errors="replace").splitlines()[-15:]) for one in logs]


async def run(names: list[str], at_once: int) -> list[str]:
    """What did not hold. at_once: situations that run beside each other; they mostly wait."""
    excused = {name: said["reason"] for name, said in tomllib.loads(NOT_RUN.read_text()).items()}
    places = asyncio.Semaphore(at_once)

    async def in_place(name: str) -> list[str]:
        async with places:
            return await one(name, excused)

    broken = await asyncio.gather(*(in_place(name) for name in EVERY if name in names))
    return [line for lines in broken for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.faults")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(EVERY)}; none: all but real_engine and siege"
    )
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"beside each other ({AT_ONCE})")
    args = parser.parse_args()
    if unknown := set(args.names) - set(EVERY):
        parser.error(f"no situation is called {', '.join(sorted(unknown))}")
    began = time.monotonic()
    broken = asyncio.run(run(args.names or list(SITUATIONS), args.at_once))
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'SOMETHING DID NOT HOLD' if broken else 'everything held'} in {time.monotonic() - began:.0f} s")
    for line in broken:  # once more at the end, where a log is read
        print(line[:400])
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
