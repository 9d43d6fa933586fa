"""One engine under observation for the time of a trial: its pages each second, and signals over any block of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Self

from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.prove.actuator import CommandError
from kvitals.app.sources.recording import with_window
from kvitals.diagnoser.change_effect import ConfigurationChange, Values, changes
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.steps import objectives
from kvitals.diagnoser.text import render
from kvitals.rules.expressions import expression
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.rules.model import SCOPES
from kvitals.series.promql import Expr, Series, evaluate_range, expand, parse
from kvitals.series.types import Labels

SCRAPE_SECONDS = 1.0
RECENT_SECONDS = 5.0
BUSY_REQUESTS = 0.1
LOOKBACK_SECONDS = 60.0
_START = parse("max(kvitals_process_start_time_seconds)")


class Replica:
    """An engine by its URL.

    async with Replica(setup, url, 600.0) as replica:
        await replica.watch(60.0)
        replica.values(replica.last, 10.0)
    """

    def __init__(self, setup: Setup, url: str, seconds: float) -> None:
        """seconds: how far back signals are asked for, at most."""
        self.url = url
        self.pipeline = Pipeline(with_window(setup, seconds + LOOKBACK_SECONDS), DocumentSource("live", url))
        self.last = 0.0
        """When the page was read last, seconds since the epoch."""
        self._signals = Signals(setup.knowledge, self.pipeline.node.window)
        self._entity: Labels | None = None

    async def __aenter__(self) -> Self:
        await self.pipeline.node.open([self.url], once=True)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.pipeline.node.close()

    async def scrape(self) -> bool:
        """Read the page once; whether it could be read. An engine that closes the connection is down as well."""
        self.pipeline.ingest_recorded(await self.pipeline.node.read())
        self.last = time.time()
        return not self.problem

    @property
    def problem(self) -> str:
        """Why the engine cannot be read; empty where it can."""
        return "; ".join(self.pipeline.node.watched.problems())

    def values(self, end: float, seconds: float) -> Values:
        """The signals over so many seconds before `end`."""
        known = self._signals.observe(EvaluationSpan(end, seconds, seconds, cold=True))
        return {name: one.values for name, one in known.items()}

    @property
    def entity(self) -> Labels:
        """The one engine at the URL. Raises CommandError where the page is of none or of several."""
        if self._entity is None:
            running = self.values(self.last, LOOKBACK_SECONDS).get("running_avg", {})
            if len(running) != 1:
                count = "no engine" if not running else f"{len(running)} engines"
                raise CommandError(f"{self.url} reports {count}; name the URL of one engine")
            self._entity = next(iter(running))
        return self._entity

    def of_engine(self, values: Values) -> dict[str, float]:
        """What signals are of this engine."""
        return {name: of[self.entity] for name, of in values.items() if self.entity in of}

    def is_busy(self) -> bool:
        """Whether there were requests in the last seconds."""
        now = self.of_engine(self.values(self.last, RECENT_SECONDS))
        return now.get("running_avg", 0.0) + now.get("waiting_avg", 0.0) >= BUSY_REQUESTS

    def started(self) -> float | None:
        """When the engine's process started, as its newest page says; None where it does not."""
        found = evaluate_range(_START, self.pipeline.node.window, self.last, self.last, SCRAPE_SECONDS)
        return float(found[-1].values[-1]) if found else None

    def objectives(self) -> dict[str, float]:
        """What the engine is judged by: name -> seconds."""
        return objectives(self._ask, self.last).get(self.entity, {})

    def triage(self, seconds: float) -> Triage:
        """The verdict on the last seconds."""
        self.pipeline.observe(self.last, fast=seconds, cold=True)
        return self.pipeline.triage()

    def change_since(self, start: float) -> ConfigurationChange | None:
        """The latest change of the engine's configuration since then; None where its facts are the same."""
        found = [one for one in changes(self._ask, start, self.last, SCRAPE_SECONDS) if one.entity == self.entity]
        return found[-1] if found else None

    def number(self, text: str, at: float) -> float | None:
        """The value of a lever's query for this engine at a moment; None where it has none."""
        scope, span = SCOPES["engine"], EvaluationSpan(at, LOOKBACK_SECONDS, LOOKBACK_SECONDS, cold=True)
        found = self._ask(expression(expand(text, span.windows.values("fast", "engine"))), at, at, SCRAPE_SECONDS)
        mine = [one for one in found if one.labels.keep(scope) in (self.entity, Labels({}))]
        return float(mine[-1].values[-1]) if mine else None

    def _ask(self, expr: Expr, start: float, end: float, step: float) -> list[Series]:
        return evaluate_range(expr, self._signals.source, start, end, step)


async def watch(replicas: list[Replica]) -> bool:
    """Read all pages once, and wait for the rest of the second; whether the first of the replicas answered."""
    begun = time.monotonic()
    answers = await asyncio.gather(*(replica.scrape() for replica in replicas))
    await asyncio.sleep(max(0.0, SCRAPE_SECONDS - (time.monotonic() - begun)))
    return answers[0]


def load_sentence(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """What the load was on both sides, in numbers."""
    names = {
        "finished_per_second": ("requests finished", "per_second"),
        "prompt_tokens_mean": ("prompts", "tokens"),
        "output_tokens_mean": ("answers", "tokens"),
    }
    known = [
        f"{title} {render(before[name], unit)} → {render(after[name], unit)}"
        for name, (title, unit) in names.items()
        if name in before and name in after
    ]
    return ", ".join(known)
