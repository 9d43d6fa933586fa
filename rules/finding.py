"""The finding and the triage document: all that a terminal, a page, a message or a pipeline is told.

Whoever renders these computes nothing. `schema()` is the published JSON schema; `VERSION` changes its first
number when a reader of the old documents would break.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, field

from kvitals.rules.model import Kind, Severity
from kvitals.series.json_text import encode_json
from kvitals.series.types import Labels
from kvitals.series.undecodable import UNDECODABLE

VERSION = "2.0"

Outcome = Literal["fired", "clear", "n/a", "unknown"]


class Entity(Struct, frozen=True):
    kind: str  # the rule's scope
    labels: dict[str, str]  # the scope's identity labels that are not empty
    title: str  # for people: the most specific label, with what tells it apart where several have the same


class Measure(Struct, frozen=True):
    """One signal's value at the moment of the finding."""

    signal: str
    value: float | None
    unit: str
    text: str  # rendered with its unit, or why it is missing
    meaning: str = ""
    window: float | None = None  # seconds that it is of; None: it is of no window


class Point(Struct, frozen=True, array_like=True):
    t: float
    value: float


class EvidenceLine(Struct, frozen=True):
    labels: dict[str, str]
    points: list[Point]


class Evidence(Struct, frozen=True):
    """A query that shows the finding, its value now and over time."""

    title: str
    query: str
    unit: str
    text: str  # the value at the moment of the finding, with unit
    lines: list[EvidenceLine]
    window: float | None = None  # seconds that it is of, where that is not the window of the document


class Unknown(Struct, frozen=True):
    """Something that could not be told, why, and what would tell it."""

    what: str
    why: str
    remedy: str = ""
    lacks: str = ""  # where it would come from, in words


class MissingData(Struct, frozen=True):
    """Something for want of which rules could not be told, each by the first thing that it lacks."""

    what: str
    brings: str  # what brings it
    codes: list[str]


class RuledOut(Struct, frozen=True):
    code: str
    title: str
    entity: str
    because: str  # the comparison that was false, with numbers


class LeverSetting(Struct, frozen=True):
    flag: str
    now: str  # empty where unknown
    to: str
    restart: bool
    note: str

    @property
    def command(self) -> str:
        """The flag with its value, to be pasted into the engine's command line; empty where no value is known, or where
        the value is not one of the command line."""
        flags = self.flag.replace(" with ", " ")
        if self.to == "on":
            return flags
        return f"{flags} {self.to}" if _is_value(self.flag, self.to) else ""

    @property
    def text(self) -> str:
        """The change for people: the command and today's value, or in words what to do with the flag."""
        now = f" (now {self.now})" if self.now else ""
        if self.to == "remove it":
            return f"remove {self.flag}{now}"
        return (self.command or f"{self.flag}: {self.to}".removesuffix(": ")) + now


class PredictedValue(Struct, frozen=True):
    """What a signal will be once a lever is pulled, at a like load. error: by how much `to` may be off either way, in
    the signal's unit; None: not known. bound: whether `to` is about right, or the least or the most that it can be."""

    metric: str  # the signal
    title: str
    from_: float = field(name="from")
    to: float
    unit: str
    bound: Literal["about", "at least", "at most"]
    error: float | None
    method: str
    text: str  # rendered: "41 % → about 63 %, give or take 4 points"


class LeverAdvice(Struct, frozen=True):
    lever: str
    title: str
    why: str
    does: str
    does_not_fix: str
    risk: str
    cost: str
    setting: LeverSetting | None  # None: no setting is known for this engine and version
    setting_note: str  # why there is none
    references: list[str]
    predicted: list[PredictedValue] = []  # nothing where nothing can tell
    restart: bool = False  # whether pulling it restarts or replaces an engine


class Finding(Struct, frozen=True, kw_only=True):
    """What one rule says of one entity."""

    id: str
    episode: str  # id + since: the same trouble, once
    code: str
    name: str
    title: str
    kind: Kind
    severity: Severity
    entity: Entity
    outcome: Outcome
    reason: str  # for n/a and unknown: why; for clear: the comparison that was false
    since: float | None
    since_at_least: bool  # the start was not seen
    last_true: float | None = None  # when it was, if it is not true now and only `keep` holds it open
    ended: bool = False  # a cause or symptom that was last true so long ago that it says nothing of now
    confidence: float  # 0..1
    confidence_words: str
    confidence_why: list[str]
    conclusion: str
    measures: list[Measure]
    evidence: list[Evidence]
    explains: list[str]  # codes of fired symptoms and causes that this one explains, here and now
    explained_by: list[str]
    explained: list[str] = []  # ids of those: of the same entity, and of the engines of a node or pool
    ruled_out: list[RuledOut]
    unknowns: list[Unknown]
    levers: list[LeverAdvice]  # without a restart first, then with one; each group in the rule's order
    next_check: str
    muted: str = ""  # the reason of the mute, if any
    proof: Literal["", "real", "captured", "modelled"] = ""  # on what the rule was seen to fire; empty: not known

    @property
    def code_and_severity(self) -> str:
        """The code, with the severity of what asks somebody to act: "LAT01 (page)"."""
        return self.code if self.severity == "info" else f"{self.code} ({self.severity})"


