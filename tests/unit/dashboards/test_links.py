"""Every link of alerts, boards and runbooks: it leads to a board that is there, and its variables select on that board
what the link is about. Variables are resolved against the labels that engines have, with agents and without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
import yaml

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.dashboards.alerts_burn import RATES
from kvitals.dashboards.board_files import panels_of
from kvitals.dashboards.generate import GENERATED
from kvitals.series.promql import Vector, evaluate, evaluate_range, parse
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher
from tests.support import grafana

PAGES = sorted((Path(__file__).parents[2] / "fixtures/exposition/captured").glob("vllm-0*.prom"))
INSTANCES = ("10.0.0.1:8000", "serving/chat-7f9c-x2x4l")  # by address, and relabelled to namespace/pod
RANKS = {"10.0.0.1:8000": "0", "serving/chat-7f9c-x2x4l": "0"}
FOLDERS = ("agents", "engines")
START, STEP, SAMPLES = 1_000.0, 5.0, 40


@cache
def boards() -> dict[str, dict[str, Any]]:
    """By uid."""
    found = [json.loads(path.read_text()) for path in (GENERATED / "boards").glob("*.json")]
    return {board["uid"]: board for board in found}


def rules(folder: str) -> list[dict[str, Any]]:
    groups = yaml.load((GENERATED / "prometheus" / folder / "alerts.yaml").read_text(), yaml.CSafeLoader)["groups"]
    return [rule for group in groups for rule in group["rules"]]


class Raw:
    """Two engines' pages whose counters grow, as a Prometheus has them that scrapes the engines."""

    def __init__(self) -> None:
        page = PageParser().parse(PAGES[-1].read_bytes())
        every = dict(zip(page.indices.tolist(), page.values.tolist(), strict=True))
        self.labels = [
            Labels(
                {
                    METRIC_NAME: name,
                    **dict(labels),
                    "instance": instance,
                    "job": "engines",
                    "namespace": "serving",
                    "cluster": "c",
                }
            )
            for instance in INSTANCES
            for name, labels in page.layout.series
        ]
        ones = [every.get(i, 0.0) for i in range(len(page.layout.series))] * len(INSTANCES)
        self.times = START + STEP * np.arange(SAMPLES)
        growing = [name.name.endswith(("_total", "_bucket", "_sum", "_count")) for name in self.labels]
        self.values = np.array(ones) + np.outer(np.arange(SAMPLES), np.where(growing, 10.0, 0.0))

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        rows = (self.times >= start) & (self.times <= end)
        columns = [i for i, labels in enumerate(self.labels) if all(m.matches(labels) for m in matchers)]
        if not columns or not rows.any():
            return []
        chosen = self.values[rows][:, columns]
        return [Frame(self.times[rows], chosen, [self.labels[i] for i in columns])]


