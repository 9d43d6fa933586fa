"""Reading a fleet source on a thread of its own, so that the screen answers keys while a document is computed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kvitals.app.agent_client import AgentError
from kvitals.app.errors import NoEngineError, UsageError
from kvitals.app.escaping import plain
from kvitals.app.sources.fleet_source import FleetSource
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.rules.finding import Triage
from kvitals.series.promql import PromQLError
from kvitals.series.recordings import CaptureError

RETRY_SECONDS = 5.0
STOP_SECONDS = 5.0
PASSING = (AgentError, ServerError, NoEngineError, PromQLError, CaptureError, OSError)
"""Failures that may pass by themselves: the last document stays on the screen, and the source is asked again."""


@dataclass(frozen=True)
class FeedUpdate:
    """What the screen shows next: a document whose texts are safe to print, or why there is no new one."""

    document: Triage | None
    trouble: str = ""
    notice: str = ""  # what came of something that the user asked for


class DocumentFeed:
    """Hands one update after another to `show`, and what ends the feed to `fail`. Both are called on its thread."""

    def __init__(
        self, source: FleetSource, show: Callable[[FeedUpdate], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._source, self._show, self._fail = source, show, fail
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._asked = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._trouble = ""

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and the source with it. It is left behind where that takes longer than `STOP_SECONDS`."""
        with contextlib.suppress(RuntimeError):  # the source has ended, and its loop with it
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(STOP_SECONDS)

    def ask(self, change: Callable[[], None]) -> None:
        """Change the source on its own thread, draw the screen anew, and read the source where it waits."""

        def changed() -> None:
            try:
                change()
                self._show(FeedUpdate(None, self._trouble))
            except (CaptureError, UsageError, OSError) as error:
                self._show(FeedUpdate(None, self._trouble, plain.line(str(error))))
            self._asked.set()

        with contextlib.suppress(RuntimeError):  # the source has ended, and its loop with it
            self._loop.call_soon_threadsafe(changed)

    def _cancel(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _run(self) -> None:
        self._reading = self._loop.create_task(self._read())
        try:
            self._loop.run_until_complete(self._reading)
        except asyncio.CancelledError:
            return
        except Exception as error:
            self._fail(error)
        finally:
            self._loop.close()

    async def _read(self) -> None:
        seen = False
        try:
            await self._source.open()
            while True:
                began = time.monotonic()
                self._asked.clear()
                try:
                    document = await self._source.read()
                except PASSING as error:
                    if not seen:
                        raise
                    pause = RETRY_SECONDS
                    self._trouble = plain.line(str(error))
                    self._show(FeedUpdate(None, self._trouble))
                else:
                    seen, pause, self._trouble = True, self._source.pause, ""
                    self._show(FeedUpdate(_printable(document)))
                await self._wait(pause - (time.monotonic() - began))
        finally:
            await self._source.close()

    async def _wait(self, seconds: float) -> None:
        """Until the source is asked for something, at most so long."""
        if seconds <= 0:
            return
        try:
            await asyncio.wait_for(self._asked.wait(), None if math.isinf(seconds) else seconds)
        except TimeoutError:
            return


def _printable(document: Triage) -> Triage:
    """The document without characters that a terminal obeys: names of engines and models come from outside."""
    return msgspec.convert(plain.each_text(msgspec.to_builtins(document), plain.line), Triage)
