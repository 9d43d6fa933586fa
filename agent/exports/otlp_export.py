"""OTLP out: records of requests as traces, to any collector.

    out = OtlpOut(config.otlp_out, node_labels, objective, version)
    out.open()
    out.offer(record)                # at once: chooses and queues; never blocks
    out.status()                     # how it fares, as families by `OtlpExportStatus.series`
    await out.close()

Slow, failed and abandoned requests are always sent, of the others a share. A thread of its own makes spans and sends
them with OpenTelemetry's exporters. While the collector is away the queue keeps the newest records; what it has no room
for is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from kvitals.agent.logger import Logger
from kvitals.agent.requests.record import RequestRecord
from kvitals.config import OtlpOutTable
from kvitals.series.files import read_regular
from kvitals.series.types import METRIC_NAME, Labels

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

log = Logger()

EXPORT = "otlp"

MAX_WAITING = 2_000
"""Records in the queue, about 2 KB each."""

BATCH = 64
"""Records that are sent at one go, with up to seven spans each."""

GATHER_SECONDS = 1.0
SEND_SECONDS = 5.0
"""Within which a batch must be taken, the exporter's own attempts included."""

MAX_TRIES = 4
FIRST_WAIT, MAX_WAIT = 1.0, 60.0
CLOSE_SECONDS = 1.0

TOP_SHARE = 0.01
"""The slowest requests of late that are always sent."""

RECENT = 1_000
MIN_RECENT = 100

FAILED, SLOW, SHARE = "failed", "slow", "share"
KEPT = (FAILED, SLOW, SHARE)
DROPS = ("not_sampled", "queue_full", "not_delivered")

MAX_HEADERS_BYTES = 16 * 1024
MAX_MESSAGE = 300
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100})\s*[:=]\s*([\x20-\x7e]{1,8000})")

Objective = Callable[[RequestRecord], float | None]
"""Seconds within which a request's first token must come; None where nothing is asked."""


class Sampler:
    """Chooses the requests that are sent."""

    def __init__(self, share: float, objective: Objective) -> None:
        """`share` is that of requests which are nothing special."""
        self._threshold = round((1.0 - share) * 2**56)
        self._objective = objective
        self._slowest = {"ttft": _Top(), "e2e": _Top()}

    def why(self, record: RequestRecord) -> str:
        """Why a record is sent: failed, slow or share; empty where it is not."""
        # Both are told of every request.
        top = [one.is_top(getattr(record, name)) for name, one in self._slowest.items()]
        if record.outcome not in ("success", "invalid", "too_long"):
            return FAILED
        goal = self._objective(record)
        if any(top) or (goal is not None and record.ttft is not None and record.ttft > goal):
            return SLOW
        return SHARE if _chance(record) >= self._threshold else ""


class _Top:
    """The largest of the last values."""

    def __init__(self) -> None:
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def is_top(self, value: float | None) -> bool:
        """Whether a value is among the top of those before it. It counts for the next ones."""
        if value is None:
            return False
        rank = len(self._sorted) - bisect_left(self._sorted, value)  # how many are as large
        found = len(self._sorted) >= MIN_RECENT and rank < TOP_SHARE * len(self._sorted)
        if len(self._values) >= RECENT:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)
        return found


def _chance(record: RequestRecord) -> int:
    """56 bits, the trace's own random ones as OpenTelemetry's consistent sampling has them: whoever samples by them
    keeps the same traces."""
    try:
        return int(record.trace[-14:], 16)
    except ValueError:
        text = f"{record.id}\0{record.start!r}".encode("utf-8", "replace")
        return int.from_bytes(blake2b(text, digest_size=7).digest())


