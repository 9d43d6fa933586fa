"""From the raw pages of one target to families in the window.

What the series of a page mean is worked out once per layout (`kvitals.agent.collectors.page_reading`) and compiled into
arrays that say for each position of the page where its value goes. After that a page costs a few array operations,
however many series it has.

Four defects are corrected on the way, because readers of the window cannot correct them:

* A histogram's `_sum` that falls while its `_count` does not is a defect of the engine and no reset. The
  interval is dropped: the histogram has no sample in that row, and from then on its series are shifted so
  that they go on where they were, as if that interval had seen nothing. Without the shift, the next `rate()`
  would take the fall for a reset and add the whole sum. Histograms that share the broken clock lose the
  interval too.
* A value that cannot be true by what its metric is (`kvitals.rules.value_bounds`), and a histogram with such a value or
  with buckets out of order (fewer observations up to a larger bound), has no sample in that row.
* A restart is told from the process's start time, or without one from any counter that falls; it is counted,
  the shifts end, and what was learned from outside the page is forgotten, since flags may have changed. Another
  program at the same address is one too.
* Several raw series that are one series here (a label that no family has) are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from kvitals.agent.collectors.page_parser import MAX_NAME_SERIES, PageLayout, PageSamples
from kvitals.agent.collectors.page_plan import (
    PagePlan,
    PlannedFold,
    RawHistogram,
    RawSource,
    carry,
    columns_of,
    empty_plan,
    fold,
    group_histograms,
    is_defect,
    pair_buckets,
    shift_back,
)
from kvitals.agent.collectors.page_reading import MAX_LABEL, Reading, read, recognise
from kvitals.agent.collectors.page_reading import PAGE as WHOLE
from kvitals.agent.collectors.status import Identity, ScrapeOutcome, TargetStatus
from kvitals.rules.engine_map import EngineMap
from kvitals.series.slices import Steps, complete
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import SeriesGroup, Window

PAGE = "metrics page"
VERSION = "version endpoint"
MODELS = "models endpoint"
SERVER_INFO = "server info endpoint"
CONFIGURATION = "configuration"

MAX_RANKS = 256
"""Engines on one page, those that went away within the window included. Each is judged by every rule."""

MAX_ADAPTERS = 64
"""LoRA adapters in use within the window that have series of their own; more are "other"."""

FEW_SERIES = 500
"""So many are understood, or placed, at one go: in some milliseconds."""

REFUSED_SECONDS = 60.0
"""After so long, columns that the window's cap refused are asked for again."""

STATUS_BYTES = 100_000
"""What a target's page leaves to the series about the target itself: one engine has 60 of them."""

MAX_UNKNOWN = 50
"""Unknown names that are said one by one."""

_NO_ENGINE = (
    "This is a metrics page, but it does not belong to an engine that kvitals knows ({known}). Check the URL. "
    "An engine whose statistics are switched off (vLLM: --disable-log-stats) also looks like this."
)


class _Admission:
    """Lets in at most so many different names within the retention: those known already, then new ones."""

    def __init__(self, most: int, retention: float) -> None:
        self._most = most
        self._retention = retention
        self.known: dict[str, float] = {}  # name -> when it was last there

    def admit(self, t: float, names: Sequence[str]) -> list[str]:
        """Those of the names that are let in at `t`."""
        there = set(names)
        self.known = {
            n: t if n in there else at for n, at in self.known.items() if n in there or t - at <= self._retention
        }
        for name in names:
            if len(self.known) >= self._most:
                break
            self.known.setdefault(name, t)
        return [name for name in names if name in self.known]