class DocumentSource(Struct, frozen=True):
    kind: Literal["live", "agent", "capture", "prometheus"]
    name: str


class DocumentWindow(Struct, frozen=True):
    start: float
    end: float
    seconds: float
    cold: bool  # no history before the window: `for` and baselines do not apply


class SloInForce(Struct, frozen=True):
    name: str
    seconds: float
    source: str  # "default", "command line", "configuration"


class Coverage(Struct, frozen=True):
    """How many rules could be decided, and what was seen of each engine.

    The counts are of judgements, one of each rule on each of its entities: with several entities their sum is more than
    `rules`. Each judgement is in one count. Every surface prints these numbers, in the words of `counts`.
    """

    rules: int
    fired: int  # findings that are open: causes, symptoms and defects of the telemetry
    clear: int
    not_applicable: int
    unknown: int
    engines: list[dict[str, str]]
    crashed: dict[str, str] = {}  # rule code -> the error in it; the other rules went on
    warnings: list[str] = []  # why what was read may not be all there is
    unknown_not_listed: int = 0  # of `unknown`: of a rule on many entities a few are told
    noted: int = 0  # true, and no trouble by itself: the notes
    covered: int = 0  # true, and another rule that fired states it better
    muted: int = 0  # true, and muted in the configuration
    core_unknown: int = 0  # of `unknown`: of core rules, which "healthy" needs; the document lists these first

    @property
    def counts(self) -> list[tuple[int, str]]:
        """Each count with its words, in the order in which a reader needs them. A count that most documents do not have
        is left out at zero."""
        counted = [
            (self.fired, "fired"), (self.noted, "noted"), (self.covered, "covered by another rule"),
            (self.muted, "muted"), (self.clear, "clear"), (self.not_applicable, "not applicable"),
            (self.unknown, "not checked"),
        ]  # fmt: skip
        return [(number, words) for number, words in counted if number or words in _ALWAYS]

    @property
    def summary(self) -> str:
        """All counts in words."""
        judgements = sum(number for number, _ in self.counts)
        of = f"{judgements} judgements of " if judgements != self.rules else ""
        return f"{of}{self.rules} rules: {self._in_words(lambda _: True)}"

    @property
    def short_summary(self) -> str:
        """The counts that call for a look or state what is known to be well."""
        return self._in_words(lambda words: words not in ("covered by another rule", "not applicable"))

    def _in_words(self, wanted: Callable[[str], bool]) -> str:
        return ", ".join(f"{number} {words}" for number, words in self.counts if wanted(words))


_ALWAYS = ("fired", "clear", "not applicable", "not checked")


class EngineRow(Struct, frozen=True, kw_only=True):
    """One engine in a table of the fleet: its verdict and its figures at the end of the document's window."""

    entity: Entity
    about: dict[str, str]  # system, version, model and role, where they are known
    healthy: bool | None  # as in the document, for this engine alone
    verdict: str  # as in the document, for this engine alone
    severity: Severity | None  # the highest severity among `findings`; None: no finding
    findings: list[str]  # ids of the open findings about this engine, its own causes first; without notes
    figures: dict[str, Measure]  # by signal; a value is None where the signal has no value
    course: list[Point]  # waiting requests over time, the last point is the end of the window


EffectVerdict = Literal["worked", "in part", "nothing", "worse"]
"""As it was to be, some of it, no difference beyond what there was before, the wrong way."""


class Effect(Struct, frozen=True):
    """One signal before and after a change, at a like load."""

    metric: str  # the signal
    title: str
    unit: str
    before: float
    after: float
    predicted: PredictedValue | None  # None: nothing was
    verdict: EffectVerdict | Literal["not judged"]
    text: str  # rendered: "970 ms → 12 ms"


class SinceChange(Struct, frozen=True, kw_only=True):
    """The latest change of an engine's configuration, and what came of it."""

    entity: Entity
    at: float  # when the new configuration was first seen
    changed: list[str]  # "slots 2 → 16"
    levers: list[str]  # that this pulled
    verdict: Literal["worked", "in part", "nothing", "worse", "cannot be judged"]
    conclusion: str
    effects: list[Effect]
    gone: list[str] = []  # titles of what fired before and does not now
    come: list[str] = []


class Regime(Struct, frozen=True, kw_only=True):
    """Since when the system has been as the document states, and what was before: its load or latency changed level."""

    since: float  # seconds since the epoch
    changed: list[str]  # the series that changed: "engine: requests in flight 2.1 → 9.8"
    before: str  # the verdict on the time before
    before_healthy: bool | None
    before_start: float  # when the time before begins; it ends at `since`

    @property
    def sentence(self) -> str:
        """When the change was, and the verdict before it."""
        was = {True: "no trouble found", None: "not enough data to judge", False: f"“{self.before.rstrip('.')}”"}
        at = datetime.fromtimestamp(self.since, UTC)
        return f"Load or latency changed at {at:%H:%M:%S} UTC; before: {was[self.before_healthy]}."


