"""Uneven routing is listed before the limit that its queue meets only where a fair share of requests would not wait."""

import pytest

from kvitals.diagnoser.cases.notation import WrittenSeries
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import triage
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.rules.loader import load

KNOWLEDGE = load()
START, SAMPLES, STEP = 1_700_000_000.0, 40, 5.0
NONE = f"0x{SAMPLES}"


def engine(name: str, arrivals: float, running: str, waiting: str, slots: int, kv: float) -> dict[str, str]:
    """The series of an engine. `arrivals`: requests per sample that get a first token, late where others wait."""
    first_tokens = f"0+{arrivals:g}x{SAMPLES}"
    return {
        f'kvitals_target_up{{engine="{name}"}}': f"1x{SAMPLES}",
        f'kvitals_kv_usage_ratio{{engine="{name}"}}': f"{kv}x{SAMPLES}",
        f'kvitals_requests_running{{engine="{name}"}}': running,
        f'kvitals_requests_waiting{{engine="{name}"}}': waiting,
        f'kvitals_engine_fact{{engine="{name}",fact="slots"}}': f"{slots}x{SAMPLES}",
        f'kvitals_ttft_seconds_count{{engine="{name}"}}': first_tokens,
        f'kvitals_ttft_seconds_bucket{{engine="{name}",le="1"}}': first_tokens if waiting == NONE else NONE,
        f'kvitals_ttft_seconds_bucket{{engine="{name}",le="30"}}': first_tokens,
        f'kvitals_ttft_seconds_bucket{{engine="{name}",le="+Inf"}}': first_tokens,
        f'kvitals_slo_seconds{{engine="{name}",slo="ttft_p99"}}': f"2x{SAMPLES}",
    }


def judged(ratio: float, running: int, waiting: str, slots: int, kv: float = 0.3, preemptions: float = 0.0) -> Triage:
    """One engine of four serves `ratio` times the requests of the others, on which two run and none waits.

    `preemptions`: of each request that ends on this engine."""
    series = engine("hot", 10 * ratio, f"{running}x{SAMPLES}", f"{waiting}x{SAMPLES}", slots, kv)
    series |= {
        'kvitals_requests_finished_total{engine="hot",reason="stop"}': f"0+{10 * ratio:g}x{SAMPLES}",
        'kvitals_preemptions_total{engine="hot"}': f"0+{10 * ratio * preemptions:g}x{SAMPLES}",
    }
    for peer in ("b", "c", "d"):
        series |= engine(peer, 10, f"2x{SAMPLES}", NONE, 24, 0.3)
    source = WrittenSeries(series, START, STEP)
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, source))
    span = EvaluationSpan(source.end, 60.0, 60.0, cold=True)
    return triage(judge, judge.judge(span), span, DocumentSource("live", "x"))


@pytest.mark.parametrize(("kv", "limit"), [(0.3, "SCH01"), (0.994, "KVC01")], ids=["slots", "kv"])
def test_routing_comes_first_where_a_fair_share_would_not_wait(kv: float, limit: str) -> None:
    """16.5 times the requests: at a fair share 2 requests would be there, and 8 run."""
    document = judged(16.5, running=8, waiting="25", slots=8, kv=kv)
    causes = {cause.code: cause for cause in document.causes}
    assert document.causes[0].code == "PFX05"
    assert causes[limit].explained_by == ["PFX05"]
    assert document.verdict == f"{KNOWLEDGE.rules['PFX05'].title}."


@pytest.mark.parametrize(
    ("ratio", "running", "waiting", "slots", "kv", "preemptions", "first"),
    [
        (1.88, 2, "12", 2, 0.02, 0, "SCH01"),
        (1.52, 10, "9", 24, 0.994, 0, "KVC01"),
        (1.52, 17, "8.6", 24, 0.994, 1.2, "KVC01"),  # what is thrown out again did not fit
    ],
    ids=["slots", "kv", "preemptions"],
)
def test_the_limit_comes_first_where_a_fair_share_would_wait_as_well(
    ratio: float, running: int, waiting: str, slots: int, kv: float, preemptions: float, first: str
) -> None:
    document = judged(ratio, running, waiting, slots, kv, preemptions)
    causes = {cause.code: cause for cause in document.causes}
    assert document.causes[0].code == first
    assert first not in causes["PFX05"].explains
    assert "LAT01" in causes["PFX05"].explains  # it makes the wait longer all the same
    assert document.verdict == f"{KNOWLEDGE.rules[first].title}."


@pytest.mark.parametrize(("served", "first"), [(2.0, "PFX05"), (0.8, "SCH01")])
def test_of_a_queue_that_grows_the_rates_decide(served: float, first: str) -> None:
    """The queue grows by as many requests as the median peer gets: its length depends on when that began."""
    document = judged(served, running=16, waiting="50+10", slots=16)
    assert document.causes[0].code == first
    assert {"PFX05", "SCH01"} <= {c.code for c in document.causes}
