"""Rules of one's own: begun, tested, linted and used; parameters of those that ship are given anew, codes are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.rules.loader import load
from kvitals.ui.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, list[str]]:
    """The exit code and the lines of a command, errors after the others."""
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    said = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, [*said.out.splitlines(), *said.err.splitlines()]


@pytest.fixture
def begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run(capsys, "rules", "new", "own07", "queue-is-long", "--dir", tmp_path)[0] == 0
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_new_rule_passes_its_cases_and_lint_says_what_to_write(
    begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "rules", "test", begun) == (0, ["4 cases of 1 rule: all is well"])
    code, lines = run(capsys, "rules", "lint", begun)
    assert code == 1
    assert lines[-1] == "1 rule or lever: 11 problems"
    assert (
        lines[0]
        == f"{begun}/codes/OWN07-queue-is-long.yaml:5: title: still has the text of the example; write your own"
    )


def test_a_new_rule_judges_at_once(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(begun / "codes" / "OWN07-queue-is-long.yaml", "default: 10", "default: 0.5")
    with pytest.raises(SystemExit):
        main(["triage", str(HEAVY_TENANT), "--rules", str(begun), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert "OWN07" in [cause["code"] for cause in document["causes"]]


def test_a_case_that_fails_is_named_with_its_line_and_with_what_is_so(
    begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = begun / "cases" / "OWN07.yaml"
    edit(cases, '"20x30"', '"5x30"')
    edit(cases, 'says: "waiting avg is 2 requests', 'says: "waiting avg is 3 requests')
    code, lines = run(capsys, "rules", "test", begun)
    assert code == 1
    assert lines == [
        f"{cases}:5: OWN07: twice as many wait as we want: must be fired, is clear: waiting avg is 5 requests, not"
        " above 10 requests",
        f"{cases}:12: OWN07: some wait, as they do: must contain 'waiting avg is 3 requests, not above 10 requests', is"
        " 'waiting avg is 2 requests, not above 10 requests'",
        "4 cases of 1 rule: 2 problems",
    ]


BROKEN = {
    "no value": ('"20x30"', '"20y30"', "'20y30' is not a value: write 5, 5x3,"),
    "a series without end": ('"20x30"', '"20x999999999"', "a series has at most 20,000 samples"),
    "no series": ("'kvitals_requests_waiting{engine=\"e\"}': \"20", "'sum(kvitals_x)': \"20", "is not a series"),
    "no entity": ("kvitals_target_up", "kvitals_target_down", 'a case needs kvitals_target_up{engine="e"}'),
    "no outcome": ("expect: fired", "expect: fires", "6: Invalid enum value 'fires'"),
    "no key": ("expect: fired", "expected: fired", "unknown field `expected`"),
    "a title twice": ("some wait, as they do", "no request arrives", "a second case has the title 'no request"),
    "a code of nobody": ("code: OWN07", "code: OWN08", "it has cases of OWN08, so its name must be OWN08.yaml"),
    "too short": ('"20x30"', '"2x26 90x3"', "it counts after 60 s"),
    "no time between samples": ("says: \"20 requests wait\"", "interval: 0s", "7: Expected `str` matching regex"),
    "a moment far away": ("says: \"20 requests wait\"", "at: 900d", "moments to evaluate, at most 20,000"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_case_file_that_is_wrong(begun: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    old, new, message = BROKEN[what]
    edit(begun / "cases" / "OWN07.yaml", old, new)
    code, lines = run(capsys, "rules", "test", begun)
    assert code == 1
    assert message in "\n".join(lines)


def test_cases_that_are_missing(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases, rule = begun / "cases" / "OWN07.yaml", begun / "codes" / "OWN07-queue-is-long.yaml"
    edit(cases, "expect: unknown", "expect: clear")
    assert f"{cases}:1: no case of OWN07 expects unknown" in run(capsys, "rules", "lint", begun)[1]
    cases.unlink()
    for command in ("test", "lint"):
        code, lines = run(capsys, "rules", command, begun)
        assert code == 1
        assert f"{rule}:1: OWN07 has no cases: write some in {cases}" in lines


def test_a_rule_that_can_not_be_loaded_fails_both(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(begun / "codes" / "OWN07-queue-is-long.yaml", "kvitals:waiting_avg > ", "kvitals:waiting_average > ")
    for command in ("test", "lint"):
        code, lines = run(capsys, "rules", command, begun)
        assert code == 1
        assert f"{begun}/codes/OWN07-queue-is-long.yaml:10: no signal `waiting_average` in signals/" in lines
        assert f"{begun}/cases/OWN07.yaml:1: rule OWN07 does not exist, or could not be loaded" in lines


def test_one_case_file_alone_is_run_with_the_rules_beside_it(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(capsys, "rules", "test", "-v", begun / "cases" / "OWN07.yaml")
    assert code == 0
    assert lines[0] == "pass  OWN07: twice as many wait as we want"
    assert lines[-1] == "4 cases of 1 rule: all is well"
    assert run(capsys, "rules", "lint", begun / "cases")[0] == 2


def test_the_directories_of_the_configuration_are_the_default(
    begun: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "kvitals.toml"
    config.write_text(f'[agent]\nrules = ["{begun}"]\n')
    assert run(capsys, "rules", "test", "--config", config) == (0, ["4 cases of 1 rule: all is well"])
    config.write_text("")
    code, lines = run(capsys, "rules", "test", "--config", config)
    assert code == 2
    assert lines == ["kvitals: name a directory of rules; `kvitals rules new OWN01 NAME` starts one"]


def test_cases_of_two_directories_are_all_run(begun: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The second has cases of the first's rule, and nothing else."""
    other = tmp_path / "more"
    (other / "cases").mkdir(parents=True)
    (other / "cases" / "OWN07.yaml").write_text((begun / "cases" / "OWN07.yaml").read_text())
    assert run(capsys, "rules", "test", begun, other, begun) == (0, ["8 cases of 1 rule: all is well"])


