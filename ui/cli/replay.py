"""`kvitals record --replay`: a recorded incident once more, as verdicts over time or as HTTP targets at real speed."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path

from kvitals.app.errors import UsageError
from kvitals.app.serve_recorded import serve
from kvitals.app.sources.recording import verdicts
from kvitals.app.sources.recording_reader import span_of
from kvitals.diagnoser.text import without_figures
from kvitals.ui.cli.common import EXIT_UNKNOWN, answer_console, exit_code, port_number, setup
from kvitals.ui.cli.narrow import print_hanging
from kvitals.ui.cli.render import moment

PORT = 9478
CODES = 14
"""Columns of the codes of causes."""
DATED = 100
"""The least width at which each line has its date."""


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """What `kvitals record` needs to replay."""
    parser.add_argument(
        "--replay",
        action="store_true",
        help="replay the recording FILE instead: print each change of its verdict, one line each",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="serve the recorded pages at real speed for any other tool (needs --replay)",
    )
    parser.add_argument(
        "--port",
        type=port_number,
        help="port of the first target (9478); the next targets get the next ports",
    )


def run(args: argparse.Namespace) -> int:
    """Replay the recording that the arguments name. Raises UsageError."""
    if len(args.source) != 1:
        raise UsageError("--replay takes one recording: kvitals record --replay FILE.kvcap")
    file = Path(args.source[0])
    if args.serve:
        with suppress(KeyboardInterrupt):  # its normal end
            asyncio.run(serve(file, args.port or PORT, answer_console()))
        return 0
    console = answer_console()
    first, _ = span_of(file)
    before = ("", "")
    document = None
    for at, document in verdicts(file, setup(args)):
        told = document.causes or [f for f in document.leading if f.severity != "info"]
        codes = " ".join(dict.fromkeys(f.code for f in told)) or "-"
        if (gist := (codes, without_figures(document.verdict))) != before:
            when = f"+{at - first:5.0f} s  {moment(at)}  " if console.width >= DATED else f"+{at - first:5.0f} s  "
            print_hanging(f"{when}{codes:{CODES}} {document.verdict}", console, len(when) + CODES + 1)
            before = gist
    if document is None:
        console.print("the recording is shorter than one cycle; kvitals triage diagnoses it as a whole")
        return EXIT_UNKNOWN
    for warning in document.coverage.warnings:
        print_hanging(warning, console, 2, "yellow")
    return exit_code(document)
