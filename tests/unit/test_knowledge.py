"""The knowledge that ships is whole and reads well; a broken file is named with its line and stops nothing."""

from __future__ import annotations

import re
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from diagnoser.text import fill, render
from rules import loader
from rules.loader import ROOT, KnowledgeError, load
from rules.model import Lever, Rule
from rules.versions import in_range

KNOWLEDGE = load()
RULES = sorted(KNOWLEDGE.rules.values(), key=lambda r: r.code)
LEVERS = sorted(KNOWLEDGE.levers.values(), key=lambda lever: lever.name)
VERSIONS = [f"0.{minor}.{patch}" for minor in range(34) for patch in (0, 1, 2)]

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
each_lever = pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)


def test_every_file_is_a_rule_or_a_lever() -> None:
    assert {p.stem for p in (ROOT / "codes").glob("*")} == {rule.slug for rule in RULES}
    assert {p.stem for p in (ROOT / "levers").glob("*")} == {lever.name for lever in LEVERS}


@each_rule
def test_the_page_says_everything(rule: Rule) -> None:
    page = rule.page
    for text in (page.sees, page.why, page.wrong_when, page.do, page.do_not):
        assert 40 < len(text) < 1100
        assert text.strip().endswith(".")
        assert not re.search(r"\{\$?\w+\}", text)  # pages are printed as they are: no placeholders
    assert page.references


@each_rule
def test_numbers_on_the_page_are_the_defaults(rule: Rule) -> None:
    text = " ".join(f"{rule.page.sees} {rule.page.why}".split())
    for name in re.findall(r"`\$(\w+)`", text):
        assert name in rule.params
    for number, percent, name in re.findall(r"(?<!\w)(\d[\d,.]*)( %)?[^.\d`]*\(`\$(\w+)`\)", text):
        value = float(number.replace(",", "")) / (100 if percent else 1)
        assert value == pytest.approx(rule.params[name].default)


@each_rule
def test_names_and_titles_read_well(rule: Rule) -> None:
    assert len(rule.name.split("-")) <= 5
    assert not set(rule.name.split("-")) & {"bad", "issue", "problem", "check", "rule", "detected", "alert"}
    assert rule.title[0].isupper()
    assert rule.title[-1].isalnum()
    assert len(rule.title) <= 75
    assert rule.conclusion.rstrip().endswith(".")


@each_rule
def test_texts_read_well_when_filled(rule: Rule) -> None:
    """Units come with the numbers, so a unit in the text too would stand there twice."""

    def value(name: str) -> str:
        return "7" if name.startswith("$") else render(1.5, KNOWLEDGE.signals[name].unit)

    for text in (rule.conclusion, *(use.why for use in rule.levers)):
        words = fill(text, value).split()
        assert not [a for a, b in pairwise(words) if a == b]


@each_rule
def test_a_finding_can_show_its_evidence(rule: Rule) -> None:
    assert rule.evidence
    assert all(query.title[0].isupper() and query.unit for query in rule.evidence)


@each_rule
def test_every_parameter_is_used(rule: Rule) -> None:
    assert set(rule.params) == set(re.findall(r"\$(\w+)", rule.when + rule.clear)) - {"scope"}


@each_rule
def test_every_condition_rests_on_signals(rule: Rule) -> None:
    assert KNOWLEDGE.needs(rule)


@each_rule
def test_causes_lead_to_levers_and_explain_something(rule: Rule) -> None:
    if rule.kind == "cause":
        assert rule.explains or rule.severity == "page"
        assert rule.levers
    if rule.core:
        assert rule.stage == "stable"
        assert rule.severity != "info"


@each_rule
def test_explanations_end(rule: Rule) -> None:
    seen, open_ = set(), [rule.code]
    while open_:
        for code in KNOWLEDGE.rules[open_.pop()].explains:
            assert code != rule.code
            assert KNOWLEDGE.rules[code].kind in ("symptom", "cause")
            if code not in seen:
                seen.add(code)
                open_.append(code)


@each_lever
def test_every_lever_has_a_user(lever: Lever) -> None:
    assert any(use.lever == lever.name for rule in RULES for use in rule.levers)


@each_lever
def test_levers_say_what_they_do_and_do_not(lever: Lever) -> None:
    for text in (lever.does, lever.does_not_fix, lever.risk):
        assert text.strip().endswith(".")
    assert lever.title[0].isupper()
    assert lever.title[-1].isalnum()
    assert lever.references


