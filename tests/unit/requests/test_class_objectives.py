"""A tenant's class and what it is promised: in tails, in what is sent on, and as series."""

from pathlib import Path

import msgspec
import pytest

from kvitals.agent.node import Node
from kvitals.agent.records import ScrapeRecord, encode
from kvitals.agent.request_collectors import RequestSenses
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.stitch import LIMITS
from kvitals.agent.requests.tenant_names import TenantNames
from kvitals.config import Config, ObjectiveTable, SloTable, TenantsTable
from kvitals.series.promql import evaluate
from kvitals.series.types import Labels
from tests.unit.requests.parts import llm, tap

T = 1_790_000_000.0
KEY = "http://127.0.0.1:8000/metrics"
ENGINE = "127.0.0.1:8000/0"
PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1
"""
GOLD, TRIAL, NOBODYS = "t-aaaaaaaaaa", "t-bbbbbbbbbb", "t-cccccccccc"
CONFIG = Config(
    slo=SloTable(ttft_p99_seconds=2.0),
    tenants=TenantsTable(classes={"gold": (GOLD,), "trial": (TRIAL,)}),
    objectives=(
        ObjectiveTable(class_="gold", ttft_p99_seconds=0.5),
        ObjectiveTable(class_="trial", itl_p99_seconds=1.0),
    ),
)


def node(config: Config = CONFIG) -> Node:
    """A node whose engine's page was read, so that its objectives are known."""
    made = Node(config)
    made.expect({"targets": [{"url": "http://127.0.0.1:8000"}]})
    for t in (T - 10, T - 5, T):
        read(made, t)
    return made


def read(made: Node, t: float) -> None:
    made.ingest_recorded(
        encode(ScrapeRecord(t=t, target=KEY, status=200, content_type="text/plain; version=0.0.4", body=PAGE))
    )


def asked_by(tenant: str, engine: str = ENGINE) -> RequestRecord:
    return RequestRecord(id="r", start=T - 1, end=T, complete=True, tenant=tenant, engines={"unified": engine})


@pytest.mark.parametrize(
    ("tenant", "seconds"),
    [
        (GOLD, 0.5),
        (TRIAL, 2.0),  # its class is promised something else, so for this what holds for all
        (NOBODYS, 2.0),
        ("", 2.0),
    ],
)
def test_a_request_is_to_meet_what_its_tenants_class_is_promised(tenant: str, seconds: float) -> None:
    assert node().requests.objective(asked_by(tenant)) == seconds


def test_where_the_engine_is_not_watched_nothing_is_promised() -> None:
    made = node()
    assert made.requests.objective(asked_by(GOLD, "elsewhere:1")) is None
    assert made.requests.objective(asked_by(GOLD, "")) is None


def test_another_configuration_counts_from_the_next_look_on() -> None:
    made = node()
    assert made.requests.objective(asked_by(NOBODYS)) == 2.0
    made.reconfigure(msgspec.structs.replace(CONFIG, tenants=TenantsTable(classes={"gold": (NOBODYS,)})))
    assert made.requests.objective(asked_by(NOBODYS)) == 0.5
    assert made.requests.objective(asked_by(GOLD)) == 2.0


def classes(made: Node, t: float) -> set[tuple[str, str]]:
    found = evaluate("kvitals_tenant_class == 1", made.window, t)
    assert not isinstance(found, float)
    return {(labels["tenant"], labels["class"]) for labels in (Labels(one) for one, _ in found)}


def test_classes_of_tenants_that_have_series_are_told_and_follow_the_configuration() -> None:
    made = node()
    for n, tenant in enumerate((GOLD, NOBODYS)):
        parts = (tap(n, T, engine="127.0.0.1:8000", tenant=tenant), llm(n, T))
        made.ingest_recorded(encode(PartsRecord(t=T, source="tap", parts=parts)))
    later = T + LIMITS.settle + 2
    read(made, later)
    read(made, later + 2)
    assert classes(made, later + 2) == {(GOLD, "gold")}
    made.reconfigure(msgspec.structs.replace(CONFIG, tenants=TenantsTable(classes={"plain": (NOBODYS,)})))
    read(made, later + 4)
    assert classes(made, later + 4) == {(NOBODYS, "plain")}


def test_a_class_lists_names_and_requests_have_pseudonyms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only a tap tells of requests, so that this agent sees no name itself."""
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    monkeypatch.setenv("KVITALS_TENANT_KEY_FILE", str(key))
    table = TenantsTable(classes={"gold": ("acme",)})
    senses = RequestSenses(tmp_path)
    senses.configure(Config(tenants=table))
    pseudonym = TenantNames(table, b"k" * 32).pseudonym("acme")
    assert pseudonym != "acme"
    assert (senses.class_of(pseudonym), senses.class_of(GOLD), senses.class_of("")) == ("gold", "", "")
    assert senses.resolve(pseudonym) == "acme"
