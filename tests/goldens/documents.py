"""Documents of recordings as they leave kvitals: the terminal's text at 80 columns without colour, and JSON.

Each command below runs twice, as text and with `--json`. JSON is shortened so that a change can be read: numbers have
six digits, a curve is its last point, and a list that is longer than `MOST_ITEMS` is its first items and the number of
the others.
The weekly review is of two weeks that are written down (tests/support/fortnight.py): no recording is a week long.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from kvitals.app import cache, request_sources
from kvitals.rules.loader import load
from kvitals.ui.cli import check, triage
from kvitals.ui.review.markdown import markdown
from tests.support.command import answer
from tests.support.fortnight import reviewed
from tests.support.recordings import judged_once

ROOT = Path(__file__).parent / "documents"
COLUMNS = 80
MOST_ITEMS, KEPT_ITEMS = 8, 4
SINCE_EPOCH = 1e9
"""Numbers from here on are times, which keep their milliseconds."""
_RECORDED = "tests/captures"
COMMANDS = {
    "triage-slots": ["triage", f"{_RECORDED}/incidents/slots_few-1.kvcap"],
    "triage-sglang": ["triage", f"{_RECORDED}/incidents/sglang_slots-1.kvcap"],
    "triage-pair": ["triage", f"{_RECORDED}/incidents/pd_decode_slots-1.kvcap"],
    "triage-tenants": ["triage", f"{_RECORDED}/incidents/tenant_pushes_out-1.kvcap"],
    "triage-healthy": ["triage", f"{_RECORDED}/incidents/restart_fine-1.kvcap"],
    "triage-no-telemetry": ["triage", f"{_RECORDED}/incidents/telemetry_off-1.kvcap"],
    "cache-thrash": ["cache", f"{_RECORDED}/ledger/thrash.kvcap"],
    "cache-full": ["cache", f"{_RECORDED}/ledger/full.kvcap"],
    "whatif-thrash": ["whatif", "--capture", f"{_RECORDED}/ledger/thrash.kvcap"],
    "check-slots": ["check", f"{_RECORDED}/incidents/slots_few-1.kvcap"],
    "check-pair": ["check", f"{_RECORDED}/requests/pair_router.kvcap"],
    "knee-in-turn": ["knee", f"{_RECORDED}/incidents/in_turn-1.kvcap"],
    "requests-stages": ["trace", "--slowest", "5", f"{_RECORDED}/requests/stages.kvcap"],
    "requests-tenants": ["trace", "--slowest", "3", f"{_RECORDED}/requests/tenants.kvcap"],
}
"""Arguments of kvitals by the golden's name, which begins with its document. Cascades are in the document of cache."""

REVIEW = "review-fortnight"
NAMES = (*COMMANDS, REVIEW)


def texts(name: str) -> dict[str, str]:
    """The goldens of a document: file name -> content."""
    if name == REVIEW:
        made = reviewed(load())
        made = msgspec.structs.replace(made, made=made.end)
        return {f"{name}.md": markdown(made), f"{name}.json": _json([msgspec.to_builtins(made)])}
    command = COMMANDS[name]
    with judged_once(cache, check, request_sources, triage):
        plain, machine = answer(command, COLUMNS), answer([*command, "--json"])
    head = f"$ kvitals {' '.join(command)}    exit code {plain.code}\n"
    return {
        f"{name}.txt": head + plain.out + plain.err,
        f"{name}.json": _json(_documents(machine.out)),
    }


def _documents(text: str) -> list[Any]:
    """One document, or one a line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def _json(documents: list[Any]) -> str:
    return "".join(json.dumps(shortened(one), indent=1, ensure_ascii=False) + "\n" for one in documents)


def shortened(value: Any) -> Any:
    """A document whose numbers have six digits, with the first items of its long lists and the last point of its
    curves."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, list) for item in value):
            return f"{len(value)} points, the last {json.dumps(shortened(value[-1]))}"
        if len(value) <= MOST_ITEMS:
            return [shortened(item) for item in value]
        return [*map(shortened, value[:KEPT_ITEMS]), f"and {len(value) - KEPT_ITEMS} more"]
    if not isinstance(value, float):
        return value
    return round(value, 3) if abs(value) >= SINCE_EPOCH else float(f"{value:.6g}")
