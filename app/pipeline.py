"""Where agent and diagnoser meet: records in, triage documents out, on whatever clock the records carry.

A live triage, the running agent, a recorded incident and the tests all go through this one class.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from kvitals.agent import objectives
from kvitals.agent.node import Node
from kvitals.agent.workers import Worker
from kvitals.app.derived_metrics.operating_families import Operating
from kvitals.app.last_cascade import with_last_cascade
from kvitals.app.sources.losses import SourceLoss, brief_with_losses, with_losses
from kvitals.config import Config
from kvitals.diagnoser.batch_signals import Ahead
from kvitals.diagnoser.engine_rows import with_engines
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.findings import Mute
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.last_regime import last_regime
from kvitals.diagnoser.replays import RecordedLookups, Replays
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import Brief, brief, headline, triage, true_findings
from kvitals.rules.finding import DocumentSource, Finding, Regime, SloInForce, Triage
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge
from kvitals.series.promql import evaluate, parse
from kvitals.series.recordings import Record
from kvitals.series.slices import Steps, complete
from kvitals.series.types import METRIC_NAME, Floats, Frame, Labels, Matcher, MatchOp, SeriesSource, SourceView

T = TypeVar("T")

_OBJECTIVES = parse('kvitals_slo_seconds{class=""}')
SIGNALS = "signals: "
"""What the groups of the signals' window are called begins with, in history."""
STEP_SECONDS = 5.0
FAST_SECONDS = 60.0
SLOW_SECONDS = 900.0
COLD_SECONDS = 90.0
"""With less than this seen before the moment that is judged, there is no history to speak of."""


def span_at(first: float, at: float, start: float | None = None) -> EvaluationSpan:
    """The span that a moment of a recording is judged over: the same on every surface.

    `first`: when the recording begins; `start`: when the window begins, where the user asks for one. Seconds since the
    epoch. The window never reaches back before the recording.
    """
    window = at - max(start, first) if start is not None else min(FAST_SECONDS, at - first)
    return EvaluationSpan(
        at, round(window, 3), SLOW_SECONDS, cold=at - first < COLD_SECONDS
    )  # as exact as `EvaluationSpan.at`


def watched_span(first: float, at: float, asked: float = FAST_SECONDS) -> EvaluationSpan:
    """The span that a moment is judged over by who has watched since `first`, in seconds since the epoch. asked: the
    short window in seconds, where there was so much to see: a rate over a minute of which a quarter was seen is a
    quarter."""
    seen = max(0.0, at - first)
    fast = min(asked, max(round(seen, 3), STEP_SECONDS))
    return EvaluationSpan(at, fast, SLOW_SECONDS, seen=seen)


def row_times(source: SeriesSource, start: float, end: float) -> Floats:
    """When there are rows of targets, in seconds since the epoch."""
    frames = source.select([Matcher(METRIC_NAME, MatchOp.EQ, ENTITIES)], start, end)
    return np.unique(np.concatenate([frame.times for frame in frames] or [np.empty(0)]))


def read_seconds(source: SeriesSource, at: float, asked: float, pause: float) -> float:
    """The seconds of a window of `asked` seconds before `at` that were read: where it begins in a pause of more than
    `pause` seconds, as of a machine that stood still, those since. A rate over all of it would lack what came then."""
    times = row_times(source, at - 2 * asked, at)
    place = int(np.searchsorted(times, at - asked, "right"))
    if 0 < place < len(times) and times[place] - times[place - 1] > pause:
        return min(asked, at - float(times[place]))
    return asked


@dataclass(frozen=True)
class Setup:
    """What a pipeline works with. `slo_sources`: objective -> where it was set, for those not from the file.
    `directories`: where the user's own rules are."""

    knowledge: Knowledge
    config: Config
    slo_sources: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[Path, ...] = ()


