"""The console script. Ctrl-C ends it with one line from its first moment on, also while modules are imported."""

from __future__ import annotations

import os
import signal

EXIT_INTERRUPTED = 130
STOPPED = "kvitals: stopped"


def main() -> None:
    """Run the command line; its exit code is the process's."""
    signal.signal(signal.SIGINT, stop)
    from kvitals.ui.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def stop(*_: object) -> None:
    """End at once, since an exception would appear with its traceback inside of whatever is imported."""
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(EXIT_INTERRUPTED)
