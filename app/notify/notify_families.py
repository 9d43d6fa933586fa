"""How alerts that are handed on fare, as families."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping

from aiohttp import web

from kvitals.agent import loop_watch
from kvitals.agent.gauge_writer import GaugeRows
from kvitals.app.notify.queue import SpoolError
from kvitals.app.notify.service import Facts, Notifier
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

SECONDS = 5.0
GROUP = "notify"
_UNLOCKED = contextlib.nullcontext()


def series(facts: Facts, labels: Mapping[str, str]) -> dict[Labels, float]:
    """The series of what is known now; `labels` are this node's."""
    found = {
        _labels("messages_total", labels): float(facts.messages),
        _labels("incidents", labels): float(facts.incidents),
        _labels("undiagnosed", labels): float(facts.undiagnosed),
    }
    for name, target in facts.targets.items():
        found[_labels("waiting", labels, target=name)] = float(target.waiting)
        found[_labels("sent_total", labels, target=name)] = float(target.sent)
        found[_labels("retries_total", labels, target=name)] = float(target.retried)
        found[_labels("dead_letters_total", labels, target=name)] = float(target.dead)
        if target.ok is not None:
            found[_labels("target_ok", labels, target=name)] = float(target.ok)
    return found


def add_families(
    app: web.Application,
    notifier: Notifier,
    window: Window,
    labels: Mapping[str, str],
    clock: Callable[[], float] = time.time,
    *,
    own_loop: bool = False,
    lock: contextlib.AbstractAsyncContextManager[object] = _UNLOCKED,
) -> None:
    """Write them into a window of this loop while the application runs. To be added after the notifier itself.
    own_loop: with the families of the loop, which nobody else writes into this window. lock: held while others read
    the window in a thread."""
    rows = GaugeRows(window, GROUP)

    async def write() -> None:
        watch = loop_watch.current()
        while True:
            with contextlib.suppress(SpoolError):  # its own tasks say so
                facts = series(await notifier.facts(), labels)
                async with lock:
                    rows.write(clock(), facts | (watch.series(labels) if own_loop and watch is not None else {}))
            await asyncio.sleep(SECONDS)

    async def running(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(write(), name="notify families")
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    app.cleanup_ctx.append(running)


def _labels(name: str, labels: Mapping[str, str], **more: str) -> Labels:
    return Labels({METRIC_NAME: f"kvitals_notify_{name}", **labels, **more})
