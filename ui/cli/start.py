"""The entry point of the command: it can be stopped while everything else is still imported, which takes a second."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

STOPPED = "kvitals: stopped"
EXIT_INTERRUPTED = 130


def main() -> None:
    """Import the commands and run the one that is asked for."""
    _open_streams()
    before = signal.signal(signal.SIGINT, _end)
    from kvitals.ui.cli.main import main as command  # late: Ctrl-C while this is read ends with one line

    signal.signal(signal.SIGINT, before)
    command()


def _open_streams() -> None:
    """Open /dev/null in place of a standard stream that the caller closed: files would get its number, and whoever
    prints would fail."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def _end(_: int, __: FrameType | None) -> None:
    """An exception would appear inside of whatever is imported, with its traceback."""
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