@each_lever
def test_contradictions_are_mutual(lever: Lever) -> None:
    assert all(lever.name in KNOWLEDGE.levers[other].contradicts for other in lever.contradicts)


@each_lever
def test_one_setting_at_most_for_a_version_and_it_comes_after_the_conditional_ones(lever: Lever) -> None:
    for system in {setting.system for setting in lever.settings}:
        for version in VERSIONS:
            mine = [s for s in lever.settings if s.system == system and in_range(version, s.versions)]
            assert [bool(s.when) for s in mine] == sorted((bool(s.when) for s in mine), reverse=True)
            assert sum(not s.when for s in mine) <= 1
    assert all(setting.flag.startswith("-") for setting in lever.settings)
    assert all(bool(setting.to) != bool(setting.value) for setting in lever.settings)


# Broken files, as a user's own directory may hold them.

GOOD = """\
code: OWN01
name: too-many-wait
title: Too many requests wait
group: scheduling
stage: preview
kind: cause
severity: ticket
when: kvitals:waiting_avg > $waiting
params:
  waiting: {default: 10, why: "a number of our own"}
conclusion: "{waiting_avg} wait."
explains: [LAT01]
evidence:
  - {title: "Requests waiting", query: "kvitals:waiting_avg", unit: requests}
levers:
  - {lever: restart, why: "A last resort."}
page:
  sees: Requests that wait.
  why: Too little of something.
  wrong_when: Never.
  do: Look.
  do_not: Panic.
  references: []
"""


def own(tmp_path: Path, text: str | bytes, name: str = "OWN01-too-many-wait.yaml", kind: str = "codes") -> Path:
    path = tmp_path / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def the_problem(tmp_path: Path, path: Path) -> str:
    knowledge = load([tmp_path])
    assert "OWN01" not in knowledge.rules
    assert len(knowledge.rules) == len(RULES)  # what ships is still there
    (problem,) = knowledge.problems
    assert problem.file == path
    return str(problem).removeprefix(f"{path}:")


def test_a_good_rule_of_ones_own_is_added(tmp_path: Path) -> None:
    own(tmp_path, GOOD)
    knowledge = load([tmp_path])
    assert not knowledge.problems
    assert knowledge.rules["OWN01"].slug == "OWN01-too-many-wait"
    assert knowledge.needs(knowledge.rules["OWN01"]) == ["waiting_avg"]


