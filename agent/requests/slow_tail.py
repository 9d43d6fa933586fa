"""Why some requests are slow: the slow tail of a window of requests beside its faster half.

    report = Recent(records, start, end).explain(of="ttft")
    print(report.sentence)     # which phase explains it, who they are, whom they waited behind

Pure, and the same in whatever order the records come. What a phase explains is its mean excess over the faster half, as
a share of the whole excess; a share is below 0 where the tail was faster in that phase, and they add up to 1 with what
is unattributed. A phase that is unknown is not 0: its time stays unattributed. docs/tail.md says more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from kvitals.agent.requests.columns import NOBODY, Bools, Floats, Numbers, RequestColumns, join_blocks, lay_out
from kvitals.agent.requests.observation import PHASES
from kvitals.agent.requests.occupancy import OTHER, UNKNOWN, Behind, RunningWork
from kvitals.agent.requests.record import UNATTRIBUTED, RequestRecord

Of = Literal["ttft", "e2e"]
OFS: tuple[Of, ...] = ("ttft", "e2e")

Objective = Callable[[RequestRecord], float | None]
"""Seconds within which a request's first token must come; None where nothing is asked."""

BEFORE_FIRST = ("gateway", "queue", "kv_wait", "prefill", "transfer")
"""Phases of which the time to the first token is made."""

TAIL = 0.95
MIN_TAIL = 5
MIN_BULK = 20

MAX_RECORDS = 5_000
"""Of a window, those that ended last."""

KNOWN = 0.5
"""A phase must be known of that share of the tail, and of the faster half, to be told of."""

DOMINANT = 0.5
WORST = 5
MENTIONED = 0.05
"""Share of the excess from which a phase is in the sentence."""

STANDS_OUT = 0.25
"""Share of the occupied time from which a tenant is."""

MAX_VALUES = 10
"""Values of a group that are told, those with the largest part of the tail beyond their part of all."""

MAX_CLASS = 24  # prompts of more than 2**24 tokens are one class
MOST_CACHED = 0.5
GROUPS = ("tenant", "prompt_tokens", "engine", "cached")
"""What the tail is told apart by: whose, how long the prompt, where, and how much of the prompt was cached."""

IN_WORDS = {
    "gateway": "time outside the engine",
    "kv_wait": "waiting for KV",
    "transfer": "KV transfer",
    UNATTRIBUTED: "time in no reported phase",
}


class PhaseExcess(msgspec.Struct, frozen=True):
    """By how much a phase took longer in the tail."""

    name: str  # of PHASES, or "unattributed"
    seconds: float | None  # mean excess of a tail request over the bulk's mean; None: unknown
    share: float | None  # of the whole excess
    known: float  # share of tail requests of which the phase is known


class GroupValue(msgspec.Struct, frozen=True):
    """Requests that are alike in something, among the tail and among all."""

    value: str  # "unknown" where it is not told
    tail: int
    all: int
    share: float  # of the tail
    lift: float  # that, over the share among all


class TailReport(msgspec.Struct, frozen=True, kw_only=True):
    """What explains the slow tail of a window. Times are seconds; None is unknown."""

    of: Of
    start: float  # when the first of the requests ended
    end: float  # the last
    over: dict[str, str] = {}  # labels of what it is about: an engine, a pool, a node
    why_unknown: str = ""  # empty: there is an answer
    requests: int = 0  # with a time of this kind
    without: int = 0  # without one: it was not told, or a client left before
    by: Literal["p95", "objective"] = "p95"  # what makes a request one of the tail
    threshold: float | None = None  # its time is above this, or this; None where objectives differ
    tail: int = 0
    bulk: int = 0  # the faster half
    tail_mean: float | None = None
    bulk_mean: float | None = None
    phases: tuple[PhaseExcess, ...] = ()  # the one that explains most first, unattributed last
    queue_has_transfer: bool = False  # the queue's part may be KV transfer that could not be told apart
    groups: dict[str, tuple[GroupValue, ...]] = {}
    behind: Behind | None = None  # where the queue explains most
    why_not_behind: str = ""  # that it does, and why it is not known whom they waited behind
    worst: tuple[RequestRecord, ...] = ()

    @property
    def dominant(self) -> PhaseExcess | None:
        """The phase that explains most, if it explains half; may be what is unattributed."""
        found = max((p for p in self.phases if p.share is not None), key=_share, default=None)
        return found if found is not None and _share(found) >= DOMINANT else None

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        return _sentence(self)


