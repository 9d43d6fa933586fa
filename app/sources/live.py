"""Looking at live engines for one window: what a cold `kvitals triage` does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from kvitals.agent.collectors.host import this_thread
from kvitals.agent.records import ProbeRecord
from kvitals.app.agent_client import (
    AgentAddressError,
    AgentClient,
    AgentSlowError,
    AgentUnreachableError,
    NotKvitalsError,
)
from kvitals.app.errors import NoEngineError
from kvitals.app.pipeline import FAST_SECONDS, Pipeline, Setup
from kvitals.app.sources.losses import SourceLoss, with_losses
from kvitals.diagnoser.entities import ENTITIES, INFO
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.triage import pending_judgements
from kvitals.rules.expressions import expression
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.series.promql import PromQLError, evaluate_range
from kvitals.series.recordings import Record
from kvitals.series.types import Labels

INTERVAL_SECONDS = 1.0
SILENT_SECONDS = 5.0
"""An engine that first answers after so long may have been stopped meanwhile; what was true then, nobody read."""
FIRST_LOOK_SECONDS = 4.0  # the evidence's course begins here: shorter windows say nothing


class TargetIdentity(NamedTuple):
    """What a target is, by its page; empty texts where the page does not show it."""

    engine: str
    system: str
    kind: str
    version: str
    role: str
    model: str


class Contact(NamedTuple):
    """When targets were first asked for something, in seconds since the epoch. own: seconds that this thread had run
    or had waited for a core until then, which are no silence of a target."""

    at: float
    own: float

    @classmethod
    def now(cls) -> Contact:
        known = this_thread()
        return cls(time.time(), sum(known) if known is not None else 0.0)


class Collector:
    """Scrapes targets every second, listens to their KV events meanwhile, and judges what it saw.

        async with Collector(setup, urls) as collector:
            async for seconds in collector.collect(12): ...
            document = collector.document()

    Without URLs it discovers the engines on this node; `said` tells what was found and what was learned. contacted:
    when the targets were first asked for something; None: now.
    """

    def __init__(self, setup: Setup, urls: Sequence[str], contacted: Contact | None = None) -> None:
        name = ", ".join(urls) if urls else "this node"
        self.pipeline = Pipeline(setup, DocumentSource("live", name))
        self._urls = urls
        self._contacted = contacted or Contact.now()
        self._answered: float | None = None
        self._started: float | None = None
        self._last = 0.0
        self.said: list[str] = []
        self.on_records: Callable[[Sequence[Record]], None] = lambda _: None
        """Called with the records of each scrape, before they are ingested."""

    async def __aenter__(self) -> Self:
        self.said = await self.pipeline.node.open(self._urls, once=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.pipeline.node.close()

    @property
    def targets(self) -> list[str]:
        """The URLs that are looked at."""
        return self.pipeline.node.targets

    def complaints(self) -> list[str]:
        """For each target that cannot be read, why and what to do."""
        return self.pipeline.node.watched.problems()

    def failures(self) -> dict[str, str]:
        """URLs of the targets that cannot be read -> why and what to do."""
        return self.pipeline.node.watched.failures

    def identities(self) -> list[TargetIdentity]:
        """What each target is whose last scrape was read, by its page. Two queries, however many targets there are."""
        window, at = self.pipeline.node.window, self._last
        up, info = (evaluate_range(expression(name), window, at, at, INTERVAL_SECONDS) for name in (ENTITIES, INFO))
        known = {one.labels.get("engine", ""): one.labels for one in info}
        engines = (one.labels.get("engine", "") for one in up if one.values.size and one.values[-1] == 1)
        return [
            TargetIdentity(engine, *(known.get(engine, Labels()).get(name, "") for name in TargetIdentity._fields[1:]))
            for engine in sorted(engines)
        ]

    async def collect(self, seconds: float, *, probe: bool = False) -> AsyncIterator[float]:
        """Scrape every second for `seconds`, yielding the seconds done. They count from the first scrape on, which may
        take long on a busy machine. With `probe` a one-token request is sent.

        Raises NoEngineError after the first scrape where every URL leads to no engine: more scrapes would show no more.
        """
        begun = time.monotonic()
        probing: asyncio.Task[list[ProbeRecord]] | None = None
        while (done := time.monotonic() - begun) < seconds or self._started is None:
            first = self._started is None
            await self._read(done)
            if first and self.pipeline.node.watched.no_engine:
                gone = self.pipeline.node.watched.unreachable
                why = "no target can be reached" if gone else "no target has an engine's metrics page"
                raise NoEngineError("\n".join([why, *self.complaints()]))
            begun = time.monotonic() if first else begun
            if probe and probing is None:  # after a page, which tells the model to ask for
                probing = asyncio.create_task(self.pipeline.node.probe())
            yield done
            await asyncio.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - begun - done)))
        if probing is not None:
            for answer in await probing:
                self.pipeline.node.ingest(answer)
                if answer.refused:
                    why = f"{answer.target} refused the test request with HTTP {answer.status}: it shows nothing"
                    self.pipeline.losses = [*self.pipeline.losses, SourceLoss(why, hides=False)]
            await self._read(time.monotonic() - begun)  # the row in which the probe's result stands

    async def _read(self, done: float) -> None:
        records = await self.pipeline.node.read()
        self.on_records(records)
        self.pipeline.ingest_recorded(records)
        self._last = time.time()
        self._started = self._started or self._last
        if self._answered is None and len(self.failures()) < len(self.targets):
            self._answered = self._last
            self._say_silence(self._answered)
        if done >= FIRST_LOOK_SECONDS:
            with contextlib.suppress(PromQLError):  # without this moment the course has a gap, and goes on
                self.pipeline.look(self._last, done)

    def _say_silence(self, answered: float) -> None:
        """That the targets took long to answer, less what this process took itself."""
        seconds = answered - self._contacted.at - (Contact.now().own - self._contacted.own)
        if seconds > SILENT_SECONDS:
            silent = f"{self.pipeline.source.name} gave no answer for the first {seconds:.0f} s"
            self.pipeline.losses = [SourceLoss(silent, self._contacted.at, self._last)]

    def document(self) -> Triage:
        """The verdict on what was seen so far, at most the configured window of it, without history. Raises
        QueryLimitError where the machine is too busy to judge."""
        seen = self._last - (self._started or self._last)
        fast = min(max(seen, INTERVAL_SECONDS), FAST_SECONDS)
        self.pipeline.observe(self._last, fast=fast, cold=True)
        return of_one_look(self.pipeline.triage(), self.pipeline.judgements)


def of_one_look(document: Triage, judgements: Sequence[Judgement]) -> Triage:
    """The document, with what to do where its verdict waits for how long something lasts: one look never shows that."""
    if document.healthy is not None or not pending_judgements(judgements):
        return document
    return with_losses(document, [SourceLoss("one look does not show if it lasts; `kvitals run` does", hides=False)])


async def agent_document(url: str) -> Triage | None:
    """The document of the kvitals agent at `url`; None where something else answers, or nothing. Raises AgentError
    where an agent is there and has no document."""
    client = AgentClient(url)
    if not await asyncio.to_thread(_may_be_agent, client):
        return None
    try:
        return await asyncio.to_thread(client.findings)
    except (NotKvitalsError, AgentUnreachableError, AgentAddressError):
        return None
    except AgentSlowError:
        if await asyncio.to_thread(_is_agent, client):
            raise
        return None  # an engine whose API server is overloaded is slow to answer 404


async def is_agent(url: str) -> bool:
    """Whether a kvitals agent answers at a URL."""
    client = AgentClient(url)
    return await asyncio.to_thread(_may_be_agent, client) and await asyncio.to_thread(_is_agent, client)


def _may_be_agent(client: AgentClient) -> bool:
    """Whether the metrics page leaves open that an agent is there: of an engine nothing else is asked."""
    try:
        return not client.shows_other_metrics()
    except AgentSlowError:
        return _is_agent(client)
    except (AgentUnreachableError, AgentAddressError):
        return False


def _is_agent(client: AgentClient) -> bool:
    try:
        return bool(client.version())
    except (NotKvitalsError, AgentUnreachableError, AgentSlowError):
        return False
