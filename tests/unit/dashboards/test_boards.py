"""The boards that ship: what Grafana needs, what a reader needs, and that nothing on them is made up."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dashboards import generate
from dashboards.grafana import DATASOURCE
from dashboards.panels import SEVERITY_COLOR
from dashboards.queries import readable
from rules.loader import family_of, load
from series.promql import names

KNOWLEDGE = load()
FILES = generate.generate(KNOWLEDGE)
BOARDS = {name: json.loads(text) for name, text in FILES.items()}
PANELS = [
    pytest.param(panel, id=f"{name}-{panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
MACHINES = re.compile(r"/(work|home|root|tmp|usr|var)/")


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def test_the_written_boards_are_those_that_the_knowledge_gives() -> None:
    assert generate.differences(FILES, generate.GENERATED) == []


def test_generation_is_the_same_each_time() -> None:
    assert generate.generate(load()) == FILES


def test_a_file_that_differs_or_that_nobody_makes_is_told(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "overview.json").write_text(FILES["overview.json"].replace("kvitals-overview", "mine"))
    stray, differing = generate.differences(FILES, tmp_path)
    assert stray == "old.json: no board makes this file; delete it"
    assert differing.startswith("overview.json: differs\n")
    assert '-  "uid": "mine"' in differing
    assert '+  "uid": "kvitals-overview"' in differing


def test_check_says_how_to_put_it_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "GENERATED", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "run: python -m dashboards.generate" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_names_and_links_are_stable() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == {"overview.json": "kvitals-overview"}


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_what_grafana_imports(name: str) -> None:
    board = BOARDS[name]
    assert board["id"] is None
    assert board["schemaVersion"] >= 39
    assert board["title"] and board["description"] and board["tags"] == ["kvitals"]
    variables = {v["name"]: v for v in board["templating"]["list"]}
    assert list(variables) == ["datasource", "cluster", "model", "engine"]
    assert variables["datasource"]["type"] == "datasource"
    assert all(v["datasource"] == DATASOURCE for n, v in variables.items() if n != "datasource")
    assert not MACHINES.search(FILES[name])


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = BOARDS[name]["panels"]
    ids = [p["id"] for p in panels]
    assert len(set(ids)) == len(ids)
    places = [p["gridPos"] for p in panels]
    assert all(p["x"] >= 0 and p["w"] > 0 and p["h"] > 0 and p["x"] + p["w"] <= 24 for p in places)
    for a, b in itertools.combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y, (a, b)


@pytest.mark.parametrize("name", BOARDS)
def test_variables_and_marks_can_be_asked(name: str) -> None:
    board = BOARDS[name]
    asked = [a["expr"] for a in board["annotations"]["list"]]
    for variable in board["templating"]["list"][1:]:
        found = re.fullmatch(r"label_values\((.+), \w+\)|query_result\((.+)\)", variable["query"]["query"])
        assert found, variable["query"]["query"]
        asked.append(found[1] or found[2])
    for expr in asked:
        read = names(readable(expr.replace("$model", ".*")))
        assert all(family_of(n, KNOWLEDGE.families) for n in read)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_a_question_and_explains_itself(panel: dict[str, Any]) -> None:
    assert panel["title"].endswith("?")
    assert len(panel["description"]) > 40
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert defaults["noValue"] == "no data"
    special = {m["options"]["match"]: m["options"]["result"]["text"] for m in defaults["mappings"][-2:]}
    assert special == {"nan": "too little traffic", "null": "no data"}
    assert panel["datasource"] == DATASOURCE
    assert [t["refId"] for t in panel["targets"]] == list("ABCDEFGHIJKLMNOP"[: len(panel["targets"])])
    assert all(t["legendFormat"] for t in panel["targets"])


@pytest.mark.parametrize("panel", PANELS)
def test_a_panels_queries_parse_and_read_known_families_within_the_choice(panel: dict[str, Any]) -> None:
    for expr in queries(panel):
        read = names(readable(expr))
        assert read
        assert all(family_of(name, KNOWLEDGE.families) for name in read), read
        assert expr.count("{") == expr.count('cluster=~"$cluster", engine=~"$engine"}')


@pytest.mark.parametrize("panel", PANELS)
def test_caveats_of_what_is_read_are_told(panel: dict[str, Any]) -> None:
    if "condition of one rule" in panel["description"]:
        return
    for expr in queries(panel):
        for name in names(readable(expr)):
            family = family_of(name, KNOWLEDGE.families)
            assert family is not None
            assert f"`{family}`" in panel["description"]
            assert " ".join(KNOWLEDGE.families[family].caveat.split()) in panel["description"]


@pytest.mark.parametrize("panel", PANELS)
def test_colour_is_only_where_a_rule_judges(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    colors = {step["color"] for step in defaults["thresholds"]["steps"]}
    for override in panel["fieldConfig"]["overrides"]:
        for prop in override["properties"]:
            if prop["id"] == "color":
                colors.add(prop["value"]["fixedColor"])
            if prop["id"] == "thresholds":
                colors |= {step["color"] for step in prop["value"]["steps"]}
    assert colors <= {"blue", *SEVERITY_COLOR.values()}
    if colors != {"blue"}:
        judges = re.findall(r"(?:Judged by|Coloured where) ([A-Z]{3}\d\d)", panel["description"])
        judges += [c for t in panel["targets"] for c in re.findall(r"^[A-Z]{3}\d\d", t["legendFormat"])]
        assert judges
        assert all(code in KNOWLEDGE.rules for code in judges)
