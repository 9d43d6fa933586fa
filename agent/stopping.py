"""A stop that is asked for comes about, whatever hangs: within five seconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from types import FrameType
from typing import NoReturn

STOP_SECONDS = 4.5
"""From the signal until the process ends by itself, whatever is still under way."""

REPORT_SECONDS = 0.2
"""For the report of what hangs: standard error may be a pipe that nobody reads."""

FRAMES = 4
"""Of the main thread's stack, in the report."""


def on_signals(stop: asyncio.Event) -> None:
    """SIGINT and SIGTERM set `stop`, and `STOP_SECONDS` later the process ends.

    Call it on the event loop, in the main thread. A handler of Python's runs between two steps of the main thread, so
    never while that is in a call of C code. The interpreter writes the number of each signal to a file at once, which a
    thread reads here. There is one such file: no other code of the process may use `add_signal_handler` of a loop.
    """
    loop = asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_to_thread)
    arguments = reader, writer, loop, stop
    threading.Thread(target=_await_stop, args=arguments, name="kvitals-stop", daemon=True).start()


def leave() -> NoReturn:
    """End the process now, with what was printed: at a usual exit, Python waits for threads that wait for others."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads, or it is closed
            stream.flush()
    os._exit(0)


def _leave_to_thread(_: int, __: FrameType | None) -> None:
    """A signal without a handler of Python's would end the process at once."""


def _await_stop(
    reader: socket.socket, writer: socket.socket, loop: asyncio.AbstractEventLoop, stop: asyncio.Event
) -> None:
    """In a thread, which keeps `writer` open. Threads that hang in the kernel would be waited for at exit, so they are
    not."""
    while not {signal.SIGINT, signal.SIGTERM}.intersection(reader.recv(64)):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(stop.set)
    threading.Event().wait(STOP_SECONDS)
    try:
        # Not through sys.stderr or a logger, whose lock may be held.
        report = threading.Thread(target=os.write, args=(2, _report().encode()), daemon=True)
        report.start()
        report.join(REPORT_SECONDS)
    finally:
        os._exit(0)


def _report() -> str:
    main = threading.main_thread()
    others = [one.name for one in threading.enumerate() if one not in (main, threading.current_thread())]
    return (
        f"some threads did not end within {STOP_SECONDS:g} s of the signal, so the process ends now; threads: "
        f"{', '.join(others)}; main thread: {_place(sys._current_frames().get(main.ident or 0))}\n"
    )


def _place(frame: FrameType | None) -> str:
    """The innermost frames of a stack. Without their lines of source, whose file may hang as well."""
    places: list[str] = []
    while frame is not None and len(places) < FRAMES:
        places.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return ", ".join(places) or "ended"
