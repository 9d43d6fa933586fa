"""`kvitals export`: the generated files in an installation's own names, and a mixin that evaluates to the same."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kvitals.dashboards import board_files, boards, mixin
from kvitals.dashboards.alerts_files import with_agents, without_agents
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.label_names import Installation
from kvitals.dashboards.monitoring_files import KINDS, ExportError, ExportRequest, export
from kvitals.dashboards.queries import readable
from kvitals.rules.loader import Knowledge, load
from kvitals.rules.model import Param
from kvitals.series.promql import parse
from kvitals.series.promql.nodes import Selector
from kvitals.ui.cli.main import main
from tests.support.loops import for_each

OURS = ("kvitals:", "ALERTS", "kube_")
"""Series that are recorded by rules of ours or by Prometheus, or are not of agents or engines."""
LABELS = {"cluster": "k8s_cluster", "namespace": "ns", "job": "scrape_job"}
SELECTOR = 'env="prod", job=~"vllm.*"'
OTHER = Options(
    page="critical", ticket="warning", runbooks="https://r.example.org", boards="https://g.example.org",
    slo_ttft_seconds=1.5,
)  # fmt: skip


@cache
def knowledge() -> Knowledge:
    return load()


@cache
def changed() -> Knowledge:
    """The knowledge with another threshold for a full KV cache."""
    rule = knowledge().rules["KVC01"]
    params = {**rule.params, "kv_high": Param(default=0.8, why="ours")}
    return replace(knowledge(), rules={**knowledge().rules, "KVC01": msgspec.structs.replace(rule, params=params)})


@cache
def mixin_folder() -> dict[str, str]:
    return mixin.files(knowledge(), Options(), Installation())


def evaluated(config: str) -> dict[str, Any]:
    """The mixin with a `_config` that overrides its own, evaluated by jsonnet."""
    jsonnet = importlib.import_module("_jsonnet")  # has no types

    def imported(_: str, name: str) -> tuple[str, bytes]:
        return name, mixin_folder()[name].encode()

    text = (
        f"local m = (import 'mixin.libsonnet') + {{ _config+:: {config} }};"
        " { boards: m.grafanaDashboards, recording: m.prometheusRules, alerts: m.prometheusAlerts }"
    )
    return dict(json.loads(jsonnet.evaluate_snippet("test", text, import_callback=imported)))


@pytest.mark.parametrize("metrics", ["agents", "engines"])
@pytest.mark.parametrize("alerts", ["core", "extended"])
def test_the_mixin_is_the_same_rules_and_boards(metrics: str, alerts: str) -> None:
    options = Options(alerts="core" if alerts == "core" else "extended")
    made = with_agents if metrics == "agents" else without_agents
    mixed = evaluated(f"{{ metrics: '{metrics}', alerts: '{alerts}' }}")
    assert (mixed["recording"], mixed["alerts"]) == made(knowledge(), options)[:2]
    assert mixed["boards"] == {f"{name}.json": board for name, board in board_files.shipped_boards().items()}


@pytest.mark.parametrize("metrics", ["agents", "engines"])
def test_every_option_of_the_mixin_is_that_of_the_command(metrics: str) -> None:
    config = f"""{{
      metrics: '{metrics}', selector: '{SELECTOR}', clusterLabel: 'k8s_cluster', namespaceLabel: 'ns',
      jobLabel: 'scrape_job', pageSeverity: 'critical', ticketSeverity: 'warning', groups: ['kv', 'slo'],
      runbooksUrl: 'https://r.example.org', grafanaUrl: 'https://g.example.org',
      thresholds+: {{ objectives+: {{ ttft: '1.5' }}, KVC01+: {{ kv_high: '0.8' }} }},
    }}"""
    mixed = evaluated(config)
    scraped: Any = metrics
    request = ExportRequest(changed(), OTHER, Installation(scraped, SELECTOR, LABELS, ("kv", "slo")))
    assert (mixed["recording"], mixed["alerts"]) == request.rules()
    if metrics == "agents":
        written = {name: text for name, text in export("boards", request).items() if name.startswith("boards/")}
        assert {f"boards/{name}": board for name, board in mixed["boards"].items()} == {
            name: json.loads(text) for name, text in written.items()
        }
    texts = json.dumps([mixed["recording"], mixed["alerts"]])
    assert "> 0.8" in texts and "critical" in texts and "\ue000" not in texts
    assert not re.search(r"(?<!\d)71\d{4}(?!\d)", texts)


@pytest.mark.parametrize("metrics", ["agents", "engines"])
def test_every_scraped_series_has_the_selector_and_every_label_its_name(metrics: str) -> None:
    scraped: Any = metrics
    recording, alerts = ExportRequest(
        knowledge(), replace(OTHER, alerts="extended"), Installation(scraped, SELECTOR, LABELS)
    ).rules()
    ours = OURS if metrics == "agents" else (*OURS, "kvitals_")
    without: list[str] = []
    for group in [*recording["groups"], *alerts["groups"]]:
        for rule in group["rules"]:
            assert not re.search(r"(?<![\w$.-])(?:cluster|namespace)(?![\w-])", rule["expr"]), rule
            for node in parse(rule["expr"]).walk():
                if isinstance(node, Selector) and not node.name.startswith(ours):
                    without += [] if any(one.name == "env" for one in node.matchers) else [str(node)]
    assert without == []


def test_boards_of_an_installation_are_readable_and_select() -> None:
    request = ExportRequest(knowledge(), OTHER, Installation("agents", SELECTOR, LABELS))
    for name, text in export("boards", request).items():
        if not name.startswith("boards/"):
            continue
        board = json.loads(text)
        for panel in board_files.panels_of(board):
            for target in panel["targets"]:
                for node in readable(target["expr"]).walk():
                    if isinstance(node, Selector) and not node.name.startswith(OURS):
                        assert "env" in {one.name for one in node.matchers}, (name, target["expr"])
        assert '"label_values(kvitals_target_up{env=\\"prod\\"' in text
        assert "kvitals.example.com" not in text


def test_a_board_at_another_interval_is_what_the_generator_draws() -> None:
    options = Options(scrape_seconds=15.0, runbooks="https://r.example.org")
    drawn = boards.built(knowledge(), options.runbooks, options.fast_seconds)
    for name, board in board_files.shipped_boards().items():
        assert board_files.with_options(board, options) == drawn[f"boards/{name}.json"], name


def test_a_board_for_import_by_hand_asks_for_its_data_source() -> None:
    for name, board in board_files.shipped_boards().items():
        made = board_files.with_inputs(board)
        text = json.dumps(made)
        assert [one["name"] for one in made["__inputs"]] == ["DS_PROMETHEUS"], name
        assert "${datasource" not in text and "${DS_PROMETHEUS}" in text
        assert "datasource" not in {one["name"] for one in made["templating"]["list"]}
        assert len(made["panels"]) == len(board["panels"])


def test_without_options_the_rules_are_those_that_are_checked_in() -> None:
    generated = board_files.SHIPPED.parent / "prometheus"
    for metrics in ("agents", "engines"):
        scraped: Any = metrics
        request = ExportRequest(knowledge(), Options(), Installation(scraped))
        for kind in ("alerts", "recording"):
            text = export(kind, request)[f"{kind}.yaml"]
            assert yaml.safe_load(text) == yaml.safe_load((generated / metrics / f"{kind}.yaml").read_text())


@pytest.mark.system  # promtool
@pytest.mark.parametrize("metrics", ["agents", "engines"])
def test_prometheus_takes_the_rules(metrics: str, tmp_path: Path) -> None:
    scraped: Any = metrics
    request = ExportRequest(knowledge(), replace(OTHER, alerts="extended"), Installation(scraped, SELECTOR, LABELS))
    for kind in ("alerts", "recording"):
        path = tmp_path / f"{kind}.yaml"
        path.write_text(export(kind, request)[path.name])
        subprocess.run(["promtool", "check", "rules", path], check=True, capture_output=True, timeout=60)


def test_alertmanager_groups_by_the_installations_labels() -> None:
    request = ExportRequest(knowledge(), OTHER, Installation(labels=LABELS))
    made = yaml.safe_load(export("alertmanager", request)["alertmanager.yaml"])
    assert made["route"]["group_by"][0] == "k8s_cluster"
    assert "cluster" not in {label for rule in made["inhibit_rules"] for label in rule["equal"]}
    assert 'severity="critical"' in made["route"]["routes"][0]["matchers"]


def test_a_group_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ExportError, match=r"no group of alerts nonsense; the groups are .*kv"):
        ExportRequest(knowledge(), Options(), Installation(groups=("nonsense",))).rules()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


@for_each("kind", KINDS)
def test_each_kind_is_written(kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    addresses = ("--runbooks", "https://r.example.org", "--grafana", "https://g.example.org")
    code, out, err = run(capsys, "export", kind, "--out", str(tmp_path / kind), *addresses)
    assert (code, err) == (0, "")
    assert out.startswith(kind)
    assert [path for path in (tmp_path / kind).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--selector", "x"), "--selector x: invalid label matcher"),
        (("--groups", "x"), "--groups: no group of alerts x"),
        (("--cluster-label", "a-b"), "--cluster-label a-b: a label has letters"),
        (("--scrape-interval", "x"), "--scrape-interval"),
        (("--out", "/proc/nowhere"), "cannot write to"),
    ],
)
def test_a_wrong_option_is_one_line(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, "export", "alerts", "--out", str(tmp_path), *options)
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err
