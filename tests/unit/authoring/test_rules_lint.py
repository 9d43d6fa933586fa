"""Lint finds each thing that can be wrong with a rule, a lever or a signal that loads, and says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.rules.authoring import TEMPLATE, lint, wanted_outcomes
from kvitals.rules.loader import load

RULE = next((TEMPLATE / "codes").glob("*.yaml")).read_text()
GOOD = (
    RULE.replace("An example: m", "M")
    .replace("An example: {", "{")
    .replace("an example: why this number", "by our own measure, this")
    .replace("An example: a", "A")
    .replace("An example: o", "O")
    .replace("An example: y", "Y")
    .replace("An example. ", "")
)


def found(tmp_path: Path, text: str, kind: str = "codes", name: str = "OWN01-too-many-wait") -> list[str]:
    """What lint says, as LINE: MESSAGE."""
    path = tmp_path / kind / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    problems = lint(load([tmp_path]), tmp_path)
    assert {problem.file for problem in problems} <= {path}
    return [f"{problem.line}: {problem.message}" for problem in problems]


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def test_a_rule_that_is_right_has_nothing_wrong(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD) == []


def test_every_text_of_the_example_is_to_be_written(tmp_path: Path) -> None:
    said = found(tmp_path, RULE)
    assert [line.partition(": ")[2] for line in said] == [
        f"{what}: still has the text of the example; write your own"
        for what in (
            "title", "params.waiting.why", "conclusion", "levers.why", "levers.why",
            "page.sees", "page.why", "page.wrong_when", "page.do", "page.do_not", "page.references",
        )
    ]  # fmt: skip


WRONG = {
    "a name that says nothing": ("name: too-many-wait", "name: queue-alert", "4: name: `alert` has no meaning here"),
    "a title that ends with a stop": ("than we want", "than we want.", "5: title: 75 characters at most"),
    "a condition on no signal": (
        "kvitals:waiting_avg > $waiting",
        "kvitals_requests_waiting > $waiting",
        "10: when: must compare at least one signal",
    ),
    "a signal of another scope": (
        "when: kvitals:waiting_avg",
        "when: kvitals:node_waiting_avg",
        "10: when: `kvitals:node_waiting_avg` belongs to a node",
    ),
    "a parameter that nobody reads": ("> $waiting", "> 10", "12: params: no condition of the rule reads `$waiting`"),
    "a number without a reason": (
        'why: "by our own measure, this and no other"',
        'why: "ok"',
        "12: params: state why `$waiting` is 10",
    ),
    "a page that says other numbers": (
        "more than 10 (`$waiting`)",
        "more than 12 (`$waiting`)",
        "page: states 12 for `$waiting`, but its default is 10",
    ),
    "a page that names what there is not": (
        "more than 10 (`$waiting`)",
        "more than 10 (`$wait`)",
        "page: `$wait` is not a parameter",
    ),
    "a placeholder on a page": (
        "How it comes to this",
        "How {waiting_avg} come to this",
        "page.why: `{waiting_avg}` is printed unchanged",
    ),
    "a heading with nothing below": (
        "What looks like a remedy and makes it worse.",
        "No.",
        "page.do_not: must have 40 to 1100 characters, not 4",
    ),
    "no references": (
        'references:\n    - "Your own runbook, a page of the engine\'s manual"',
        "references: []",
        "page.references: name a source",
    ),
    "evidence without a unit": (
        'query: "kvitals:running_avg", unit: requests',
        'query: "kvitals:running_avg"',
        "evidence: say the `unit`",
    ),
    "a cause of nothing": ("explains: [LAT01]", "explains: []", "8: kind: a cause must explain something"),
    "a note explained": ("explains: [LAT01]", "explains: [LAT01, KVC02]", "16: explains: KVC02 is a "),
    "itself explained": (
        "explains: [LAT01]",
        "explains: [LAT01, OWN01]",
        "16: explains: OWN01 explains OWN01; explanations must not form a circle",
    ),
    "a wider place explained": (
        "explains: [LAT01]",
        "explains: [LAT01, GPU01]",
        "16: explains: GPU01 belongs to a node, which an engine cannot explain",
    ),
    "a symptom about nothing": ("kind: cause", "kind: symptom", "8: kind: a symptom must name what it is `about`"),
    "a preview in the core": ("kind: cause", "kind: cause\ncore: true", "core: a core rule must be stable"),
    "a lever twice": (
        "lever: data-parallel-scale-out",
        "lever: admission-control",
        "22: levers: admission-control is offered twice",
    ),
    "a lever beside the point": (
        "lever: data-parallel-scale-out",
        "lever: chunked-prefill",
        "22: levers: chunked-prefill moves itl, but the effects that this rule explains are about ttft",
    ),
    "a lever of other engines": (
        "lever: data-parallel-scale-out",
        "lever: raise-kv-budget",
        "22: levers: raise-kv-budget has no setting for llamacpp",
    ),
    "another rule's place taken by itself": (
        "explains: [LAT01]",
        "explains: [LAT01]\nexcluded_by: [OWN01]",
        "17: excluded_by: OWN01 is this rule",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, what: str) -> None:
    old, new, message = WRONG[what]
    name = "OWN01-queue-alert" if "queue-alert" in new else "OWN01-too-many-wait"
    text = changed(old, new)
    if what == "a lever of other engines":
        text = text.replace("for: 1m\n", "applies: {systems: [llamacpp]}\n")
    said = found(tmp_path, text, name=name)
    assert any(message in line for line in said), said
    assert all(int(line.partition(":")[0]) > 0 for line in said)


def test_two_rules_that_explain_each_other(tmp_path: Path) -> None:
    other = GOOD.replace("OWN01", "OWN02").replace("too-many-wait", "too-few-run")
    (tmp_path / "codes").mkdir()
    (tmp_path / "codes" / "OWN01-too-many-wait.yaml").write_text(GOOD.replace("[LAT01]", "[OWN02]"))
    (tmp_path / "codes" / "OWN02-too-few-run.yaml").write_text(other.replace("[LAT01]", "[OWN01]"))
    messages = [problem.message for problem in lint(load([tmp_path]), tmp_path)]
    assert "explains: OWN01 explains OWN02 explains OWN01; explanations must not form a circle" in messages
    assert "explains: OWN02 explains OWN01 explains OWN02; explanations must not form a circle" in messages


LEVER = """\
name: more-coffee
title: Drink coffee
does: Helps the person.
when: Eyes close.
does_not_fix: The engine.
risk: None.
moves: [ttft]
estimate: {method: none, how: Nobody knows.}
cost: low
step: 1
no_rule: An example of a test.
settings:
  - {system: vllm, versions: ">=0.20,<0.30", flag: --coffee, value: "1"}