@dataclass(frozen=True)
class OtlpExportStatus:
    """How sending fares."""

    state: str  # unknown (nothing was sent yet), ok or failed
    reason: str  # ok, idle, not_delivered, headers_file
    message: str  # for a person, with what to do; empty when it is well
    waiting: int
    sent: Mapping[str, int]  # why they were kept -> requests
    dropped: Mapping[str, int]  # reason -> requests

    def series(self, labels: Mapping[str, str]) -> dict[Labels, float]:
        """The same as families; `labels` are the node's."""
        base = {**labels, "export": EXPORT}

        def named(family: str, **more: str) -> Labels:
            return Labels({**base, **more, METRIC_NAME: family})

        found = {
            named("kvitals_export_state", state=self.state, reason=self.reason): 1.0,
            named("kvitals_export_waiting"): float(self.waiting),
        }
        for kept, count in self.sent.items():
            found[named("kvitals_export_requests_total", kept=kept)] = float(count)
        for reason, count in self.dropped.items():
            found[named("kvitals_export_dropped_total", reason=reason)] = float(count)
        return found


@dataclass
class _Shared:
    """What the loop's thread and the sender's have in common. Only with the lock."""

    queue: deque[tuple[RequestRecord, str]] = field(default_factory=deque)
    under_way: int = 0  # records that are being sent
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEPT, 0))
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPS, 0))
    state: tuple[str, str, str] = ("unknown", "idle", "")
    closing: bool = False


class OtlpOut:
    """Sends records to a collector."""

    def __init__(
        self,
        settings: OtlpOutTable,
        node: Mapping[str, str],
        objective: Objective = lambda _: None,
        version: str = "",
        first_wait: float = FIRST_WAIT,
    ) -> None:
        """`node` has the node's labels; `version` is that of kvitals; `first_wait`: seconds before a second try."""
        self._settings = settings
        self._node = dict(node)
        self._version = version
        self._first_wait = first_wait
        self._sampler = Sampler(settings.sample, objective)
        self._shared = _Shared()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._exporter: SpanExporter | None = None
        self._headers: dict[str, str] | None = None

    def open(self) -> None:
        """Begin to send."""
        self._thread = threading.Thread(target=self._run, name="otlp-out", daemon=True)
        self._thread.start()

    def offer(self, record: RequestRecord) -> None:
        """Take a record, if it is to be sent."""
        why = self._sampler.why(record)
        shared = self._shared
        with self._changed:
            if not why:
                shared.dropped["not_sampled"] += 1
                return
            if len(shared.queue) >= MAX_WAITING:
                shared.queue.popleft()
                shared.dropped["queue_full"] += 1
            shared.queue.append((record, why))
            if len(shared.queue) in (1, BATCH):
                self._changed.notify()

    def status(self) -> OtlpExportStatus:
        """How it fares."""
        shared = self._shared
        with self._changed:
            waiting = len(shared.queue) + shared.under_way
            return OtlpExportStatus(*shared.state, waiting, dict(shared.sent), dict(shared.dropped))

    async def close(self) -> None:
        """Send what waits, as far as it goes in a few seconds, and stop."""
        with self._changed:
            self._shared.closing = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)
            if self._thread.is_alive() and self._exporter is not None:
                await asyncio.to_thread(self._exporter.shutdown)  # wakes it from waiting between its own attempts
                await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)

    def _run(self) -> None:
        from kvitals.agent.exports.otlp_spans import (
            SpanMaker,  # takes time and memory, so it is loaded where it is used
        )

        maker = SpanMaker(self._version, self._node)
        with _hearing() as heard:
            while batch := self._next():
                spans = [span for record, kept in batch for span in maker.spans(record, kept)]
                delivered = self._deliver(spans, heard)
                with self._changed:
                    self._shared.under_way = 0
                    for _, kept in batch:
                        if delivered:
                            self._shared.sent[kept] += 1
                        else:
                            self._shared.dropped["not_delivered"] += 1
            if self._exporter is not None:
                self._exporter.shutdown()

    def _next(self) -> list[tuple[RequestRecord, str]]:
        """Wait for records; none when it is over."""
        shared = self._shared
        with self._changed:
            self._changed.wait_for(lambda: bool(shared.queue) or shared.closing)
            self._changed.wait_for(lambda: len(shared.queue) >= BATCH or shared.closing, GATHER_SECONDS)
            batch = [shared.queue.popleft() for _ in range(min(BATCH, len(shared.queue)))]
            shared.under_way = len(batch)
            return batch

    def _deliver(self, spans: list[ReadableSpan], heard: _Heard) -> bool:
        """Send, some times. While nothing arrives the waits between tries grow."""
        wait = self._first_wait if self._shared.state[0] != "failed" else MAX_WAIT
        for attempt in range(MAX_TRIES):
            reason, message = self._send(spans, heard)
            if not reason:
                self._say("ok", "ok", "")
                return True
            self._say("failed", reason, message)
            with self._changed:
                if attempt + 1 == MAX_TRIES or self._changed.wait_for(lambda: self._shared.closing, wait):
                    break
            wait = min(2 * wait, MAX_WAIT)
        return False

    def _send(self, spans: list[ReadableSpan], heard: _Heard) -> tuple[str, str]:
        """One try. Returns why it failed, and that in words; nothing where it went well."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            headers = read_headers(self._settings.headers_file) if self._settings.headers_file else {}
        except ValueError as error:
            return "headers_file", str(error)
        heard.complaint = ""
        try:
            if self._exporter is None or headers != self._headers:
                if self._exporter is not None:
                    self._exporter.shutdown()
                self._exporter, self._headers = _exporter(self._settings, headers), headers
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                return "", ""
            said = heard.complaint or "no answer"
        except Exception as error:  # whatever goes wrong in there must not end the thread
            log.exception("a batch of traces was dropped")
            said = type(error).__name__
        return "not_delivered", (
            f"OTLP out: {self._settings.endpoint} refuses traces ({said}). Check that a collector"
            f" listens there and accepts {self._settings.protocol}. See [otlp_out] in kvitals.toml."
        )

    def _say(self, state: str, reason: str, message: str) -> None:
        with self._changed:
            before, self._shared.state = self._shared.state, (state, reason, message)
        if before[:2] != (state, reason) and (state == "failed" or before[0] == "failed"):
            log.warning("traces are not delivered" if state == "failed" else "traces are delivered again", why=message)


class _Heard(logging.Handler):
    """The first complaint of the exporters about a batch. They tell the reason of a failure to their log alone, and of
    several tries it is the first that says more than that it was in vain."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self.complaint = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread and not self.complaint:
            said = record.getMessage().partition(", retrying in")[0]
            self.complaint = "".join(c if c.isprintable() else " " for c in said)[:MAX_MESSAGE]


