"""A Prometheus that scrapes less often than its rules were written for: one ticket, and no page for a healthy engine.

A trial's finding: with the rules for 5 s and a scrape every minute and more, an engine at work paged as wedged, since
no counter rises between two samples.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvitals.dashboards.alerts_files import without_agents
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_yaml import dump
from tests.alerts import promtool

LABELS = 'instance="h:8000",pool="chat",engine="0",model_name="m",job="vllm"'
STEPS = 150
"""Of 5 s."""


def scraped(every: int) -> dict[str, str]:
    """A healthy vLLM with eight requests, by its own page. every: steps between two scrapes."""

    def course(value: Callable[[int], int]) -> str:
        return " ".join(str(value(step)) if step % every == 0 else "_" for step in range(STEPS))

    rising = ("iteration_tokens_total_count", "generation_tokens_total", "prompt_tokens_total")
    series = {f"vllm:{name}{{{LABELS}}}": course(lambda step: 250 * step) for name in rising}
    return series | {
        f"vllm:num_requests_running{{{LABELS}}}": course(lambda _: 8),
        f"vllm:num_requests_waiting{{{LABELS}}}": course(lambda _: 0),
        f'vllm:request_success_total{{{LABELS},finished_reason="stop"}}': course(lambda step: 20 * step),
    }


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        pytest.param(3, [], id="15 s"),
        pytest.param(20, ["TEL01-scraped-seldom"], id="100 s"),
    ],
)
def test_a_healthy_engine_that_is_scraped_seldom_is_one_ticket(every: int, expected: list[str], tmp_path: Path) -> None:
    recording, alerting, _ = without_agents(promtool.knowledge(), Options())
    groups = [*recording["groups"], *alerting["groups"]]
    (tmp_path / "rules.yaml").write_text(dump({"groups": groups}))
    asked = 'group by (alertname) (ALERTS{alertstate="firing",severity!="info"})'
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "5s",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [
            {
                "interval": "5s",
                "input_series": [{"series": name, "values": values} for name, values in scraped(every).items()],
                "promql_expr_test": [
                    {"expr": asked, "eval_time": at, "exp_samples": samples} for at in ("8m", "10m", "12m")
                ],
            }
        ],
    }
    (tmp_path / "one.test.yaml").write_text(dump(test))
    passed, said = promtool.run([tmp_path / "one.test.yaml"])
    assert passed, said
