"""Why some requests are slow: the slow tail of a window of requests beside its faster half.

    report = Recent(records, start, end).explain(of="ttft")
    print(report.sentence)     # which phase explains it, who they are, whom they waited behind

Pure, and the same in whatever order the records come. What a phase explains is its mean excess over the faster half, as
a share of the whole excess; a share is below 0 where the tail was faster in that phase, and they add up to 1 with what
is unattributed. A phase that is unknown is not 0: its time stays unattributed. docs/tail.md says more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from agent.requests.occupancy import OTHER, UNKNOWN, Behind, Work
from agent.requests.part import PHASES
from agent.requests.record import UNATTRIBUTED, RequestRecord

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
    UNATTRIBUTED: "not accounted for",
}

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


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
    start: float  # requests that ended from here on
    end: float
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

    def __init__(self, records: Iterable[RequestRecord], start: float, end: float) -> None:
        """Of `records` those that ended from `start` to `end` are explained; the others count only among those that
        were running meanwhile."""
        around = list(records)
        here = sorted((r for r in around if start <= r.end <= end), key=lambda r: (-r.end, r.start, r.id, r.trace))
        self.records = here[:MAX_RECORDS]
        self.start = start if len(here) <= MAX_RECORDS else self.records[-1].end
        self.end = end
        self._work = Work(around)
        self._timed = {of: _Timed.of(self.records, of) for of in OFS}
        self._by_engine = _by_engine(self.records)
        self._beside: list[tuple[float, float] | None] | None = None  # longest gap, share of prefills beside

    def explain(
        self,
        of: Of = "ttft",
        objective: Objective = lambda _: None,
        engines: Collection[str] | None = None,
        over: dict[str, str] | None = None,
    ) -> TailReport:
        """What explains the tail of those at some engines, or of all.

        Of time to first token the tail is who missed the objective, where those are at least MIN_TAIL and less than
        half; else it is who is above p95. `over` says what the requests have in common.
        """
        timed = self._timed[of].at(engines)
        count, everybody = len(timed.records), len(_at(engines, self._by_engine, len(self.records)))
        said = TailReport(
            of=of, start=self.start, end=self.end, over=over or {}, requests=count, without=everybody - count
        )
        split = _split(timed, objective)
        if isinstance(split, str):
            return msgspec.structs.replace(said, why_unknown=split)
        phases = _explain(timed, split)
        by_share = sorted(phases[:-1], key=lambda p: (p.share is None, -_share(p)))
        tail = [timed.records[i] for i in np.flatnonzero(split.tail)[::-1]]
        said = msgspec.structs.replace(
            said,
            by=split.by,
            threshold=split.threshold,
            tail=len(tail),
            bulk=int(split.bulk.sum()),
            tail_mean=float(timed.totals[split.tail].mean()),
            bulk_mean=float(timed.totals[split.bulk].mean()),
            phases=(*by_share, phases[-1]),
            queue_has_transfer=any(_hides_transfer(r) for r in tail),
            groups={group: _group(group, tail, timed.records) for group in GROUPS},
            worst=tuple(tail[:WORST]),
        )
        if said.dominant is None or said.dominant.name != "queue":
            return said
        behind = self._work.in_front(tail)
        if isinstance(behind, str):
            return msgspec.structs.replace(said, why_not_behind=behind)
        return msgspec.structs.replace(said, behind=behind)

    def prefills_beside(self, engines: Collection[str] | None = None) -> PrefillsBeside | None:
        """Whether long gaps between a request's outputs come where others are in prefill; None where that is unknown.

        By the longest gap between outputs that a request's observer saw.
        """
        if self._beside is None:
            self._beside = [self._gap(record) for record in self.records]
        here = sorted(one for i in _at(engines, self._by_engine, len(self.records)) if (one := self._beside[i]))
        if not here:
            return None
        longest, beside = np.array(here).T
        tail, bulk = longest > _quantile(longest, TAIL), longest <= _quantile(longest, 0.5)
        if tail.sum() < MIN_TAIL or bulk.sum() < MIN_BULK:
            return None
        return PrefillsBeside(float(beside[tail].mean()), float(beside[bulk].mean()), int(tail.sum()))

    def _gap(self, record: RequestRecord) -> tuple[float, float] | None:
        share = self._work.beside(record) if record.itl_max is not None else None
        return (record.itl_max, share) if record.itl_max is not None and share is not None else None


def spent(record: RequestRecord, of: Of) -> list[float]:
    """What the phases took of a request's time of this kind, in the order of PHASES; NaN is unknown.

    Of the time to first token they have what fits in, the earlier ones first and the gateway last: what passed there
    before and after the first token is not told apart. So together they never take more than there is.
    """
    left = _time(record, of) or 0.0
    phases = {phase.name: phase.seconds for phase in record.phases}
    counted = BEFORE_FIRST if of == "ttft" else PHASES
    found = dict.fromkeys(PHASES, 0.0)
    for name in (*PHASES[1:], PHASES[0]):
        if name not in counted:
            continue
        seconds = phases.get(name, 0.0) if phases else None
        if seconds is None:
            found[name] = float("nan")
            continue
        found[name] = min(max(seconds, 0.0), left)
        left -= found[name]
    return list(found.values())


@dataclass(frozen=True)
class _Timed:
    """Requests with a time, the fastest first."""

    records: Sequence[RequestRecord]
    totals: Floats
    phases: Floats  # a row a request, a column a phase of PHASES
    by_engine: Mapping[str, list[int]]

    @classmethod
    def of(cls, records: Sequence[RequestRecord], of: Of) -> _Timed:
        timed = [(seconds, record) for record in records if (seconds := _time(record, of)) is not None]
        timed.sort(key=lambda one: (one[0], one[1].start, one[1].end, one[1].id, one[1].trace))
        ordered = [record for _, record in timed]
        phases = np.array([spent(record, of) for record in ordered]).reshape(len(timed), len(PHASES))
        return cls(ordered, np.array([seconds for seconds, _ in timed]), phases, _by_engine(ordered))

    def at(self, engines: Collection[str] | None) -> _Timed:
        """Those at some engines, or all."""
        if engines is None:
            return self
        here = _at(engines, self.by_engine, len(self.records))
        return _Timed([self.records[i] for i in here], self.totals[here], self.phases[here], {})


@dataclass(frozen=True)
class _Split:
    tail: Bools
    bulk: Bools
    by: Literal["p95", "objective"]
    threshold: float | None


def _by_engine(records: Sequence[RequestRecord]) -> dict[str, list[int]]:
    """The places of each engine's requests; of a pair a request is at both."""
    found: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        for engine in set(record.engines.values()):
            found.setdefault(engine, []).append(i)
    return found


