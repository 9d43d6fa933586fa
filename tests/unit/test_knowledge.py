"""The knowledge that ships is whole and reads well; a broken file is named with its line and stops nothing."""

from __future__ import annotations

import re
import shutil
import textwrap
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import yaml

from kvitals.dashboards import generate
from kvitals.diagnoser.text import fill, render
from kvitals.rules import authoring, loader
from kvitals.rules.authoring import lint
from kvitals.rules.loader import ROOT, KnowledgeError, load
from kvitals.rules.model import Lever, Rule, SystemSetting
from kvitals.rules.shipped import YAML_LOADER, load_shipped
from tests.support.loops import for_each

KNOWLEDGE = load()
RULES = sorted(KNOWLEDGE.rules.values(), key=lambda r: r.code)
LEVERS = sorted(KNOWLEDGE.levers.values(), key=lambda lever: lever.name)
ASKED = yaml.safe_load((Path(__file__).parents[1] / "fixtures" / "knowledge" / "asked.yaml").read_text())
CODES = [code for codes in ASKED["codes"].values() for code in codes.split()]

each_rule = for_each("rule", RULES, ids=lambda r: r.code)
each_lever = for_each("lever", LEVERS, ids=lambda lever: lever.name)


def test_every_file_is_a_rule_or_a_lever() -> None:
    assert {p.stem for p in (ROOT / "codes").glob("*")} == {rule.slug for rule in RULES}
    assert {p.stem for p in (ROOT / "levers").glob("*")} == {lever.name for lever in LEVERS}


def test_files_that_ship_mean_what_pyyaml_reads_in_them() -> None:
    """`value_of` leaves out aliases, merged keys and whatever else no such file has."""
    paths = [*ROOT.rglob("*.yaml"), *Path(generate.__file__).parent.rglob("reference/*.yaml")]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        expected = yaml.load(text, YAML_LOADER)
        assert load_shipped(path) == expected, path
        assert repr(load_shipped(path)) == repr(expected), path  # 1 is not 1.0, and the order is the same
    assert len(paths) > 300


def test_no_code_that_was_asked_for_is_missing() -> None:
    assert len(CODES) == len(set(CODES)) == 189
    assert set(CODES) <= KNOWLEDGE.rules.keys()


def test_no_lever_that_was_asked_for_is_missing() -> None:
    files = [name for names in ASKED["levers"].values() for name in names]
    assert len(files) == len(set(files))
    assert set(files) <= KNOWLEDGE.levers.keys()


def test_an_alias_names_a_rule() -> None:
    assert all(rule.alias_of in KNOWLEDGE.rules for rule in RULES if rule.alias_of)


def test_what_ships_has_nothing_that_lint_finds() -> None:
    assert lint(KNOWLEDGE, ROOT) == []


@each_rule
def test_texts_read_well_when_filled(rule: Rule) -> None:
    """Units come with the numbers, so a unit in the text too would stand there twice."""

    who = {*rule.who, *(label for use in rule.levers for label in KNOWLEDGE.levers[use.lever].who)}

    def value(name: str) -> str:
        if name.startswith("$") or name in who:
            return "7"
        return render(1.5, KNOWLEDGE.signals[name].unit)

    for text in (rule.conclusion, *(use.why for use in rule.levers)):
        words = fill(text, value).split()
        assert not [a for a, b in pairwise(words) if a == b]


@each_lever
def test_contradictions_are_mutual(lever: Lever) -> None:
    assert all(lever.name in KNOWLEDGE.levers[other].contradicts for other in lever.contradicts)


WITHOUT_CONFLICT = {
    frozenset(pair.split())
    for pair in (
        "block-size radix-tree-matching",  # both smaller
        "chunked-prefill chunk-alignment",  # a multiple of 128 either way
        "prefill-share chunk-alignment",
        "max-num-batched-tokens chunk-alignment",
        "max-num-batched-tokens prefill-share",  # both upwards
        "input-limit lower-declared-shape",  # both downwards
        "device-headroom startup-headroom",
        "device-headroom mig-or-colocation",
        "startup-headroom mig-or-colocation",
        "matching-draft draft-length",  # other keys of one flag
        "matching-draft speculative-decoding",
        "draft-length speculative-decoding",
        "kv-lease recompute-failed-loads",
        "kv-lease nvme-tier",
        "kv-lease shared-kv-store",
        "kv-lease pd-disaggregation",
        "recompute-failed-loads nvme-tier",
        "recompute-failed-loads shared-kv-store",
        "recompute-failed-loads pd-disaggregation",
        "nvme-tier shared-kv-store",
        "nvme-tier pd-disaggregation",
        "shared-kv-store pd-disaggregation",
        "kv-events-replay telemetry-flag",
        "priority-classes slo-aware-scheduling",  # both order by priority
        "prefix-caching priority-eviction",  # the flag is the same, the priority is the request's
        "prefix-caching session-pinning",
        "priority-eviction session-pinning",
        "session-sticky-routing consistent-hashing",  # sessions by hash either way
        "session-sticky-routing prefix-aware-routing",
        "session-sticky-routing hot-share-cap",
    )
}


def test_levers_that_set_the_same_flag_contradict_each_other() -> None:
    for a, b in combinations(LEVERS, 2):
        shared = {(s.system, flag(s)) for s in a.settings} & {(s.system, flag(s)) for s in b.settings}
        if shared and frozenset({a.name, b.name}) not in WITHOUT_CONFLICT:
            assert b.name in a.contradicts, (a.name, b.name, shared)


