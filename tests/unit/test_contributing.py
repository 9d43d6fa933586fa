"""Each section of CONTRIBUTING.md on a thing that one adds, followed."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import kvitals
from kvitals.agent.collectors.boundary import CollectorRun, Collectors
from kvitals.agent.records import FactsRecord, Record
from kvitals.dashboards.boards.asks import engine_signal
from kvitals.dashboards.boards.board import Board, BoardRow, build
from kvitals.dashboards.panels import LinePanel
from kvitals.dashboards.queries import Queries
from kvitals.rules.engine_map import EngineMap, load_map
from kvitals.rules.loader import load
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp
from kvitals.series.window import Window
from kvitals.ui.cli.main import main
from tests.unit.docs.test_design import FOLDERS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ADDED = ("A rule", "An engine, and a version of one", "A lever", "A collector", "A panel", "A page")
NAMED = re.compile(rf"`((?:{'|'.join(FOLDERS)}|tests|benchmarks)/[\w./-]+)`")


def section(title: str) -> str:
    return GUIDE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_each_thing_has_a_section_whose_files_exist() -> None:
    missing = []
    for title in ADDED:
        names = [n for n in NAMED.findall(section(title)) if not re.search(r"[A-Z]{4,}", n) and n[:11] != "app/runtime"]
        assert names, title
        missing += [f"{title}: {name}" for name in names if not (ROOT / name).exists()]
    assert missing == []


def test_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["rules", "new", "OWN01", "too-many-wait"])
    document = kvitals.triage(ROOT / "app" / "demo" / "few_slots.kvcap", rules=[tmp_path / "rules.d"])
    fired = [*document.causes, *document.symptoms, *document.notes, *document.telemetry]
    assert "OWN01" in {finding.code for finding in fired}


def test_a_version_of_an_engine() -> None:
    before = load_map("vllm")
    raw = next(metric for metric in before.metrics if metric.family == "kvitals_requests_running")
    renamed = msgspec.structs.replace(raw, raw="num_requests_in_batch")
    after: EngineMap = msgspec.structs.replace(before, newest="99.0", metrics=(*before.metrics, renamed))
    assert before.untested("98.0") and not after.untested("98.0")
    families = {metric.family for name in (raw.raw, renamed.raw) for metric in after.by_raw[name]}
    assert "kvitals_requests_running" in families and after.by_raw[renamed.raw] == [renamed]


def test_a_lever(tmp_path: Path) -> None:
    (tmp_path / "levers").mkdir()
    text = (ROOT / "rules" / "levers" / "kv-events-replay.yaml").read_text(encoding="utf-8")
    (tmp_path / "levers" / "own-lever.yaml").write_text(text.replace("name: kv-events-replay", "name: own-lever"))
    knowledge = load([tmp_path])
    assert knowledge.problems == []
    assert {setting.system for setting in knowledge.levers["own-lever"].settings} == {"vllm", "sglang"}


async def test_a_collector() -> None:
    async def read() -> Sequence[Record]:
        return [FactsRecord(t=1.0, target="", source="a new collector", facts={"slots": 1.0})]

    window = Window(60.0, 100)
    collectors = Collectors(window, {"node": "n"})
    records = await collectors.gather({("new", ""): CollectorRun(read, 5.0)}, 5.0)
    collectors.write(1.0)
    assert [record.facts for record in records if isinstance(record, FactsRecord)] == [{"slots": 1.0}]
    success = [Matcher(METRIC_NAME, MatchOp.EQ, "kvitals_collector_success"), Matcher("collector", MatchOp.EQ, "new")]
    (frame,) = window.select(success, 0.0, 2.0)
    assert frame.values[-1].tolist() == [1.0]


def test_a_panel() -> None:
    panel = LinePanel(title="KV cache usage", question="How full is it?", lines=(engine_signal("kv_usage_p90"),))
    board = build(Board("own", "Own", "d", (BoardRow("Row", (panel,)),)), Queries(load()), "")
    assert any("kvitals:kv_usage_p90" in str(one) or "kvitals_kv" in str(one) for one in board["panels"])


def test_a_page() -> None:
    """Each module of a page has `show(place, look)`, and app.py lists it."""
    listed = set(re.findall(r", (\w+)\.show\b", (ROOT / "ui" / "web" / "app.py").read_text(encoding="utf-8")))
    shown = {}
    for path in (ROOT / "ui" / "web" / "views").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == "show":
                shown[path.stem] = [argument.arg for argument in node.args.args]
    assert listed <= shown.keys()
    assert {name: shown[name] for name in listed if shown[name] != ["place", "look"]} == {}