class Recorded(Raw):
    """The same with the families and signals that the rules for engines without agents record of the pages."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[Frame] = []
        path = GENERATED / "prometheus/engines/recording.yaml"
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"] if group["name"] != RATES else ():
                self.recorded += self._frames(rule)

    def _frames(self, rule: dict[str, Any]) -> list[Frame]:
        course = evaluate_range(parse(rule["expr"]), self, float(self.times[0]), float(self.times[-1]), STEP)
        more = {METRIC_NAME: rule["record"], **rule.get("labels", {})}
        return [Frame(one.times, one.values.reshape(-1, 1), [Labels({**dict(one.labels), **more})]) for one in course]

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        found = super().select(matchers, start, end)
        for frame in self.recorded:
            if all(m.matches(frame.labels[0]) for m in matchers):
                rows = (frame.times >= start) & (frame.times <= end)
                found.append(Frame(frame.times[rows], frame.values[rows], frame.labels))
        return found


@cache
def recorded() -> Recorded:
    return Recorded()


def expanded(template: str, labels: dict[str, str]) -> str:
    """What Prometheus makes of the parts of a template that links use."""

    def value(found: re.Match[str]) -> str:
        text = labels.get(found["label"], "")
        return re.sub(r"[^\w.~-]", lambda m: "".join(f"%{b:02X}" for b in m[0].encode()), text)

    def where_known(found: re.Match[str]) -> str:
        return (
            re.sub(r"\{\{ \. ", f"{{{{ $labels.{found['label']} ", found["text"]) if labels.get(found["label"]) else ""
        )

    done = re.sub(r"\{\{ with \$labels\.(?P<label>\w+) \}\}(?P<text>.*?)\{\{ end \}\}", where_known, template)
    done = re.sub(r"\{\{ \$labels\.(?P<label>\w+) \| urlquery \}\}", value, done)
    assert "{{" not in done, done
    return done


def variables(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in board["templating"]["list"]}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_link_of_every_alert_selects_its_engine(folder: str) -> None:
    for rule in rules(folder):
        for instance in INSTANCES:
            engine = f"{instance}/{RANKS[instance]}"
            link = urlsplit(expanded(rule["annotations"]["dashboard_url"], {"cluster": "c", "engine": engine}))
            board = boards()[link.path.removeprefix("/d/")]
            for name, value in parse_qsl(link.query):
                variable = name.removeprefix("var-")
                assert variable in variables(board), rule["alert"]
                if variable == "engine":
                    assert value == engine, rule["alert"]


def test_an_alert_without_a_cluster_selects_none() -> None:
    """Where `cluster` is an external label, an empty choice found no series behind a querier that has the label."""
    for rule in rules(FOLDERS[0]):
        link = urlsplit(expanded(rule["annotations"]["dashboard_url"], {"engine": "h:8000/0"}))
        assert "var-cluster" not in link.query, rule["alert"]


def test_every_link_of_a_board_leads_to_a_board() -> None:
    known, seen = boards(), 0
    for board in known.values():
        tags = {tag for link in board["links"] for tag in link["tags"]}
        assert tags == set(board["tags"])
        for uid, query in re.findall(r'"url": "/d/([\w-]+)\?([^"]*)"', json.dumps(board)):
            seen += 1
            passed = set(re.findall(r"\$\{(\w+):queryparam\}", query)) | set(re.findall(r"var-(\w+)=", query))
            assert passed <= variables(known[uid]).keys(), (board["uid"], uid)
    assert seen > 5


def fields(panel: dict[str, Any]) -> set[str]:
    """The labels of a value that the panel's links pass as the engine."""
    return set(re.findall(r"var-engine=\$\{__(?:field\.labels|data\.fields)\.(\w+)\}", json.dumps(panel)))


def links_of_values() -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    for board in boards().values():
        for panel in panels_of(board):
            for label in fields(panel):
                yield board, panel, label


def asked(expr: str, engine: str = ".*") -> Vector:
    text = expr.replace("$cluster", ".*").replace("$engine", engine).replace("$__interval", "1m")
    source = recorded()
    result = evaluate(text, source, float(source.times[-1]))
    assert isinstance(result, Vector)
    return result


ENGINES = {f"{instance}/{rank}" for instance, rank in RANKS.items()}


def test_the_values_of_engines_without_agents_have_the_label_that_links_pass() -> None:
    drawn = 0
    for board, panel, label in links_of_values():
        if panel["type"] == "table":
            hidden = panel["transformations"][1]["options"]["excludeByName"]
            assert label not in hidden, panel["title"]
        for target in panel["targets"]:
            for labels, _ in asked(target["expr"]):
                drawn += 1
                assert labels.get(label) in ENGINES, (board["uid"], panel["title"], labels)
    assert drawn > 20


def test_the_matchers_of_boards_select_one_engine_by_what_links_pass() -> None:
    panel = next(p for p in panels_of(boards()["kvitals-engines"]) if "steps" in p["description"])
    for engine in ENGINES:
        assert {labels["engine"] for labels, _ in asked(panel["targets"][0]["expr"], grafana.chosen(engine))} == {
            engine
        }


def test_engines_without_agents_are_offered_by_the_variables() -> None:
    choices = variables(boards()["kvitals-overview"])
    offered = choices["engine"]["query"]["query"].removeprefix("query_result(").removesuffix(")")
    for name in ("model", "role", "namespace", "pod", "job"):
        offered = offered.replace(f"${name}", ".*")
    assert {labels["engine"] for labels, _ in asked(offered)} == ENGINES
    for name, values in (("job", {"engines"}), ("namespace", {"serving"})):
        selector = re.fullmatch(r"label_values\((.+), \w+\)", choices[name]["query"]["query"])
        assert selector is not None
        assert {labels.get(name) for labels, _ in asked(selector[1])} == values


def test_every_link_of_a_runbook_is_there() -> None:
    pages = {path.name: path for path in (GENERATED / "runbooks").glob("*.md")}
    uids = boards().keys()
    for path in pages.values():
        text = path.read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not target.startswith(("http:", "https:", "#")):
                assert target.partition("#")[0].rpartition("/")[2] in pages, (path.name, target)
        assert set(re.findall(r"/d/([\w-]+)", text)) <= uids
