"""The rules' cases as promtool's unit tests, run on the rules that ship.

`python -m tests.alerts.promtool DIR` writes them, for `promtool test rules DIR/*.test.yaml` by hand.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvitals.dashboards.alerts import alertable
from kvitals.dashboards.alerts_files import Groups, with_agents, without_agents
from kvitals.dashboards.alerts_guards import SELDOM
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_yaml import dump
from kvitals.diagnoser.cases.case import Case, CaseFile, read
from kvitals.diagnoser.cases.running import START
from kvitals.diagnoser.evaluator import TRAFFIC
from kvitals.diagnoser.judgement import seconds
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, load
from kvitals.rules.model import SCOPES, Rule
from kvitals.series.promql import names, parse

CASES = Path(__file__).parents[1] / "cases"
_TIMES = ("_timestamp_seconds", "start_time_seconds")


@lru_cache(maxsize=1)
def knowledge() -> Knowledge:
    return load()


@lru_cache(maxsize=1)
def shipped() -> tuple[Groups, Groups]:
    """Recording and alerting rules of the extended set, which has the core alerts too."""
    return with_agents(knowledge(), Options(alerts="extended"))


@lru_cache(maxsize=1)
def shipped_raw() -> tuple[Groups, Groups]:
    """The same over engines' own metrics."""
    recording, alerting, _ = without_agents(knowledge(), Options(alerts="extended"))
    return recording, alerting


def cases(code: str) -> list[Case]:
    """The cases of a rule that have a history. One look at a new engine is nothing that a Prometheus does."""
    file = read(CASES / f"{code}.yaml")
    assert isinstance(file, CaseFile), file
    return [case for case in file.cases if not case.cold]


def fires(case: Case) -> bool:
    """Whether the alert must fire in a case."""
    return case.expect == "fired"


def codes() -> list[str]:
    """The rules that have an alert."""
    return sorted(code for code, rule in knowledge().rules.items() if alertable(rule))


def write(code: str, folder: Path) -> list[Path]:
    """A rule's tests, with the rules that they need. Returns the test files, one for each interval of samples."""
    rules = folder / f"{code}.rules.yaml"
    needed = _needed(code)
    rules.write_text(dump({"groups": needed}))
    by_interval: dict[str, list[Case]] = {}
    for case in cases(code):
        by_interval.setdefault(case.interval, []).append(case)
    written = []
    for interval, several in by_interval.items():
        test = {
            "rule_files": [rules.name],
            "evaluation_interval": interval,
            "group_eval_order": [group["name"] for group in needed],
            "tests": [_test(knowledge().rules[code], case) for case in several],
        }
        path = folder / f"{code}.{interval}.test.yaml"
        path.write_text(dump(test))
        written.append(path)
    return written


def run(files: Sequence[Path]) -> tuple[bool, str]:
    """Whether promtool passes them, and what it says. Raises RuntimeError where there is no promtool."""
    command = shutil.which("promtool")
    if command is None:
        raise RuntimeError("the command `promtool` is not on PATH: install Debian's package prometheus")
    done = subprocess.run([command, "test", "rules", *map(str, files)], capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def _needed(code: str) -> list[dict[str, Any]]:
    """The generated groups, less what a rule's alert does not read."""
    recording, alerting = shipped()
    name = knowledge().rules[code].slug
    alert = next(rule for group in alerting["groups"] for rule in group["rules"] if rule["alert"] == name)
    records = read_by(alert, recording) | closure({SIGNAL_PREFIX + TRAFFIC}, recording)
    kept = [
        {**group, "rules": [rule for rule in group["rules"] if rule["record"] in records]}
        for group in recording["groups"]
    ]
    return [group for group in kept if group["rules"]] + [{"name": "alert", "rules": [alert]}]


def read_by(alert: Mapping[str, Any], recording: Groups) -> frozenset[str]:
    """What is recorded that an alert reads, in its expression and in what it says, and all that this is made of."""
    said = " ".join(alert["annotations"].values())
    named = {SIGNAL_PREFIX + piece.partition("{")[0] for piece in said.split(SIGNAL_PREFIX)[1:]}
    return closure(names(parse(alert["expr"])) | named, recording) - {SELDOM}


def closure(read: Set[str], recording: Groups) -> frozenset[str]:
    """The recorded names in `read` and all that these are made of."""
    made = {rule["record"]: rule["expr"] for group in recording["groups"] for rule in group["rules"]}
    found: set[str] = set()
    todo = list(read)
    while todo:
        name = todo.pop()
        if name in made and name not in found:
            found.add(name)
            todo += names(parse(made[name]))
    return frozenset(found)


def _test(rule: Rule, case: Case) -> dict[str, Any]:
    step = seconds(case.interval)
    series = {name: moved(name, values) for name, values in case.series.items()}
    last = max(length(values) for values in series.values()) - 1
    at = seconds(case.at) if case.at else last * step
    asked = f'ALERTS{{alertname="{rule.slug}", alertstate="firing"}}'
    expected = [{"labels": firing(rule), "value": 1}] if fires(case) else []
    return {
        "name": f"{rule.code}: {case.title}",
        "interval": case.interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": asked, "eval_time": f"{at:g}s", "exp_samples": expected}],
    }


def firing(rule: Rule) -> str:
    """The series that says that a rule's alert fires, of the entity that the cases are of."""
    _, alerting = shipped()
    alert = next(r for group in alerting["groups"] for r in group["rules"] if r["alert"] == rule.slug)
    entity: Mapping[str, str] = {"engine": "e"} if "engine" in SCOPES[rule.scope] else {}
    labels = {"alertname": rule.slug, "alertstate": "firing", **alert["labels"], **entity}
    return "ALERTS{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"


def length(values: str) -> int:
    """How many samples a text in promtool's notation stands for."""
    return sum(
        int(item.rpartition("x")[2]) + (not item.startswith("_")) if "x" in item else 1 for item in values.split()
    )


def moved(series: str, values: str) -> str:
    """Values that are times, counted from the first sample on: promtool's time begins at 0."""
    if not series.partition("{")[0].endswith(_TIMES):
        return values
    return " ".join(_moved(item) for item in values.split())


def _moved(item: str) -> str:
    number, x, rest = item.partition("x")
    try:
        return f"{float(number) - START!r}{x}{rest}"
    except ValueError:  # a gap, or a course that is counted up
        return item


def batches(size: int) -> list[tuple[str, ...]]:
    """The rules that have an alert, some at a time: promtool takes a while to start."""
    found = codes()
    return [tuple(found[start : start + size]) for start in range(0, len(found), size)]


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for code in codes() for path in write(code, folder)]
    print(f"{len(written)} files; promtool test rules {folder}/*.test.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