class PrefillsBeside(msgspec.Struct, frozen=True):
    """How much prefill of others ran beside requests that decoded, on average."""

    tail: float  # share of the decode time of those with the longest gaps between outputs
    bulk: float  # of those with gaps at or below the median
    requests: int  # in the tail


class Recent:
    """The requests that ended within a window, and what else ran meanwhile, ready to be asked about."""

    def __init__(self, records: Iterable[RequestRecord] | RequestColumns, start: float, end: float) -> None:
        """Of `records` those that ended from `start` to `end` are explained; the others count only among those that
        were running meanwhile."""
        self._around = records if isinstance(records, RequestColumns) else join_blocks([lay_out(list(records))])
        ended = self._around.of("end")
        here = np.flatnonzero((ended >= start) & (ended <= end))
        if len(here) > MAX_RECORDS:
            here = np.sort(here[np.argsort(-ended[here], kind="stable")[:MAX_RECORDS]])
        self.start = float(ended[here].min()) if len(here) else start
        self.end = float(ended[here].max()) if len(here) else end
        self._here = here
        self.records = len(here)
        self.engines = sorted({self._around.engines[i] for i in np.unique(self._around.names[here, 1:]) if i != NOBODY})
        """Those that had the requests which are explained."""
        self._work: RunningWork | None = None
        self._beside: Floats | None = None
        self._timed = {of: _Timed.of(self._around, here, of) for of in OFS}
        self._goals: tuple[Objective, Floats] | None = None

    def explain(
        self,
        of: Of = "ttft",
        objective: Objective = lambda _: None,
        engines: Collection[str] | None = None,
        over: dict[str, str] | None = None,
    ) -> TailReport:
        """What explains the tail of those at some engines, or of all.

        Of time to first token the tail is who missed the objective, where those are at least MIN_TAIL and less than
        half; else, and of the time from end to end, it is who is above p95. `over` says what the requests have in
        common.
        """
        timed = self._timed[of].at(self._around, engines)
        count, everybody = len(timed.totals), len(self._at(engines))
        said = TailReport(
            of=of, start=self.start, end=self.end, over=over or {}, requests=count, without=everybody - count
        )
        asked = self._asked(objective)[timed.places] if of == "ttft" else np.full(count, np.nan)
        split = _split(timed.totals, asked)
        if isinstance(split, str):
            return msgspec.structs.replace(said, why_unknown=split)
        phases = _explain(timed, split)
        by_share = sorted(phases[:-1], key=lambda p: (p.share is None, -_share(p)))
        tail = timed.places[split.tail][::-1]
        said = msgspec.structs.replace(
            said,
            by=split.by,
            threshold=split.threshold,
            tail=len(tail),
            bulk=int(split.bulk.sum()),
            tail_mean=float(timed.totals[split.tail].mean()),
            bulk_mean=float(timed.totals[split.bulk].mean()),
            phases=(*by_share, phases[-1]),
            queue_has_transfer=bool(self._around.hides_transfer(tail).any()),
            groups=_groups(self._around, timed.places, split.tail),
            worst=tuple(self._around.records[i] for i in tail[:WORST]),
        )
        if said.dominant is None or said.dominant.name != "queue":
            return said
        behind = self._at_work().in_front(tail)
        if isinstance(behind, str):
            return msgspec.structs.replace(said, why_not_behind=behind)
        return msgspec.structs.replace(said, behind=behind)

    def prefills_beside(self, engines: Collection[str] | None = None) -> PrefillsBeside | None:
        """Whether long gaps between a request's outputs come where others are in prefill; None where that is unknown.

        By the longest gap between outputs that a request's observer saw.
        """
        if self._beside is None:
            self._beside = self._at_work().beside()
        here = self._at(engines)
        here = here[~np.isnan(self._beside[here])]
        if not here.size:
            return None
        longest, beside = self._around.of("itl_max")[here], self._beside[here]
        tail, bulk = longest > _quantile(longest, TAIL), longest <= _quantile(longest, 0.5)
        if tail.sum() < MIN_TAIL or bulk.sum() < MIN_BULK:
            return None
        return PrefillsBeside(float(beside[tail].mean()), float(beside[bulk].mean()), int(tail.sum()))

    def _at(self, engines: Collection[str] | None) -> Numbers:
        """The places of requests at some engines, or of all."""
        return self._here if engines is None else self._here[self._around.at(engines, self._here)]

    def _at_work(self) -> RunningWork:
        if self._work is None:
            self._work = RunningWork(self._around)
        return self._work

    def _asked(self, objective: Objective) -> Floats:
        """The objective of each request that is explained; NaN for none."""
        if self._goals is None or self._goals[0] is not objective:
            goals = np.full(len(self._around), np.nan)
            goals[self._here] = [_or_nan(objective(self._around.records[int(i)])) for i in self._here]
            self._goals = objective, goals
        return self._goals[1]


