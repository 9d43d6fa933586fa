"""Which objective counts where several were set."""

import pytest

from kvitals.agent.node import Node
from kvitals.agent.objectives import StatedObjective, general, of_engine
from kvitals.agent.records import ScrapeRecord, encode
from kvitals.config import Config, ObjectiveTable, SloTable, SomeSlo
from kvitals.series.promql import evaluate

LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B"
CONFIG = Config(
    slo=SloTable(ttft_p99_seconds=3.0),
    objectives=(
        ObjectiveTable(model="meta-llama/*", ttft_p99_seconds=1.0, itl_p99_seconds=0.1),
        ObjectiveTable(role="prefill", ttft_p99_seconds=0.8),
        ObjectiveTable(class_="gold", ttft_p99_seconds=0.5),
        ObjectiveTable(class_="gold", model="Qwen/*", ttft_p99_seconds=0.4),
        ObjectiveTable(class_="batch", model="Qwen/*", itl_p99_seconds=2.0),
    ),
)


def of(
    model: str, role: str = "", own: SomeSlo | None = None, **sources: str
) -> dict[tuple[str, str], StatedObjective]:
    return {(said.name, said.class_): said for said in of_engine(CONFIG, own, model, role, sources)}


def test_what_was_set_for_nobody_in_particular() -> None:
    assert general(Config(), {}) == [
        StatedObjective("ttft_p99", 2.0, "default"),
        StatedObjective("itl_p99", 0.2, "default"),
    ]
    assert [said.source for said in general(CONFIG, {"itl_p99": "command line"})] == ["configuration", "command line"]


@pytest.mark.parametrize(
    ("model", "role", "ttft", "itl"),
    [
        ("", "", 3.0, 0.2),
        (QWEN, "", 3.0, 0.2),
        (LLAMA, "", 1.0, 0.1),
        (LLAMA, "prefill", 0.8, 0.1),  # the last that matches counts, for each objective by itself
        ("META-LLAMA/x", "decode", 3.0, 0.2),
    ],
)
def test_the_last_that_matches_counts(model: str, role: str, ttft: float, itl: float) -> None:
    found = of(model, role)
    assert (found["ttft_p99", ""].seconds, found["itl_p99", ""].seconds) == (ttft, itl)


def test_a_target_comes_before_patterns_and_the_command_line_before_all() -> None:
    own = SomeSlo(ttft_p99_seconds=9.0)
    assert of(LLAMA, own=own)["ttft_p99", ""] == StatedObjective("ttft_p99", 9.0, "configuration")
    assert of(LLAMA, own=own)["itl_p99", ""].seconds == 0.1
    said = of(LLAMA, own=own, ttft_p99="command line")
    assert said["ttft_p99", ""] == StatedObjective("ttft_p99", 3.0, "command line")  # `slo` of the config has it then
    assert ("ttft_p99", "gold") not in said


def test_classes_stand_beside() -> None:
    assert {c: of(QWEN)["ttft_p99", c].seconds for c in ("", "gold")} == {"": 3.0, "gold": 0.4}
    assert of(LLAMA)["ttft_p99", "gold"].seconds == 0.5
    assert set(of(QWEN)) == {("ttft_p99", ""), ("itl_p99", ""), ("ttft_p99", "gold"), ("itl_p99", "batch")}


PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1.0
"""


async def test_the_model_is_known_from_the_page() -> None:
    node = Node(CONFIG)
    await node.open(["http://127.0.0.1:9"])
    key = "http://127.0.0.1:9/metrics"
    for t in (1.0, 2.0, 3.0):
        node.ingest_recorded(encode(ScrapeRecord(t=t, target=key, body=PAGE, status=200, reason="ok")))
    await node.close()
    found = evaluate('kvitals_slo_seconds{slo="ttft_p99"}', node.window, 3.0)
    assert not isinstance(found, float)
    said = {(labels["engine"], labels.get("class", "")): value for labels, value in found}
    assert said == {("127.0.0.1:9/0", ""): 1.0, ("127.0.0.1:9/0", "gold"): 0.5}
