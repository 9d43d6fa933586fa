"""No two entities of a document have the same name: a reader, a link and a message tell them apart by it."""

from __future__ import annotations

import pytest

from kvitals.diagnoser.engine_rows import with_engines
from kvitals.diagnoser.entities import entity_titles
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import triage
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import load
from kvitals.series.types import Labels
from kvitals.series.window import Window

AT = 1000.0
ENGINE = "10.0.0.2:8000/0"


def engine(cluster: str, node: str, name: str = ENGINE) -> Labels:
    return Labels({"cluster": cluster, "node": node, "engine": name})


@pytest.mark.parametrize(
    ("several", "titles"),
    [
        ([engine("eu", "n1"), engine("us", "n2", "b")], [ENGINE, "b"]),
        ([engine("eu", "n1"), engine("us", "n1")], [f"eu/{ENGINE}", f"us/{ENGINE}"]),
        ([engine("eu", "n1"), engine("eu", "n2")], [f"n1/{ENGINE}", f"n2/{ENGINE}"]),
        (
            [engine("eu", "n1"), engine("us", "n1"), engine("us", "n2")],
            [f"eu/n1/{ENGINE}", f"us/n1/{ENGINE}", f"us/n2/{ENGINE}"],
        ),
        ([engine("", "n1"), engine("us", "n1")], [ENGINE, f"us/{ENGINE}"]),
    ],
)
def test_a_wider_label_tells_engines_of_one_name_apart(several: list[Labels], titles: list[str]) -> None:
    assert list(entity_titles("engine", several).values()) == titles


def test_nodes_and_pools_of_one_name_have_their_cluster() -> None:
    for scope in ("node", "pool"):
        several = [Labels({"cluster": cluster, scope: "chat"}) for cluster in ("eu", "us")]
        assert list(entity_titles(scope, several).values()) == ["eu/chat", "us/chat"]


def test_findings_and_rows_of_two_clusters_are_told_apart() -> None:
    """Two clusters of one Prometheus had the same address: "The same on 10.0.0.2:8000/0, 10.0.0.2:8000/0"."""
    window = Window(7200, 1000)
    group = window.group("engines")
    columns = [
        group.column(engine(cluster, "n1").with_(__name__="kvitals_target_up", pool="chat")) for cluster in ("eu", "us")
    ]
    for at in (AT - 30, AT - 15, AT):
        group.append(at, [column for column in columns if column is not None], [0.0, 0.0])
    judge, cold = Judge(load(), Signals(load(), window)), EvaluationSpan(AT, cold=True)
    judgements = judge.judge(cold)
    document = with_engines(
        triage(judge, judgements, cold, DocumentSource("prometheus", "here")), judge, judgements, cold
    )
    named = {f"eu/{ENGINE}", f"us/{ENGINE}"}
    assert {one.entity.title for one in document.telemetry if one.code == "TEL01"} == named
    assert {row.entity.title for row in document.engines} == named
    assert all(name in document.verdict for name in named)