def spent(around: RequestColumns, totals: Floats, of: Of) -> Floats:
    """What the phases took of requests' time of this kind: a row a request, a column a phase of PHASES; NaN is unknown.

    Of the time to first token they have what fits in, the earlier ones first and the gateway last: what passed there
    before and after the first token is not told apart. So together they never take more than there is.
    """
    left = totals.copy()
    found = np.zeros((len(around), len(PHASES)))
    for name in (*PHASES[1:], PHASES[0]):
        if of == "ttft" and name not in BEFORE_FIRST:
            continue
        i = PHASES.index(name)
        found[:, i] = np.minimum(np.maximum(around.seconds[:, i], 0.0), left)
        left -= np.nan_to_num(found[:, i])
    return found


@dataclass(frozen=True)
class _Timed:
    """Requests with a time, the fastest first."""

    places: Numbers  # among all
    totals: Floats
    phases: Floats  # a row a request, a column a phase of PHASES

    @classmethod
    def of(cls, around: RequestColumns, here: Numbers, of: Of) -> _Timed:
        totals = around.of(of)
        places = here[~np.isnan(totals[here])]
        places = places[np.argsort(totals[places], kind="stable")]
        return cls(places, totals[places], spent(around.take(places), totals[places], of))

    def at(self, around: RequestColumns, engines: Collection[str] | None) -> _Timed:
        """Those at some engines, or all."""
        if engines is None:
            return self
        here = around.at(engines, self.places)
        return _Timed(self.places[here], self.totals[here], self.phases[here])


@dataclass(frozen=True)
class _Split:
    tail: Bools
    bulk: Bools
    by: Literal["p95", "objective"]
    threshold: float | None


def _split(totals: Floats, goals: Floats) -> _Split | str:
    """Which requests are the tail and which the faster half, or why that can not be told."""
    if not totals.size:
        return "no request has a reported time"
    bulk = totals <= _quantile(totals, 0.5)
    by: Literal["p95", "objective"] = "objective"
    tail = totals > goals  # not where there is none
    asked = np.unique(goals)
    threshold = float(asked[0]) if len(asked) == 1 and not np.isnan(asked[0]) else None
    if not MIN_TAIL <= tail.sum() < totals.size / 2:
        by, threshold = "p95", _quantile(totals, TAIL)
        tail = totals > threshold
        if tail.sum() < MIN_TAIL and (totals >= threshold).sum() < totals.size / 2:
            tail = totals >= threshold  # some are equally slow, as in logs with whole seconds
    bulk &= ~tail
    if tail.sum() < MIN_TAIL or bulk.sum() < MIN_BULK:
        few = f"{tail.sum()} slow and {bulk.sum()} fast ones of {totals.size} requests"
        return f"{few} are too few to compare: at least {MIN_TAIL} and {MIN_BULK} are needed"
    if not totals[tail].mean() > totals[bulk].mean():
        return "no request was slower than the others"
    return _Split(tail, bulk, by, threshold)


