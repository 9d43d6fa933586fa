"""The command line before any command runs: help, version, unknown words, and how little is imported for them."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.ui.cli import letters
from kvitals.ui.cli import main as entry
from kvitals.ui.cli.common import parse_moment
from tests.support.loops import for_each

HEAVY = {"numpy", "aiohttp", "msgspec", "streamlit", "rich", "yaml"}


def _ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        entry.main(words)
    assert isinstance(stop.value.code, int)
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err


def test_help_lists_every_command_module_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _ended(capsys, "--help")
    assert code == 0
    modules = {path.stem for path in Path(entry.__file__).parent.glob("*.py") if "\ndef add(" in path.read_text()}
    assert modules - {"rules_authoring"} == set(entry.COMMANDS)  # which adds to `kvitals rules`
    assert [name for name in entry.COMMANDS if f"\n  {name} " not in out] == []


def test_the_help_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _ended(capsys, "--help")
    assert [line for line in out.splitlines() if len(line) > 80] == []


@for_each("command", entry.COMMANDS)
def test_each_command_says_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _ended(capsys, command, "--help")
    assert code == 0
    assert out.split("\n\n")[1].strip()


def test_programs_that_a_command_starts_have_the_threads_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in (None, "7"):
        if given is None:
            monkeypatch.delenv(entry.BLAS_THREADS, raising=False)
        else:
            monkeypatch.setenv(entry.BLAS_THREADS, given)
        _ended(capsys, "triage", "--help")
        assert os.environ.get(entry.BLAS_THREADS) == given


def test_version_has_three_names(capsys: pytest.CaptureFixture[str]) -> None:
    said = {_ended(capsys, word) for word in ("--version", "-V", "version")}
    assert len(said) == 1
    code, out, err = said.pop()
    assert (code, err) == (0, "")
    assert out.startswith("kvitals ")


def test_the_package_is_the_command() -> None:
    run = subprocess.run([sys.executable, "-m", "kvitals", "--version"], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("kvitals ")


def test_a_word_that_is_no_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _ended(capsys, "traige", "http://127.0.0.1:1")
    assert (code, out) == (2, "")
    assert "Did you mean triage?" in err


def test_no_command_prints_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _ended(capsys)
    assert (code, out) == (2, "")
    assert "triage" in err


def test_help_of_a_command_is_asked_for_in_two_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert _ended(capsys, "help", "cache") == _ended(capsys, "cache", "--help")


@for_each("word", ["--help", "--version", "nonsense"])
def test_what_needs_no_command_imports_nothing_heavy(word: str) -> None:
    code = (
        "import sys\nfrom kvitals.ui.cli.main import main\n"
        f"try:\n    main(['{word}'])\nexcept SystemExit:\n    pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr.splitlines()[-1] == "[]"


def test_a_recording_is_judged_without_the_http_client() -> None:
    code = (
        "import sys\nfrom kvitals.ui.cli.main import main\n"
        f"try:\n    main(['triage', {str(HEAVY_TENANT)!r}])\nexcept SystemExit:\n    pass\n"
        "print('aiohttp' in sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr.splitlines()[-1] == "False" and "KVC01" in ran.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["triage", "--jsn", "x.kvcap"], "kvitals triage: there is no option --jsn (did you mean --json?)."),
        (["rules", "list", "extra"], "kvitals rules list: argument 'extra' is not expected."),
        (["rules", "list", "--rulez=x"], "kvitals rules list: there is no option --rulez (did you mean --rules?)."),
        (["triage", "--at"], "kvitals triage: argument --at: expected one argument."),
        (["triage", "--\x1b[31mV"], "kvitals triage: there is no option --\ufffd[31mV"),
        (["rules", "\x1b[31mV"], "kvitals rules: argument"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_command(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _ended(capsys, *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(message)
    assert err.removesuffix("\n").isprintable()


@for_each("command", ["check", "knee", "audit", "size", "review", "notify"])
def test_help_names_no_option_that_the_command_does_not_have(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _ended(capsys, command, "--help")
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", out, re.MULTILINE))
    mentioned = set(re.findall(r"(?<![\w-])--(?:at|from|to)\b", out))
    assert mentioned <= options


@for_each("text", ["75s", "+75s", "-25s"])
def test_a_moment_of_a_recording_has_three_short_forms(text: str) -> None:
    assert parse_moment(text, 1000.0, "--at", 1100.0) == 1075.0


def test_a_moment_may_be_written_as_it_is_printed() -> None:
    assert parse_moment("1970-01-01 00:17:55 UTC", 1000.0, "--at", 1100.0) == 1075.0


def test_a_value_that_begins_with_a_minus_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _ended(capsys, "triage", "http://127.0.0.1:1", "--at", "-5s")
    assert code == 2
    assert "a live triage shows only the present" in err


def test_letters_that_an_encoding_lacks_are_replaced_by_some_that_it_has() -> None:
    letters.register()
    assert "129 → 258 · ▁█…".encode("ascii", letters.NAME) == b"129 -> 258 - _#..."
    assert "日".encode("ascii", letters.NAME) == b"?"


@pytest.mark.parametrize(("word", "exit_code"), [("triage", 130), ("run", 0)])
def test_ctrl_c_before_the_command_line_is_read_is_one_line(word: str, exit_code: int) -> None:
    code = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "kvitals.ui.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from kvitals.ui.cli.launch import main
main()
"""
    ran = subprocess.run([sys.executable, "-c", code, word], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (exit_code, "kvitals: stopped\n")


@for_each("word", ["--version", "--help"])
def test_what_needs_no_command_takes_little_cpu(word: str) -> None:
    """The best of three: the machine may be busy."""
    command = [
        sys.executable,
        "-c",
        f"from kvitals.ui.cli.launch import main; import sys; sys.argv[1:] = [{word!r}]; main()",
    ]
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken) < 0.25


def test_every_command_can_be_read_without_what_draws_boards() -> None:
    """The wheel has no grafanalib: `upgrade` imported it, and with it all commands, completion too."""
    absent = "import sys; sys.modules['grafanalib'] = None"
    code = f"{absent}; from kvitals.ui.cli.main import main; main(['completion', 'bash'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "upgrade" in ran.stdout
