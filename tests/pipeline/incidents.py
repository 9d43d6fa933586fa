"""Which recorded incidents the scenario has, in which pools, and the truth beside each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvitals.rules.loader import load
from tests.fleet.loops import LAP_SECONDS, Loop, families, pages
from tests.fleet.situations import metrics_asked_for
from tests.pipeline.looped import LoopedEngine, LoopTable

ROOT = Path(__file__).parents[2]
SHORT_LAP_SECONDS = 24.0
"""Of a recording whose incident lasts 28 s."""

POOL_SIZE, HEALTHY_SIZE = 8, 6
HEALTHY_POOLS = ("vision", "edge")


@dataclass(frozen=True)
class PlannedIncident:
    """A recorded incident. causes: the codes of which a message about it names one; needs_agent: without agents a
    message cannot name it and says that it was not checked."""

    recording: str  # below the root of the tree, without its suffix
    pool: str
    causes: frozenset[str]
    lap: float = LAP_SECONDS
    needs_agent: bool = False

    @property
    def name(self) -> str:
        return self.recording.rpartition("/")[2]


def _plan(
    pool: str, recording: str, *causes: str, lap: float = LAP_SECONDS, needs_agent: bool = False
) -> PlannedIncident:
    return PlannedIncident(recording, pool, frozenset(causes), lap, needs_agent)


_RECORDED, _OTHERS = "tests/captures/incidents/", "tests/captures/others/"
INCIDENTS = (
    _plan("chat", "app/demo/few_slots", "SCH01"),
    _plan("chat", "app/demo/heavy_tenant", "KVC01"),
    _plan("code", "app/demo/caching_off", "PFX02"),
    _plan("code", _RECORDED + "kv_full_long_answers-1", "KVC01", lap=SHORT_LAP_SECONDS),
    _plan("search", _RECORDED + "prefill_saturated-1", "SCH05", lap=SHORT_LAP_SECONDS),
    _plan("search", _RECORDED + "sglang_slots-1", "SCH01", lap=SHORT_LAP_SECONDS),
    _plan("support", "app/demo/unique_prompts", "PFX10", "PFX11"),
    _plan("support", _RECORDED + "slots_long_answers-1", "SCH01", lap=SHORT_LAP_SECONDS),
    _plan("batch", _OTHERS + "dynamo_overload", "SCH01", "SCH10"),
    _plan("batch", _RECORDED + "batch_fills_kv-1", "KVC01", lap=SHORT_LAP_SECONDS),
    _plan("docs", _OTHERS + "long_prompts", "SCH09"),
    _plan("docs", _RECORDED + "lora_slots-1", "LOR01", lap=SHORT_LAP_SECONDS, needs_agent=True),
)
HEALTHY = {"vllm": "app/demo/healthy", "sglang": _OTHERS + "sglang_healthy"}


def fleet(raw: bool, first: float, apart: float) -> tuple[list[LoopedEngine], dict[str, PlannedIncident]]:
    """The engines, and the incident of each sick engine by its address. raw: the engines' own pages, else what agents
    export. first: seconds until the first incident begins; apart: seconds between two. Takes a minute of CPU."""
    read = _reader(raw)
    healthy = {name: LoopTable(read(path, LAP_SECONDS)) for name, path in HEALTHY.items()}
    engines: list[LoopedEngine] = []
    for place, incident in enumerate(INCIDENTS):
        usual = healthy["sglang" if "sglang" in incident.recording else "vllm"]
        fault = LoopTable(read(incident.recording, incident.lap))
        engines.append(LoopedEngine(place, incident.pool, usual, fault, first + place * apart))
    sick = {engine.address: incident for engine, incident in zip(engines, INCIDENTS, strict=True)}
    for pool in _healthy_places():
        engines.append(LoopedEngine(len(engines), pool, healthy["sglang" if pool == "search" else "vllm"]))
    return engines, sick


def healthy_fleet(raw: bool, size: int) -> list[LoopedEngine]:
    """Healthy vLLM engines, `POOL_SIZE` to a pool. raw: as in `fleet`."""
    table = LoopTable(_reader(raw)(HEALTHY["vllm"], LAP_SECONDS))
    return [LoopedEngine(number, f"pool-{number // POOL_SIZE}", table) for number in range(size)]


def _healthy_places() -> Sequence[str]:
    """The pool of each healthy engine."""
    pools = [incident.pool for incident in INCIDENTS]
    beside = [pool for pool in dict.fromkeys(pools) for _ in range(POOL_SIZE - pools.count(pool))]
    return [*beside, *(pool for pool in HEALTHY_POOLS for _ in range(HEALTHY_SIZE))]


def _reader(raw: bool) -> Callable[[str, float], Loop]:
    if raw:
        return lambda path, lap: pages(ROOT / f"{path}.kvcap", lap)
    knowledge = load()
    wanted = metrics_asked_for(knowledge)
    return lambda path, lap: families(ROOT / f"{path}.kvcap", wanted, knowledge, lap)