@dataclass
class Pipeline:
    """One node's telemetry and the judge over it."""

    setup: Setup
    source: DocumentSource
    node: Node = field(init=False)
    judge: Judge = field(init=False)
    operating: Operating | None = field(init=False)
    """What computes operating points; None where these are among the rows that are judged, as in history."""
    replays: Replays = field(init=False)
    judgements: list[Judgement] = field(default_factory=list)
    span: EvaluationSpan | None = None
    regime: Regime | None = None
    """Since when it has been as the last moment shows; None where that was not looked for or nothing changed."""
    losses: Sequence[SourceLoss] = ()
    """What could not be read of the source; each document states it."""
    judging: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while records are taken in and a moment is judged, in slices, on an event loop."""
    _document: Triage | None = None  # of `span`, made when first asked for
    _thread: Worker = field(default_factory=lambda: Worker("documents"))

    def __post_init__(self) -> None:
        knowledge = self.setup.knowledge
        self.node = Node(self.setup.config, self.setup.slo_sources)
        self.judge = Judge(knowledge, Ahead(knowledge, self.node.window), self.setup.config.params, glances=True)
        self.operating = Operating(self.node.window)
        self.replays = Replays(self._recorded)

    def reconfigure(self, setup: Setup) -> None:
        """Go on with another setup: same window, same memory of what was true since when, and the same course of the
        signals unless these are others now.

        Raises ConfigError where a target of it can not be watched, and then nothing changed. On an event loop, have
        the document made first (`settled`): many engines take half a second.
        """
        self.node.reconfigure(setup.config, setup.slo_sources)
        if self.span is not None:
            self.triage()  # the last moment was judged by the old rules, and is told by them until the next one
        if setup.knowledge.signals != self.judge.knowledge.signals:
            signals: Signals = Ahead(setup.knowledge, self.node.window)
        else:
            signals = self.judge.signals
        self.judge = self.judge.renewed(setup.knowledge, signals, setup.config.params)
        self.setup = setup

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        """Families and signals, as a source of series that stays the same through every `reconfigure`."""
        return self.judge.signals.source.select(matchers, start, end)

    def label_sets(self, matchers: Sequence[Matcher], start: float, end: float) -> set[Labels]:
        """The series that `select` would give."""
        return self.judge.signals.source.label_sets(matchers, start, end)

    def views(self, matchers: Sequence[Matcher], start: float, end: float) -> list[SourceView]:
        """What `select` needs, to be worked on in any thread."""
        return self.judge.signals.source.views(matchers, start, end)

    def whole_since(self, matchers: Sequence[Matcher]) -> float:
        """The time since which `select` finds all there ever was of these; infinity while there was nothing."""
        signals = self.judge.signals
        name = next((m.value for m in matchers if m.name == METRIC_NAME and m.op is MatchOp.EQ), "")
        if name:
            return (signals.store if name.startswith(SIGNAL_PREFIX) else self.node.window).whole_since
        both = [since for w in (signals.store, self.node.window) if (since := w.whole_since) < math.inf]
        return max(both, default=math.inf)

    def ingest_recorded(self, records: Iterable[Record]) -> None:
        """Take records in; nothing is judged."""
        for record in records:
            self.node.ingest_recorded(record)

    def flush(self, at: float) -> None:
        """A recording ends at `at`, seconds since the epoch: settle what waits for more, and compute what is computed
        now and then. To be judged next. Raises PromQLError."""
        self.node.flush(at)
        if self.operating is not None:
            self.operating.finish(at)

    def replay(self, records: Iterable[Record], step: float = STEP_SECONDS) -> Iterator[float]:
        """Take records in on their own clock, yielding at each moment when a cycle is due."""
        due: float | None = None
        for record in records:
            due = record.t + step if due is None else due
            while record.t > due:
                yield due
                due += step
            self.node.ingest_recorded(record)

    def look(self, at: float, fast: float = FAST_SECONDS) -> None:
        """Evaluate the signals of one moment without judging, so that their course can be shown."""
        self.judge.signals.observe(EvaluationSpan(at, fast, SLOW_SECONDS, cold=True))

    def observe(self, at: float, *, fast: float = FAST_SECONDS, cold: bool = False) -> None:
        """Judge one moment over the `fast` seconds before it."""
        complete(self.observe_steps(EvaluationSpan(at, fast, SLOW_SECONDS, cold)))

    def observe_span(self, span: EvaluationSpan) -> None:
        """Judge the end of a span."""
        complete(self.observe_steps(span))

    def observe_steps(self, span: EvaluationSpan) -> Steps[None]:
        """Judge the end of a span in steps, between which nothing may be fed and no document asked for."""
        if self.operating is not None:
            yield from self.operating.cycle_steps(span.at)
        judgements = yield from self.judge.judge_steps(span)
        self._judged(span, judgements)

    def observe_all(self, spans: Sequence[EvaluationSpan]) -> Iterator[float]:
        """Judge spans one after another, of which all records are in, as `observe_span` does each; yields each then."""
        if self.operating is not None:
            for span in spans:
                self.operating.cycle(span.at)
        assert isinstance(self.judge.signals, Ahead)
        for _, alike in groupby(spans, key=lambda span: (span.fast, span.slow, span.cold)):
            together = list(alike)
            self.judge.signals.foresee(together)
            for span in together:
                self._judge(span)
                yield span.at

    def _judge(self, span: EvaluationSpan) -> None:
        judgements = self.judge.judge(span)
        self._judged(span, judgements)

    def _judged(self, span: EvaluationSpan, judgements: list[Judgement]) -> None:
        self.span, self.judgements, self.regime, self._document = span, judgements, None, None

    def observe_last_regime(self, first: float, at: float) -> None:
        """Judge the end of a recording over the time since its load or a latency last changed level, at most over
        `FAST_SECONDS`. first: when the recording begins; both in seconds since the epoch."""
        regime = last_regime(self.judge, self._mutes(), first, at)
        start = None if regime is None else max(regime.since, at - FAST_SECONDS)
        self.observe_span(span_at(first, at, start))
        self.regime = regime

    async def settled(self, work: Callable[[], T]) -> T:
        """Run in a thread what reads the last moment that was judged, such as `triage`, which takes up to a second of
        many engines. Nothing is fed or judged meanwhile. Raises what `work` raises."""
        async with self.judging:
            return await self._thread.run(work)

    def triage(self) -> Triage:
        """The document of the last moment that was observed."""
        if self.span is None:
            raise RuntimeError("observe() comes first")
        if self._document is None:
            self._document = self._triage(self.span)
        return self._document

    def verdict(self) -> str:
        """The document's verdict; the document itself is made when somebody asks for it."""
        if self.span is None or self._document is not None:
            return self.triage().verdict
        if self.losses:
            return self.brief(None).verdict
        return headline(self.judge, self.judgements, self.span, self._mutes())

    def brief(self, before: Brief | None) -> Brief:
        """The beginning of the document of the last moment that was observed; the document is not made for it.
        `before`: that of the moment before."""
        if self.span is None:
            raise RuntimeError("observe() comes first")
        open_ = before.open if before is not None else ()
        made = brief(self.judge, self.judgements, self.span, self._mutes(), open_)
        return brief_with_losses(made, self.losses, self.span.start, self.span.at)

    def true_findings(self, known: Container[str] = ()) -> dict[str, Finding | None]:
        """The findings of the document that are true, muted ones included, by episode; the document is not made for
        them. None of the episodes that are `known`."""
        return true_findings(self.judge, self.judgements, self.span, known) if self.span is not None else {}

    def _triage(self, span: EvaluationSpan) -> Triage:
        document = triage(self.judge, self.judgements, span, self.source, self._slo(span.at), self._mutes())
        document = with_engines(document, self.judge, self.judgements, span)
        document = self.replays.told(document, self.setup.knowledge)
        document = msgspec.structs.replace(document, regime=self.regime)
        document = with_losses(document, self.losses)
        ledger = self.node.ledger
        return document if ledger is None else with_last_cascade(document, ledger.cascades.report())

    def _recorded(self) -> RecordedLookups | None:
        """The look-ups that the ledger has, and the blocks of each engine."""
        ledger = self.node.ledger
        accesses = ledger.accesses() if ledger is not None else None
        if ledger is None or accesses is None:
            return None
        return RecordedLookups(
            accesses, {name: one.ledger.pool for name, one in ledger.engines.items() if one.ledger.pool}
        )

    def _slo(self, at: float) -> list[SloInForce]:
        """What the engines are judged by, each value once; where there is no engine, what one would be judged by."""
        found = evaluate(_OBJECTIVES, self.node.window, at)
        series = () if isinstance(found, float) else found
        said = {(labels["slo"], value, labels["source"]) for labels, value in series}
        general = objectives.general(self.setup.config, self.setup.slo_sources)
        return [
            SloInForce(*one) for one in sorted(said or {(g.name, g.seconds, g.source) for g in general}, key=_by_name)
        ]

    def _mutes(self) -> list[Mute]:
        return mutes(self.setup.config)


def mutes(config: Config) -> list[Mute]:
    """The rules that the configuration asks not to hear of."""
    return [Mute(m.rule, m.reason, m.entity, m.until.timestamp() if m.until else None) for m in config.mutes]


def _by_name(objective: tuple[str, float, str]) -> tuple[int, float, str]:
    name, seconds, source = objective
    return objectives.NAMES.index(name), seconds, source