references: [a shop]
"""
UNREACHED = {
    "nobody offers it": ("no_rule: An example of a test.\n", "", "1: no rule offers more-coffee"),
    "a text without a stop": ("risk: None.", "risk: none", "6: risk: must be sentences"),
    "a setting behind one for the same": (
        "references:",
        '  - {system: vllm, versions: ">=0.25", flag: --tea, value: "1"}\nreferences:',
        "14: settings: for vllm 0.25 it is never used",
    ),
    "a flag that is none": ("flag: --coffee", "flag: coffee", "13: settings: `coffee` is not a flag"),
    "a flag by the environment": (
        "flag: --coffee",
        "flag: --coffee, by: environment",
        "13: settings: `--coffee` is a flag, so leave out `by`",
    ),
    "two values": ('value: "1"', 'value: "1", to: "vector(1)"', "13: settings: either `to` (PromQL) or `value`"),
    "nothing to set": (LEVER[LEVER.index("settings:") : LEVER.index("references")], "", None),
}


@pytest.mark.parametrize("what", UNREACHED)
def test_a_lever_that_is_not_right(tmp_path: Path, what: str) -> None:
    old, new, message = UNREACHED[what]
    said = found(tmp_path, LEVER.replace(old, new), "levers", "more-coffee")
    if message is None:  # where a rule offers it there must be something to set
        rule = GOOD.replace("admission-control", "more-coffee")
        (tmp_path / "levers" / "more-coffee.yaml").write_text(
            LEVER.replace(old, new).replace("no_rule: An example of a test.\n", "")
        )
        (tmp_path / "codes").mkdir()
        (tmp_path / "codes" / "OWN01-too-many-wait.yaml").write_text(rule)
        said, message = [f"{p.line}: {p.message}" for p in lint(load([tmp_path]), tmp_path)], "1: it has no settings"
    assert any(line.startswith(message) for line in said), said


def test_a_lever_after_one_that_always_comes_first(tmp_path: Path) -> None:
    first = LEVER.replace("no_rule: An example of a test.\n", "outside: true\n")
    second = first.replace("more-coffee", "more-tea") + "contradicts: [more-coffee]\n"
    for name, text in (("more-coffee", first), ("more-tea", second)):
        (tmp_path / "levers").mkdir(exist_ok=True)
        (tmp_path / "levers" / f"{name}.yaml").write_text(text)
    rule = GOOD.replace("admission-control", "more-coffee").replace("data-parallel-scale-out", "more-tea")
    assert found(tmp_path, rule) == [
        "22: levers: more-tea contradicts more-coffee, which always comes first: kvitals never offers it"
    ]


def test_a_signal_that_reads_what_there_is_not(tmp_path: Path) -> None:
    text = """\
