"""Series as a query's thread reads them: the event loop takes a view, the thread copies what it selects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from kvitals.series.history.federated import FederatedReader, StoredPast
from kvitals.series.promql import QueryLimitError
from kvitals.series.promql.grid import QueryBudget
from kvitals.series.types import Frame, Labels, Matcher, SeriesSource, SourceView, TooManyCellsError, views

SELECT_SECONDS = 5.0
TOO_MANY = "the query touches too many samples: select fewer series or a shorter range"


class ReadsHistoryError(Exception):
    """A query reads history, which the thread of such queries does."""


class HistoryElsewhere:
    """Stands for history in all other threads."""

    def select(self, *_: object) -> list[Frame]:
        raise ReadsHistoryError

    def labels(self, *_: object) -> set[Labels]:
        raise ReadsHistoryError


class SeriesReader:
    """Reads a source from another thread than its loop's: the loop takes a view, the thread selects from it.

    budget: what the thread may use; selections spend its `samples`. past: what is on disk. Raises PromQLError where the
    budget has run out, and TimeoutError when the loop is stuck.
    """

    def __init__(
        self,
        source: SeriesSource,
        whole_since: Callable[[Sequence[Matcher]], float],
        loop: asyncio.AbstractEventLoop,
        budget: QueryBudget | None = None,
        past: StoredPast | None = None,
    ) -> None:
        self.past = past
        self._source = source
        self._whole_since = whole_since
        self._loop = loop
        self._budget = budget

    def joined(self) -> SeriesSource:
        """The source with what is on disk before it."""
        return self if self.past is None else FederatedReader(self, self.past, self._budget)

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        found = self.recent(matchers, start, end)[0]
        if self._budget is not None:
            self._budget.take(sum(frame.values.size for frame in found))
        return found

    def recent(self, matchers: Sequence[Matcher], start: float, end: float) -> tuple[list[Frame], float]:
        """What is selected, and the time since which that is all there was."""
        taken, since = self._taken(matchers, start, end)
        left = self._budget.samples if self._budget is not None else None
        found = []
        for view in taken:
            try:
                frame = view.frame(self._check, left)
            except TooManyCellsError:
                raise QueryLimitError(TOO_MANY) from None
            if frame is not None:
                found.append(frame)
                left = None if left is None else left - frame.values.size
        self._keep(taken)
        return found, since

    def label_sets(self, matchers: Sequence[Matcher], start: float, end: float) -> tuple[set[Labels], float]:
        """The series that would be selected, and the time since which these are all there were."""
        taken, since = self._taken(matchers, start, end)
        found = {labels for view in taken for labels in view.label_sets(self._check)}
        self._keep(taken)
        return found, since

    def _check(self) -> None:
        if self._budget is not None:
            self._budget.take(0)

    def _keep(self, taken: Sequence[SourceView]) -> None:
        def keep() -> None:
            for view in taken:
                view.keep()

        self._loop.call_soon_threadsafe(keep)

    def _taken(self, matchers: Sequence[Matcher], start: float, end: float) -> tuple[Sequence[SourceView], float]:
        self._check()
        taken: Future[tuple[Sequence[SourceView], float]] = Future()

        def take() -> None:
            if not taken.set_running_or_notify_cancel():
                return
            try:
                taken.set_result((views(self._source, matchers, start, end), self._whole_since(matchers)))
            except Exception as error:
                taken.set_exception(error)

        self._loop.call_soon_threadsafe(take)
        try:
            return taken.result(SELECT_SECONDS)
        finally:
            taken.cancel()
