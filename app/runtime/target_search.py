"""Looking for targets while the agent runs, in the background: a source that does not answer holds up no scrape."""

from __future__ import annotations

import asyncio
import time

from rich.console import Console

from kvitals.agent.target_sources import TargetList
from kvitals.app.pipeline import Pipeline

EVERY_SECONDS = 30.0


class Search:
    """Asks a node's sources for targets again and again, and has the node watch what they name."""

    def __init__(self, pipeline: Pipeline, console: Console) -> None:
        self._node = pipeline.node
        self._console = console
        self._begun = time.monotonic()
        self._looking: asyncio.Task[TargetList] | None = None
        self._for = pipeline.node.config  # the configuration of the look under way
        self._again = False

    def begin(self, at_once: bool = False) -> None:
        """Look now, or after the look that is under way, unless that is for another configuration.

        at_once: targets files that changed just now are read.
        """
        if self._looking is not None and self._for is self._node.config:
            self._again = True
            return
        self.stop()
        self._begun, self._for, self._again = time.monotonic(), self._node.config, False
        self._looking = asyncio.create_task(self._node.sources.look(at_once))

    async def follow(self) -> None:
        """Between two scrapes: take over what was found, and look again when it is time."""
        if self._looking is not None and self._looking.done():
            looked, self._looking = self._looking, None
            with self._node.collectors.guard("targets"):
                for line in await self._node.adapt(looked.result()):
                    self._console.print(line, style="dim", soft_wrap=True)
        if self._looking is None and (self._again or time.monotonic() - self._begun > EVERY_SECONDS):
            self.begin()

    def stop(self) -> None:
        """Give up the look that is under way, if there is one."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
