"""A command of kvitals in this process: its exit code and what it prints."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from kvitals.ui.cli.main import main

ROOT = Path(__file__).parents[2]
ALL_IN_TURN = """
import json, sys
from tests.support.command import answer
for arguments in json.load(sys.stdin):
    given = answer(arguments)
    print(json.dumps([given.code, given.out + given.err]), flush=True)
"""
"""Commands in one process, which can be killed where one of them waits for a writer of the FIFO."""


@dataclass(frozen=True)
class Answer:
    """What a command leaves: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def answer(arguments: Sequence[str], columns: int | None = None) -> Answer:
    """Runs a command in the root of the tree, without colour. columns: the width of its text, None: as in a pipe."""
    out, err, code = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO(), 0
    terminal = {"NO_COLOR": "1"} | ({} if columns is None else {"COLUMNS": str(columns)})
    with (
        mock.patch.dict(os.environ, terminal),
        contextlib.chdir(ROOT),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    out.flush()
    out.seek(0)
    return Answer(code, out.read(), err.getvalue())
