"""The alert of a cause is silent where its symptoms are known to be clear, as the verdict makes it a note there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvitals.diagnoser.cases.case import Case
from tests.alerts import promtool

SAMPLES = 40
QUEUE = {
    'kvitals_target_up{engine="e"}': "1",
    'kvitals_engine_info{engine="e",kind="engine",system="vllm"}': "1",
    'kvitals_kv_usage_ratio{engine="e"}': "0.1",
    'kvitals_engine_fact{engine="e",fact="slots"}': "8",
    'kvitals_requests_running{engine="e"}': "8",
    'kvitals_requests_waiting{engine="e"}': "20",
    'kvitals_requests_finished_total{engine="e",reason="stop"}': "0+20",
    'kvitals_slo_seconds{class="",engine="e",slo="ttft_p99"}': "60",
}
"""A batch queue: the slots are full and twenty requests wait, as many at the end as at the beginning."""


def first_tokens(within: float) -> dict[str, str]:
    """Requests get their first token within so many seconds, which is the bound of a bucket."""
    bounds = (30, 120)
    buckets = {str(bound): "0+20" if bound >= within else "0" for bound in bounds} | {"+Inf": "0+20"}
    found = {f'kvitals_ttft_seconds_bucket{{engine="e",le="{le}"}}': values for le, values in buckets.items()}
    return found | {'kvitals_ttft_seconds_count{engine="e"}': "0+20"}


@pytest.mark.parametrize(
    ("first", "expect"),
    [(first_tokens(30), "clear"), (first_tokens(120), "fired"), ({}, "fired")],
    ids=["in time", "late", "not known"],
)
def test_slots_that_bind_raise_an_alert_only_where_they_do_harm(
    first: dict[str, str], expect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = {name: f"{values}x{SAMPLES}" for name, values in (QUEUE | first).items()}
    case = msgspec.convert({"title": "a queue at the slots", "expect": expect, "series": series}, Case)
    monkeypatch.setattr(promtool, "cases", lambda _code: [case])
    passed, said = promtool.run(promtool.write("SCH01", tmp_path))
    assert passed, said
