"""What an incident is: servers, load, and the label that is to be told. One YAML file each, in `catalogue/`.

Numbers of a file may be drawn: `vary: {slots: [2, 4]}` makes `$slots` a whole number from 2 to 4 wherever it stands,
and `{of: [...]}` one of a list. A seed fixes all of them, so a run can be had again and another seed is another run.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from kvitals.rules.shipped import YAML_LOADER

from ..paths import LabError
from ..scenario import Pair, Scenario, Slo, SystemName
from ..traffic import Tenant

CATALOGUE = Path(__file__).with_name("catalogue")
OF_RULES = Path(__file__).with_name("of_rules")
"""Incidents that were made to see one rule fire. They are no part of the benchmark and count in none of its figures."""
HELD_OUT = Path(__file__).with_name("held_out.txt")
MISSES = Path(__file__).with_name("misses.txt")
BASELINE_S, INCIDENT_S = 10.0, 28.0


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be told, from the flag or the load that is changed."""

    first: tuple[str, ...] = ()
    """What is told first must be one of these; empty: nothing may be told but in notes and for information."""
    also: tuple[str, ...] = ()
    """Each of these must be told too, wherever."""
    accept: tuple[str, ...] = ()
    """Further causes that may be told beside; any other is a wrong extra one."""
    forbid: tuple[str, ...] = ()
    """Causes that may not be told at all: the mistakes that suggest themselves."""
    healthy: Literal["yes", "no", "any"] = "no"


class Act(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that is done to an engine, or to the host, during the incident."""

    do: Literal["stop_core", "kill", "restart", "pause", "pauses", "neighbours", "swap_adapter"]
    """`pauses` and `neighbours` last until the incident ends. `swap_adapter`: one more is loaded and unloaded over
    the API that serves text."""
    engine: str = "engine"
    after_s: float = 0.0
    share: float = 0.0
    """Of pauses: the share of each half second in which the engine's core is stopped."""
    seconds: float = 0.0
    """Of a pause: how long the engine's core is stopped."""
    number: int = 0
    """Of neighbours: processes that compute all the time."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    wrong: str
    family: str
    label: Label
    incident: dict[str, dict[str, Any]]
    baseline: dict[str, dict[str, Any]] | None = None  # None: as the incident
    slo: dict[str, Any] = {}
    vary: dict[str, Any] = {}
    system: SystemName = "vllm"
    engines: list[str] = []
    flags: dict[str, Any] = {}
    apart: dict[str, dict[str, Any]] = {}
    pair: dict[str, Any] = {}
    acts: list[dict[str, Any]] = []
    warm: bool = True
    kv_events: bool = False
    host_tier: dict[str, Any] = {}
    adapters: int = 0
    tap: bool = False
    sticky: bool = False
    shares: tuple[int, ...] = ()
    baseline_s: float = BASELINE_S
    incident_s: float = INCIDENT_S


class Incident(msgspec.Struct, frozen=True):
    """One incident as one seed has it."""

    name: str
    seed: int
    family: str
    label: Label
    drawn: dict[str, Any]
    scenario: Scenario
    acts: tuple[Act, ...] = ()
    warm: bool = True
    """Every system prompt is sent once before the recording."""
    kv_events: bool = False
    host_tier: Mapping[str, Any] = {}
    """The connector's extra configuration; empty: there is no host tier."""
    adapters: int = 0
    tap: bool = False
    sticky: bool = False
    shares: tuple[int, ...] = ()
    """How many of every `sum(shares)` requests go to each engine; empty: the same number to each."""
    baseline_s: float = BASELINE_S
    """Where the cause is known by what was usual before, there has to be some of it."""
    incident_s: float = INCIDENT_S
    """Where the cause is known by a reuse curve, there have to be look-ups enough for one."""

    @property
    def run(self) -> str:
        return f"{self.name}-{self.seed}"


ENGINES: dict[str, list[str]] = {"pd": ["prefill", "decode"], "dynamo": ["worker-1", "worker-2"]}


def names(folder: Path = CATALOGUE) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


@cache
def held_out() -> dict[str, str]:
    """The held-out incidents, and for each that had to leave them why."""
    return {name: " ".join(why) for name, *why in _words(HELD_OUT)}


@cache
def misses() -> dict[tuple[str, str], str]:
    """Runs whose verdict is known not to be that of the label, by the look (cold, warm), and why."""
    return {(run, look): " ".join(why) for run, look, *why in _words(MISSES)}


def _words(file: Path) -> list[list[str]]:
    return [words for line in file.read_text().splitlines() if (words := line.split("#")[0].split())]


def load(name: str, seed: int) -> Incident:
    """Raises LabError where there is none of this name, or its file is wrong."""
    path = next((file for folder in (CATALOGUE, OF_RULES) if (file := folder / f"{name}.yaml").exists()), None)
    if path is None:
        raise LabError(f"no incident called {name!r}; there are {', '.join([*names(), *names(OF_RULES)])}")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), YAML_LOADER)  # with merged keys
        drawn = _draw(raw.get("vary", {}), random.Random(f"{name}/{seed}"))
        file = msgspec.convert(_filled(raw, drawn), _File)
        return _incident(file, name, seed, drawn)
    except (yaml.YAMLError, msgspec.ValidationError, TypeError, ValueError, KeyError) as error:
        raise LabError(f"{path}: {error}") from error


def _incident(file: _File, name: str, seed: int, drawn: dict[str, Any]) -> Incident:
    incident = _tenants(file.incident)
    scenario = Scenario(
        name=name,
        wrong=file.wrong,
        expect=file.label.first,
        slo=Slo(**({"ttft_p99": 2.0, "itl_p99": 0.5} | file.slo)),
        baseline=incident if file.baseline is None else _tenants(file.baseline),
        incident=incident,
        flags=file.flags,
        apart=file.apart,
        system=file.system,
        engines=tuple(file.engines or ENGINES.get(file.system, ["engine"])),
        pair=Pair(**file.pair),
    )
    return Incident(
        name=name,
        seed=seed,
        family=file.family,
        label=file.label,
        drawn=drawn,
        scenario=scenario,
        acts=tuple(msgspec.convert(act, Act) for act in file.acts),
        warm=file.warm,
        kv_events=file.kv_events,
        host_tier=file.host_tier,
        adapters=file.adapters,
        tap=file.tap,
        sticky=file.sticky,
        shares=file.shares,
        baseline_s=file.baseline_s,
        incident_s=file.incident_s,
    )


def _tenants(said: Mapping[str, Mapping[str, Any]]) -> tuple[Tenant, ...]:
    return tuple(Tenant(name, **fields) for name, fields in said.items())


def _draw(vary: Mapping[str, Any], random_: random.Random) -> dict[str, Any]:
    drawn: dict[str, Any] = {}
    for name, of in vary.items():
        match of:
            case {"of": [*several]}:
                drawn[name] = random_.choice(several)
            case [int() as low, int() as high]:
                drawn[name] = random_.randint(low, high)
            case [low, high]:
                drawn[name] = round(random_.uniform(low, high), 3)
            case _:
                raise ValueError(f"vary: {name}: write [low, high] or {{of: [...]}}")
    return drawn


def _filled(node: Any, drawn: Mapping[str, Any]) -> Any:
    """The file with what was drawn in its places."""
    match node:
        case dict():
            return {key: _filled(value, drawn) for key, value in node.items()}
        case list():
            return [_filled(value, drawn) for value in node]
        case str() if node.startswith("$"):
            return drawn[node[1:]]
        case _:
            return node
