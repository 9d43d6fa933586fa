"""Whether a lever worked: a change of an engine's configuration, and signals before and after it at a like load.

A change is seen by what the engine tells of itself (`kvitals_engine_fact`, `kvitals_engine_info`). It is compared with
what had been predicted of the levers that it pulled, and with what these levers move.

Each signal is looked at over several parts of the time before and of the time after. It changed where nearly all pairs
of a part before and a part after are in the same order (the statistic of Mann and Whitney, Annals of Mathematical
Statistics 1947).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import msgspec

from kvitals.diagnoser.steps import STEP_ROWS, Ask
from kvitals.diagnoser.text import render
from kvitals.rules.engine_flags import GUESSED
from kvitals.rules.engine_map import UNSET_FACTS
from kvitals.rules.expressions import expression
from kvitals.rules.finding import Effect, EffectVerdict, LeverAdvice, PredictedValue
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import SCOPES, Lever, Quantity, Signal
from kvitals.rules.versions import in_range
from kvitals.series.types import METRIC_NAME, Labels

FACT, INFO = "kvitals_engine_fact", "kvitals_engine_info"
FACTS = (INFO, FACT)
"""Read in this order: a number that an endpoint reports stands over a flag that is not set."""
NOT_SET = "not set"
DERIVED = frozenset(("kv_blocks", "kv_capacity_tokens", "kv_memory_bytes", "weight_memory_bytes", "kv_max_concurrency"))
"""Facts that follow from others, or differ by chance from start to start."""
OBSERVED = frozenset(("kv events",))
"""Sources of facts that are seen in traffic: their beginning is no change of the configuration."""
PASSING = frozenset(("untested", "served_model_name"))
VERSION, VERSION_SOURCE = "version", "version_source"
_FACT = re.compile(r'fact="(\w+)"')
PARTS = 4
"""Of the time before and after, each looked at by itself."""
MOST_SECONDS = 300.0
LEAST_SECONDS = 15.0
SETTLE_SECONDS = 15.0
"""After the first load that the changed engine has: caches are empty and graphs not captured."""
ALIKE = 0.25
"""By how much load may differ to be alike."""
REACHED = 0.5
"""Of the predicted change, for a lever to have worked."""
NOTICEABLE = 0.05
NOTICEABLE_SHARE = 0.02
ORDERED = 0.9
"""Of the pairs of parts before and after that have to be in the same order, for a signal to have changed."""
BUSY = 0.1
"""Requests at a time: with fewer there is no load to compare at."""
LEAST_PAUSE_SECONDS = 10.0
UNSEEN = 0.25
"""Of its value that a signal has to change by where it is not known how much it varies by itself."""
MOST_SHOWN = 3
MOVED: dict[Quantity, tuple[str, str]] = {
    "ttft": ("ttft_mean_seconds", "mean time to first token"),
    "itl": ("itl_mean_seconds", "mean time between tokens"),
    "hits": ("prefix_hit_ratio", "prompt tokens found in the cache"),
    "errors": ("failed_per_request", "requests that failed"),
}
THROUGHPUT = "finished_per_second"
_LENGTHS = {"prompt_tokens_mean": "prompts", "output_tokens_mean": "answers"}

Outcome = EffectVerdict | Literal["cannot be judged"]
Values = Mapping[str, Mapping[Labels, float]]
"""Signal -> entity -> value."""
Look = Callable[[float, float], Values]
"""The signals at a time, over so many seconds before it."""


@dataclass(frozen=True)
class SettingChange:
    """What was before and is now; empty where it was or is not told, `NOT_SET` where a flag was or is not there."""

    name: str
    before: str
    after: str

    @property
    def is_a_move(self) -> bool:
        """Whether both values are known, so that it has a direction."""
        return NOT_SET not in (self.before, self.after)

    def __str__(self) -> str:
        return f"{self.name} {self.before or 'not reported'} → {self.after or 'not reported'}"


@dataclass(frozen=True)
class ConfigurationChange:
    """An engine's configuration became another. last: when the old one was last told, first: the new one first."""

    entity: Labels
    last: float
    first: float
    settings: tuple[SettingChange, ...]
    old: Mapping[str, str]
    new: Mapping[str, str]


