"""The completion of shells: bash runs its script for real, and the scripts know every command and option."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from kvitals.ui.cli.completion import SHELLS, commands, script
from kvitals.ui.cli.main import COMMANDS, SHORT, main, parser
from tests.support.loops import for_each

BASH = shutil.which("bash")
_TRY = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
$(complete -p kvitals | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@cache
def written(shell: str) -> str:
    return script(shell)


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "kvitals.bash"
    path.write_text(written("bash"))
    return path


def completed(path: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    assert BASH is not None
    arguments = [BASH, "--norc", "--noprofile", "-c", _TRY, "bash", str(path), "kvitals", *words]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_bash_completes(bash_script: Path) -> None:
    for words, expected in (
        (("tri",), ["triage"]),
        (("triage", "--sin"), ["--since-change"]),
        (("triage", "-o", ""), ["text", "wide", "json", "yaml", "md", "slack", "html"]),
        (("triage", "-o", "m"), ["md"]),
        (("triage", "-o", "md", "--prob"), ["--probe"]),
        (("triage", ""), []),  # files, by bash itself
        (("triage", "--config", "-"), []),
        (("explain", "KVC0"), [f"KVC0{n}" for n in range(1, 10)]),
        (("config", ""), ["init", "check"]),
        (("config", "check", "--off"), ["--offline"]),
        (("export", "run"), ["runbooks"]),
        (("export", "--metrics", "e"), ["engines"]),
        (("init", "--for"), ["--force"]),
        (("history", "ex"), ["export"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("help", "who"), []),
        (("help", "kn"), ["knee"]),
    ):
        assert completed(bash_script, *words) == expected, words


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_bash_offers_every_command(bash_script: Path) -> None:
    assert {*COMMANDS, *SHORT, "completion", "help"} <= set(completed(bash_script, ""))


@for_each("shell", SHELLS)
def test_a_script_has_every_option_of_every_command(shell: str) -> None:
    for one in commands():
        for option in one.options:
            flag = option.flags[-1]
            assert (flag if shell != "fish" else flag.lstrip("-")) in written(shell), (one.path, flag)


def test_the_words_are_those_of_the_parsers() -> None:
    known = {one.path: one for one in commands()}
    assert set(COMMANDS) | set(SHORT) <= known.keys()
    for name in COMMANDS:
        actions = [a for a in parser(name)._actions if getattr(a, "choices", None) and name in a.choices]
        options = {flag for a in actions[0].choices[name]._actions for flag in a.option_strings}
        parts = [one for path, one in known.items() if path.startswith(f"{name} ")]
        assert parts or set(known[name].flags) == options, name


def test_fish_has_one_line_for_each_option() -> None:
    lines = written("fish").splitlines()
    assert all(line.startswith(("#", "complete -c kvitals ")) for line in lines)
    for line in lines[1:]:
        shlex.split(re.sub(r"\\'", "", line))


@for_each("shell", SHELLS)
def test_the_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", shell])
    assert (stop.value.code, capsys.readouterr().out) == (0, written(shell))


@pytest.mark.parametrize(("words", "code"), [((), 2), (("csh",), 2), (("--help",), 0)])
def test_without_a_shell_it_names_them(words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", *words])
    printed = capsys.readouterr()
    assert stop.value.code == code
    assert "bash|zsh|fish" in printed.out + printed.err