def _explain(timed: _Timed, split: _Split) -> list[PhaseExcess]:
    """The excess by phase, unattributed last."""
    tail, bulk = timed.phases[split.tail], timed.phases[split.bulk]
    excess = float(timed.totals[split.tail].mean() - timed.totals[split.bulk].mean())
    left, found = excess, []
    for i, name in enumerate(PHASES):
        slow, fast = tail[:, i], bulk[:, i]
        slow_known, fast_known = ~np.isnan(slow), ~np.isnan(fast)
        known = float(slow_known.mean())
        if known < KNOWN or fast_known.mean() < KNOWN:
            found.append(PhaseExcess(name, None, None, known))
            continue
        if not slow[slow_known].any() and not fast[fast_known].any():
            continue  # there is no such phase here
        seconds = float((slow[slow_known] - fast[fast_known].mean()).sum() / len(slow))
        left -= seconds
        found.append(PhaseExcess(name, seconds, seconds / excess, known))
    return [*found, PhaseExcess(UNATTRIBUTED, left, left / excess, 1.0)]


def _quantile(values: Floats, q: float) -> float:
    """One of the values, so that nothing is made up between them."""
    return float(np.quantile(values, q, method="inverted_cdf"))


def _or_nan(seconds: float | None) -> float:
    return float("nan") if seconds is None else seconds


def _share(phase: PhaseExcess) -> float:
    return phase.share if phase.share is not None else float("-inf")


def _groups(around: RequestColumns, everybody: Numbers, is_tail: Bools) -> dict[str, tuple[GroupValue, ...]]:
    """By each of GROUPS, what the requests of the tail are, beside all."""
    found = {}
    for group, kinds in (
        ("tenant", Kinds([name or UNKNOWN for name in around.tenants], around.tenant[everybody])),
        ("prompt_tokens", _prompt_classes(around.of("prompt_tokens")[everybody])),
        ("engine", _engines(around, everybody)),
        ("cached", cache_classes(around.of("cached_tokens")[everybody], around.of("prompt_tokens")[everybody])),
    ):
        found[group] = _group(kinds, is_tail)
    return found


class Kinds(NamedTuple):
    """What requests are in a group: a place in `names` for each, or some for those that are several things."""

    names: Sequence[str]
    of: Numbers  # a row a request, or a column each; NOBODY is nothing


def _group(kinds: Kinds, is_tail: Bools) -> tuple[GroupValue, ...]:
    def counts(of: Numbers) -> Numbers:
        return np.bincount(of[of != NOBODY], minlength=len(kinds.names))

    among_all, among_tail = counts(kinds.of), counts(kinds.of[is_tail])
    found = []
    for place in np.flatnonzero(among_tail):
        name, count, everybody = kinds.names[int(place)], int(among_tail[place]), int(among_all[place])
        share, expected = count / int(is_tail.sum()), everybody / len(is_tail)
        found.append((expected - share, name, GroupValue(name, count, everybody, share, share / expected)))
    return tuple(one for _, _, one in sorted(found, key=lambda each: each[:2])[:MAX_VALUES])


def _engines(around: RequestColumns, places: Numbers) -> Kinds:
    """Of a pair a request has two engines, which may be the same one."""
    of = np.sort(around.names[places, 1:], axis=1)
    of[:, 1:][of[:, 1:] == of[:, :-1]] = NOBODY
    unknown = len(around.engines)
    of[(of == NOBODY).all(axis=1), 0] = unknown
    return Kinds([*around.engines, UNKNOWN], of)


