"""What a panel makes of a query: units, colours, and buckets and means that are added up."""

from __future__ import annotations

import pytest

from kvitals.dashboards.lint.boards import read_board
from tests.unit.lint.test_lint import codes, found, panel

TTFT = "vllm:time_to_first_token_seconds"
RATE = "rate(%s_%s[5m])"


def rated(part: str) -> str:
    return RATE % (TTFT, part)


@pytest.mark.parametrize(
    ("text", "more", "code", "fix"),
    [
        (
            f"histogram_quantile(0.99, sum by (le) ({rated('bucket')}))", {"unit": "ms"}, "seconds-as-milliseconds",
            f"histogram_quantile(0.99, sum by (le) ({rated('bucket')})) * 1000",
        ),
        (f"{rated('sum')} / {rated('count')}", {"unit": "ms"}, "seconds-as-milliseconds",
         f"{rated('sum')} / {rated('count')} * 1000"),
        ("sum(rate(vllm:generation_tokens_total[5m]))", {"unit": "cps"}, "tokens-as-others", ""),
        ("sum(rate(vllm:prompt_tokens_total[5m]))", {"unit": "reqps"}, "tokens-as-others", ""),
        (f"sum({rated('bucket')})", {}, "buckets-without-le", f"sum by (le) ({rated('bucket')})"),
        (f"sum by (instance) (increase({TTFT}_bucket[5m]))", {}, "buckets-without-le",
         f"sum by (instance, le) (increase({TTFT}_bucket[5m]))"),
        (f"avg({rated('sum')} / {rated('count')})", {}, "mean-of-means",
         f"sum({rated('sum')}) / sum({rated('count')})"),
        (f'sum(rate({TTFT}_bucket{{le="0.5"}}[5m])) / sum({rated("bucket")})', {}, "bucket-by-bucket",
         f'sum(rate({TTFT}_bucket{{le="0.5"}}[5m])) / sum({rated("count")})'),
        ("vllm:num_requests_waiting", {"thresholds": (80.0,)}, "default-threshold", ""),
    ],
)  # fmt: skip
def test_it_is_found_and_corrected(text: str, more: dict[str, object], code: str, fix: str) -> None:
    defects = {one.code: one.fix for one in found(panel(text, **more))}
    assert code in defects
    assert defects[code].replace(" ", "") == fix.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"histogram_quantile(0.99, sum by (le) ({rated('bucket')})) * 1000", {"unit": "ms"}),
        (f"histogram_quantile(0.99, sum by (le) ({rated('bucket')}))", {"unit": "s"}),
        ("sum(rate(vllm:generation_tokens_total[5m]))", {"unit": "suffix:tokens/s"}),
        ("sum(rate(vllm:request_success_total[5m]))", {"unit": "reqps"}),
        (f"sum by (le) ({rated('bucket')})", {}),
        (f'sum(rate({TTFT}_bucket{{le="0.5"}}[5m])) / sum({rated("count")})', {}),
        (f'sum(rate({TTFT}_bucket{{le="0.5"}}[5m])) / sum(rate({TTFT}_bucket{{le="+Inf"}}[5m]))', {}),
        (f"sum({rated('sum')}) / sum({rated('count')})", {}),
        ("vllm:num_requests_waiting", {"thresholds": (10.0, 80.0)}),
        ("100 * vllm:kv_cache_usage_perc", {"thresholds": (80.0,), "unit": "percent"}),
    ],
)
def test_what_is_right_is_left_alone(text: str, more: dict[str, object]) -> None:
    new = {
        "seconds-as-milliseconds", "tokens-as-others", "buckets-without-le", "mean-of-means", "bucket-by-bucket",
        "default-threshold",
    }  # fmt: skip
    assert new.isdisjoint(codes(panel(text, **more)))


def test_red_at_80_is_read_from_a_board() -> None:
    board = {
        "title": "b",
        "panels": [
            {
                "type": "stat", "title": "Queue", "targets": [{"expr": "vllm:num_requests_waiting", "refId": "A"}],
                "fieldConfig": {"defaults": {"thresholds": {"steps": [{"value": None}, {"value": 80}]}}},
            }
        ],
    }  # fmt: skip
    (query,) = read_board(board, "b.json").queries
    assert codes(query) == ["default-threshold"]
