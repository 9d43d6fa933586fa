"""The lab's tables, as plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .product import Verdict
from .scenario import Scenario

ENGINE_ROWS = {
    "requests": "requests finished",
    "errors": "of them errors",
    "prompt_tokens": "prompt tokens",
    "cached_tokens": "of them cached",
    "hit_ratio": "prefix hit ratio",
    "running": "running, mean",
    "waiting": "waiting, mean",
    "waiting_capacity": "waiting (capacity), mean",
    "waiting_deferred": "waiting (deferred), mean",
    "kv_usage": "KV usage, mean",
    "kv_usage_max": "KV usage, max",
    "preemptions": "preemptions",
    "evictions_per_request": "evictions per request",
    "reuse_gaps": "reuse gaps seen",
    "idle_before_evict": "idle-before-evict seen",
    "queue_s": "queue time, mean s",
    "prefill_s": "prefill time, mean s",
    "ttft_p99_s": "TTFT p99, s",
    "itl_p99_s": "ITL p99, s",
    "kv_transfers": "KV transfers",
    "kv_transfers_failed": "KV transfers failed",
    "kv_leases_expired": "KV leases expired",
    "retracted_max": "retracted, max",
    "evicted_tokens": "tokens evicted",
}


@dataclass(frozen=True)
class Outcome:
    """What became of one live scenario: a verdict, or why there is none."""

    scenario: Scenario
    verdict: Verdict | None
    failure: str = ""
    document: Path | None = None
    """Where a wrong verdict's triage document was kept."""

    @property
    def ok(self) -> bool:
        return self.verdict is not None and self.verdict.right_for(self.scenario)

    def why_not(self) -> str:
        """For a wrong outcome: what happened instead, and where to read on."""
        if self.verdict is None:
            return self.failure
        said = self.verdict.document.get("verdict", "(no verdict)")
        kept = f"\n  the whole answer: {self.document}" if self.document else ""
        return f"the product said: {said}{kept}"


def grid(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    numeric = [all(_is_number(row[column]) for row in cells[1:]) for column in range(len(head))]
    lines = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def scenarios(known: Sequence[Scenario]) -> str:
    rows = [(one.name, ", ".join(one.expect) or "nothing", one.wrong) for one in known]
    return grid(("scenario", "to find", "what is wrong"), rows)


def truth(document: dict[str, Any]) -> str:
    """What the clients saw, what the engines said, and what there was to find."""
    parts = [f"{document['scenario']}: {document['wrong']}"]
    parts.append("to find: " + (", ".join(document["expect"]) or "nothing"))
    parts.append("\nWhat the clients saw (seconds)\n" + _clients(document["phases"], document["slo"]))
    parts.append("\nWhat clients did and servers counted, all phases together\n" + _compared(document["compared"]))
    names = [engine["name"] for engine in document["engines"]]
    parts += [f"\nWhat {name} said of itself\n" + _engine(document["phases"], name) for name in names]
    return "\n".join(parts)


def so_far(load: dict[str, Any]) -> str:
    """One line on a load that is going on."""
    ttft, itl, attainable = load["ttft_s"], load["itl_s"], load["attainable_hit_ratio"]
    return (
        f"{load['requests']} requests {load['status']}  attainable hits {_cell(attainable)}  "
        f"TTFT p50 {_cell(ttft['p50'])} p99 {_cell(ttft['p99'])}  ITL p99 {_cell(itl['p99'])}"
    )


def outcomes(judged: Sequence[Outcome]) -> str:
    rows = []
    for one in judged:
        expected = " or ".join(one.scenario.expect) or "nothing"
        got = one.verdict.first if one.verdict else "failed"
        seconds = f"{one.verdict.seconds:.1f}" if one.verdict else "-"
        rows.append((one.scenario.name, expected, got, seconds, "yes" if one.ok else "NO"))
    failures = [f"\n{one.scenario.name}: {one.why_not()}" for one in judged if not one.ok]
    return "\n".join([grid(("situation", "expected", "first cause", "seconds", "ok"), rows), *failures])


def _clients(phases: Sequence[dict[str, Any]], slo: dict[str, float]) -> str:
    head = ["phase", "tenant", "requests", "not ok", "prompt tok", "attainable", "cached", "TTFT p50"]
    head += ["TTFT p99", "ITL p50", "ITL p99", "e2e p99", "meets the SLO"]
    rows = []
    for phase in phases:
        everyone = [("(all)", phase), *phase["tenants"].items()]
        rows += [(phase["name"], name, *_client_row(numbers, slo)) for name, numbers in everyone]
    return grid(head, rows) + f"\nSLO: TTFT p99 {slo['ttft_p99']:g}, ITL p99 {slo['itl_p99']:g}"


def _client_row(numbers: dict[str, Any], slo: dict[str, float]) -> tuple[object, ...]:
    prompt, cached = numbers["prompt_tokens"], numbers["cached_tokens"]
    ttft, itl = numbers["ttft_s"], numbers["itl_s"]
    return (
        numbers["requests"],
        numbers["requests"] - numbers["status"].get("ok", 0),
        prompt,
        numbers["attainable_hit_ratio"],
        round(cached / prompt, 4) if prompt else None,
        ttft["p50"],
        ttft["p99"],
        itl["p50"],
        itl["p99"],
        numbers["e2e_s"]["p99"],
        _meets(ttft["p99"], slo["ttft_p99"], itl["p99"], slo["itl_p99"]),
    )


def _meets(ttft: float | None, ttft_slo: float, itl: float | None, itl_slo: float) -> str:
    broken = [
        name
        for name, seen, promised in (("TTFT", ttft, ttft_slo), ("ITL", itl, itl_slo))
        if seen is not None and seen > promised
    ]
    return "no: " + ", ".join(broken) if broken else "yes"


def _engine(phases: Sequence[dict[str, Any]], name: str) -> str:
    head = ("", *(phase["name"] for phase in phases))
    said = [phase["engines"][name] for phase in phases]
    rows = [(label, *(numbers[key] for numbers in said)) for key, label in ENGINE_ROWS.items() if key in said[0]]
    return grid(head, rows)


def _compared(compared: dict[str, Any]) -> str:
    servers = compared["servers"]
    keys = compared["clients"]
    rows = [(ENGINE_ROWS[key], keys[key], *((numbers or {}).get(key) for numbers in servers.values())) for key in keys]
    return grid(("", "clients", *servers), rows)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"-|-?[0-9.]+(e[-+][0-9]+)?", text))