def _prompt_classes(tokens: Floats) -> Kinds:
    names = [UNKNOWN, *(prompt_class(2**power) for power in range(MAX_CLASS + 2))]
    told = tokens >= 0.0  # not where they are unknown
    powers = np.frexp(np.maximum(np.where(told, tokens, 0.0) - 1.0, 0.0))[1]
    return Kinds(names, np.where(told, 1 + np.minimum(powers, MAX_CLASS + 1), 0))


def cache_classes(cached: Floats, prompt: Floats) -> Kinds:
    """How much of a prompt was cached: none, part, most (half and above), or unknown."""
    told = ~np.isnan(cached) & (prompt != 0.0) & ~np.isnan(prompt)
    share = np.divide(cached, prompt, out=np.zeros(len(cached)), where=told)
    classes = np.where(share <= 0.0, 1, np.where(share >= MOST_CACHED, 3, 2))
    return Kinds((UNKNOWN, "none", "part", "most"), np.where(told, classes, 0))


def prompt_class(tokens: int | None) -> str:
    """A prompt's length by powers of two, such as 513-1024."""
    if tokens is None or tokens < 0:
        return UNKNOWN
    if tokens <= 1:
        return "0-1"
    power = (tokens - 1).bit_length()
    return f"{2 ** (power - 1) + 1}-{2**power}" if power <= MAX_CLASS else f"over {2**MAX_CLASS}"


def _sentence(report: TailReport) -> str:
    if report.why_unknown or report.tail_mean is None or report.bulk_mean is None:
        name = "TTFT" if report.of == "ttft" else "end-to-end time"
        return f"The cause of slow {name} is unknown: {report.why_unknown}."
    what = "to the first token" if report.of == "ttft" else "from end to end"
    words = [
        f"The slowest {report.tail} of {report.requests} requests took {_words(report.tail_mean)} {what} on average,"
        f" {_words(report.tail_mean - report.bulk_mean)} more than the faster half."
    ]
    told = [p for p in report.phases[:-1] if p.share is not None and p.share >= MENTIONED][:3]
    rest = report.phases[-1]
    if _share(rest) >= MENTIONED or not told:
        told.append(rest)
    first, *others = [f"{_percent(_share(p))}{{}} {IN_WORDS.get(p.name, p.name)}" for p in told]
    words.append(", ".join((first.format(" of the difference is"), *(one.format("") for one in others))) + ".")
    if report.queue_has_transfer and told[0].name == "queue":
        words.append("The queue phase may include KV transfer.")
    words += _who(report)
    return " ".join(words)


def _who(report: TailReport) -> Iterable[str]:
    if report.behind is not None:
        named = [one for one in report.behind.occupants if one.tenant not in (UNKNOWN, OTHER)]
        if named and named[0].share >= STANDS_OUT:
            yield f"They were queued behind tenant {named[0].tenant}, {_percent(named[0].share)} of the occupied time."
        elif named:
            yield "No tenant stands out among the requests that ran at that time."
    stands_out = next(
        (
            (group, value)
            for group in GROUPS
            for value in report.groups[group][:1]
            if value.value != UNKNOWN and value.share >= DOMINANT and value.lift >= 1.5
        ),
        None,
    )
    if stands_out is not None:
        group, value = stands_out
        names = {
            "tenant": f"of tenant {value.value}",
            "prompt_tokens": f"prompts of {value.value} tokens",
            "engine": f"on engine {value.value}",
            "cached": f"requests with {value.value} of the prompt cached",
        }
        expected = _percent(value.share / value.lift)
        yield f"{_percent(value.share)} of them are {names[group]}, compared with {expected} of all requests."


def _words(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{seconds * 1000:.3g} ms"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
