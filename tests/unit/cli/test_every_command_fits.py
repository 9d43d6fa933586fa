"""No command prints a line that is wider than the terminal, in no width, with and without colour."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards import runbooks_site
from kvitals.rules import authoring
from kvitals.ui.cli import export
from kvitals.ui.cli.help_layout import lay_out
from kvitals.ui.cli.main import COMMANDS, parser
from tests.goldens import terminal
from tests.goldens.terminal import WIDTHS, printed, too_wide
from tests.unit.test_floors import ROOT

pytestmark = pytest.mark.usefixtures("shared_verdicts", "files_made_once")

SERVES = {"run", "web", "tap", "notify", "mcp", "prove", "gate play"}
"""Commands that run until they are stopped, or need a live engine. Their help is read here."""

KEPT = {"history list", "history check", "history export", "history prune", "review"}
"""Commands about a history: tests/unit/history/test_kept_incident.py runs them on one. `prune` prints a number."""

MORE = {
    "triage -v": ("triage", "-v", "app/demo/heavy_tenant.kvcap"),
    "triage -vv": ("triage", "-vv", "app/demo/heavy_tenant.kvcap"),
    "triage of a healthy engine": ("triage", "app/demo/healthy.kvcap"),
    "triage without telemetry": ("triage", "-v", "tests/captures/incidents/telemetry_off-1.kvcap"),
    "compare --all": ("compare", "--all", "app/demo/healthy.kvcap", "app/demo/few_slots.kvcap"),
    "gate extract": ("gate", "extract", "app/demo/few_slots.kvcap", "--out", "{out}/load.jsonl"),
    "export": (
        "export", "boards", "alerts", "recording", "alertmanager", "runbooks", "mixin", "--out", "{out}",
    ),
    "config init": ("config", "init", "--out", "{out}/kvitals.toml"),
    "config check": ("config", "check", "--offline", "docs/kvitals.toml"),
    "rules list": ("rules", "list"),
    "rules show": ("rules", "show", "KVC01"),
    "rules new": ("rules", "new", "OWN07", "queue-is-long", "--dir", "{out}"),
    "rules test": ("rules", "test", "rules"),
    "rules lint": ("rules", "lint", "rules"),
    "rules site": ("rules", "site", "--out", "{out}/site"),
    "patch with a file": ("patch", "app/demo/few_slots.kvcap", "--file", "{out}/start.sh"),
    "lint of alerts": ("lint", "dashboards/generated/alerts"),
    "explain a metric": ("explain", "kvitals_requests_running"),
    "prometheus help": ("help", "check"),
    "completion": ("completion", "--help"),
    "without a command": ("nonsense",),
}  # fmt: skip
RUNS = {**{name: words for name, words in terminal.COMMANDS.items() if "--help" not in words}, **MORE}


def made_once(made: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which answers equal arguments as it did before."""
    known: list[tuple[tuple[Any, ...], Any]] = []

    def remembered(*asked: Any) -> Any:
        for before, answer in known:
            if before == asked:
                return answer
        known.append((asked, made(*asked)))
        return known[-1][1]

    return remembered


@pytest.fixture
def files_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands write or check is the same in every width: it is made once in a test."""
    monkeypatch.setattr(export, "export", made_once(export.export))
    monkeypatch.setattr(authoring, "lint", made_once(authoring.lint))
    monkeypatch.setattr(runbooks_site, "site", made_once(runbooks_site.site))


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command and of every action of one."""
    for name in COMMANDS:
        waiting = [((name,), _of(parser(name))[name])]
        while waiting:
            words, one = waiting.pop()
            yield words
            waiting += [((*words, action), sub) for action, sub in _of(one).items()]


def _of(one: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next((dict(a.choices) for a in one._actions if isinstance(a, argparse._SubParsersAction)), {})


def test_each_command_is_run_here_or_named() -> None:
    leaves = {" ".join(words) for words in commands()}
    leaves -= {word.split()[0] for word in leaves if " " in word}
    run = {" ".join(words[:length]) for words in RUNS.values() for length in (1, 2)}
    assert leaves - run == SERVES | KEPT
    assert not run & SERVES


@pytest.mark.parametrize("columns", WIDTHS)
def test_every_help_fits(columns: int) -> None:
    for words in [(), *commands()]:
        text = printed((*words, "--help"), columns)
        assert text and too_wide(text, columns) == [], words


@pytest.mark.parametrize("name", RUNS)
def test_every_output_fits_with_and_without_colour(name: str, tmp_path: Path) -> None:
    for columns in WIDTHS:
        texts = []
        for colour in (False, True):
            out = tmp_path / "out"
            shutil.rmtree(out, ignore_errors=True)  # in the same place each time, since a path is as long as it is
            out.mkdir()
            (out / "start.sh").write_text(f"exec vllm serve org/model --max_num_seqs=2 {'--long-option 1 ' * 12}\n")
            words = tuple(word.format(out=out) for word in RUNS[name])
            text = printed(words, columns, colour).replace(str(out), "OUT")
            texts.append([line.rstrip() for line in terminal.ESCAPE.sub("", text).splitlines()])
            assert too_wide(text, columns) == [], (columns, colour)
        assert texts[0] == texts[1]


def test_only_what_is_copied_may_be_wider_than_the_terminal() -> None:
    """`soft_wrap` prints a line as long as it is: one function does it, for what is copied, and for a log."""
    users = {
        path.name for path in (ROOT / "ui" / "cli").glob("*.py") if "soft_wrap" in path.read_text(encoding="utf-8")
    }
    assert users == {"narrow.py", "common.py"}


ROWS = """\
A paragraph of this page
goes on here.

the first    its text is long enough to be broken
             and goes on
the second   short

  kvitals size --model "Llama 3.3 70B" --gpu H100
"""


def test_paragraphs_rows_and_commands_keep_their_form() -> None:
    assert lay_out(ROWS, 40).splitlines() == [
        "A paragraph of this page goes on here.",
        "",
        "the first    its text is long enough to",
        "             be broken and goes on",
        "the second   short",
        "",
        '  kvitals size --model "Llama 3.3 70B" \\',
        "      --gpu H100",
    ]
    wide = lay_out(ROWS, 80).splitlines()
    assert wide[2] == "the first    its text is long enough to be broken and goes on"
    assert wide[-1] == '  kvitals size --model "Llama 3.3 70B" --gpu H100'


def test_a_fenced_block_stays_and_a_number_keeps_its_unit() -> None:
    assert lay_out("```\nlong line of code\n```\nKV usage is 98.5 % now", 18).splitlines() == [
        "```",
        "long line of code",
        "```",
        "KV usage is 98.5 %",
        "now",
    ]
    assert lay_out("KV usage is 98.5 % now", 17).splitlines()[0] == "KV usage is"
