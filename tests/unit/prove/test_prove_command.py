"""`kvitals prove` as its user meets it: help, the steps, what it refuses, and the text of its answers."""

import os
from pathlib import Path

import pytest

from kvitals.app.escaping.terminal import SafeConsole
from kvitals.app.prove.journal import Journal, journal_file, lock_trials, prove_directory, write_journal
from kvitals.diagnoser.change_proof import Proof
from kvitals.ui.cli.main import main
from kvitals.ui.cli.prove import exit_code, show
from tests.unit.prove.proofs import effect, proof

URL = "http://127.0.0.1:9"
BOTH = ("--apply", "systemctl restart new", "--rollback", "systemctl restart old")
TEXTS = Path(__file__).with_name("texts")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvitals.agent.paths.SYSTEM", tmp_path / "none")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["prove", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_dry_run_prints_the_steps_and_does_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, URL, *BOTH, "--dry-run")
    assert code == 0
    assert [line[:2] for line in out.splitlines() if line[:1].isdigit()] == ["1.", "2.", "3.", "4.", "5."]
    assert "systemctl restart new" in out and "systemctl restart old" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--apply", "a"), "name both commands"),
        (("--apply", "a 'b", "--rollback", "c"), "close each quote"),
        ((*BOTH, "--peers", URL), "cannot be one of its --peers"),
        ((*BOTH, "--before", "5s"), "--before takes 36s to 4h"),
        ((*BOTH, "--for", "1x"), "is not a time"),
        (("KVCXX", *BOTH), "no rule has the code KVCXX"),
        (("KVCXX", *BOTH, "--dry-run"), "no rule has the code KVCXX"),
    ],
)
def test_bad_use_is_refused_with_what_to_write(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, URL, *words)
    assert (code, out) == (2, "") and told in err


def test_an_engine_that_does_not_answer_is_never_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = tmp_path / "made"
    code, _, err = run(capsys, URL, "--apply", f"touch {made}", "--rollback", "true")
    assert code == 3 and "cannot be read" in err
    assert not made.exists()


def test_an_earlier_change_that_still_stands_is_named_first(capsys: pytest.CaptureFixture[str]) -> None:
    file = journal_file(prove_directory())
    write_journal(file, Journal("applied", "engine-1", ("a",), ("go", "back now"), 1_790_000_000.0, 1))
    code, _, err = run(capsys, URL, *BOTH)
    assert code == 2
    assert "engine-1 was never rolled back" in err and "go 'back now'" in err and "--forget" in err
    code, _, err = run(capsys, URL, *BOTH, "--forget")
    assert code == 3 and not file.exists()  # it went on, and there is no engine


def test_two_trials_at_a_time_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    lock = lock_trials(prove_directory())
    assert lock is not None
    code, _, err = run(capsys, URL, *BOTH)
    os.close(lock)
    assert code == 2 and "another `kvitals prove` runs" in err


GUARDED = proof(
    verdict="worse", state="rolled back", guard_rail="TTFT p99 3.1 s, limit 2 s (objective)", levers=[],
    conclusion="The change made it worse: a guard rail broke, TTFT p99 3.1 s, limit 2 s (objective).",
    effects=[effect(verdict="open", change=None, low=None, high=None, text="120 ms → 2.8 s", note="")],
)  # fmt: skip
STUCK = proof(verdict="undecided", state="rollback failed", conclusion="Undecided: the load is not comparable.")


def text(of: Proof, columns: int, path: Path) -> str:
    with path.open("w") as file:
        show(of, SafeConsole(width=columns, color_system=None, highlight=False, markup=False, emoji=False, file=file))
    return "".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines())


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(("name", "of"), [("worked", proof()), ("guarded", GUARDED), ("stuck", STUCK)])
def test_the_answer_reads_as_its_golden_text(name: str, of: Proof, columns: int, tmp_path: Path) -> None:
    golden = TEXTS / f"{name}-{columns}.txt"
    printed = text(of, columns, tmp_path / "text")
    assert max(map(len, printed.splitlines())) <= columns
    assert printed == golden.read_text()


def test_exit_codes() -> None:
    codes = {verdict: exit_code(proof(verdict=verdict)) for verdict in ("worked", "in part", "no effect", "worse")}
    assert codes == {"worked": 0, "in part": 1, "no effect": 1, "worse": 1}
    assert exit_code(proof(verdict="undecided")) == 3
    assert exit_code(STUCK) == 1