class Triage(Struct, frozen=True, kw_only=True):
    """The whole answer of one triage."""

    version: str = VERSION
    source: DocumentSource
    window: DocumentWindow
    slo: list[SloInForce]
    healthy: bool | None
    verdict: str  # one sentence
    causes: list[Finding]
    symptoms: list[Finding]
    telemetry: list[Finding]
    notes: list[Finding]
    ruled_out: list[RuledOut]
    unknown: list[Finding]
    muted: list[Finding]
    coverage: Coverage
    lacking: list[MissingData] = []  # for want of what, most rules first
    since_change: SinceChange | None = None  # only where it was asked for
    regime: Regime | None = None  # only of a recording whose window the user leaves to kvitals, and which changed
    engines: list[EngineRow] = []  # every engine, in the order of their names

    def explained(self, cause: Finding) -> list[Finding]:
        """The fired symptoms and causes that a cause explains, directly or through causes in between: symptoms first,
        both in the document's order."""
        reached = reached_from(cause, self.causes)
        return [one for one in (*self.symptoms, *self.causes) if one.id in reached and one.id != cause.id]

    def explained_codes(self, cause: Finding) -> str:
        """What a cause explains, by code, with the severity of the first: "LAT01 (page; also LAT03, LAT05)".
        Empty where it explains nothing."""
        explained = self.explained(cause)
        if not explained:
            return ""
        others = ", ".join(dict.fromkeys(one.code for one in explained[1:] if one.code != explained[0].code))
        if not others:
            return explained[0].code_and_severity
        first = explained[0].code_and_severity.removesuffix(")")
        return f"{first}{'; ' if '(' in first else ' ('}also {others})"

    @property
    def leading_causes(self) -> list[Finding]:
        """The causes that no other cause of the document explains, in their order. A page is not hidden behind a ticket
        that explains it, nor a ticket behind information. Causes that explain each other in a circle all lead: none of
        them may vanish."""
        gravest_first = get_args(Severity)

        def is_above(other: Finding, one: Finding) -> bool:
            of_other, of_one = gravest_first.index(other.severity), gravest_first.index(one.severity)
            return other.id != one.id and of_other <= of_one

        heads = [
            one
            for one in self.causes
            if not any(one.id in other.explained for other in self.causes if is_above(other, one))
        ]
        reached = {id_ for head in heads for id_ in reached_from(head, self.causes)} | {head.id for head in heads}
        return [one for one in self.causes if one in heads or one.id not in reached]

    @property
    def unexplained_symptoms(self) -> list[Finding]:
        """The symptoms that no cause of the document explains."""
        reached = {id_ for cause in self.causes for id_ in cause.explained}
        return [one for one in self.symptoms if one.id not in reached]

    @property
    def lacks_cause(self) -> bool:
        """Whether there are symptoms and nothing that may be their reason: no cause, and no engine that is not read."""
        return self.healthy is False and bool(self.symptoms) and not self.causes and not self.lost

    @property
    def lost(self) -> list[Finding]:
        """The engines that cannot be read: what is known of them is old."""
        return [one for one in self.telemetry if one.severity == "page"]

    @property
    def leading(self) -> list[Finding]:
        """All that nothing explains, in the order in which a reader meets it: engines that cannot be read, as what is
        known of them is old, causes, symptoms, other defects of the telemetry, symptoms for information."""
        others = [one for one in self.telemetry if one not in self.lost]
        asking = [one for one in self.unexplained_symptoms if one.severity != "info"]
        informing = [one for one in self.unexplained_symptoms if one.severity == "info"]
        return [*self.lost, *self.leading_causes, *asking, *others, *informing]


def reached_from(cause: Finding, causes: Iterable[Finding]) -> set[str]:
    """The ids of all that a cause explains, those of other causes on the way included."""
    explained = {one.id: one.explained for one in causes}
    reached: set[str] = set()
    new = set(cause.explained)
    while new:
        reached |= new
        new = {id_ for one in new for id_ in explained.get(one, ())} - reached
    return reached


def _is_value(flag: str, text: str) -> bool:
    """Whether a lever's value is one that the flag takes: a word, a number or JSON, and no description of one."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        try:
            msgspec.json.decode(text[1:-1])
        except UNDECODABLE:
            return False
        return True
    of_file = flag.startswith("--extra_")  # the value is a key of a file
    return bool(text) and not of_file and not any(character.isspace() for character in text)


def finding_id(code: str, entity: Labels) -> str:
    """Stable over time and restarts: the hash of the code and the entity's identity."""
    return hashlib.sha256(f"{code}{entity}".encode()).hexdigest()[:12]


def schema() -> dict[str, Any]:
    """The JSON schema of `Triage`."""
    return msgspec.json.schema(Triage)


def encode(document: Triage) -> bytes:
    """The document as JSON."""
    return encode_json(document)
