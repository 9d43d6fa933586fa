"""A stop that is asked for comes about, whatever hangs: within five seconds."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from types import FrameType

STOP_SECONDS = 4.5
"""From the signal until the process ends by itself, whatever is still under way."""


def on_signals(stop: asyncio.Event, seconds: float | None = STOP_SECONDS) -> None:
    """SIGINT and SIGTERM set `stop`, and `seconds` later the process ends; None: when it is done.

    Call it on the event loop, in the main thread. The handlers are Python's own and not the loop's: they run while the
    loop is held up by a callback, too. Threads that hang in the kernel would be waited for at exit, so they are not.
    """
    loop, asked = asyncio.get_running_loop(), threading.Event()
    if seconds is not None:
        threading.Thread(target=_end, args=(asked, seconds), name="kvitals-stop", daemon=True).start()

    def handle(_: int, __: FrameType | None) -> None:
        if not asked.is_set():
            asked.set()
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def _end(asked: threading.Event, seconds: float) -> None:
    asked.wait()
    threading.Event().wait(seconds)
    main = threading.main_thread()
    others = [one.name for one in threading.enumerate() if one not in (main, threading.current_thread())]
    print(  # to stderr, not through a logger whose lock may be held
        f"some threads did not end within {seconds:g} s of the signal, so the process ends now; threads: "
        f"{', '.join(others)}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(0)
