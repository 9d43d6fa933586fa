"""The twin's predictions beside changes of a real vLLM, drawn at random.

python -m tests.lab.twin --seed 1 --number 24 --out DIR [--lock FILE]     # two minutes each, resumable
python -m tests.lab.twin --seed 1 --again                                 # predict again from what was recorded

The prediction is written to DIR before the engine is restarted with the change, from a recording that ends by then. The
recordings stay in DIR, so that a changed twin can be scored on them: that is no forecast any more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvitals.app.engine_twin import engine_lookups, forecasts, twin_subjects
from kvitals.app.pipeline import Setup
from kvitals.app.timeseries_sources import of_recording
from kvitals.config import Config
from kvitals.diagnoser.twin.forecast import TwinDocument, Values, measured_quantities
from kvitals.rules.loader import load as load_rules

from ...captures.twin import TwinScore, report
from ..engines import Engines
from ..incidents.recording import turn
from ..load import Load
from ..paths import HOME, LabError
from ..ports import HOST
from ..product import configuration, kvitals_command
from ..programs import Programs
from ..systems import VLLM, Server
from .drawn_changes import HELD_OUT, TwinPlay, drawn

PHASE_S = 50.0
SETTLE_S = 3.0
RECORDER_LIMIT_S = 120.0
LIMIT_S = 230.0
ENGINE = "twin"


@dataclass(frozen=True)
class Recorded:
    """A recording and the load that it has."""

    file: Path
    clients: dict[str, Any]


async def play(lab: Engines, change: TwinPlay, number: int, out: Path, kvitals: Sequence[str]) -> dict[str, Any]:
    """Leaves NUMBER-NAME.prediction.json before the change; the outcome beside it, to be written by the caller."""
    name = f"{number}-{change.name}"
    async with Programs() as programs:
        flags = dict(change.flags)
        if change.kv_events:
            endpoint = f"tcp://*:{programs.port().number}"
            events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint, "topic": "kv"}
            flags["kv_events_config"] = json.dumps(events, separators=(",", ":"))
        await lab.start(ENGINE, None, **flags)
        try:
            before = await _phase(lab, programs, change, number, out / f"{name}.before.kvcap", kvitals)
            prediction = await asyncio.to_thread(_predict, before.file, change)
            (out / f"{name}.prediction.json").write_bytes(msgspec.json.encode(prediction))
            await lab.restart(ENGINE, **change.changed)
            after = await _phase(lab, programs, change, number, out / f"{name}.after.kvcap", kvitals)
            actual = await asyncio.to_thread(_outcome, after.file)
        finally:
            await lab.stop(ENGINE)
    return {
        "name": change.name,
        "settings": change.settings,
        "prediction": msgspec.to_builtins(prediction),
        "actual": actual,
        "clients": {"before": before.clients, "after": after.clients},
    }


async def _phase(
    lab: Engines, programs: Programs, change: TwinPlay, number: int, capture: Path, kvitals: Sequence[str]
) -> Recorded:
    """The load, recorded: before and after the change the same requests at the same times, so that what differs is the
    change."""
    engine = next(one for one in lab.running if one.name == ENGINE)
    await asyncio.to_thread(capture.unlink, missing_ok=True)  # of a play that did not end
    port = programs.port()
    config = programs.folder / "twin.toml"
    server = Server("engine", engine.url, VLLM, log=engine.log)
    config.write_text(configuration([server]).replace("[agent]\n", '[agent]\ninterval = "1s"\n', 1))
    home = programs.folder / "home"
    home.mkdir(exist_ok=True)
    command = ["record", f"--out={capture}", f"--for={RECORDER_LIMIT_S}s", f"--listen={HOST}:{port.number}"]
    await programs.start(
        "agent",
        [*kvitals, *command, f"--config={config}"],
        ready=f"{port.url}/-/healthy",
        env={"XDG_STATE_HOME": str(home)},
    )
    async with Load([engine.url], (), seed="warm", drain_s=1.0) as warm:
        await warm.warm(change.load)
    load = Load([engine.url], change.load, seed=str(number))
    await load.start()
    await asyncio.sleep(PHASE_S)
    load.stop_sending()
    await load.drain(SETTLE_S)
    await programs.stop("agent")
    return Recorded(capture, load.truth())


def _predict(file: Path, change: TwinPlay) -> TwinDocument:
    accesses = engine_lookups(file) if change.kv_events else None
    with of_recording(file, Setup(load_rules(), Config())) as of:
        return forecasts(of, change.settings, accesses)[0]


def _outcome(file: Path) -> Values:
    with of_recording(file, Setup(load_rules(), Config())) as of:
        return measured_quantities(twin_subjects(of)[0])


async def main(given: argparse.Namespace) -> None:
    """Play what is not in the folder yet, then print the scores of everything there."""
    given.out.mkdir(parents=True, exist_ok=True)
    changes = list(drawn(given.seed, given.number))
    if given.again:
        report([_score(file, change) for number, change in changes if (file := _kept(given.out, number, change))])
        return
    kvitals = kvitals_command()
    for number, change in changes:
        file = given.out / f"{number}-{change.name}.json"
        if file.exists():
            continue
        try:
            async with turn(given.lock), asyncio.timeout(LIMIT_S), Engines() as lab:
                outcome = await play(lab, change, number, given.out, kvitals)
        except (LabError, TimeoutError) as error:
            print(f"{number} {change.name}: {error or 'not done in time'}", file=sys.stderr)
            continue
        file.write_text(json.dumps({**outcome, "date": time.strftime("%Y-%m-%d", time.gmtime())}, indent=1) + "\n")
        print(number, change.name, " ".join(change.settings), flush=True)
    report([_score(file) for file in sorted(given.out.glob(f"{given.seed}???-*.json")) if file.suffixes == [".json"]])


def _kept(out: Path, number: int, change: TwinPlay) -> Path | None:
    """The file of a change whose recording is kept, too."""
    file = out / f"{number}-{change.name}.json"
    return file if file.exists() and file.with_suffix(".before.kvcap").exists() else None


def _score(file: Path, again: TwinPlay | None = None) -> TwinScore:
    """The prediction beside what came. again: predict anew, by the twin of today."""
    kept = json.loads(file.read_text())
    number = int(file.name.partition("-")[0])
    if again is not None:
        document = _predict(file.with_suffix(".before.kvcap"), again)
    else:
        document = msgspec.convert(kept["prediction"], TwinDocument)
    return TwinScore(file.stem, document, kept["actual"], number % HELD_OUT == HELD_OUT - 1)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="python -m tests.lab.twin")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--number", type=int, default=24, help="changes to play (24)")
    arguments.add_argument("--out", type=Path, default=HOME / "twin")
    arguments.add_argument("--lock", type=Path)
    arguments.add_argument("--again", action="store_true", help="predict again from the recordings that are kept")
    asyncio.run(main(arguments.parse_args()))
