"""SIGHUP, which asks a running agent to load its configuration. One that comes before the agent is ready is kept.

    hangups.keep()                        # first of all: from now on SIGHUP does not end the process
    hangups.handle(loop, load, stop)        # from now on each one calls `load`, and one that was kept does, too

Where the terminal went away, SIGHUP means to stop. This module is imported at the start of the program, so it imports
nothing that takes time.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable


class _Hangups:
    """What is known of this process's SIGHUPs."""

    had_terminal: bool | None = None
    is_waiting = False


def keep() -> None:
    """Keep a SIGHUP until `handle` is called."""
    _Hangups.had_terminal = os.isatty(0)
    signal.signal(signal.SIGHUP, _wait)


def handle(loop: AbstractEventLoop, load: Callable[[], object], stop: Callable[[], object]) -> None:
    """Call `load`, or `stop` where the terminal went away, on the loop at each SIGHUP. In the main thread."""
    had_terminal = os.isatty(0) if _Hangups.had_terminal is None else _Hangups.had_terminal

    def hang_up(*_: object) -> None:
        loop.call_soon_threadsafe(stop if had_terminal and not os.isatty(0) else load)

    signal.signal(signal.SIGHUP, hang_up)
    if _Hangups.is_waiting:
        hang_up()


def _wait(*_: object) -> None:
    _Hangups.is_waiting = True
