"""`kvitals cache`: the answer first, and what to switch on where there is nothing to tell."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.ledger_api import LedgerApi
from kvitals.agent.node import Node
from kvitals.app.cache import CacheReport
from kvitals.config import Config
from kvitals.series.recordings import CaptureReader
from kvitals.ui.cli import cache
from kvitals.ui.cli.main import main

CAPTURES = Path(__file__).parents[2] / "captures"
THRASH = str(CAPTURES / "ledger" / "thrash.kvcap")
NO_EVENTS = str(CAPTURES / "requests" / "stages.kvcap")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["cache", *words])
    return int(ended.value.code or 0)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run(*words)
    return code, " ".join(capsys.readouterr().out.split())


def test_the_answer_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, THRASH)
    assert code == 0  # it is over
    assert out.index("the last one ended") < out.index("observed 100% of lookups")
    for text in ("CASCADE stage 4 of 5", "WHO PAID FOR WHOM", "TENANTS", "today", "99% of 191 blocks", "victims"):
        assert text in out


def test_the_json_is_the_report_and_the_cascades(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(THRASH, "--json")
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [one["stage"] for one in told["cascades"]["cascades"]] == [4]
    assert told["cache"]["engines"][0]["pool_blocks"] == 191  # of 192 vLLM keeps its null block


def test_without_kv_events_it_says_what_to_switch_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, NO_EVENTS)
    assert code == 3
    assert "--kv-events-config" in out
    assert "sglang" in out


def test_what_is_no_file_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("/nowhere.kvcap") == 2
    assert "no such file" in capsys.readouterr().err


def test_nobody_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "kvitals.toml"
    config.write_text('[agent]\nlisten = "127.0.0.1:1"\n')
    assert run("--config", str(config)) == 3
    assert "no agent answers at http://127.0.0.1:1" in capsys.readouterr().err


def watched(path: str) -> Node:
    node = Node(Config())
    with CaptureReader.open(Path(path)) as reader:
        node.expect(reader.header.meta)
        for record in reader:
            node.ingest_recorded(record)
    return node


def asked(node: Node, *words: str) -> int:
    """What the command comes to when an agent that watches `node` is asked."""

    async def served() -> int:
        ledger = LedgerApi(lambda: node.ledger, lambda tenant: f"name of {tenant[-4:]}")
        app = build_app(ApiParts(node.window, {}, findings=lambda: None, ready=lambda: True, ledger=ledger))
        async with TestServer(app) as server:
            return await asyncio.to_thread(run, str(server.make_url("/")), *words)

    return asyncio.run(served())


def test_an_agent_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(watched(THRASH)) == 0
    out = capsys.readouterr().out
    assert "CASCADE  stage 4 of 5" in out
    assert "name of" in out  # names are told on loopback


def test_an_agent_that_hears_of_no_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(Node(Config())) == 3
    assert "--kv-events-config" in capsys.readouterr().out


@pytest.mark.parametrize("engine", [{}, {"engine": 3}, {"engine": "e", "accesses": [], "confidence": "x"}, "e", None])
def test_an_agent_of_another_kind_is_no_crash(
    engine: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answers(_: str) -> CacheReport:
        return CacheReport({"engines": [engine], "tenants": {}}, {"cascades": []})

    monkeypatch.setattr(cache, "of_agent", answers)
    assert run("http://127.0.0.1:1") == 2
    assert "use the agent's version of kvitals" in capsys.readouterr().err
