"""How a command that failed is reported: one line that says what to do, and an exit code."""

from __future__ import annotations

import errno
import sys

from kvitals.app.agent_client import AgentAddressError, AgentError
from kvitals.app.errors import NoEngineError, UsageError
from kvitals.app.escaping import plain
from kvitals.app.lookups import LedgerError
from kvitals.app.since_change import NoChangeError
from kvitals.app.sizing import SourceError
from kvitals.app.sources.recording_reader import RecordingError
from kvitals.config import ConfigError
from kvitals.diagnoser.review.assemble import NothingSeenError
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.series.history.schema import HistoryError
from kvitals.series.promql import PromQLError, QueryLimitError
from kvitals.series.recordings import CaptureError
from kvitals.ui.cli.common import EXIT_BAD_USE, EXIT_UNKNOWN

BAD_USE = (
    *(UsageError, ConfigError, CaptureError, RecordingError, HistoryError, SourceError, NoChangeError),
    *(NothingSeenError, LedgerError, AgentAddressError),
)
"""It cannot be done as it was asked for; the message says what can."""


def report_failure(error: Exception) -> int:
    """Print what failed and what to do, and return the exit code. Raises what is a defect of ours again."""
    message, code = _explained(error)
    print(plain.lines(f"kvitals: {message}"), file=sys.stderr)
    return code


def failure_text(error: Exception) -> str:
    """What failed and what to do. Raises what is a defect of ours again."""
    return _explained(error)[0]


def _explained(error: Exception) -> tuple[str, int]:
    if isinstance(error, HistoryError) and error.reason == "corrupt":
        return str(error), EXIT_UNKNOWN
    if isinstance(error, BAD_USE):
        return str(error), EXIT_BAD_USE
    if isinstance(error, AgentError | ServerError | NoEngineError):
        return str(error), EXIT_UNKNOWN
    if isinstance(error, QueryLimitError):
        return f"not diagnosed, perhaps because the machine is too busy: {error}", EXIT_UNKNOWN
    if isinstance(error, PromQLError):
        return (
            f"not diagnosed: an expression of the rules cannot be evaluated over these series: {error}. This is a "
            f"defect of the rule or of kvitals: report it with the labels of these series",
            EXIT_UNKNOWN,
        )
    if isinstance(error, PermissionError):
        where = error.filename or error
        return f"{where}: permission denied; run as a user who may read it", EXIT_BAD_USE
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{error.filename or 'the answer'} cannot be written: {error.strerror}", EXIT_BAD_USE
    raise error
