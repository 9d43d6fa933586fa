"""The fleet as one document after another, for a screen that follows it: live engines, an agent, a Prometheus or a
recording."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import msgspec
import zstandard

from kvitals.agent.records import FactsRecord, decode, encode
from kvitals.agent.workers import Worker
from kvitals.app.agent_client import AgentClient
from kvitals.app.errors import UsageError
from kvitals.app.pipeline import STEP_SECONDS, Pipeline, Setup
from kvitals.app.sources.live import INTERVAL_SECONDS, Collector
from kvitals.app.sources.prometheus_fleet import judge_server
from kvitals.app.sources.recording import MIN_GAP_SECONDS, no_window, replay_moments
from kvitals.app.sources.recording_reader import RecordingError, read_span
from kvitals.diagnoser.sources.prometheus import PrometheusAccess
from kvitals.rules.finding import Triage
from kvitals.rules.finding import encode as encode_document
from kvitals.series.recordings import CaptureError, CaptureWriter, Record

LIVE_SECONDS = 5.0
"""Between two documents of live engines, and of an agent, whose own cycle takes as long by default."""

CPU_SHARE = 0.025
"""Of one core, that questions to a Prometheus may take on average: where one costs more, the next one waits longer."""

PLAY_SECONDS = 1.0
"""Between two moments of a recording that plays."""

KEPT_DOCUMENTS = 512
"""Documents of a recording that are kept, compressed to about 20 KB each for one engine."""


class FleetSource(Protocol):
    """Where a screen gets its documents from. All methods are called on one thread."""

    name: str

    @property
    def pause(self) -> float:
        """Seconds until the next document is worth reading; infinity: until someone moves the source."""
        raise NotImplementedError

    async def open(self) -> None:
        """Connect. Raises what `read` raises."""

    async def read(self) -> Triage:
        """The next document. Raises AgentError, ServerError, NoEngineError, RecordingError, PromQLError."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release what `open` took."""


