"""The request side of a node: parts in, records and families out. Does no I/O and has no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.requests import assembly
from kvitals.agent.requests.assembly import Assembly
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.agent.requests.phases import Waited
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.request_families import Exemplar, RequestFamilies
from kvitals.agent.requests.slow_tail_families import Tails
from kvitals.agent.requests.stitch import LIMITS, Stitcher, StitchLimits
from kvitals.agent.requests.store import Store
from kvitals.agent.requests.ttft_objectives import ClassOf, TtftObjectives
from kvitals.series.slices import Steps, complete
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window


class WatchedEngines(assembly.EngineFactSource, Protocol):
    """What is known of engines that are watched."""

    def labels(self, engine: str) -> Mapping[str, str] | None:
        """The labels of an engine's series, by its label `engine`; None for one that is not watched."""


class RequestSide:
    """Stitches parts, keeps the records and counts them."""

    def __init__(
        self,
        window: Window,
        labels: Mapping[str, str],
        engines: WatchedEngines,
        waited: Waited,
        top: int,
        limits: StitchLimits = LIMITS,
        class_of: ClassOf = lambda _: "",
    ) -> None:
        """`labels` are this node's; `waited`: whether requests waited for capacity at an engine; `top`: tenants that
        have series of their own; `class_of`: the class of a tenant."""
        self.store = Store()
        self._labels = dict(labels)
        self._class_of = class_of
        self._classes = GaugeRows(window, "tenant_classes")
        self._assembly = Assembly(engines, waited)
        self._families = RequestFamilies(window, labels, engines.labels, top)
        self.objective = TtftObjectives(window, class_of)
        self.tails = Tails(window, labels, engines.labels, self.objective, self._families.label)
        self.send: Callable[[RequestRecord], None] | None = None  # who else is given each record
        self.observe: Callable[[RequestRecord], None] | None = None  # and who else on this node
        self._stitcher = Stitcher(self._give, engines.role, limits)
        self._is_used = False

    def feed(self, record: PartsRecord) -> None:
        """Take parts in."""
        complete(self.feed_steps(record))

    def feed_steps(self, record: PartsRecord) -> Steps[None]:
        """The same in steps."""
        self._is_used = True
        yield from self._stitcher.add_steps(record.t, record.parts)

    def advance(self, t: float) -> None:
        """Give out what is done by `t`, seconds since the epoch, and write a row."""
        complete(self.advance_steps(t))

    def advance_steps(self, t: float) -> Steps[None]:
        """The same in steps."""
        if self._is_used:
            yield from self._stitcher.advance_steps(t)
            if self._families.due(t):
                self._families.row(t, self._stitcher.open, self._stitcher.oldest(), self._stitcher.dropped)
                self._say_classes(t)
            yield None
            yield from self.tails.advance_steps(t)

    def flush(self) -> None:
        """Give out everything: nothing more is to come."""
        self._stitcher.flush()

    def finish(self, t: float) -> None:
        """Give out everything, write it down and explain the slow ones: nothing comes after `t`, seconds since the
        epoch."""
        opened, oldest = self._stitcher.open, self._stitcher.oldest()
        self.flush()
        if self._is_used:
            self._families.row(t, opened, oldest, self._stitcher.dropped)
            self.tails.flush(t)

    def exemplars(self) -> list[tuple[Labels, Exemplar]]:
        """For each bucket the last request that fell into it."""
        return list(self._families.exemplars())

    def _say_classes(self, t: float) -> None:
        """The classes of tenants that have series, so that these can be judged by what their class is promised."""
        classes = {tenant: class_ for tenant in self._families.tenants if (class_ := self._class_of(tenant))}
        named = ({"tenant": tenant, "class": class_} for tenant, class_ in classes.items())
        self._classes.write(
            t, {Labels({**self._labels, **one, METRIC_NAME: "kvitals_tenant_class"}): 1.0 for one in named}
        )

    def _give(self, parts: Sequence[RequestPart], whole: bool) -> None:
        record: RequestRecord = self._assembly.record(parts, whole)
        self.store.add(record)
        self._families.add(record)
        self.tails.add(record)
        if self.observe is not None:
            self.observe(record)
        if self.send is not None:
            self.send(record)