signals:
  cups:
    expr: sum by ($scope) (kvitals_cups) / kvitals:spoons
    unit: count
    meaning: Cups of coffee.
"""
    assert found(tmp_path, text, "signals", "coffee") == [
        "3: signal `cups` reads `kvitals:spoons`, which is not a signal",
        "3: signal `cups` reads `kvitals_cups`, which is not a family in signals/",
    ]


def test_evidence_has_the_unit_of_its_signal(tmp_path: Path) -> None:
    rule = GOOD.replace("unit: requests", "unit: seconds", 1)
    assert rule != GOOD
    assert [text.split(": ", 1)[1] for text in found(tmp_path, rule)] == [
        "evidence: its unit must be requests, the unit of the signal, not seconds"
    ]


def test_a_signal_on_fewer_points_than_it_needs(tmp_path: Path) -> None:
    """Two points of a twelve-second window told that requests ran for 0 % of the time."""
    text = """\
signals:
  coarse:
    expr: avg by ($scope) (avg_over_time((kvitals_requests_running > bool 0)[$window:5s]))
    unit: ratio
    meaning: Part of the time in which a request ran.
  fine:
    expr: avg by ($scope) (avg_over_time((kvitals_requests_running > bool 0)[$window:$resolution]))
    unit: ratio
    meaning: The same on as many points in any window.
  long:
    expr: avg by ($scope) (avg_over_time((kvitals_requests_running > bool 0)[$window:$resolution]))
    unit: ratio
    window: slow
    meaning: The same of a quarter of an hour.
"""
    assert found(tmp_path, text, "signals", "busy") == [
        "3: signal `coarse`: `[12s:5s]` has fewer than 10 points in a window of 12s: write `[$window:$resolution]`,"
        " or a step that is a tenth of the range",
        "11: signal `long`: a share of the slow window needs `samples`,"
        " because a short observation does not cover the window",
    ]


def test_the_outcomes_of_which_a_rule_needs_cases() -> None:
    knowledge = load()
    assert wanted_outcomes(knowledge.rules["TEL01"], knowledge) == {"fired", "clear"}
    assert wanted_outcomes(knowledge.rules["KVC05"], knowledge) == {"fired", "clear", "unknown", "n/a"}
    assert wanted_outcomes(knowledge.rules["TEL11"], knowledge) == {"fired", "clear", "unknown"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- a\n", 1),
        ("hello\n", 1),
        ("null\n", 1),
        ("", 1),
        ("families: [1]\n", 1),
        ("families: {}\nsignals: hello\n", 2),
        ("families: {}\nsignals: 3\n", 2),
        ("families: {}\nsignals: [x]\n", 2),
        ("signals:\n  b: [x]\n", 2),
    ],
)
def test_a_file_of_signals_that_is_no_mapping_is_a_finding(text: str, line: int, tmp_path: Path) -> None:
    """A number under `signals` ended with a traceback."""
    (tmp_path / "signals").mkdir()
    file = tmp_path / "signals" / "own.yaml"
    file.write_text(text)
    (found,) = lint(load([tmp_path]), tmp_path)
    assert (found.file, found.line) == (file, line)
