"""The shapes of knowledge: family, signal, rule and lever, as they are written in the YAML files.

Each type mirrors its file one to one, so the field comments here are the reference of the file format.
`kvitals.rules.loader` turns files into these and checks what types alone cannot.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from kvitals.rules.engine_map import Program

Scope = Literal["engine", "node", "pool", "fleet"]
Kind = Literal["symptom", "cause", "note", "telemetry"]
Severity = Literal["page", "ticket", "info"]
Quantity = Literal["ttft", "itl", "throughput", "hits", "errors", "fairness", "cost", "truth"]
"""What a symptom is about and a lever moves. `truth` is what can be known."""

Constraint = Literal["fault", "kv", "slots", "token_budget", "deferral", "room", "arrival", "unknown"]
"""What can bound an engine's progress (docs/binding.md). `room` is slots or KV, it can not be told which."""

SCOPES: dict[str, tuple[str, ...]] = {
    "engine": ("cluster", "node", "engine"),
    "node": ("cluster", "node"),
    "pool": ("cluster", "pool"),
    "fleet": ("cluster",),
}
"""The labels that identify an entity of each scope (docs/decisions/0002)."""

SIGNAL_PREFIX = "kvitals:"
"""Before a signal's name in expressions."""

AROUND: dict[Scope, tuple[Scope, ...]] = {
    "engine": ("engine", "node", "pool", "fleet"),
    "node": ("node", "fleet"),
    "pool": ("pool", "fleet"),
    "fleet": ("fleet",),
}
"""Of which scopes a cause can explain what is seen of an entity: its own, and what the entity is part of."""

Code = Annotated[str, Meta(pattern=r"^[A-Z]{3}\d{2}$")]
Slug = Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Text = Annotated[str, Meta(min_length=1, max_length=4000)]
Duration = Annotated[str, Meta(pattern=r"^\d+[smhd]$")]

FAST, SLOW = "fast", "slow"


