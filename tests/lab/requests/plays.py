"""The plays by name, how one is put on, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..paths import LabError
from ..tables import grid
from . import agreement, pair, stages, tenants
from .checks import Check
from .clients import Seen
from .replayed import same_as_live
from .rig import Rig, Stand, rig

LIMIT_S = 420.0


@dataclass(frozen=True)
class Play:
    """What is needed, and what is done with it."""

    stand: Stand
    act: Callable[[Rig], Awaitable[tuple[list[Seen], list[Check]]]]


PLAYS = {
    "agreement": Play(agreement.STAND, agreement.play),
    "tenants": Play(tenants.STAND, tenants.play),
    "pair": Play(pair.STAND, pair.play),
    "pair_router": Play(pair.ROUTED, pair.play),
    "stages": Play(stages.STAND, stages.play),
}


async def put_on(name: str, kvitals: Sequence[str], out: Path | None) -> list[Check]:
    """Play one; with `out` leave NAME.kvcap, and NAME.truth.json with the clients' ledger and what the agent said."""
    play = PLAYS[name]
    capture = out / f"{name}.kvcap" if out is not None else None
    if capture is not None:
        capture.unlink(missing_ok=True)
    try:
        async with asyncio.timeout(LIMIT_S), rig(play.stand, kvitals, capture) as built:
            ledger, found = await play.act(built)
            live = await built.everything()
    except (LabError, TimeoutError) as error:
        return [Check("played", False, str(error) or f"not done in {LIMIT_S:g} s")]
    if capture is not None:
        found.append(same_as_live(capture, live))
        rows = {"clients": [_row(asdict(one)) for one in ledger], "records": [kept(one) for one in live]}
        truth = {"play": name, "checks": {one.name: [one.ok, one.said] for one in found}, **rows}
        capture.with_suffix(".truth.json").write_text(_by_line(truth))
    return found


KEPT = (
    *("id", "trace", "tenant", "tenant_name", "outcome", "engines", "ttft", "e2e", "prompt_tokens", "cached_tokens"),
    *("external_tokens", "output_tokens", "sources"),
)


def kept(record: dict[str, Any]) -> dict[str, Any]:
    """What is written down of a record as the API told it; phases as name, seconds and source."""
    phases = [[one["name"], one["seconds"], one["source"]] for one in record.get("phases", [])]
    return {name: record[name] for name in KEPT if name in record} | {"phases": phases}


def _row(seen: dict[str, Any]) -> dict[str, Any]:
    """To the microsecond, and without what there was not."""
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in seen.items()}
    return {name: value for name, value in rounded.items() if value is not None}


def _by_line(truth: dict[str, Any]) -> str:
    """JSON with a request a line."""
    parts = []
    for name, value in truth.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in value) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{" + ",\n".join(parts) + "}\n"


def table(name: str, found: Sequence[Check]) -> str:
    """What was demanded, and whether it is so."""
    return grid(
        (name, "as it should", "what was seen"), [(one.name, "yes" if one.ok else "NO", one.said) for one in found]
    )
