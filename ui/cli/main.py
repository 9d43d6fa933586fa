"""The command `kvitals`: arguments, and which command they mean."""

from __future__ import annotations

import argparse
import errno
import io
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from kvitals.app.agent_client import AgentAddressError, AgentError
from kvitals.app.cache import NoEngineError
from kvitals.app.errors import UsageError
from kvitals.app.escaping import plain
from kvitals.app.ledger import LedgerError
from kvitals.app.since_change import NoChangeError
from kvitals.app.sizing import SourceError
from kvitals.app.sources.recording import RecordingError
from kvitals.config import ConfigError
from kvitals.diagnoser.review.assemble import NothingSeenError
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.series.history.codec import DamagedError
from kvitals.series.history.schema import HistoryError
from kvitals.series.promql import PromQLError
from kvitals.series.recordings import CaptureError
from kvitals.ui.cli import (
    audit,
    cache,
    check,
    compare,
    curve,
    history,
    knee,
    lint,
    notify,
    record,
    replay,
    review,
    rules,
    run,
    size,
    tap,
    trace,
    triage,
    web,
    whatif,
)
from kvitals.ui.cli.common import EXIT_BAD_USE, EXIT_UNKNOWN
from kvitals.ui.cli.start import EXIT_INTERRUPTED, STOPPED

TOLD = (
    *(UsageError, ConfigError, CaptureError, RecordingError, HistoryError, DamagedError, SourceError, NoChangeError),
    *(NothingSeenError, LedgerError, AgentAddressError),
)
"""What can not be done as it was asked for; the message says what can."""
EPILOG = """\
exit codes: 0 healthy, 1 findings, 2 bad use, 3 could not tell

  kvitals triage                          the engines on this node
  kvitals triage http://127.0.0.1:8000    a live engine, or a running kvitals agent
  kvitals triage incident.kvcap           a recorded incident
  kvitals triage --prometheus URL         a fleet, from what a Prometheus has of it
  kvitals triage --at=-2h                 what was wrong two hours ago, from the agent's history
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="kvitals",
        description="Says what is wrong with an LLM serving system, proves it, and names the lever that fixes it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"kvitals {version('kvitals')}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (
        *(triage, cache, trace, compare, whatif, curve, knee, audit, review, size),
        *(check, run, web, history, record, replay, tap, notify, lint, rules),
    ):
        module.add(commands)
    commands.add_parser("version", help="print the version").set_defaults(do=_version)
    return top


def _version(_: argparse.Namespace) -> int:
    print(f"kvitals {version('kvitals')}")
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; its exit code is the process's."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a letter shows another
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    args = parser().parse_args(arguments)
    do: Callable[[argparse.Namespace], int] = args.do
    try:
        code = do(args)
    except TOLD as error:
        _say(str(error))
        code = EXIT_BAD_USE
    except (AgentError, ServerError, NoEngineError) as error:
        _say(str(error))
        code = EXIT_UNKNOWN
    except PromQLError as error:  # the knowledge's own queries are right, so one met a limit
        _say(f"could not be judged, is the machine too busy? {error}")
        code = EXIT_UNKNOWN
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = 0
    except PermissionError as error:
        _say(f"{error.filename or error}: permission denied; run as a user who may read it")
        code = EXIT_BAD_USE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _say(f"{error.filename or 'the answer'} can not be written: {error.strerror}")
        code = EXIT_BAD_USE
    sys.exit(code)


def _say(error: str) -> None:
    print(plain.lines(f"kvitals: {error}"), file=sys.stderr)


if __name__ == "__main__":
    main()
