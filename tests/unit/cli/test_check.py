"""`kvitals check` on a page of a real engine that is served here, as a user would type it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import judge_recording
from kvitals.config import Config
from kvitals.rules.inspection import Inspection
from kvitals.rules.loader import load
from kvitals.ui.cli.main import main
from tests.support.answering import answering
from tests.support.processes import free_port
from tests.support.served import served
from tests.unit.cli.test_commands import run

pytestmark = pytest.mark.usefixtures("shared_verdicts")

PAGE = Path(__file__).parents[2] / "fixtures" / "exposition" / "vllm-0.32-loaded.prom"


ANSWERS = {"/metrics": PAGE.read_bytes(), "/version": b'{"version": "0.32.0"}'}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with answering(lambda path: ANSWERS.get(path, b"")) as url:
        yield url


def test_what_it_is_what_it_is_enough_for_and_what_brings_more(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "check", url, "--for", "3s")
    assert code == 0
    assert "vllm 0.32.0, model ./tiny" in out
    for word in ("triage", "tenants", "cascade", "traces", "review", "families:", "--kv-events-config", "cost:"):
        assert word in out
    assert "this node's gpu: " in out and "The enabled telemetry has no defects." in out
    assert "[[target]]" in out  # and not taken for markup


def test_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "check", url, "--for", "1s", "--json")
    document = json.loads(out)
    assert (code, document["ok"], document["targets"][0]["system"]) == (0, True, "vllm")
    assert set(document) == set(Inspection.__struct_fields__)


def test_the_schema_is_that_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "check", "--schema")
    assert code == 0 and "Inspection" in json.loads(out)["$defs"]


def test_a_target_that_is_down_is_a_defect_and_says_what_to_do(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SystemExit) as stop:
        main(("check", url, dead, "--for", "1s"))
    said = capsys.readouterr()
    assert stop.value.code == 1
    assert "not readable: refused" in said.out
    assert "Nothing listens there" in " ".join(said.err.split())


def test_everything_at_length(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, short = run(capsys, "check", url, "--for", "1s")
    _, long = run(capsys, "check", url, "--for", "1s", "-v")
    assert "kvitals_ttft_seconds " in long and "kvitals_ttft_seconds " not in short
    assert "block_tokens" in long


def test_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    recording = str(Path(__file__).parents[3] / "app" / "demo" / "healthy.kvcap")
    code, out = run(capsys, "check", recording)
    assert code == 0 and "vllm 0.32, model tiny" in out and "on      --kv-cache-metrics" in out
    assert "The enabled telemetry has no defects." in out
    with pytest.raises(SystemExit, match="2"):
        main(["check", recording, "http://127.0.0.1:8000"])
    assert "give one recording, without URLs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("check", "is a kvitals agent, but check reads engines. Name the engines"),
        ("compare", "is a kvitals agent, but compare reads engines and recordings: name the engines"),
    ],
)
def test_an_agent_is_named_and_what_to_check_instead(
    command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = judge_recording(HEAVY_TENANT, Setup(load(), Config())).pipeline
    with served(pipeline) as agent, pytest.raises(SystemExit) as ended:
        main([command, agent, *([str(HEAVY_TENANT)] if command == "compare" else [])])
    assert ended.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())
