"""The settings of an engine that its twin knows: what they are now, and what a change makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvitals.diagnoser.twin.scheduler import SchedulerSettings
from kvitals.series.ascii_numbers import is_digits

UNBOUNDED = 1 << 30


class SettingError(ValueError):
    """A change that the twin cannot simulate; the message names those that it can."""


@dataclass(frozen=True)
class TwinFlag:
    """field: of `SchedulerSettings`. switch: takes true or false."""

    name: str
    field: str
    switch: bool = False
    reserved: int = 0  # so much of the flag's number no request can use


NULL_BLOCK = 1
"""vLLM keeps one block for itself: --num-gpu-blocks-override counts it, the fact `kv_blocks` does not."""

FLAGS: Mapping[str, tuple[TwinFlag, ...]] = {
    "vllm": (
        TwinFlag("max-num-seqs", "slots"),
        TwinFlag("max-num-active-seqs", "slots"),
        TwinFlag("max-num-batched-tokens", "token_budget"),
        TwinFlag("num-gpu-blocks-override", "blocks", reserved=NULL_BLOCK),
        TwinFlag("long-prefill-token-threshold", "long_prefill"),
        TwinFlag("enable-chunked-prefill", "chunked", switch=True),
        TwinFlag("enable-prefix-caching", "caching", switch=True),
    ),
    "sglang": (
        TwinFlag("max-running-requests", "slots"),
        TwinFlag("chunked-prefill-size", "token_budget"),
        TwinFlag("max-total-tokens", "blocks"),
    ),
}
UNMODELLED = {
    "speculation": "speculative decoding",
    "lora": "adapters",
    "kv_connector": "a KV connector",
}
"""Facts above 0 under which a step depends on more than its tokens."""


@dataclass(frozen=True)
class TwinChange:
    """A flag and its values; now is None where the engine does not report it."""

    flag: str
    field: str
    now: float | None
    to: float
    reserved: int = 0


@dataclass(frozen=True)
class KnownSettings:
    """What the engine reports, and what was assumed of the rest, a sentence each."""

    scheduler: SchedulerSettings
    reported: frozenset[str]
    assumed: tuple[str, ...]


def settings_now(facts: Mapping[str, float], most_running: float, waited: bool, largest_step: float) -> KnownSettings:
    """The scheduler's settings by an engine's facts. most_running: requests at a time; waited: others waited meanwhile;
    largest_step: tokens."""
    assumed = []
    reported = {field for field, fact in _FACTS.items() if fact in facts}
    slots = facts.get("slots")
    if slots is None:
        slots = max(most_running, 1.0) if waited else UNBOUNDED
        assumed.append(
            f"--max-num-seqs is not reported: {slots:g} is assumed, the most that ran while others waited"
            if waited
            else "--max-num-seqs is not reported: no request waited, so no limit is assumed"
        )
    budget = facts.get("token_budget")
    if budget is None:
        budget = max(largest_step, 2048.0)
        assumed.append(f"--max-num-batched-tokens is not reported: {budget:g} is assumed")
    tokens = facts.get("attention_block_tokens") or facts.get("block_tokens") or 16.0
    override = max(facts.get("kv_blocks_override", 0.0) - NULL_BLOCK, 0.0)
    blocks = facts.get("kv_blocks") or override or facts.get("kv_capacity_tokens", 0.0) / tokens
    if not blocks:
        blocks = float(UNBOUNDED)
        assumed.append("the number of KV blocks is not reported: no limit is assumed")
    scheduler = SchedulerSettings(
        slots=int(slots),
        token_budget=int(budget),
        blocks=int(blocks),
        block_tokens=int(tokens),
        chunked=facts.get("chunked_prefill", 1.0) > 0,
        caching=facts.get("prefix_caching", 1.0) > 0,
        long_prefill=int(facts.get("long_prefill_tokens", 0.0)),
    )
    return KnownSettings(scheduler, frozenset(reported), tuple(assumed))


_FACTS = {
    "slots": "slots",
    "token_budget": "token_budget",
    "blocks": "kv_blocks",
    "chunked": "chunked_prefill",
    "caching": "prefix_caching",
    "long_prefill": "long_prefill_tokens",
}


def change_of(text: str, system: str, known: KnownSettings) -> TwinChange:
    """`max-num-seqs=16` as a change. Raises SettingError."""
    name, separator, value = text.strip().removeprefix("--").replace("_", "-").partition("=")
    flags = {flag.name: flag for flag in FLAGS.get(system, ())}
    flag = flags.get(name)
    if flag is None:
        raise SettingError(
            f"--set {text}: the twin of {system} does not know --{name}: choose one of {', '.join(flags)}"
            if flags
            else f"there is no twin of {system or 'an engine whose system is unknown'}"
        )
    number = _switch(value) if flag.switch else _count(value)
    if not separator or number is None:
        wanted = "true or false" if flag.switch else "a whole number above 0"
        raise SettingError(f"--set {text}: write --set {name}=VALUE, with {wanted}")
    if system == "sglang" and flag.field == "blocks":
        number = number // known.scheduler.block_tokens
    reported = flag.field in known.reported
    now = float(getattr(known.scheduler, flag.field)) + flag.reserved if reported else None
    return TwinChange(name, flag.field, now, number, flag.reserved)


def changes_of(texts: Sequence[str], system: str, known: KnownSettings) -> tuple[TwinChange, ...]:
    """Settings, each as `flag=value`, as changes. Raises SettingError, also where the engine would not start."""
    changes = tuple(change_of(text, system, known) for text in texts)
    if not changes:
        raise SettingError("--set: name a setting, such as --set max-num-seqs=16")
    for i, one in enumerate(changes):
        if any(other.field == one.field for other in changes[:i]):
            raise SettingError(f"--set {one.flag}: the same setting is given twice; give one value")
    after = apply_changes(known.scheduler, changes)
    fields = {one.field for one in changes}
    has_slots = "slots" in known.reported | fields  # else their number is a guess
    if system == "vllm" and has_slots and fields & {"slots", "token_budget"} and after.slots > after.token_budget:
        raise SettingError(
            f"--set: vLLM does not start with more slots ({after.slots:,}) than tokens of a step "
            f"({after.token_budget:,}); set max-num-batched-tokens to at least max-num-seqs"
        )
    return changes


def apply_changes(scheduler: SchedulerSettings, changes: tuple[TwinChange, ...]) -> SchedulerSettings:
    """The settings after some changes."""
    values = {one.field: type(getattr(scheduler, one.field))(one.to - one.reserved) for one in changes}
    return replace(scheduler, **values)


def _switch(value: str) -> float | None:
    return {"true": 1.0, "false": 0.0, "on": 1.0, "off": 0.0, "1": 1.0, "0": 0.0}.get(value.lower())


def _count(value: str) -> float | None:
    return float(value) if is_digits(value) and 0 < int(value) <= UNBOUNDED else None
