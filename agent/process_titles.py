"""What a process of an engine is, by the title that it gives itself.

vLLM and SGLang set their processes' titles (`VLLM::EngineCore_DP1`, `sglang::scheduler_TP0`). Without the
package setproctitle they do not, and then a process is "other": what it is, is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

API_SERVER, ENGINE_CORE, WORKER, DETOKENIZER = "api_server", "engine_core", "worker", "detokenizer"
COORDINATOR, OTHER = "coordinator", "other"

PARTS = (API_SERVER, ENGINE_CORE, WORKER, DETOKENIZER, COORDINATOR, OTHER)
"""What a process of an engine can be. SGLang's schedulers are cores: one runs the model too, as its worker."""

_LONGEST = 200

# vLLM 0.32.0: v1/utils.py, v1/engine/core.py and coordinator.py, v1/executor/multiproc_executor.py,
# entrypoints/launchers/dp_supervisor.py; its prefix can be set (VLLM_PROCESS_NAME_PREFIX). "DPEngineCore_1" is 0.9 to
# 0.11. SGLang 0.5.23: srt/managers: scheduler.py, detokenizer_manager.py, multi_tokenizer_mixin.py,
# data_parallel_controller.py.
_TITLES = (
    (re.compile(r"[^:\s]+::APIServer(?:_DP(?P<rank>[0-9]{1,4})|_[0-9]+)?"), API_SERVER),
    (re.compile(r"[^:\s]+::EngineCore(?:_DP(?P<rank>[0-9]{1,4}))?"), ENGINE_CORE),
    (re.compile(r"[^:\s]+::DPEngineCore_(?P<rank>[0-9]{1,4})"), ENGINE_CORE),
    (re.compile(r"[^:\s]+::Worker(?:_DP(?P<rank>[0-9]{1,4}))?(?:_[A-Z]+[0-9]+)*"), WORKER),
    (re.compile(r"[^:\s]+::DPCoordinator"), COORDINATOR),
    (re.compile(r"sglang::scheduler(?:_DP(?P<rank>[0-9]{1,4}))?(?:_[A-Z_]+[0-9]+)*"), ENGINE_CORE),
    (re.compile(r"sglang::tokenizer_worker:[0-9]+"), API_SERVER),
    (re.compile(r"sglang::detokenizer(?:_router)?"), DETOKENIZER),
    (re.compile(r"sglang::data_parallel_controller"), COORDINATOR),
)


@dataclass(frozen=True)
class ProcessRef:
    """One process of an engine. A pid is used again; with the start time it is not."""

    pid: int
    start_time: int  # clock ticks since boot, field 22 of /proc/PID/stat; 0 where it is not known
    part: str  # one of PARTS
    rank: str  # the data-parallel rank that it serves; empty where it serves them all, or there is one


def part_and_rank(arguments: Sequence[str]) -> tuple[str, str] | None:
    """What a process with this command line is, and its rank; None where it has no title of an engine's."""
    if len(arguments) != 1 or len(arguments[0]) > _LONGEST:
        return None
    for pattern, part in _TITLES:
        match = pattern.fullmatch(arguments[0])
        if match:
            rank = match.groupdict().get("rank")
            return part, str(int(rank)) if rank else ""
    return None