def _at(engines: Collection[str] | None, by_engine: Mapping[str, list[int]], count: int) -> list[int]:
    """The places, in order, of requests at some engines, or of all."""
    if engines is None:
        return list(range(count))
    if len(engines) == 1:
        return by_engine.get(next(iter(engines)), [])
    return sorted({i for engine in engines for i in by_engine.get(engine, ())})


def _time(record: RequestRecord, of: Of) -> float | None:
    """A request's time; end to end only of one that came to its end."""
    if of == "ttft":
        return record.ttft
    return record.e2e if record.outcome == "success" else None


def _split(timed: _Timed, objective: Objective) -> _Split | str:
    """Which requests are the tail and which the faster half, or why that can not be told."""
    totals = timed.totals
    if not totals.size:
        return "no request told its time"
    bulk = totals <= _quantile(totals, 0.5)
    by: Literal["p95", "objective"] = "objective"
    goals = [objective(record) for record in timed.records]
    tail = np.array([goal is not None and total > goal for total, goal in zip(totals, goals, strict=True)], np.bool_)
    threshold = goals[0] if len(set(goals)) == 1 else None
    if not MIN_TAIL <= tail.sum() < totals.size / 2:
        by, threshold = "p95", _quantile(totals, TAIL)
        tail = totals > threshold
        if tail.sum() < MIN_TAIL and (totals >= threshold).sum() < totals.size / 2:
            tail = totals >= threshold  # some are equally slow, as in logs with whole seconds
    bulk &= ~tail
    if tail.sum() < MIN_TAIL or bulk.sum() < MIN_BULK:
        few = f"{tail.sum()} slow and {bulk.sum()} fast ones of {totals.size} requests"
        return f"{few} are too few to compare: it takes {MIN_TAIL} and {MIN_BULK}"
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