def flag(setting: SystemSetting) -> str:
    """What a setting sets; of a file of options, the option."""
    return setting.value if setting.flag == "--extra_llm_api_options" else setting.flag


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
    return str(problem).removeprefix(f"{path}:").strip()


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
    "another file's name": ("name: too-many-wait", "name: queue-long", "1: .*needs the name OWN01-queue-long.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_broken_rule_is_named_with_its_line(tmp_path: Path, what: str) -> None:
    old, new, message = CHANGES[what]
    assert GOOD.count(old) == 1
    path = own(tmp_path, GOOD.replace(old, new))
    assert re.match(message, the_problem(tmp_path, path))


@pytest.mark.parametrize(
    ("scalar", "problem"),
    [
        ("9" * 5000, "invalid int '999"),
        ("0x" + "f" * 5000, "invalid int '0xf"),
        ("!!int ''", "invalid int ''"),
        ("!!float x", "invalid float 'x'"),
        ("!!bool x", "invalid bool 'x'"),
        ("!!timestamp x", "invalid timestamp 'x'"),
        ("2024-99-99", "invalid timestamp '2024-99-99'"),
    ],
)
def test_a_scalar_without_a_value_is_named_and_hides_no_other_problem(
    tmp_path: Path, scalar: str, problem: str
) -> None:
    path = own(tmp_path, f"title: x\ncode: {scalar}\n")
    other = path.with_name("OWN02-other.yaml")
    other.write_text("- a list\n")
    problems = {str(p) for p in load([tmp_path]).problems}
    assert f"{other}:1: expected a mapping of keys to values" in problems
    (mine,) = (p for p in problems if p.startswith(f"{path}:"))
    assert mine.startswith(f"{path}:2: not valid YAML: {problem}")
    assert len(mine) < len(str(path)) + 200


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (".nan", "nan is not finite: a number must be from -1e+15 to 1e+15"),
        (".inf", "inf is not finite"),
        ("-.inf", "-inf is not finite"),
        ("1.0e+16", "1e+16: a number must be from"),
        ("18446744073709551615", "a number of more than 15 digits"),
    ],
)
def test_a_default_out_of_bounds_is_named_with_its_line(tmp_path: Path, number: str, problem: str) -> None:
    path = own(tmp_path, GOOD.replace("default: 10,", f"default: {number},"))
    assert the_problem(tmp_path, path).startswith(f"10: params.waiting.default: {problem}")


def test_files_that_are_no_text_of_ours(tmp_path: Path) -> None:
    path = own(tmp_path, b"title: \xff\xfe")
    assert the_problem(tmp_path, path) == "not UTF-8 text"
    own(tmp_path, "# " + "x" * loader.MAX_FILE_BYTES)
    assert the_problem(tmp_path, path) == "cannot be read: larger than 256 KB"
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
    assert [str(p) for p in knowledge.problems] == [f"{tmp_path / 'nowhere'}: no such directory"]


LEVER = """\
name: more-coffee
title: Drink coffee
does: Helps the person.
when: Eyes close.
does_not_fix: The engine.
risk: None.
moves: [truth]
estimate: {method: none, how: Nobody knows.}
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
        ("waiting_avg > 1", "waitng_avg > 1", "11: no signal `waitng_avg`"),
        ("[restart]", "[rest]", "12: contradicts: no lever `rest`"),
        (">=0.20", "0.20 and later", "14: `0.20 and later` is not a version bound"),
        ("waiting_avg * 2", "waiting_avg *", "14: "),
        ("cost: low", "cost: little", "9: Invalid enum value 'little'"),
        ("step: 1", "step: 12", "10: Expected `int` <= 9"),
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
    assert the_problem(tmp_path, path) == "1: unknown key `recipes` (allowed: families, signals, origin)"
    for text in (
        "origin: tea\n",
        "families:\n  kvitals_tea: {type: gauge, unit: cups, meaning: Tea., origin: tea}\n",
    ):
        own(tmp_path, text, "coffee.yaml", "signals")
        assert "unknown origin `tea`" in the_problem(tmp_path, path)


def test_what_ships_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, "title: [")
    monkeypatch.setattr(loader, "ROOT", tmp_path)
    with pytest.raises(KnowledgeError, match=r"OWN01-too-many-wait.yaml:\d+: not valid YAML"):
        load()


def test_lint_and_the_generator_check_the_expressions_that_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start converts the shipped files to their types and leaves their expressions to these two."""
    root = tmp_path / "rules"
    shutil.copytree(ROOT, root)
    rule = next((root / "codes").glob("KVC01-*.yaml"))
    rule.write_text(rule.read_text().replace("kvitals:kv_usage_p90 > $kv_high", "kvitals:no_such > $kv_high", 1))
    for module in (loader, authoring):
        monkeypatch.setattr(module, "ROOT", root)
    (problem,) = [p for p in lint(load(), root) if "no_such" in p.message]
    assert (problem.file, problem.message) == (rule, "no signal `no_such` in signals/")
    monkeypatch.setattr(generate, "shipped_problems", partial(loader.shipped_problems, root))
    assert generate.main(["--check"]) == 1
    assert str(problem) in capsys.readouterr().err


def test_parameters_of_the_user_replace_the_defaults() -> None:
    rule = KNOWLEDGE.rules["SCH12"]
    assert str(KNOWLEDGE.condition(rule)) == "kvitals:waiting_deferred_avg > 0.5"
    assert str(KNOWLEDGE.condition(rule, {"waiting": 3})) == "kvitals:waiting_deferred_avg > 3"


def test_few_first_tokens_are_those_that_are_too_few_for_the_percentile() -> None:
    """Both numbers are written down: between them TTFT would not be judged, or be judged twice."""
    signals = load([]).signals
    samples = signals["ttft_p99_seconds"].samples
    assert samples is not None and f"< bool {samples.min:g})" in signals["ttft_of_few_seconds"].expr
