"""The boards that ship: what Grafana needs, what a reader needs, and that nothing on them is made up."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards import boards, generate, reference
from kvitals.dashboards.board_files import panels_of
from kvitals.dashboards.boards.board import ALERTS
from kvitals.dashboards.grafana import DATASOURCE
from kvitals.dashboards.panels import NO_DATA, NOT_RECORDED, SEVERITY_COLOR
from kvitals.dashboards.queries import readable
from kvitals.rules.loader import SIGNAL_PREFIX, family_of, load
from kvitals.series.promql import names
from tests.support.loops import for_each

KNOWLEDGE = load()
RUNBOOKS = "https://kvitals.example.com/runbooks"
FILES = boards.files(KNOWLEDGE, RUNBOOKS)
BOARDS = {name: json.loads(text) for name, text in FILES.items()}
MOST_BYTES = 2000
"""Of a query, so that a person can edit it."""
LAPTOP = 24 / 4
"""The narrowest panel, in columns: 300 of 1280 pixels."""


def _panels(names: list[str]) -> list[Any]:
    return [pytest.param(panel, id=f"{name}-{panel['title']}") for name in names for panel in panels_of(BOARDS[name])]


def everything(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Panels and headlines."""
    return [*(panel for panel in board["panels"] if panel["type"] == "row"), *panels_of(board)]


PANELS = _panels(list(BOARDS))
MACHINES = re.compile(r"/(work|home|root|tmp|usr|var)/")


RECORDED = {f"{SIGNAL_PREFIX}{name}" for name in KNOWLEDGE.signals}


def known(name: str) -> bool:
    """Whether a series is of a family or a recorded signal."""
    return name in RECORDED or family_of(name, KNOWLEDGE.families) is not None


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel.get("targets", [])]


def test_the_written_boards_are_those_that_the_knowledge_gives() -> None:
    written = generate.GENERATED / "boards"
    assert generate.differences({n.removeprefix("boards/"): text for n, text in FILES.items()}, written) == []


def test_generation_is_the_same_each_time() -> None:
    assert boards.files(load(), RUNBOOKS) == FILES


def test_a_file_that_differs_or_that_nobody_makes_is_told(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    name = "boards/overview.json"
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(FILES[name].replace("kvitals-overview", "mine"))
    stray, differing = generate.differences({name: FILES[name]}, tmp_path)
    assert stray == "old.json: no generator writes this file; delete it"
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
    assert [board["uid"] for board in BOARDS.values()] == [f"kvitals-{name}" for name in names]


@for_each("name", BOARDS)
def test_a_board_is_what_grafana_imports(name: str) -> None:
    board = BOARDS[name]
    assert board["id"] is None
    assert board["schemaVersion"] >= 39
    assert board["title"] and board["description"]
    assert board["tags"] == ["kvitals"]
    assert [link["tags"] for link in board["links"]] == [board["tags"]]
    variables = {v["name"]: v for v in board["templating"]["list"]}
    scheme = ["datasource", "cluster", "model", "role", "namespace", "pod", "job", "engine", "tenant"]
    assert list(variables) == scheme
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
    ids = [p["id"] for p in everything(BOARDS[name])]
    assert len(set(ids)) == len(ids)
    for shown in (panels, *(p["panels"] for p in panels if p["type"] == "row")):
        places = [p["gridPos"] for p in shown]
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
        for label in ("model", "role", "namespace", "pod", "job"):
            expr = expr.replace(f"${label}", ".*")
        assert all(known(n) for n in names(readable(expr)))


@for_each("panel", PANELS)
def test_a_panel_names_its_metric_and_explains_itself(panel: dict[str, Any]) -> None:
    assert not panel["title"].endswith("?")
    assert panel["description"].partition("\n\n")[0].endswith("?")
    assert len(panel["description"]) > 40
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    recorded = any(names(readable(expr)) & RECORDED for expr in queries(panel))
    assert defaults["noValue"] == (NOT_RECORDED if recorded else NO_DATA)
    special = {m["options"]["match"]: m["options"]["result"]["text"] for m in defaults["mappings"][-2:]}
    assert special == {"nan": "too little traffic", "null": "no data"}
    assert panel["datasource"] == DATASOURCE
    assert {t["refId"] for t in panel["targets"]} <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert all(t["legendFormat"] for t in panel["targets"])


@for_each("panel", PANELS)
def test_a_panels_queries_parse_and_read_known_families_within_the_choice(panel: dict[str, Any]) -> None:
    for expr in queries(panel):
        read = names(readable(expr))
        assert read
        assert all(known(name) for name in read), read
        assert expr.count("{") == expr.count('cluster=~"$cluster", engine=~"$engine|"')


@for_each("panel", PANELS)
def test_a_query_is_one_that_a_person_can_edit(panel: dict[str, Any]) -> None:
    for expr in queries(panel):
        assert len(expr.encode()) <= MOST_BYTES, expr


@for_each("panel", PANELS)
def test_caveats_of_what_is_read_are_told(panel: dict[str, Any]) -> None:
    if "condition of one rule" in panel["description"]:
        return
    for expr in queries(panel):
        for name in names(readable(expr)):
            if name in RECORDED:
                continue
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


SEARCHED = (
    "TTFT", "time to first token", "ITL", "inter-token latency", "E2E", "queue", "waiting requests", "running requests",
    "KV cache usage", "prefix cache hit rate", "preemptions", "evictions", "token throughput", "tokens per GPU-hour",
    "batch size", "prompt tokens", "output tokens", "error rate", "aborted requests", "finished requests", "SLO",
    "goodput", "KV transfer", "speculative decoding", "GPU utilization", "GPU memory", "GPU power", "GPU temperature",
    "throttl", "XID", "ECC", "NVLink", "router", "tenant", "offload", "scrape", "KV events", "MFU", "versions",
)  # fmt: skip
"""What people type into the search of a board or of Grafana."""


@for_each("words", SEARCHED)
def test_what_people_search_for_is_in_titles(words: str) -> None:
    titles = [panel["title"] for board in BOARDS.values() for panel in panels_of(board)]
    assert any(words.lower() in title.lower() for title in titles)


@for_each("name", BOARDS)
def test_no_panel_that_is_open_reads_buckets_over_time(name: str) -> None:
    """60 engines have thousands of buckets: a load would read a million samples of them."""
    for panel in BOARDS[name]["panels"]:
        for target in panel.get("targets", []):
            assert target["instant"] or "_bucket" not in target["expr"], panel["title"]


@for_each("name", BOARDS)
def test_titles_of_a_board_differ(name: str) -> None:
    titles = [panel["title"] for panel in everything(BOARDS[name])]
    assert len(set(titles)) == len(titles)
    assert not [title for title in titles if title.endswith("?")]


def test_the_overview_begins_with_tiles_and_the_engines_by_harm() -> None:
    """What is needed at a glance stands above the courses: six tiles, then a table whose rows lead to an engine."""
    overview = BOARDS["boards/overview.json"]
    first = [panel for panel in overview["panels"] if panel["type"] != "row"][:7]
    assert [panel["type"] for panel in first] == ["stat"] * 6 + ["table"]
    titles = " ".join(panel["title"].lower() for panel in first)
    for figure in ("objective", "goodput", "unreachable", "kv cache", "queue", "gpu-hour", "by harm"):
        assert figure in titles
    assert max(panel["gridPos"]["y"] for panel in first) <= 12
    linked = [p for o in first[6]["fieldConfig"]["overrides"] for p in o["properties"] if p["id"] == "links"]
    assert linked or first[6]["fieldConfig"]["defaults"].get("links")