@dataclass(frozen=True)
class Period:
    """A time with load, by its end and seconds."""

    end: float
    seconds: float

    @property
    def parts(self) -> list[tuple[float, float]]:
        """Parts of it, each by its end and seconds."""
        each = self.seconds / PARTS
        return [(self.end - i * each, each) for i in range(PARTS)][::-1]


@dataclass(frozen=True)
class LoadCourse:
    """How many requests an engine had at each row. gap: seconds between rows."""

    times: Sequence[float]
    requests: Sequence[float]
    gap: float

    @property
    def longest_pause(self) -> float:
        """Between two rows with load that belong to one time with load."""
        return max(STEP_ROWS * self.gap, LEAST_PAUSE_SECONDS)

    def busy_times(self, start: float, end: float) -> list[float]:
        """The rows with load between two times."""
        rows = zip(self.times, self.requests, strict=True)
        return [t for t, count in rows if start - 1e-6 <= t <= end + 1e-6 and count >= BUSY]


def load_course(ask: Ask, start: float, end: float, gap: float) -> LoadCourse:
    """The load of the one engine that is asked about, at most so much of it as one question answers."""
    step = max(gap, 1.0)
    begin = max(start, end - (PIECE_STEPS - 1) * step)
    rows: dict[float, float] = {}
    for family in ("kvitals_requests_running", "kvitals_requests_waiting"):
        for one in ask(expression(f"avg_over_time({family}[{math.ceil(step)}s])"), begin, end, step):
            for t, value in zip(one.times.tolist(), one.values.tolist(), strict=True):
                rows[t] = rows.get(t, 0.0) + value
    times = sorted(rows)
    return LoadCourse(times, [rows[t] for t in times], gap)


PIECE_STEPS = 10_000
"""Steps of one question: a source answers no more than 11,000."""


