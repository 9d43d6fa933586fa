"""An eviction cascade in sentences, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvitals.ui.formats import plain, seconds, short

NAME_WIDTH = 14
STAGE_WORDS = {
    1: ("pressure", "a full cache stores more"),
    2: ("eviction", "wanted blocks leave"),
    3: ("re-prefill", "computed a second time"),
    4: ("latency", "a queue, or slower first tokens"),
    5: ("throughput", "less output while demand did not fall"),
}
BEFORE = ", as before the cascade"
"""Of a stage that was true when the cascade began."""


def cascade_until(one: Mapping[str, Any]) -> float:
    """When a cascade ended or was judged last, in seconds since the epoch. Agents before 0.2 do not state `until`."""
    return float(one.get("until") or max([stage["said"] for stage in one["stages"]] + [one["ended"] or 0.0]))


def cascade_sentences(one: Mapping[str, Any], names: Mapping[str, str]) -> Iterable[str]:
    """What a cascade cost, what set it off, who paid, how early it could be told; each begins with a word for it."""
    cost = f"cost      {short(one['refaulted_tokens'])} tokens computed again"
    if one["prefill_seconds"] is not None:
        cost += f", {seconds(one['prefill_seconds'])} of prefill"
    if one["gpu_seconds"] is not None:
        cost += f", {seconds(one['gpu_seconds'])} of GPU time"
    yield cost
    yield f"trigger   {_trigger(one['trigger'], names)}"
    if one["caused"]:
        yield f"by        {_shares(one['caused'], names)}"
        yield f"victims   {_shares(one['suffered'], names)}"
    lead = one["lead_seconds"].get("first")
    if lead is not None:
        yield (
            f"warning   {seconds(abs(lead))} {'before' if lead >= 0 else 'after'} first tokens missed their objective"
        )
    elif one["alarmed_before"]:
        yield "warning   first tokens had already missed their objective"
    else:
        yield "warning   first tokens still met their objective"


def _trigger(trigger: Mapping[str, Any], names: Mapping[str, str]) -> str:
    kind = trigger["kind"]
    if kind == "tenant":
        old, new = short(trigger["from_tokens_per_second"]), short(trigger["to_tokens_per_second"])
        who = tenant_name(trigger["tenant"], names)
        return f"{who} went from {old} to {new} tokens stored a second, {trigger['share_of_rise']:.0%} of the rise"
    if kind == "capacity":
        return f"the pool shrank from {trigger['from_blocks']:,} to {trigger['to_blocks']:,} blocks"
    return {
        "load": "more tokens were stored than usual, by no tenant in particular",
        "working_set": "nothing rose: the blocks in use do not fit",
    }.get(kind, "unknown: there was no usual rate to compare")


def _shares(parts: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    return ", ".join(
        f"{tenant_name(part['tenant'], names)} {part['share']:.0%}" for part in parts[:4] if part["share"] >= 0.01
    )


def tenant_name(tenant: str, names: Mapping[str, str]) -> str:
    """The tenant's name where it may be shown, cut to a column."""
    shown = plain(names.get(tenant, tenant) or "(unknown)")
    return shown if len(shown) <= NAME_WIDTH else shown[: NAME_WIDTH - 1] + "…"
