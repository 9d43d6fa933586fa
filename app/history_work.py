"""Work over a day of an agent's history that the agent has done in a process of its own: how, and within which limits.

A history holds what engines reported, and a day of many engines takes hundreds of megabytes to read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from kvitals.agent.logger import Logger
from kvitals.app.bounded_process import WorkLimitError, WorkLimits, WorkRefusedError, run_bounded
from kvitals.app.derived_metrics.operating_families import PastSteps, past_steps
from kvitals.app.derived_metrics.scaling_audit import audited_day
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import HistoryError
from kvitals.series.promql import PromQLError
from kvitals.series.types import Labels

T = TypeVar("T")
LIMITS = WorkLimits(120.0)
_log = Logger()


class HistoryWork:
    """Of one history. Methods block, come to None where there is no result, and log why that is."""

    def __init__(self, path: Path, gap: float) -> None:
        """gap: seconds between rows."""
        self._path = path
        self._gap = gap

    def past_steps(self, until: float) -> PastSteps | None:
        """As the function."""
        return self._result("the operating points of the last day", _past_steps, until, self._gap)

    def audited_day(self, now: float, general: float) -> dict[Labels, float] | None:
        """As the function."""
        return self._result("the audit of scaling signals", _audited_day, now, self._gap, general)

    def _result(self, what: str, work: Callable[..., T], *arguments: float) -> T | None:
        if not self._begun():
            return None
        try:
            return run_bounded(work, self._path, *arguments, limits=LIMITS)
        except WorkRefusedError:  # history reports itself what is wrong with it
            return None
        except WorkLimitError as error:
            _log.warning("not read from history", what=what, why=str(error))
            return None

    def _begun(self) -> bool:
        try:
            with contextlib.closing(HistoryReader(self._path)) as reader:
                return reader.span() is not None
        except HistoryError:
            return False


def _past_steps(path: Path, until: float, gap: float) -> PastSteps:
    with _reading(path) as reader:
        return past_steps(reader, until, gap)


def _audited_day(path: Path, now: float, gap: float, general: float) -> dict[Labels, float]:
    with _reading(path) as reader:
        return audited_day(reader, now, gap, general)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[HistoryReader]:
    try:
        with contextlib.closing(HistoryReader(path)) as reader:
            yield reader
    except (HistoryError, PromQLError) as error:
        raise WorkRefusedError(str(error)) from error
