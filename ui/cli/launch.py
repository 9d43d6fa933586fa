"""The console script. Ctrl-C ends it with one line from its first moment on, also while modules are imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from kvitals.agent import hangups

EXIT_INTERRUPTED = 130
STOPPED = "kvitals: stopped"
UNTIL_STOPPED = ("run", "web", "tap", "notify", "mcp", "record")
"""Commands whose normal end is Ctrl-C."""


def main() -> None:
    """Run the command line; its exit code is the process's."""
    signal.signal(signal.SIGINT, stop)
    if sys.argv[1:2] == ["run"]:
        hangups.keep()  # a unit's reload may come while modules are imported
    from kvitals.ui.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def stop(*_: object) -> None:
    """End at once, since an exception would appear with its traceback inside of whatever is imported."""
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(interrupted_code(sys.argv[1:]))


def interrupted_code(words: Sequence[str]) -> int:
    """The exit code of a command line that Ctrl-C ended."""
    replays = "--replay" in words and "--serve" not in words  # which ends by itself, with a verdict
    return 0 if words[:1] and words[0] in UNTIL_STOPPED and not replays else EXIT_INTERRUPTED