@contextmanager
def _hearing() -> Iterator[_Heard]:
    """Hear the exporters of this thread. They say it to nobody else meanwhile: the state tells it."""
    logger, heard = logging.getLogger("opentelemetry.exporter"), _Heard()
    logger.addHandler(heard)
    logger.propagate = False
    try:
        yield heard
    finally:
        logger.removeHandler(heard)
        logger.propagate = not logger.handlers


def read_headers(path: Path) -> dict[str, str]:
    """The headers in a file, `NAME: VALUE` a line. Raises ValueError, saying what to do and nothing of the content."""
    try:
        raw = read_regular(path, MAX_HEADERS_BYTES)
    except OSError as error:
        raise ValueError(f"{path}: the headers for the collector cannot be read: {error.strerror}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _HEADER.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"{path}:{number}: a header must be a line such as `Authorization: Bearer ...`")
        found[match[1].lower()] = match[2]
    return found


def _exporter(settings: OtlpOutTable, headers: dict[str, str]) -> SpanExporter:
    """OpenTelemetry's exporter of the protocol. gRPC is imported where it is used only."""
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

        insecure = settings.endpoint.startswith("http://")
        return grpc.OTLPSpanExporter(settings.endpoint, insecure=insecure, headers=headers, timeout=SEND_SECONDS)
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

    gzip = Compression.Gzip
    return http.OTLPSpanExporter(settings.endpoint, headers=headers, timeout=SEND_SECONDS, compression=gzip)
