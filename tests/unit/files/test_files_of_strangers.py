"""Every command that takes a file or a directory, given one that it cannot use: an exit code and one sentence."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.ui.cli.main import COMMANDS, parser
from tests.support.command import ALL_IN_TURN, ROOT

CANDIDATE = ("--against", "http://127.0.0.1:9")
TAKE_A_PATH = {
    "triage": ("F",),
    "top": ("F", "--once"),
    "cache": ("F",),
    "trace": ("--newest", "1", "F"),
    "compare": ("F", "F"),
    "check": ("F",),
    "lint": ("F",),
    "whatif": ("F", "--capacity", "10"),
    "knee": ("F",),
    "size": ("F",),
    "review": ("--out", "OUT", "F"),
    "upgrade": ("vllm", "0.10.0", "0.11.0", "F"),  # a directory without boards is one without findings
    "patch": ("F",),
    "prove": ("F", "--apply", "true", "--rollback", "true"),
    "gate extract": ("F",),
    "gate play": ("F", *CANDIDATE),
    "web": ("F",),
    "config check": ("F", "--offline"),
    "record": ("F", "--out", "OUT.kvcap"),
    "rules lint": ("F",),
    "history list": ("--dir", "F"),
    "history check": ("--dir", "F"),
    "history export": ("--dir", "F"),
    "history prune": ("--dir", "F", "--before=-1d"),
}
OPTIONS = (
    ("record", "--replay", "F"),
    ("whatif", "--trace", "F", "--capacity", "10"),
    ("whatif", "--capture", "F", "--capacity", "10"),
    ("whatif", "F", "--set", "max-num-seqs=9"),
    ("size", "--trace", "F"),
    ("size", "--model-config", "F"),
    ("run", "--demo", "F", "--no-web"),
    ("triage", "HEAVY_TENANT", "--config", "F"),
    ("triage", "--prometheus", "http://127.0.0.1:9", "--prometheus-bearer", "F"),
    ("triage", "--prometheus", "https://127.0.0.1:9", "--prometheus-ca", "F"),
)
KINDS: dict[str, Callable[[Path], object]] = {
    "fifo.kvcap": os.mkfifo,
    "directory": Path.mkdir,
    "empty.kvcap": Path.touch,
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "packed.gz": lambda path: path.write_bytes(gzip.compress(b"hello\n" * 50)),
    "list.json": lambda path: path.write_text("[1, 2, null]\n"),
    "other.db": lambda path: _database(path),
}
AN_EMPTY_ONE_IS_FINE = (("config", "check", "F", "--offline"), ("triage", "HEAVY_TENANT", "--config", "F"))
MAX_SENTENCE = 600


def _database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (a)")


def _paths(one: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """The commands and actions below a parser that take a path by its place, or one that must be read."""
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from _paths(inner, f"{name} {word}".strip())
        elif not action.option_strings and any(
            word in str(action.metavar or action.dest) for word in ("FILE", "DIR", "PATH", "INCIDENT")
        ):
            yield name


def test_every_command_that_takes_a_path_is_in_the_table() -> None:
    named = {name for command in COMMANDS for name in _paths(parser(command), "") if name.startswith(command)}
    assert named - TAKE_A_PATH.keys() == {"mcp", "rules test"}  # a server; as `rules lint`


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_used_is_one_sentence(kind: str, tmp_path: Path) -> None:
    """In a process of its own, which is killed where one of the commands waits for a writer of the FIFO."""
    file = tmp_path / kind
    KINDS[kind](file)
    commands = [(*name.split(), *words) for name, words in TAKE_A_PATH.items()]
    places = {"F": str(file), "OUT": str(tmp_path / "out"), "OUT.kvcap": str(tmp_path / "out.kvcap")}
    places["HEAVY_TENANT"] = str(HEAVY_TENANT)
    asked = [[places.get(word, word) for word in words] for words in (*commands, *OPTIONS)]
    done = subprocess.run(
        [sys.executable, "-c", ALL_IN_TURN],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)},
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(asked), (asked[len(answers)], done.stderr)
    wrong = [
        (*words, code, printed[-600:])
        for words, (code, printed) in zip((*commands, *OPTIONS), answers, strict=True)
        if not (kind.startswith("empty") and words in AN_EMPTY_ONE_IS_FINE)
        and not (kind == "directory" and words[0] == "upgrade")
        and (code not in (2, 3) or "Traceback" in printed or "Errno" in printed or len(printed) > MAX_SENTENCE)
    ]
    assert wrong == []