def test_nothing_to_run_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(capsys, "rules", "test", tmp_path)
    assert (code, lines) == (2, [f"kvitals: {tmp_path}: contains no cases"])


REFUSED = {
    "a code that ships": (("KVC01", "again"), "KVC01 is already used by"),
    "a code that is there": (("OWN07", "other-name"), "OWN07 is already used by"),
    "no code": (("OWN7", "name"), "OWN7 is not a code: write three letters and two digits, such as OWN01"),
    "a way out": (("OWN08", "../../name"), "../../name is not a name"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_rule_that_can_not_be_begun(begun: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    (code, name), message = REFUSED[what]
    before = sorted(begun.rglob("*"))
    status, lines = run(capsys, "rules", "new", code, name, "--dir", begun)
    assert (status, len(lines)) == (2, 1)
    assert message in lines[0]
    assert sorted(begun.rglob("*")) == before


def test_a_directory_that_can_not_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    status, lines = run(capsys, "rules", "new", "OWN01", "name", "--dir", tmp_path / "file" / "rules")
    assert status == 2
    assert "choose another --dir" in lines[0]


def test_no_code_that_ships_begins_as_ones_own() -> None:
    assert not [code for code in load().rules if code.startswith("OWN")]


# Parameters of rules that ship.


def overrides(tmp_path: Path, text: str, name: str = "SCH12") -> Path:
    (tmp_path / "params").mkdir(exist_ok=True)
    path = tmp_path / "params" / f"{name}.yaml"
    path.write_text(text)
    return path


def test_parameters_are_given_anew_and_the_last_directory_counts(tmp_path: Path) -> None:
    for name, number in (("one", 3), ("two", 5)):
        (tmp_path / name).mkdir()
        overrides(tmp_path / name, f'code: SCH12\nparams:\n  waiting: {{default: {number}, why: "ours is slow"}}\n')
    knowledge = load([tmp_path / "one", tmp_path / "two"])
    rule = knowledge.rules["SCH12"]
    assert not knowledge.problems
    assert str(knowledge.condition(rule)) == "kvitals:waiting_deferred_avg > 5"
    assert rule.params["waiting"].why == "ours is slow"
    assert load().rules["SCH12"].params["waiting"].default == 0.5  # what ships stays as it is


PARAMS = 'code: SCH12\nparams:\n  waiting: {default: 3, why: "ours"}\n'
WRONG = {
    "no rule": ("code: SCH12", "code: OWN99", "no rule OWN99 exists for these parameters"),
    "another's": (
        "code: SCH12",
        "code: SCH11",
        "the file is named SCH12.yaml, but its content needs the name SCH11.yaml",
    ),
    "no parameter": ("waiting:", "wating:", "SCH12 has no parameter `wating` (it has: waiting)"),
    "no number": (
        "default: 3",
        "default: .inf",
        "params.waiting.default: inf is not finite: a number must be from -1e+15 to 1e+15",
    ),
    "no reason": (', why: "ours"', "", "Object missing required field `why`"),
}


@pytest.mark.parametrize("what", WRONG)
def test_parameters_that_are_wrong_are_named_and_left_out(tmp_path: Path, what: str) -> None:
    old, new, message = WRONG[what]
    path = overrides(tmp_path, PARAMS.replace(old, new))
    knowledge = load([tmp_path])
    first = knowledge.problems[0]
    assert first.file == path
    assert first.line == 1 + PARAMS[: PARAMS.index(old)].count("\n")
    assert message in [problem.message.partition(" (allowed")[0] for problem in knowledge.problems]
    assert knowledge.rules["SCH12"].params["waiting"].default == 0.5


def test_lint_tells_of_parameters_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = overrides(tmp_path, PARAMS.replace("waiting:", "wating:"))
    code, lines = run(capsys, "rules", "lint", tmp_path)
    assert code == 1
    assert lines[0].startswith(f"{path}:3: SCH12 has no parameter `wating`")