CHANGES = {
    "unknown key": ("kind: cause", "knid: cause", r"\d+: .*`knid`.*\(allowed: code, name, .*kind"),
    "missing key": ("severity: ticket\n", "", r"\d+: .*missing required field `severity`.*\(allowed: code"),
    "wrong value": ("kind: cause", "kind: reason", "6: Invalid enum value 'reason'"),
    "wrong type": ("default: 10", "default: ten", "10: Expected `float`, got `str`"),
    "bad code": ("code: OWN01", "code: own1", "1: Expected `str` matching regex"),
    "not PromQL": ("waiting_avg > $waiting", "waiting_avg >> $waiting", "8: "),
    "not a condition": ("kvitals:waiting_avg > $waiting", "kvitals:waiting_avg + $waiting", "8: .*is not a comparison"),
    "unknown signal": ("when: kvitals:waiting_avg", "when: kvitals:waiting_average", "8: no signal `waiting_average`"),
    "unknown parameter": ("> $waiting", "> $wating", r"8: .*\$?wating"),
    "raw metric": ('query: "kvitals:waiting_avg"', 'query: "vllm:num_waiting"', "14: `vllm:num_waiting` is neither"),
    "unknown placeholder": ("{waiting_avg} wait", "{waiting_avrg} wait", "11: `{waiting_avrg}` in the text is neither"),
    "unknown lever": ("lever: restart", "lever: reboot", "16: no lever `reboot`"),
    "unknown rule": ("explains: [LAT01]", "explains: [LAT99]", "12: explains: no rule LAT99"),
    "low certainty": ("kind: cause", "kind: cause\ncertainty: low", "7: certainty below high needs `certainty_why`"),
    "broken YAML": ("title: Too", 'title: "Too', r"\d+: not valid YAML"),
    "an alias": ("title: Too many requests wait", "title: &a Too\nalias_of: *a", "4: YAML aliases"),
    "another file's name": ("name: too-many-wait", "name: queue-long", "1: .*must be OWN01-queue-long.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_broken_rule_is_named_with_its_line(tmp_path: Path, what: str) -> None:
    old, new, message = CHANGES[what]
    assert GOOD.count(old) == 1
    path = own(tmp_path, GOOD.replace(old, new))
    assert re.match(message, the_problem(tmp_path, path))


def test_files_that_are_no_text_of_ours(tmp_path: Path) -> None:
    path = own(tmp_path, b"title: \xff\xfe")
    assert the_problem(tmp_path, path) == "0: not UTF-8 text"
    own(tmp_path, "# " + "x" * loader.MAX_FILE_BYTES)
    assert the_problem(tmp_path, path).startswith("0: larger than 256 KB")
    own(tmp_path, "- a list\n")
    assert the_problem(tmp_path, path) == "1: expected a mapping of keys to values"
    own(tmp_path, "a: " + "[" * 200_000)
    assert the_problem(tmp_path, path) == "1: nested deeper than 20 levels"
    own(tmp_path, "")
    assert the_problem(tmp_path, path) == "1: expected a mapping of keys to values"


def test_a_code_is_never_reused(tmp_path: Path) -> None:
    path = own(tmp_path, GOOD.replace("OWN01", "LAT01"), "LAT01-too-many-wait.yaml")
    assert "LAT01 is already defined in" in the_problem(tmp_path, path)


def test_a_broken_file_does_not_stop_the_others(tmp_path: Path) -> None:
    own(tmp_path, "title: [", "OWN00-broken.yaml")
    own(tmp_path, GOOD)
    knowledge = load([tmp_path])
    assert "OWN01" in knowledge.rules
    assert [p.file.name for p in knowledge.problems] == ["OWN00-broken.yaml"]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    knowledge = load([tmp_path / "nowhere"])
    assert [p.message for p in knowledge.problems] == ["no such directory"]


LEVER = """\
name: more-coffee
title: Drink coffee
does: Helps the person.
does_not_fix: The engine.
risk: None.
cost: low
step: 1
possible: kvitals:waiting_avg > 1
contradicts: [restart]
settings:
  - {system: vllm, versions: ">=0.20", flag: --coffee, to: "kvitals:waiting_avg * 2"}
references: []
"""


def test_a_broken_lever_is_named_with_its_line(tmp_path: Path) -> None:
    own(tmp_path, LEVER, "more-coffee.yaml", "levers")
    assert not load([tmp_path]).problems
    for old, new, message in [
        ("waiting_avg > 1", "waitng_avg > 1", "8: no signal `waitng_avg`"),
        ("[restart]", "[rest]", "9: contradicts: no lever `rest`"),
        (">=0.20", "0.20 and later", "11: `0.20 and later` is not a version bound"),
        ("waiting_avg * 2", "waiting_avg *", "11: "),
        ("cost: low", "cost: little", "6: Invalid enum value 'little'"),
        ("step: 1", "step: 12", "7: Expected `int` <= 9"),
    ]:
        path = own(tmp_path, LEVER.replace(old, new), "more-coffee.yaml", "levers")
        assert the_problem(tmp_path, path).startswith(message)


def test_a_broken_signal_is_named_with_its_line(tmp_path: Path) -> None:
    text = """\
        families:
          kvitals_cups: {type: gauge, unit: cups, meaning: Cups of coffee.}
        signals:
          cups_avg:
            expr: avg by ($scope) (avg_over_time(kvitals_cups[$window])
            unit: count
            meaning: Cups of coffee, on average.
        """
    path = own(tmp_path, textwrap.dedent(text), "coffee.yaml", "signals")
    assert the_problem(tmp_path, path).startswith("5: signal `cups_avg`: ")
    own(tmp_path, textwrap.dedent(text).replace("[$window])", "[$window]))"), "coffee.yaml", "signals")
    assert not load([tmp_path]).problems
    own(tmp_path, "recipes: {}\n", "coffee.yaml", "signals")
    assert the_problem(tmp_path, path) == "1: unknown key `recipes` (allowed: families, signals)"


def test_what_ships_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, "title: [")
    monkeypatch.setattr(loader, "ROOT", tmp_path)
    with pytest.raises(KnowledgeError, match=r"OWN01-too-many-wait.yaml:\d+: not valid YAML"):
        load()


def test_parameters_of_the_user_replace_the_defaults() -> None:
    rule = KNOWLEDGE.rules["SCH12"]
    assert str(KNOWLEDGE.condition(rule)) == "kvitals:waiting_deferred_avg > 0.5"
    assert str(KNOWLEDGE.condition(rule, {"waiting": 3})) == "kvitals:waiting_deferred_avg > 3"
