"""The sources that an operator offers to callers, by name, and the verdicts on them.

A caller chooses among the names and can name nothing else: neither a path nor a URL.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from kvitals.app.agent_client import AgentClient
from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import history_file
from kvitals.app.moments import parse_moment, parse_past
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.since_change import of_history, of_recording, since_change
from kvitals.app.sources.history import judge_history
from kvitals.app.sources.live import Collector, agent_document
from kvitals.app.sources.prometheus_fleet import judge_server
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.diagnoser.inspect import inspect
from kvitals.diagnoser.sources.prometheus import PrometheusAccess
from kvitals.rules.finding import Triage
from kvitals.rules.inspection import Inspection

LIVE_SECONDS, CHECK_SECONDS = 12.0, 3.0
KEPT_SECONDS = 300.0
"""How long the verdict on a live source answers questions about its findings."""
KEPT_VERDICTS = 8
MAX_RECORDINGS = 1000
"""Of one directory."""
_SHOWN_NAMES = 20

SourceKind = Literal["recording", "history", "server", "prometheus"]


@dataclass(frozen=True)
class OfferedSource:
    """kind server: an agent or an engine, which the first answer shows."""

    name: str
    kind: SourceKind
    place: str  # a path or a URL


@dataclass(frozen=True)
class _KeptVerdict:
    document: Triage
    pipeline: Pipeline | None
    until: float  # monotonic seconds


class OfferedSources:
    """The sources by name. Methods block, and may be called from several threads; one verdict is computed at a time."""

    def __init__(self, places: Sequence[str], setup: Setup, prometheus: PrometheusAccess | None = None) -> None:
        """places: URLs, recordings, histories, and directories with recordings. Raises UsageError."""
        self.setup = setup
        self.prometheus = prometheus
        offered = [one for place in places for one in _sources_at(place)]
        if prometheus is not None:
            offered.append(OfferedSource("prometheus", "prometheus", prometheus.url))
        self.by_name = {one.name: one for one in offered}
        if len(self.by_name) < len(offered):
            twice = next(one.name for one in offered if sum(other.name == one.name for other in offered) > 1)
            raise UsageError(f"two sources are named {twice}; rename one of the files")
        self._kept: OrderedDict[tuple[str, str], _KeptVerdict] = OrderedDict()
        self._judging = threading.Lock()

    def source(self, name: str) -> OfferedSource:
        """The source of a name; without one, the only source. Raises UsageError, which lists the names."""
        if not name and len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        if name in self.by_name:
            return self.by_name[name]
        shown = ", ".join(list(self.by_name)[:_SHOWN_NAMES])
        more = len(self.by_name) - _SHOWN_NAMES
        rest = f" and {more} more" if more > 0 else ""
        problem = f"no source is named {name!r}" if name else "several sources are offered"
        raise UsageError(f"{problem}: set source to one of {shown}{rest}")

    def triage(self, name: str, at: str = "") -> Triage:
        """The triage document of now, or of a moment of a recording, a history or a Prometheus."""
        with self._judging:
            return self._judged(self.source(name), at).document

    def latest(self, name: str, at: str = "") -> Triage:
        """The document that the last `triage` answered with, so that a finding of it can be asked about; a new one
        where that is older than KEPT_SECONDS."""
        with self._judging:
            source = self.source(name)
            kept = self._kept.get((source.name, at))
            fresh = kept is not None and kept.until > time.monotonic()
            return kept.document if kept is not None and fresh else self._judged(source, at).document

    def since_change(self, name: str) -> Triage:
        """The document with the effect of the latest configuration change. Raises NoChangeError."""
        source, setup = self.source(name), self.setup
        with self._judging:
            if source.kind == "recording":
                return since_change(of_recording(Path(source.place), setup)).document
            if source.kind == "history":
                file = history_file(Path(source.place), setup.config)
                return since_change(of_history(file, setup, None, None)).document
            if source.kind == "prometheus":
                raise UsageError("since_change needs a recording, a history, or an agent that keeps a history")
            return AgentClient(source.place).since_change()

    def check(self, name: str) -> Inspection:
        """The inspection of a recording, or of live engines. Raises UsageError for other sources."""
        source = self.source(name)
        with self._judging:
            if source.kind == "recording":
                pipeline = self._judged(source, "").pipeline
                assert pipeline is not None
            elif source.kind == "server":
                pipeline = asyncio.run(_observed(source.place, self.setup, CHECK_SECONDS, "check")).pipeline
            else:
                raise UsageError("check reads engines or a recording of them; choose such a source")
        assert pipeline.span is not None
        return inspect(pipeline.judge, pipeline.span, pipeline.source)

    def _judged(self, source: OfferedSource, at: str) -> _KeptVerdict:
        """The verdict, computed anew except for a moment of a recording, which does not change."""
        key = (source.name, at)
        if source.kind == "recording" and (kept := self._kept.get(key)):
            self._kept.move_to_end(key)
            return kept
        document, pipeline = self._verdict(source, at)
        kept = self._kept[key] = _KeptVerdict(document, pipeline, time.monotonic() + KEPT_SECONDS)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_VERDICTS:
            self._kept.popitem(last=False)
        return kept

    def _verdict(self, source: OfferedSource, at: str) -> tuple[Triage, Pipeline | None]:
        path, setup = Path(source.place), self.setup
        if source.kind == "recording":
            moment = moment_of(source, at)
            judged = judge_recording(path, setup, Moments(moment))
            return judged.document, judged.pipeline
        if source.kind == "history":
            moment = parse_past(at, "at") if at else None
            return judge_history(history_file(path, setup.config), setup, Moments(moment)).document, None
        if source.kind == "prometheus":
            assert self.prometheus is not None
            return judge_server(self.prometheus, setup, parse_past(at, "at") if at else time.time()).document, None
        if at:
            raise UsageError(
                "at= works with recordings, histories and a Prometheus; a live source shows only the present"
            )
        if (document := asyncio.run(agent_document(source.place))) is not None:
            return document, None
        collector = asyncio.run(_observed(source.place, setup, LIVE_SECONDS))
        return collector.pipeline.triage(), collector.pipeline


def compared_source(source: OfferedSource) -> OfferedSource:
    """The source, where `compare` can read it. Raises UsageError."""
    if source.kind in ("history", "prometheus"):
        raise UsageError("compare reads recordings and live engines only; choose such sources")
    return source


def moment_of(source: OfferedSource, at: str) -> float | None:
    """A moment of a recording, in seconds since the epoch; None: its end. Raises UsageError, also for a moment after
    its end: a caller would take the verdict for one of that moment."""
    if not at:
        return None
    first, last = span_of(Path(source.place))
    moment = parse_moment(at, first, f"at={at}", last)
    if moment > last:
        raise UsageError(f"at={at}: {source.name} ends at +{last - first:.0f}s; leave `at` out for the verdict then")
    return moment


def _sources_at(place: str) -> list[OfferedSource]:
    """The sources of one word of the operator. Raises UsageError."""
    if "://" in place:
        return [_server(place)]
    path = Path(place)
    if path.is_file() and path.suffix == ".kvcap":
        return [OfferedSource(path.name, "recording", str(path))]
    if path.is_file() and path.suffix == ".db":
        return [OfferedSource(path.name, "history", str(path))]
    if path.exists() and not path.is_dir():
        raise UsageError(f"{place} is neither a recording (.kvcap), a history (.db) nor a directory of recordings")
    if not path.is_dir():
        raise UsageError(f"{place}: no such file or directory; a URL is written as http://127.0.0.1:8000")
    recordings = sorted(path.glob("*.kvcap"))
    if len(recordings) > MAX_RECORDINGS:
        raise UsageError(f"{place} has {len(recordings)} recordings; offer at most {MAX_RECORDINGS} from one directory")
    if recordings:
        return [OfferedSource(one.name, "recording", str(one)) for one in recordings]
    return [OfferedSource("history", "history", place)]


def _server(url: str) -> OfferedSource:
    """Raises UsageError."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{url} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url} is not the URL of an agent or an engine, such as http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise UsageError("the URL contains a user and password, which others would see; leave them out")
    return OfferedSource(url.partition("://")[2], "server", url)


async def _observed(url: str, setup: Setup, seconds: float, command: str = "") -> Collector:
    """A live engine that was observed for so many seconds. Raises NoEngineError, and UsageError where an agent is no
    source of the command."""
    if command and await agent_document(url) is not None:
        raise UsageError(f"{url} is a kvitals agent, but {command} reads engines: offer the engines themselves")
    async with Collector(setup, [url]) as collector:
        async for _ in collector.collect(seconds):
            pass
        collector.document()
        return collector