class Family(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An engine-neutral family of series, as the agent exports it."""

    type: Literal["counter", "gauge", "histogram", "info"]
    unit: str
    meaning: Text
    labels: tuple[str, ...] = ()  # beyond the identity of the entity
    caveat: str = ""
    origin: str = ""  # in rules/origins.yaml; empty in a file: that of the file


class Samples(Struct, frozen=True, forbid_unknown_fields=True):
    """How many observations a signal rests on; below `min` the signal is absent, not zero."""

    expr: Text
    min: Annotated[float, Meta(gt=0)]
    of: str  # what is counted, in words: "requests"


class Signal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number per entity, computed from families by PromQL. In expressions it is `kvitals:<name>`."""

    expr: Text  # PromQL over families and other signals; $window and $scope are filled in
    unit: Literal["seconds", "ratio", "tokens", "requests", "blocks", "per_second", "count", "bytes", "bool"]
    meaning: Text
    scope: Scope = "engine"
    window: Literal["fast", "slow"] = "fast"
    samples: Samples | None = None
    better: Literal["lower", "higher", "neither"] = "neither"
    origin: str = ""  # as a family's


class Param(Struct, frozen=True, forbid_unknown_fields=True):
    """A threshold of a rule: `$name` in its expressions."""

    default: float
    why: Text


class Overrides(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a rule that others use, in place of the rule's own: a file `params/CODE.yaml`."""

    code: Code
    params: Annotated[dict[str, Param], Meta(min_length=1)]


class Applies(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a rule has something to judge; elsewhere its outcome is `not applicable`."""

    kinds: tuple[Program, ...] = ("engine", "scheduler")  # of program; empty: any
    not_roles: tuple[str, ...] = ()  # parts in disaggregation: prefill, decode
    systems: tuple[str, ...] = ()  # vllm, sglang, ...; empty: any
    having: str = ""  # a metric without which there is nothing of the kind, such as a transfer counter
    traffic: bool = True  # only while something is asked of the engine


class EvidenceQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A query that shows what the rule saw; drawn over time and quoted at the moment of the finding."""

    title: Text
    query: Text
    unit: str = ""


class LeverUse(Struct, frozen=True, forbid_unknown_fields=True):
    """A lever that a rule offers, in the order of trying."""

    lever: Slug
    why: Text  # why here; signals in braces
    when: str = ""  # PromQL pre-condition on the entity, beyond the lever's own


class RulePage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rule's page, in the order in which it is printed."""

    sees: Text
    why: Text
    wrong_when: Text
    do: Text
    do_not: Text
    references: tuple[str, ...]


class Rule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One thing that can be so, and what follows from it. Codes are stable for ever."""

    code: Code
    name: Slug
    title: Text
    group: Literal[
        "latency",
        "kv",
        "prefix",
        "tenant",
        "scheduling",
        "disaggregation",
        "speculation",
        "lora",
        "gpu",
        "engine",
        "telemetry",
        "capacity",
        "efficiency",
        "scaling",
        "guardrail",
        "hetero",
    ]
    stage: Literal["preview", "stable"]
    kind: Kind
    severity: Severity
    when: Text
    conclusion: Text  # one sentence; {signal} and {$param} are filled in with unit
    page: RulePage
    evidence: tuple[EvidenceQuery, ...]
    about: tuple[Quantity, ...] = ()  # of a symptom: what is amiss; levers that move none of it are not offered
    each_scrape: bool = False  # of a symptom: each scrape shows whether it is so, also without requests
    core: bool = False
    scope: Scope = "engine"
    clear: str = ""  # leave level: fired stays fired until this is false; empty: `when` itself
    for_: Duration = field(default="0s", name="for")
    keep: Duration = "0s"
    uses: tuple[str, ...] = ()  # signals that only raise confidence
    certainty: Literal["high", "medium", "low"] = "high"  # of the conclusion once `when` is true
    certainty_why: str = ""
    proven_when: str = ""  # PromQL: has a value for entities whose figures prove `when`; empty: everywhere
    unproven_title: str = ""  # the title elsewhere, where a page is a ticket
    unproven_why: str = ""  # and why the confidence is low
    unproven_for: Duration = "0s"  # how long `when` has to hold there, where that is longer than `for`
    partial: bool = False  # of a cause: it says what is so and leaves open why, such as that peers are faster
    applies: Applies = Applies()
    explains: tuple[Code, ...] = ()
    explains_when: str = ""  # PromQL: has a value for entities where the rule explains; empty: everywhere
    explains_latency_unless: str = ""  # PromQL: has a value for entities whose late tokens it does not explain
    explains_causes_when: str = ""  # the same of the causes among `explains`; its symptoms it explains regardless
    leaves_symptoms: bool = False  # to these causes, where `explains_causes_when` has no value
    excluded_by: tuple[Code, ...] = ()
    harm: tuple[Code, ...] = ()  # of a cause: symptoms by which it does harm; while these are clear it is information
    follows: tuple[Code, ...] = ()  # of a symptom: those by which it comes about; causes without them do not explain it
    binds: tuple[Constraint, ...] = ()  # of a cause: the constraints of which it says that one is reached
    levers: tuple[LeverUse, ...] = ()
    params: dict[str, Param] = {}
    who: dict[str, Text] = {}  # label -> PromQL; {label} in the texts is that of its largest series
    alias_of: Code | None = None

    @property
    def fires_after(self) -> str:
        """For how long the condition has to hold, for people."""
        doubt = f" ({self.unproven_for} if neither figures nor a cause prove it)"
        return self.for_ + (doubt if self.unproven_for != "0s" else "")

    @property
    def slug(self) -> str:
        return f"{self.code}-{self.name}"


TO = "$to"
"""In the text of a setting's value: the number to try."""


class SystemSetting(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to pull a lever on one system, for a range of versions."""

    system: str
    versions: str = ">=0"  # comma separated bounds, "all must hold": ">=0.9.2,<0.12"
    when: str = ""  # PromQL: has a value for entities where this setting is the one; the first that fits counts
    flag: str  # what to set
    by: Literal["flag", "environment", "request"] = "flag"  # of the command line, a variable, a field of each request
    now: str = ""  # PromQL for today's value
    to: str = ""  # PromQL for the value to try; or plain text in `value`
    value: str = ""  # a text with `$to` in it has the number of `to` there
    restart: bool = True
    note: str = ""
    risk: str = ""  # of this setting, in place of the lever's

    @property
    def value_text(self) -> str:
        """The value for people, where no number is known: `N` stands for it."""
        return self.value.replace(TO, "N")


class LeverEstimate(Struct, frozen=True, forbid_unknown_fields=True):
    """How a lever's effect can be told before it is pulled."""

    method: Literal["replay", "formula", "none"]
    how: Text


class Prediction(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a signal will be once a lever is pulled, at a like load. `$now` and `$to` in expressions are the numbers of
    the setting that is advised; without such numbers there is no prediction that asks for them."""

    signal: str
    title: Text  # what it is about, in a few words
    to: Text  # PromQL; no value: it can not be told here
    before: Text | None = None  # PromQL of what `to` is compared with; none: the signal itself
    error: Text | None = None  # PromQL: by how much `to` may be off either way, in the signal's unit
    bound: Literal["about", "at least", "at most"] = "about"
    how: Text  # one sentence: the method


class ReplaySpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a replay of recorded look-ups is made with, to tell what a lever does to hits."""

    capacity: float = 1.0  # times today's blocks
    by_setting: bool = False  # instead: as many more blocks as the setting's `to` is above its `now`, ...
    flag: str = ""  # ... where that is of this flag
    policy: Literal["lru", "lfu", "fifo", "priority"] = "lru"
    routing: Literal["", "sticky", "prefix", "pooled"] = ""  # over the node's engines; empty: each for itself
    below: bool = False  # a tier below the device's cache is what there is more of


class Lever(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that an operator can change."""

    name: Slug
    title: Text
    does: Text
    when: Text  # to reach for it
    does_not_fix: Text
    risk: Text
    moves: Annotated[tuple[Quantity, ...], Meta(min_length=1)]  # what it is pulled for
    worsens: tuple[Quantity, ...] = ()  # what it is known to harm under the same load
    estimate: LeverEstimate
    outside: bool = False  # it can be pulled outside of the engine, so it needs no setting of the engine's
    cost: Literal["free", "low", "medium", "high"]
    step: Annotated[int, Meta(ge=1, le=9)]  # place in the order of trying (KNOWLEDGE, levers)
    references: tuple[str, ...]
    settings: tuple[SystemSetting, ...] = ()
    direction: Literal["up", "down", ""] = ""  # of the numbers that its settings set; empty: either way
    restart: bool = False  # where no setting applies: whether pulling it restarts or replaces an engine
    in_force: str = ""  # PromQL: has a value for entities where the lever is already pulled
    possible: str = ""  # PromQL: has a value for entities where it can be pulled; empty: everywhere
    proven_when: str = ""  # PromQL: has a value for entities where figures show what it needs; empty: everywhere
    unproven_title: str = ""  # the title elsewhere, with what has to hold; there it is offered after the others
    who: dict[str, Text] = {}  # as a rule's: {label} in what rules write about it
    contradicts: tuple[Slug, ...] = ()
    predicts: tuple[Prediction, ...] = ()  # the first of each signal that has a value is told
    replay: ReplaySpec | None = None  # how its effect on hits is replayed, where look-ups are recorded
    no_rule: str = ""  # why no rule offers it, where none does
