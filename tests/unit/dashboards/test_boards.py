"""The boards that ship: what Grafana needs, what a reader needs, and that nothing on them is made up."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards import boards, generate, reference
from kvitals.dashboards.boards.board import ALERTS
from kvitals.dashboards.grafana import DATASOURCE
from kvitals.dashboards.panels import NO_DATA, SEVERITY_COLOR
from kvitals.dashboards.queries import readable
from kvitals.rules.loader import family_of, load
from kvitals.series.promql import names
from tests.support.loops import for_each

KNOWLEDGE = load()
RUNBOOKS = "https://kvitals.example.com/runbooks"
FILES = boards.files(KNOWLEDGE, RUNBOOKS)
BOARDS = {name: json.loads(text) for name, text in FILES.items()}
AGENT = [name for name in BOARDS if "/agent/" in name]
LAPTOP = 24 / 4
"""The narrowest panel, in columns: 300 of 1280 pixels."""


def _panels(names: list[str]) -> list[Any]:
    return [
        pytest.param(panel, id=f"{name}-{panel['title']}")
        for name in names
        for panel in BOARDS[name]["panels"]
        if panel["type"] not in ("row", "text")
    ]


PANELS = _panels(list(BOARDS))
AGENT_PANELS = _panels(AGENT)
MACHINES = re.compile(r"/(work|home|root|tmp|usr|var)/")


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel.get("targets", [])]


def test_the_written_boards_are_those_that_the_knowledge_gives() -> None:
    written = generate.GENERATED / "boards"
    assert generate.differences({n.removeprefix("boards/"): text for n, text in FILES.items()}, written) == []


def test_generation_is_the_same_each_time() -> None:
    assert boards.files(load(), RUNBOOKS) == FILES


def test_a_file_that_differs_or_that_nobody_makes_is_told(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    name = "boards/agent/overview.json"
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(FILES[name].replace("kvitals-overview", "mine"))
    stray, differing = generate.differences({name: FILES[name]}, tmp_path)
    assert stray == "old.json: nothing makes this file; delete it"
    assert differing.startswith(f"{name}: differs\n")
    assert '-  "uid": "mine"' in differing
    assert '+  "uid": "kvitals-overview"' in differing


def test_check_says_how_to_put_it_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "GENERATED", tmp_path / "generated")
    monkeypatch.setattr(generate, "generate", lambda *_: {"a/b.json": "{}"})
    monkeypatch.setattr(reference, "DOCS", tmp_path)
    monkeypatch.setattr(reference, "files", lambda *_: {"reference.md": "text"})
    assert generate.main(["--check"]) == 1
    assert "run: python -m kvitals.dashboards.generate" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "reference.md").write_text("another")
    assert generate.main(["--check"]) == 1


def test_names_and_links_are_stable() -> None:
    names = ("status", "overview", "engines", "kv", "disaggregation", "tenants", "gpu", "efficiency", "telemetry")
    assert [BOARDS[name]["uid"] for name in AGENT] == [f"kvitals-{name}" for name in names]
    raw = [board["uid"] for name, board in BOARDS.items() if name not in AGENT]
    assert raw == [f"kvitals-{name}-raw" for name in names if name != "gpu"]


@for_each("name", BOARDS)
def test_a_board_is_what_grafana_imports(name: str) -> None:
    board = BOARDS[name]
    assert board["id"] is None
    assert board["schemaVersion"] >= 39
    assert board["title"] and board["description"]
    assert board["tags"] == (["kvitals"] if name in AGENT else ["kvitals-raw"])
    assert [link["tags"] for link in board["links"]] == [board["tags"]]
    variables = {v["name"]: v for v in board["templating"]["list"]}
    scheme = ["datasource", "cluster", "model", "role", "engine", "tenant"]
    assert list(variables) == [v for v in scheme if name in AGENT or v not in ("role", "tenant")]
    assert variables["datasource"]["type"] == "datasource"
    assert all(v["datasource"] == DATASOURCE for n, v in variables.items() if n != "datasource")
    assert not MACHINES.search(FILES[name])


def test_what_a_value_leads_to_is_there() -> None:
    known = {board["uid"] for board in BOARDS.values()}
    codes = set()
    for text in FILES.values():
        assert set(re.findall(r"/d/([\w-]+)\?", text)) <= known
        codes |= set(re.findall(r"runbooks/(\w+)\.html", text))
    assert codes and codes <= KNOWLEDGE.rules.keys()


@for_each("name", BOARDS)
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = BOARDS[name]["panels"]
    ids = [p["id"] for p in panels]
    assert len(set(ids)) == len(ids)
    places = [p["gridPos"] for p in panels]
    assert all(p["x"] >= 0 and p["w"] >= LAPTOP and p["h"] > 0 and p["x"] + p["w"] <= 24 for p in places)
    for a, b in itertools.combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y, (a, b)


@for_each("name", BOARDS)
def test_variables_and_marks_can_be_asked(name: str) -> None:
    board = BOARDS[name]
    asked = [a["target"]["expr"] for a in board["annotations"]["list"]]
    assert asked.pop() == ALERTS
    for variable in board["templating"]["list"][1:]:
        found = re.fullmatch(r"label_values\((.+), \w+\)|query_result\((.+)\)", variable["query"]["query"])
        assert found, variable["query"]["query"]
        asked.append(found[1] or found[2])
    for expr in asked:
        read = names(readable(expr.replace("$model", ".*").replace("$role", ".*")))
        if name in AGENT:
            assert all(family_of(n, KNOWLEDGE.families) for n in read)


@for_each("panel", PANELS)
def test_a_panel_asks_a_question_and_explains_itself(panel: dict[str, Any]) -> None:
    assert panel["title"].endswith("?")
    assert len(panel["description"]) > 40
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert defaults["noValue"] == NO_DATA
    special = {m["options"]["match"]: m["options"]["result"]["text"] for m in defaults["mappings"][-2:]}
    assert special == {"nan": "too little traffic", "null": "no data"}
    assert panel["datasource"] == DATASOURCE
    assert {t["refId"] for t in panel["targets"]} <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert all(t["legendFormat"] for t in panel["targets"])


@for_each("panel", AGENT_PANELS)
def test_a_panels_queries_parse_and_read_known_families_within_the_choice(panel: dict[str, Any]) -> None:
    for expr in queries(panel):
        read = names(readable(expr))
        assert read
        assert all(family_of(name, KNOWLEDGE.families) for name in read), read
        assert expr.count("{") == expr.count('cluster=~"$cluster", engine=~"$engine|"')


@for_each("name", [name for name in BOARDS if name not in AGENT])
def test_queries_without_agents_read_no_agents_families(name: str) -> None:
    asked = [q for panel in BOARDS[name]["panels"] for q in queries(panel)]
    asked += [a["target"]["expr"] for a in BOARDS[name]["annotations"]["list"] if a["target"]["expr"] != ALERTS]
    for expr in asked:
        read = re.findall(r"([\w:]+)\{", expr)  # a real Prometheus reads the whole of it, in tests/boards
        assert read and not any(n.startswith("kvitals_") for n in read)
        assert len(read) == expr.count("{") == expr.count('cluster=~"$cluster", instance=~"$engine"')


@for_each("panel", AGENT_PANELS)
def test_caveats_of_what_is_read_are_told(panel: dict[str, Any]) -> None:
    if "condition of one rule" in panel["description"]:
        return
    for expr in queries(panel):
        for name in names(readable(expr)):
            family = family_of(name, KNOWLEDGE.families)
            assert family is not None
            assert f"`{family}`" in panel["description"]
            assert " ".join(KNOWLEDGE.families[family].caveat.split()) in panel["description"]


@for_each("panel", PANELS)
def test_colour_is_only_where_a_rule_judges(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    if panel["type"] == "heatmap":  # how many, in shades of one colour
        assert panel["options"]["color"]["scheme"] == "Blues"
        return
    colors = {step["color"] for step in defaults["thresholds"]["steps"]}
    for override in panel["fieldConfig"]["overrides"]:
        for prop in override["properties"]:
            if prop["id"] == "color":
                colors.add(prop["value"]["fixedColor"])
            if prop["id"] == "thresholds":
                colors |= {step["color"] for step in prop["value"]["steps"]}
    assert colors <= {"blue", *SEVERITY_COLOR.values()}
    assert defaults.get("color", {}).get("mode") in (None, "thresholds", "palette-classic-by-name", "continuous-blues")
    if colors != {"blue"}:
        judges = re.findall(r"(?:Judged by|Coloured where) ([A-Z]{3}\d\d)", panel["description"])
        judges += [c for t in panel["targets"] for c in re.findall(r"^[A-Z]{3}\d\d", t["legendFormat"])]
        assert judges
        assert all(code in KNOWLEDGE.rules for code in judges)