class LiveFleet:
    """Engines that are scraped once a second, and judged every few seconds."""

    pause = 0.0

    def __init__(self, setup: Setup, urls: Sequence[str], seconds: float = LIVE_SECONDS) -> None:
        """seconds: between two documents."""
        self._collector = Collector(setup, urls)
        self._seconds = seconds
        self._facts: dict[tuple[str, str], FactsRecord] = {}
        self._writer: CaptureWriter | None = None
        self.recording: Path | None = None
        """The file that is written now."""
        self._collector.on_records = self._keep
        self.name = ", ".join(urls) or "this node"

    async def open(self) -> None:
        await self._collector.__aenter__()
        self.name = ", ".join(self._collector.targets) or self.name

    async def read(self) -> Triage:
        async for _ in self._collector.collect(self._seconds):
            pass
        return self._collector.document()

    async def close(self) -> None:
        self.stop_recording()
        await self._collector.__aexit__(None, None, None)

    def record(self, path: Path) -> None:
        """Write what is scraped from now on to a new recording. Raises CaptureError, UsageError."""
        if self._writer is not None:
            raise UsageError(f"{self.recording} is still being written: stop the recording first")
        meta = {**self._collector.pipeline.node.watched.meta, "every_seconds": INTERVAL_SECONDS}
        self._writer = CaptureWriter(path, version=version("kvitals"), meta=meta)
        for facts in self._facts.values():  # engines report these once, before the recording began
            self._writer.write(encode(msgspec.structs.replace(facts, t=time.time())))
        self.recording = path

    def stop_recording(self) -> None:
        """End the recording, if there is one."""
        writer, self._writer, self.recording = self._writer, None, None
        if writer is not None:
            writer.close()

    def _keep(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(facts := decode(record), FactsRecord):
                self._facts[facts.target, facts.source] = facts
            if self._writer is not None:
                try:
                    self._writer.write(record)
                except CaptureError:  # what was written before is whole
                    self._writer = self.recording = None
                    raise


class AgentFleet:
    """The engines of a running agent, as it judges them itself."""

    pause = LIVE_SECONDS

    def __init__(self, url: str) -> None:
        self._client, self._worker = AgentClient(url), Worker("agent")
        self.name = url

    async def open(self) -> None:
        """Nothing is kept open."""

    async def read(self) -> Triage:
        return await self._worker.run(self._client.findings)

    async def close(self) -> None:
        """Nothing is kept open."""


class PrometheusFleet:
    """A fleet whose series a Prometheus has."""

    def __init__(self, access: PrometheusAccess, setup: Setup) -> None:
        self._access, self._setup, self._worker = access, setup, Worker("prometheus")
        self.name, self.pause = access.url, 0.0

    async def open(self) -> None:
        """Nothing is kept open."""

    async def read(self) -> Triage:
        began = time.process_time()
        judged = await self._worker.run(lambda: judge_server(self._access, self._setup, time.time()))
        self.pause = max(judged.survey.interval, (time.process_time() - began) / CPU_SHARE)
        return judged.document

    async def close(self) -> None:
        """Nothing is kept open."""


class RecordedFleet:
    """A recording, at any of the moments that are judged in it. It stands still at its end until it is moved."""

    def __init__(self, path: Path, setup: Setup, at: float | None = None) -> None:
        """at: the moment to begin with, seconds since the epoch; None: the end. Raises CaptureError, RecordingError."""
        span = read_span(path)
        self.first, self.last = span.first, span.last
        if self.last <= self.first:
            raise RecordingError(no_window(path.name, span))
        self.name = path.name
        self.playing = False
        self._path, self._setup = path, setup
        self._at = self._moment(self.last if at is None else at)
        self._replay: Iterator[tuple[float, Pipeline]] = iter(())
        self._reached = math.inf  # the moment that `_replay` stands at
        self._documents: OrderedDict[float, bytes] = OrderedDict()

    @property
    def pause(self) -> float:
        """As of every source."""
        return PLAY_SECONDS if self.playing else math.inf

    def move(self, seconds: float) -> None:
        """Go so far forward, or back where it is negative; the recording stops playing."""
        self.playing = False
        self._at = self._moment(self._at + seconds)

    def play(self, playing: bool) -> None:
        """Go on by itself, from the beginning where it stands at its end; or stand still."""
        self.playing = playing
        if playing and self._at >= self.last:
            self._at = self._moment(self.first)

    async def open(self) -> None:
        """The recording is opened when it is read."""

    async def read(self) -> Triage:
        document = self._document(self._at)
        if self.playing:
            self.playing = self._at < self.last
            self._at = self._moment(self._at + STEP_SECONDS)
        return document

    async def close(self) -> None:
        self._replay = iter(())

    def _moment(self, at: float) -> float:
        """The judged moment that is nearest to a time; the end for every time from there on."""
        moment = self.first + max(1, round((at - self.first) / STEP_SECONDS)) * STEP_SECONDS
        return moment if max(at, moment) < self.last - MIN_GAP_SECONDS else self.last

    def _document(self, at: float) -> Triage:
        key = round(at, 3)
        if key not in self._documents:
            self._documents[key] = zstandard.compress(encode_document(self._judged(at)))
            if len(self._documents) > KEPT_DOCUMENTS:
                self._documents.popitem(last=False)
        self._documents.move_to_end(key)
        return msgspec.json.decode(zstandard.decompress(self._documents[key]), type=Triage)

    def _judged(self, at: float) -> Triage:
        """The document of a moment: the replay goes on to it, or begins again where it is past it."""
        if self._reached >= at:
            self._replay = replay_moments(self._path, self._setup)
        for reached, pipeline in self._replay:
            self._reached = reached
            if reached > at - MIN_GAP_SECONDS:
                return pipeline.triage()
        raise RecordingError(f"{self.name} has no time to evaluate before {at:.0f}")
