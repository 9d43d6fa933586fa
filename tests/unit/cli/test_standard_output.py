"""Standard output that does not take an answer: one line and an exit code, from every command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvitals.ui.cli import main as entry
from kvitals.ui.cli.standard_streams import answer_output
from tests.goldens import terminal
from tests.support.loops import for_each

pytestmark = pytest.mark.usefixtures("shared_verdicts")

MODULE = f"{sys.executable} -m kvitals"
STATED = "kvitals: the answer cannot be written to standard output: "
FORMATS = {
    f"{name} as {form}": (*words, "-o", form)
    for name, words in terminal.COMMANDS.items()
    if name in ("check", "triage", "knee")
    for form in ("json", "yaml", "md", "slack", "html")
}
HELP = {f"help of {name}": (name, "--help") for name in entry.COMMANDS}
MORE = {
    "version": ("--version",),
    "completion": ("completion", "bash"),
    "rules list": ("rules", "list", "--json"),
    "check --schema": ("check", "--schema"),
}
RUNS = {**terminal.COMMANDS, **FORMATS, **HELP, **MORE}


@for_each("name", sorted(RUNS))
def test_an_answer_that_cannot_be_written_is_one_line(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(terminal.ROOT)
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", answer_output(full))
        with pytest.raises(SystemExit) as stop:
            entry.main(RUNS[name])
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert err.splitlines()[-1].startswith(f"{STATED}No space left on device.")
    assert "Traceback" not in err


COMMANDS = ("--help", "--version", "check --help", "explain KVC01", "explain KVC01 -o json", "completion zsh")


def _ended(command: str) -> tuple[int, str]:
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    return ran.returncode, ran.stderr


@for_each("words", COMMANDS)
def test_a_closed_standard_output_is_one_line(words: str) -> None:
    """It exited with 0 and had written nothing."""
    code, err = _ended(f"{MODULE} {words} >&-")
    assert (code, len(err.splitlines())) == (2, 1)
    assert err.startswith(f"{STATED}it is closed.")


@for_each("words", COMMANDS)
def test_a_full_disk_is_one_line(words: str) -> None:
    code, err = _ended(f"{MODULE} {words} >/dev/full")
    assert (code, len(err.splitlines())) == (2, 1)


@for_each("words", COMMANDS)
def test_a_reader_that_has_enough_is_no_failure(words: str) -> None:
    assert _ended(f"{MODULE} {words} | head -c 1") == (0, "")


def test_a_file_has_all_that_is_printed(tmp_path: Path) -> None:
    assert _ended(f"{MODULE} explain KVC01 > {tmp_path}/a") == (0, "")
    code, _ = _ended(f"PYTHONUNBUFFERED=1 {MODULE} explain KVC01 > {tmp_path}/b")
    assert code == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != b""


def test_notes_of_a_server_may_be_lost() -> None:
    """A server does not end because nobody reads what it prints: it says why it did not start, on standard error."""
    for redirection in (">&-", ">/dev/full"):
        code, err = _ended(f"{MODULE} run --listen nonsense {redirection}")
        assert code == 2 and STATED not in err


def test_a_file_name_that_is_not_utf_8_is_printed_as_json_and_yaml(tmp_path: Path) -> None:
    """It ended with a traceback."""
    odd = tmp_path / "few\udcff.kvcap"
    shutil.copy(terminal.ROOT / "app/demo/few_slots.kvcap", odd)
    for command, form in (("triage", "json"), ("check", "json"), ("triage", "yaml")):
        words = [sys.executable, "-m", "kvitals", command, str(odd), "-o", form]
        ran = subprocess.run(words, capture_output=True, timeout=60, check=False)
        assert (ran.returncode, ran.stderr) == (int(command == "triage"), b"")
        assert "few\ufffd.kvcap" in str(yaml.safe_load(ran.stdout)["source"])


def test_half_of_a_surrogate_pair_in_a_board_is_reported_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = tmp_path / "board.json"
    panel = '{"type": "graph", "title": "\\udfff", "targets": [{"expr": "vllm:kv_cache_usage_perc > 90"}]}'
    board.write_text(f'{{"title": "\\ud800", "panels": [{panel}]}}')
    with pytest.raises(SystemExit) as stop:
        entry.main(("lint", "--json", str(board)))
    assert stop.value.code == 1
    assert json.loads(capsys.readouterr().out)["defects"][0]["place"] == "\ufffd"


def test_no_command_encodes_its_document_past_the_one_function() -> None:
    """`msgspec.json.encode` ends with a traceback for such texts."""
    files = [path for folder in ("ui", "app/prove") for path in (terminal.ROOT / folder).rglob("*.py")]
    direct = [path.name for path in files if "msgspec.json.encode(" in path.read_text()]
    assert set(direct) <= {"supervised.py", "supervisor.py", "journal.py"}  # messages between our own processes