class Translator:
    """Turns one target's pages into families. Pure: time comes with the page, nothing is read or sent."""

    def __init__(
        self,
        window: Window,
        key: str,
        identity: Identity,
        maps: Sequence[EngineMap],
        prefixes: Mapping[str, str] | None = None,
    ) -> None:
        self._group: SeriesGroup = window.group(key, key, STATUS_BYTES)
        self._group.name_series = MAX_NAME_SERIES
        self.identity = identity
        self._maps = maps
        self._prefixes = dict(prefixes or {})
        self.status = TargetStatus(window, key, identity)
        self._plan: PagePlan | None = None
        self._facts: dict[str, dict[str, float]] = {}  # source -> facts, of all ranks
        self._info: dict[str, dict[str, str]] = {}
        self._outdated = False  # the plan was made with other facts than are known now
        self._again_at = float("inf")  # when columns that were refused are asked for again
        self._ranks = _Admission(MAX_RANKS, window.retention)
        self._names = _Admission(MAX_UNKNOWN, window.retention)
        self._unknown: list[str] = []  # raw names that the map does not know, not more than are told
        self._restarts: dict[str, int] = {}  # rank -> restarts seen
        self._changes: dict[Labels, float] = {}  # counters of changes
        self._started: float | None = None  # the process's start time on the last good page
        self._adapters = _Admission(MAX_ADAPTERS, window.retention)
        self._lora_columns: set[int] = set()
        self.wants_facts = False
        """What only other endpoints tell is not known, or was learned before a restart."""

    @property
    def reading(self) -> Reading | None:
        """How the last good page was understood: version, ranks, facts, unknown and missing names."""
        return self._plan.reading if self._plan is not None else None

    @property
    def restarts(self) -> int:
        """Restarts that were seen, of all ranks."""
        return sum(self._restarts.values())

    def good(self, t: float, page: PageSamples, duration: float, size: int) -> ScrapeOutcome:
        """Take a page that could be parsed. It may still be no engine's, which the outcome says then."""
        return complete(self.good_steps(t, page, duration, size))

    def good_steps(self, t: float, page: PageSamples, duration: float, size: int) -> Steps[ScrapeOutcome]:
        """The same in steps: a page with another layout than before takes long. One at a time."""
        system = recognise(page.layout, self._maps, self._prefixes) if page.fresh else None
        if page.fresh and system is None:
            self.forget()
        elif system is not None and self.reading is not None and system.system != self.reading.system.system:
            self._begin_anew(self.reading.ranks)  # another program listens there now
            self._started = None
            self.forget()
        if page.fresh and system is not None:
            yield from self._compile(t, page.layout, system)
        elif self._plan is not None and (self._outdated or t >= self._again_at):
            yield from self._compile(t, self._plan.layout, self._plan.reading.system)
            values = self._plan.reported.copy()
            values[page.indices] = page.values
            page = PageSamples(page.layout, True, np.arange(values.size), values, page.timestamped)
        if self._plan is None:
            known = ", ".join(m.title for m in self._maps)
            return self.bad(t, "no_engine", _NO_ENGINE.format(known=known), duration)
        self._write(self._plan, t, page)
        self._count_drops(self._plan, page)
        return self._row(t, ScrapeOutcome("ok", duration, size, page.samples, len(self._plan.reading.unknown)))

    def bad(self, t: float, reason: str, message: str, duration: float) -> ScrapeOutcome:
        """There is no page, or no use for it: the target's families have no sample in this row."""
        self._group.append_gap(t)
        return self._row(t, ScrapeOutcome(reason, duration, message=message))

    def learn(self, source: str, facts: Mapping[str, float], info: Mapping[str, str]) -> None:
        """Facts from beside the page. They replace what the source said before and show in the next row."""
        before = self._told_version()
        self._facts[source], self._info[source] = dict(facts), dict(info)
        self._outdated |= self._told_version() != before
        self._say_facts()

    def forget(self) -> None:
        """Begin anew with the next fresh page; the window keeps what it has."""
        if self._plan is not None:
            self._group.end(sorted(self._plan.used | self._lora_columns))
            self._lora_columns.clear()
        self._plan = None

    def _row(self, t: float, outcome: ScrapeOutcome) -> ScrapeOutcome:
        self.status.row(t, outcome)
        return outcome

    def _told_version(self) -> str:
        told = (self._info.get(source, {}).get("version", "") for source in (VERSION, SERVER_INFO))
        return next(filter(None, told), "")

    def _compile(self, t: float, layout: PageLayout, system: EngineMap) -> Steps[None]:
        before, self._outdated = self._plan, False
        if self.reading is not None:
            self._ranks.admit(t, self.reading.ranks)
        admit = partial(self._ranks.admit, t)
        version, known = self._told_version(), self.reading

        def understand() -> Reading:
            return read(layout, system, version, self.identity, known, self._prefixes, admit)

        reading: Reading = (yield understand) if len(layout.series) > FEW_SERIES else understand()
        self._restarts = {rank: n for rank, n in self._restarts.items() if rank in self._ranks.known}
        self._unknown = self._names.admit(t, [name for name in reading.unknown if len(name) <= MAX_LABEL])
        plan = empty_plan(layout, reading)
        if before is not None:
            carry(before, plan)
        sources: dict[Labels, list[RawSource]] = {}
        largest: set[Labels] = set()
        for position, meaning in enumerate(reading.meanings):
            for m in (meaning, *meaning.also) if meaning is not None else ():
                sources.setdefault(m.labels, []).append(RawSource(position, m.scale, m is meaning))
                largest.update([m.labels] if m.largest else [])
            if position % FEW_SERIES == 0:
                yield None
        for number, (labels, several) in enumerate(sources.items()):
            self._place(plan, labels, several, labels in largest)
            if number % FEW_SERIES == 0:
                yield None
        plan.folds = [
            (PlannedFold.of(made), how) for made, how in ((plan.sums, np.add), (plan.peaks, np.maximum)) if made
        ]
        columns = (self._group.column(labels) for labels in reading.zeros)
        plan.zeros = {column: 0.0 for column in columns if column is not None}
        yield None
        self._count_changes_of(plan)
        yield None
        group_histograms(plan)
        yield None
        pair_buckets(plan)
        yield None
        if before is not None:
            self._group.end(sorted(before.used - plan.used))
        else:
            self.wants_facts = True
        if not reading.adapters:
            self._group.end(sorted(self._lora_columns))
            self._lora_columns.clear()
        self._plan = plan
        self._again_at = t + REFUSED_SECONDS if plan.refused else float("inf")
        self._understood(reading)

    def _place(self, plan: PagePlan, labels: Labels, sources: list[RawSource], largest: bool) -> None:
        column = self._group.column(labels)
        if column is None:
            plan.refused += len(sources)
        elif len(sources) == 1 and sources[0].alone:
            plan.columns[sources[0].position] = column
        else:
            (plan.peaks if largest else plan.sums)[column] = sources

    def _count_changes_of(self, plan: PagePlan) -> None:
        for position, meaning in enumerate(plan.reading.meanings):
            if meaning is not None and meaning.changes is not None:
                column = self._group.column(meaning.changes)
                if column is not None:
                    plan.changes[position] = (meaning.changes, column)
        self._changes = {counter: n for counter, n in self._changes.items() if counter in self._group}

    @np.errstate(over="ignore", invalid="ignore")  # a page may have any number: sums and scales of them overflow
    def _write(self, plan: PagePlan, t: float, page: PageSamples) -> None:
        index, new = page.indices, page.values
        old, were_unusable = plan.raw[index], plan.unusable
        before = {position: float(plan.raw[position]) for position in plan.changes}
        new, changed = plan.take(index, new)
        gaps = plan.gaps
        fell = (new < old) & plan.index_monotone  # false where there was no value, which is NaN
        if plan.unusable or were_unusable:
            fell &= ~np.isin(index, [*plan.unusable, *were_unusable])
        for reason, samples in plan.dropped().items():
            self.status.drop(reason, samples)
        if changed:
            self._say_unusable(plan)
        if self._has_new_start_time(plan):
            self._restarted(plan, plan.reading.ranks)
        elif fell.any():
            was = dict(zip(index.tolist(), old.tolist(), strict=True))
            gaps = [*gaps, *self._mend(plan, index[fell].tolist(), was)]
        if plan.shifted:
            new = new + plan.shift[index]
        if plan.scaled:
            new = new * plan.scales[index]
        columns = plan.index_columns
        folded = plan.zeros | fold(plan) if plan.folds or plan.zeros else {}
        if plan.reading.adapters:
            folded |= self._adapters_in_use(t, plan)
        folded |= self._changed(plan, before)
        if folded:
            columns = np.concatenate((columns, np.fromiter(folded, np.intp)))
            new = np.concatenate((new, np.fromiter(folded.values(), np.float64)))
        if not self._group.append(t, columns, new, gaps):
            self.status.drop("clock", page.samples)

    def _changed(self, plan: PagePlan, before: Mapping[int, float]) -> dict[int, float]:
        """Columns and values of counters of changes. What a series has when first seen is no change."""
        for position, (counter, _) in plan.changes.items():
            now, was = float(plan.raw[position]), before[position]
            event = now != was and now != 0 and not np.isnan(was) and not np.isnan(now)
            self._changes[counter] = self._changes.get(counter, 0.0) + event
        return {column: self._changes[counter] for counter, column in plan.changes.values()}

    def _has_new_start_time(self, plan: PagePlan) -> bool:
        before = self._started
        start = plan.reading.start
        if start is not None and np.isnan(plan.raw[start]):
            return False
        self._started = float(plan.raw[start]) if start is not None else None
        return before is not None and self._started is not None and before != self._started

    def _mend(self, plan: PagePlan, fallen: list[int], was: Mapping[int, float]) -> list[int]:
        """See to values that fell; returns the columns that have no sample in this row.

        `was` has the values before, by position, of what changed.
        """
        broken: list[RawHistogram] = []
        reset: set[str] = set()
        for position in fallen:
            histogram = plan.histograms.get(position)
            if histogram is not None and is_defect(plan, histogram, position, was):
                broken.append(histogram)
                continue
            for member in histogram.members if histogram is not None else [position]:
                plan.shift[member] = 0.0
            meaning = plan.reading.meanings[position]
            reset.update([meaning.rank] if meaning and meaning.rank is not None else plan.reading.ranks)
        if reset and plan.reading.start is None:
            self._restarted(plan, sorted(reset))
        clocks = {histogram.together for histogram in broken if histogram.together}
        broken += [h for h in plan.histograms.values() if h.together in clocks]
        members = {member for histogram in broken for member in histogram.members}
        for member in members:
            shift_back(plan, member, was.get(member, float(plan.raw[member])))
        plan.shifted = bool(plan.shift.any())
        self.status.drop("falling_sum", len(members))
        return columns_of(plan, members)

    def _restarted(self, plan: PagePlan, ranks: Iterable[str]) -> None:
        plan.shift[:] = 0.0
        plan.shifted = False
        self._begin_anew(ranks)
        self._understood(plan.reading)

    def _begin_anew(self, ranks: Iterable[str]) -> None:
        """Count a restart and forget what was learned from beside the page."""
        for rank in ranks:
            self._restarts[rank] = self._restarts.get(rank, 0) + 1
        self._facts = {source: facts for source, facts in self._facts.items() if source == CONFIGURATION}
        self._info = {source: info for source, info in self._info.items() if source == CONFIGURATION}
        self._outdated = True
        self.wants_facts = True

    def _adapters_in_use(self, t: float, plan: PagePlan) -> dict[int, float]:
        """Columns and values of the LoRA families: the newest of the engine's reports holds."""
        usable = [report for report in plan.reading.adapters if not np.isnan(plan.raw[report[0]])]
        if not usable:
            self._group.end(sorted(self._lora_columns))
            self._lora_columns.clear()
            return {}
        newest = max(usable, key=lambda report: plan.raw[report[0]])
        using = newest[1]
        named = self._adapters.admit(t, sorted(using))
        values = {("kvitals_lora_adapters_active", ""): float(len(using))}
        values["kvitals_lora_report_timestamp_seconds", ""] = float(plan.raw[newest[0]])
        for name in self._adapters.known:
            values["kvitals_lora_adapter_active", name] = float(name in using)
        if len(named) < len(using):
            values["kvitals_lora_adapter_active", "other"] = 1.0
        ranks = plan.reading.ranks
        engine = plan.reading.engine(ranks[0] if len(ranks) == 1 else None, self.identity)
        columns: dict[int, float] = {}
        for (family, name), value in values.items():
            column = self._group.column(self.identity.series(family, engine, adapter=name))
            if column is not None:
                columns[column] = value
        self._group.end(sorted(self._lora_columns - columns.keys()))
        self._lora_columns = set(columns)
        return columns

    def _count_drops(self, plan: PagePlan, page: PageSamples) -> None:
        self.status.drop("duplicate", page.layout.duplicates)
        self.status.drop("own_timestamp", page.timestamped)
        self.status.drop("series_cap", plan.refused + plan.reading.oversized + plan.reading.left_out)
        self.status.drop("scale", plan.reading.unscaled)
        self.status.drop("bucket_bound", plan.reading.boundless)

    def _understood(self, reading: Reading) -> None:
        """Say what a layout tells beside its values."""
        engines = {rank: reading.engine(rank, self.identity) for rank in reading.entities}
        self.status.identify(list(engines.values()))
        for topic, pairs in (("missing", reading.missing), ("outdated", reading.outdated)):
            name = f"kvitals_family_{topic}"
            said = {
                self.identity.series(name, engine, family=family, raw=raw): 1.0
                for engine in engines.values()
                for family, raw in pairs
            }
            self.status.say(topic, said)
        name = "kvitals_name_unknown"
        unknown = [self.identity.series(name, e, raw=raw) for e in engines.values() for raw in self._unknown]
        self.status.say("unknown", dict.fromkeys(unknown, 1.0))
        restarts = {engines[rank]: float(self._restarts.get(rank, 0)) for rank in engines}
        name = "kvitals_engine_restarts_total"
        self.status.say("restarts", {self.identity.series(name, e): count for e, count in restarts.items()})
        users = (gpu.with_(**{METRIC_NAME: "kvitals_gpu_user", "user": user}) for gpu, user in reading.users)
        self.status.say("users", dict.fromkeys(users, 1.0))
        self._say_facts()

    def _say_unusable(self, plan: PagePlan) -> None:
        """Say which metrics have values that are not used, and why."""
        said = {}
        for (engine, family, raw), reason in plan.unusable_families().items():
            labels = self.identity.series("kvitals_family_unusable", engine, family=family, raw=raw, reason=reason)
            said[labels] = 1.0
        self.status.say("unusable", said)

    def strings(self) -> dict[str, dict[str, str]]:
        """What is known of each engine of the page as strings: its model, role, version and so on, where known."""
        ranks = self.reading.entities if self.reading else [WHOLE]
        return {engine: self._strings(rank) for rank, engine in zip(ranks, self.status.engines, strict=False)}

    def _say_facts(self) -> None:
        reading = self.reading
        facts: dict[Labels, float] = {}
        infos: dict[Labels, float] = {}
        for rank, engine in zip(reading.entities if reading else [WHOLE], self.status.engines, strict=False):
            own = reading.facts.get(rank, {}) if reading else {}
            for source, known in ({PAGE: own} | self._facts).items():
                for fact, number in known.items():
                    labels = self.identity.series("kvitals_engine_fact", engine, fact=fact, source=source)
                    facts[labels] = number
            strings = self._strings(rank)
            if strings:
                infos[self.identity.series("kvitals_engine_info", engine, **strings)] = 1.0
        self.status.say("facts", facts)
        self.status.say("info", infos)

    def _strings(self, rank: str) -> dict[str, str]:
        strings: dict[str, str] = {}
        reading = self.reading
        if reading is not None:
            strings |= reading.info.get(rank, {})
            strings |= {"system": reading.system.system, "kind": reading.kind(rank)}
            strings |= {"model": reading.models.get(rank, ""), "role": reading.roles.get(rank, "")}
            strings |= {"version": reading.version, "version_source": reading.version_source}
            strings["untested"] = "true" if reading.system.untested(reading.version) else ""
        for source, info in self._info.items():
            strings |= {k: v for k, v in info.items() if not (source == VERSION and k == "version")}
        if reading is not None and not strings.get("role"):
            strings["role"] = reading.system.roles.get(strings.get("kv_role", ""), "")
        strings["role"] = self.identity.labels.get("role") or strings.get("role", "")
        return {name: text for name, text in strings.items() if text}