def changes(ask: Ask, start: float, end: float, gap: float) -> list[ConfigurationChange]:
    """Every change of an engine's configuration that was seen, the latest last. gap: seconds between rows."""
    told: dict[Labels, dict[float, dict[str, str]]] = {}
    pieces = [start + i * PIECE_STEPS * gap for i in range(1 + int((end - start) // (PIECE_STEPS * gap)))]
    for family, begin in product(FACTS, pieces):
        for one in ask(expression(family), begin, min(begin + (PIECE_STEPS - 1) * gap, end), gap):
            entity = one.labels.keep(SCOPES["engine"])
            rows = told.setdefault(entity, {})
            for t, value in zip(one.times.tolist(), one.values.tolist(), strict=True):
                rows.setdefault(round(t, 3), {}).update(stated_settings(family, one.labels, value))
    found = [change for entity, rows in told.items() for change in _of_engine(entity, rows)]
    return sorted(found, key=lambda change: change.first)


def latest_changes(ask: Ask, start: float, end: float, gap: float) -> dict[Labels, ConfigurationChange]:
    """The last change of each engine's configuration from start to end, of engines that had one."""
    return {change.entity: change for change in changes(ask, start, end, gap)}


def stated_settings(family: str, labels: Labels, value: float) -> dict[str, str]:
    """What a series tells of a configuration: names and values."""
    if family == FACT:
        return (
            {} if labels["fact"] in DERIVED or labels.get("source") in OBSERVED else {labels["fact"]: f"{value:.12g}"}
        )
    rest = labels.drop(METRIC_NAME, "cluster", "node", "engine", "pool", "model", "role", "hardware", *PASSING)
    unset = {name for name in rest.get(UNSET_FACTS, "").split(",") if name} - DERIVED
    return dict.fromkeys(unset, NOT_SET) | dict(rest.drop(UNSET_FACTS))


def _of_engine(entity: Labels, rows: Mapping[float, Mapping[str, str]]) -> Iterator[ConfigurationChange]:
    """Between rows next to each other that say otherwise of what both tell; a fact is not gone because a scrape was."""
    before: tuple[float, dict[str, str]] | None = None
    for t in sorted(rows):
        now = dict(rows[t])
        if before is not None:
            then, old = before
            if settings := differences(old, now):
                yield ConfigurationChange(entity, then, t, settings, old, now)
            now = known_since(old, now)
        before = t, now


def known_since(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """What is known after a row. A guess takes the place of no version that the engine itself told."""
    known = {**old, **new}
    if VERSION in old and _is_guess(new) and not _is_guess(old):
        known |= {name: old[name] for name in (VERSION, VERSION_SOURCE) if name in old}
    return known


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[SettingChange, ...]:
    """What both tell, and tell otherwise. A guessed version is the oldest that has all names of the page: it rises with
    a name that appears, and no version changed."""
    both = (old.keys() & new.keys()) - {VERSION_SOURCE}
    if _is_guess(old) or _is_guess(new):
        both -= {VERSION}
    names = sorted(name for name in both if not _same(name, old[name], new[name]))
    return tuple(SettingChange(one, old[one], new[one]) for one in names)


def _is_guess(told: Mapping[str, str]) -> bool:
    return told.get(VERSION_SOURCE) == GUESSED


def _same(name: str, old: str, new: str) -> bool:
    """Whether nothing changed; one source may tell a version to fewer places than another."""
    return old == new or (name == VERSION and (old.startswith(f"{new}.") or new.startswith(f"{old}.")))


def busy(load: LoadCourse, start: float, end: float, most: float = MOST_SECONDS) -> Period | None:
    """The last time with load between two times that is long enough, without what is earlier than the last so many
    seconds of it; None where none is."""
    last = previous = math.inf
    for t in (*load.busy_times(start, end)[::-1], -math.inf):
        if previous - t > load.longest_pause:
            if math.isfinite(last) and last - previous >= LEAST_SECONDS:
                return Period(last, min(last - previous, most))
            last = t
        previous = t
    return None


@dataclass(frozen=True)
class BeforeAfter:
    """The value of a query for the changed engine before and after; None where it has none."""

    before: Callable[[str], float | None]
    after: Callable[[str], float | None]


def pulled_levers(change: ConfigurationChange, knowledge: Knowledge, sides: BeforeAfter) -> list[Lever]:
    """The levers that a change pulled: their setting moved as they would have moved it then, or what tells that they
    are in force became so."""
    named = {one.name: one for one in change.settings}
    return [lever for lever in knowledge.levers.values() if _pulls(lever, named, change, sides)]


def _pulls(lever: Lever, named: Mapping[str, SettingChange], change: ConfigurationChange, sides: BeforeAfter) -> bool:
    if lever.in_force and sides.before(lever.in_force) is None and sides.after(lever.in_force) is not None:
        return True
    system, version = change.new.get("system", ""), change.new.get("version", "")
    of_force = _FACT.findall(lever.in_force)
    for setting in lever.settings:
        if setting.system != system or (version and not in_range(version, setting.versions)):
            continue
        facts = [fact for fact in _FACT.findall(setting.now) if fact in named and named[fact].is_a_move]
        if lever.in_force and not set(facts) & set(of_force):  # something else puts it in force, and that did not come
            continue
        moved = [_moved(named[fact]) for fact in facts]
        if moved and lever.direction and (moved[0] > 0) != (lever.direction == "up"):
            continue
        wanted = sides.before(setting.to) if moved and setting.to else None
        now = sides.before(setting.now) if wanted is not None else None
        if wanted is not None and now is not None and moved[0] * (wanted - now) > 0:
            return True
    return False


def as_set(advice: LeverAdvice, lever: Lever, change: ConfigurationChange) -> LeverAdvice:
    """Advice with the value that was set in place of the one that had been advised."""
    told = advice.setting
    named = {one.name: one for one in change.settings}
    for setting in lever.settings if told is not None else ():
        facts = [fact for fact in _FACT.findall(setting.now) if fact in named]
        if told is not None and setting.flag == told.flag and facts:
            one = named[facts[0]]
            made = msgspec.structs.replace(told, now=one.before, to=one.after)
            return msgspec.structs.replace(advice, setting=made, predicted=[])
    return advice


def _moved(setting: SettingChange) -> float:
    return float(setting.after) - float(setting.before)


def unlike(entity: Labels, before: Values, after: Values) -> str:
    """Why the load before and after can not be compared; empty where it can.

    With another demand, more or fewer requests come and more or fewer are there. Where the engine became another only
    one of these changes, or they do so in opposite ways: clients that wait for their answers come more often, and fewer
    of them wait.
    """
    for name, title in _LENGTHS.items():
        a, b = (values.get(name, {}).get(entity) for values in (before, after))
        if a and b and abs(b - a) > ALIKE * a:
            return f"{title} were {render(a, 'tokens')} on average and are {render(b, 'tokens')}"
    came, come = (_arriving(entity, values) for values in (before, after))
    counts = [(measure(entity, before), measure(entity, after)) for measure in (_there, _resident)]
    pairs = [(there, now) for there, now in counts if there is not None and now is not None]
    if came is None or come is None or counts[0] not in pairs:
        return "the load is not reported"
    if all(_both_moved(come - came, ALIKE * came, now - there, ALIKE * there) for there, now in pairs):
        there, now = pairs[0]
        return (
            f"arrivals went from {render(came, 'per_second')} with {render(there, 'requests')} at a time to "
            f"{render(come, 'per_second')} with {render(now, 'requests')} at a time"
        )
    return ""


def _both_moved(come: float, least_come: float, there: float, least_there: float) -> bool:
    """Whether two differences are larger than is alike, in one direction."""
    return (come > least_come and there > least_there) or (come < -least_come and there < -least_there)


def _arriving(entity: Labels, values: Values) -> float | None:
    finished = values.get(THROUGHPUT, {}).get(entity)
    growth = values.get("waiting_growth_per_second", {}).get(entity, 0.0)
    return None if finished is None else max(finished + growth, 0.0)


def _there(entity: Labels, values: Values) -> float | None:
    running, waiting = (values.get(name, {}).get(entity) for name in ("running_avg", "waiting_avg"))
    return None if running is None else running + (waiting or 0.0)


def _resident(entity: Labels, values: Values) -> float | None:
    """Requests at a time by Little's law. Gauges leave out requests that wait in the engine's API server, so that an
    engine whose API server is slower shows fewer; their residence includes that wait."""
    return values.get("residence_concurrency", {}).get(entity)


@dataclass(frozen=True)
class SignalCourse:
    """A signal's value over a period and over those parts of it in which it is told."""

    value: float
    parts: tuple[float, ...]

    def apart(self, other: SignalCourse) -> bool:
        """Whether the other course is elsewhere: nearly all pairs of parts are in one order, and the values differ by
        what can be noticed."""
        least = NOTICEABLE
        pairs = [(mine, theirs) for mine in self.parts for theirs in other.parts]
        if len(self.parts) > 1 and len(other.parts) > 1:
            rises = sum(theirs > mine for mine, theirs in pairs) / len(pairs)
            falls = sum(theirs < mine for mine, theirs in pairs) / len(pairs)
            if max(rises, falls) < ORDERED or (rises > falls) != (other.value > self.value):
                return False
        else:
            least = UNSEEN
        return abs(other.value - self.value) > least * abs(self.value)


@dataclass(frozen=True)
class SignalCourses:
    """Signals over a whole period and over its parts."""

    whole: Values
    parts: Sequence[Values]

    def course(self, signal: str, entity: Labels) -> SignalCourse | None:
        """The value over the whole period and over its parts."""
        value = self.whole.get(signal, {}).get(entity)
        if value is None:
            return None
        parts = tuple(part[signal][entity] for part in self.parts if entity in part.get(signal, {}))
        return SignalCourse(value, parts)


def observe_period(look: Look, period: Period) -> SignalCourses:
    """What signals were in a period."""
    parts = [look(end, seconds) for end, seconds in period.parts]
    return SignalCourses(look(period.end, period.seconds), parts)


def effects(
    entity: Labels,
    levers: Sequence[Lever],
    predicted: Sequence[PredictedValue],
    sides: tuple[SignalCourses, SignalCourses],
    known: Knowledge,
) -> list[Effect]:
    """What became of what was predicted, then of what the levers move besides, then of what else users notice."""
    wanted: dict[str, tuple[str, PredictedValue | None]] = {one.metric: (one.title, one) for one in predicted}
    for name, title in (*watched_signals(levers), *watched_signals(())):
        wanted.setdefault(name, (title, None))
    found = (_effect(entity, known.signals[name], name, *told, *sides) for name, told in wanted.items())
    return [one for one in found if one is not None]


def watched_signals(levers: Sequence[Lever]) -> Iterator[tuple[str, str]]:
    """The signals that levers move, for better or worse, with their titles; without a lever those that any may move."""
    quantities = {quantity for lever in levers for quantity in (*lever.moves, *lever.worsens)} or set(MOVED)
    yield from (signal for quantity, signal in MOVED.items() if quantity in quantities)
    yield THROUGHPUT, "requests that finish"


def _effect(
    entity: Labels,
    signal: Signal,
    name: str,
    title: str,
    told: PredictedValue | None,
    before: SignalCourses,
    after: SignalCourses,
) -> Effect | None:
    was, now = before.course(name, entity), after.course(name, entity)
    if was is None or now is None:
        return None
    text = f"{render(was.value, signal.unit)} → {render(now.value, signal.unit)}"
    return Effect(name, title, signal.unit, was.value, now.value, told, _verdict(signal, told, was, now), text)


def _verdict(signal: Signal, told: PredictedValue | None, was: SignalCourse, now: SignalCourse) -> EffectVerdict:
    moved = now.value - was.value
    if not was.apart(now):
        return "nothing"
    if told is not None and told.to != told.from_:
        share = moved / (told.to - told.from_)
        return "worse" if share < 0 else "in part" if share < REACHED else "worked"
    if signal.better == "neither":
        return "nothing"
    return "worked" if (moved < 0) == (signal.better == "lower") else "worse"


def conclude(
    found: Sequence[Effect], unlike: str, levers: Sequence[Lever]
) -> tuple[EffectVerdict | Literal["cannot be judged"], str]:
    """The whole, and one sentence of it."""
    if unlike:
        return "cannot be judged", f"Cannot be judged: the load is not comparable ({unlike})."
    if not found:
        return "cannot be judged", "Cannot be judged: no signal has a value both before and after."
    promised = [one for one in found if one.predicted is not None and _is_promise(one.predicted)]
    verdict = _together([one.verdict for one in promised or found if one.verdict != "not judged"])
    if not promised and any(one.metric == THROUGHPUT and one.verdict == "worse" for one in found):
        verdict = "worse"  # whatever else became better, fewer are served
    name = " and ".join(f"“{lever.title}”" for lever in levers) or "The change"
    told = {
        "worked": f"{name} worked",
        "in part": f"{name} worked in part",
        "nothing": f"{name} did nothing that shows",
        "worse": f"{name} made it worse",
    }[verdict]
    shown = _shown(promised or found, verdict)
    cost = [one for one in found if one.verdict == "worse" and one not in shown]
    numbers = "; ".join(f"{one.title} {one.text}" for one in shown)
    beside = f", at the cost of {'; '.join(f'{one.title} {one.text}' for one in cost)}" if cost else ""
    return verdict, f"{told}: {numbers}{beside}."


def _is_promise(told: PredictedValue) -> bool:
    """Whether a prediction is of a change that can be noticed: nothing is decided by one that nothing changes."""
    least = NOTICEABLE_SHARE if told.unit == "ratio" else NOTICEABLE * max(abs(told.from_), abs(told.to))
    return abs(told.to - told.from_) > least


def _shown(effects: Sequence[Effect], verdict: EffectVerdict) -> list[Effect]:
    """The effects that the verdict rests on."""
    if verdict == "in part":
        return [one for one in effects if one.verdict != "nothing"]
    return [one for one in effects if one.verdict == verdict][:MOST_SHOWN]


def _together(verdicts: Sequence[EffectVerdict]) -> EffectVerdict:
    several = set(verdicts) - {"nothing"}
    if not several:
        return "nothing"
    if several == {"worse"}:
        return "worse"
    return "worked" if several == {"worked"} else "in part"