def _hides_transfer(record: RequestRecord) -> bool:
    return any(phase.name == "transfer" and phase.seconds is None for phase in record.phases)


def _share(phase: PhaseExcess) -> float:
    return phase.share if phase.share is not None else float("-inf")


def _group(group: str, tail: Sequence[RequestRecord], everybody: Sequence[RequestRecord]) -> tuple[GroupValue, ...]:
    among_all = Counter(value for record in everybody for value in _values(group, record))
    among_tail = Counter(value for record in tail for value in _values(group, record))
    found = []
    for value, count in among_tail.items():
        share, expected = count / len(tail), among_all[value] / len(everybody)
        found.append((expected - share, value, GroupValue(value, count, among_all[value], share, share / expected)))
    return tuple(one for _, _, one in sorted(found, key=lambda each: each[:2])[:MAX_VALUES])


def _values(group: str, record: RequestRecord) -> Iterable[str]:
    """What a request is in a group; of a pair it has two engines."""
    if group == "tenant":
        return (record.tenant or UNKNOWN,)
    if group == "engine":
        return sorted(set(record.engines.values())) or (UNKNOWN,)
    return (prompt_class(record.prompt_tokens),) if group == "prompt_tokens" else (cache_class(record),)


def prompt_class(tokens: int | None) -> str:
    """A prompt's length by powers of two, such as 513-1024."""
    if tokens is None or tokens < 0:
        return UNKNOWN
    if tokens <= 1:
        return "0-1"
    power = (tokens - 1).bit_length()
    return f"{2 ** (power - 1) + 1}-{2**power}" if power <= MAX_CLASS else f"over {2**MAX_CLASS}"


def cache_class(record: RequestRecord) -> str:
    """How much of a prompt was cached: none, part, most (half and above), or unknown."""
    if record.cached_tokens is None or not record.prompt_tokens:
        return UNKNOWN
    share = record.cached_tokens / record.prompt_tokens
    return "none" if share <= 0.0 else "most" if share >= MOST_CACHED else "part"


def _sentence(report: TailReport) -> str:
    what = "to the first token" if report.of == "ttft" else "from end to end"
    if report.why_unknown or report.tail_mean is None or report.bulk_mean is None:
        return f"What makes requests slow {what} is unknown: {report.why_unknown}."
    words = [
        f"The slowest {report.tail} of {report.requests} requests took {_words(report.tail_mean)} {what} on average,"
        f" {_words(report.tail_mean - report.bulk_mean)} more than the faster half;"
    ]
    told = [p for p in report.phases[:-1] if p.share is not None and p.share >= MENTIONED][:3]
    rest = report.phases[-1]
    if _share(rest) >= MENTIONED or not told:
        told.append(rest)
    first, *others = [f"{_percent(_share(p))}{{}} {IN_WORDS.get(p.name, p.name)}" for p in told]
    words.append(", ".join((first.format(" of that is"), *(one.format("") for one in others))) + ".")
    if report.queue_has_transfer and told[0].name == "queue":
        words.append("The queue's part may be KV transfer that can not be told apart.")
    words += _who(report)
    return " ".join(words)


def _who(report: TailReport) -> Iterable[str]:
    if report.behind is not None:
        named = [one for one in report.behind.occupants if one.tenant not in (UNKNOWN, OTHER)]
        if named and named[0].share >= STANDS_OUT:
            yield f"They were queued behind tenant {named[0].tenant}, {_percent(named[0].share)} of the occupied time."
        elif named:
            yield "No tenant stands out among those whose requests ran meanwhile."
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
        yield f"{_percent(value.share)} of them are {names[group]}, as are {expected} of all."


def _words(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{seconds * 1000:.3g} ms"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
