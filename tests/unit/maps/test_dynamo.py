"""What pages of Dynamo mean: its frontend, and its workers, whose engines' names stand on the same page."""

import pytest

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.page_reading import recognise
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import Translator
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.engine_map import load_map, systems
from kvitals.rules.loader import load
from kvitals.series.types import Labels
from tests.unit.maps.pages import Read, stored

MAPS = [load_map(system) for system in systems()]
FRONTEND, OVERLOADED = (stored(f"dynamo-1.6.1-frontend-{state}") for state in ("loaded", "overloaded"))
WORKER = stored("dynamo-1.6.1-mocker-worker1-overloaded")
WORKERS = {"worker": "11088341668799495470", "rank": "0", "worker_type": "decode"}


def recognised(text: str) -> tuple[str, str]:
    found = recognise(PageParser().parse(text.encode()).layout, MAPS)
    assert found is not None
    return found.system, found.kind


def values(read: Read, family: str, **labels: str) -> float:
    [value] = read.now(family, **labels).values()
    return value


# What a page is of


def test_a_workers_page_is_its_engines():
    assert recognised(WORKER) == ("vllm", "engine")
    reading = Read().page(WORKER).translator.reading
    assert (reading.unknown, reading.missing) == ([], [])  # Dynamo passes on what there is: a mocker has little


def test_a_frontends_page_is_no_engine():
    assert recognised(OVERLOADED) == ("dynamo", "frontend")
    assert Read().page(OVERLOADED).translator.reading.unknown == []


def test_a_worker_without_names_of_an_engine_is_an_engine_all_the_same():
    alone = "".join(line for line in WORKER.splitlines(keepends=True) if "vllm:" not in line)
    assert recognised(alone) == ("dynamo_runtime", "engine")


def test_a_router_in_a_worker_does_not_make_it_a_frontend():
    assert recognised(WORKER + "dynamo_router_overhead_total_ms_count 3\n") == ("vllm", "engine")


# Queues: who holds what


def test_what_the_frontend_calls_queued_is_not_a_queue():
    read = Read().page(OVERLOADED)
    assert values(read, "kvitals_requests_unanswered") == 97.0
    assert values(read, "kvitals_requests_waiting") == 0.0  # the router passes everything on
    assert values(read, "kvitals_router_requests_in_flight") == 120.0
    assert read.now("kvitals_requests_running") == {}  # only an engine knows its batch


def test_the_queue_is_in_the_workers_engine():
    read = Read().page(WORKER)
    assert values(read, "kvitals_requests_waiting") == 50.0
    assert values(read, "kvitals_requests_running") == 10.0
    assert values(read, "kvitals_handler_requests_open") == 60.0
    assert values(read, "kvitals_handler_waiting_requests") == 0.0


def test_only_requests_for_tokens_are_a_handlers_requests():
    assert 'dynamo_endpoint="worker_kv_query' in WORKER
    assert values(Read().page(WORKER), "kvitals_handler_requests_total") == 165.0


# How requests end

FAILED = """dynamo_frontend_requests_total{endpoint="completions",error_type="overload",model="tiny",status="error"} 5
dynamo_frontend_requests_total{endpoint="completions",error_type="cancelled",model="tiny",status="error"} 2
dynamo_frontend_model_rejection_total{endpoint="completions",model="tiny"} 5
dynamo_frontend_model_cancellation_total{endpoint="completions",model="tiny",request_type="stream"} 2
"""


def test_failures_are_not_finished_requests():
    read = Read().page(OVERLOADED + FAILED)
    assert read.now("kvitals_requests_finished_total") == {"h:1": 213.0}
    assert values(read, "kvitals_requests_failed_total", reason="overload") == 5.0
    assert values(read, "kvitals_requests_failed_total", reason="cancelled") == 2.0
    assert values(read, "kvitals_requests_rejected_total", reason="overload") == 5.0
    assert values(read, "kvitals_requests_aborted_total") == 2.0


# Units and kinds of numbers


def test_milliseconds_microseconds_and_thousandths():
    read = Read().page(OVERLOADED)
    assert values(read, "kvitals_router_decision_seconds_sum") == pytest.approx(0.032909, abs=1e-6)
    assert values(read, "kvitals_router_decision_seconds_count") == 333.0
    assert values(read, "kvitals_frontend_detokenize_seconds_total") == pytest.approx(0.028428)
    assert values(read, "kvitals_runtime_busy_ratio") == pytest.approx(0.049)  # the busier of 19 and 49


def test_a_gauge_whose_name_ends_with_total_may_fall():
    def churn(n: int) -> str:
        return OVERLOADED + f'dynamo_frontend_lora_churn_loads_total{{endpoint="generate"}} {n}\n'

    read = Read().page(churn(7)).page(churn(2))
    assert values(read, "kvitals_lora_placements_added") == 2.0
    assert values(read, "kvitals_engine_restarts_total") == 0.0


def test_a_counter_whose_name_does_not_say_so_tells_a_restart():
    fewer = OVERLOADED.replace(
        "dynamo_frontend_detokenize_token_count 15840", "dynamo_frontend_detokenize_token_count 3"
    )
    read = Read().page(OVERLOADED).page(fewer)
    assert values(read, "kvitals_engine_restarts_total") == 1.0


def test_limits_of_a_worker_are_not_the_frontends_own():
    read = Read().page(OVERLOADED)
    facts = {s["fact"]: v for s, v in read.series().items() if s.name == "kvitals_engine_fact"}
    assert facts["block_tokens"] == 32.0
    assert (facts["worker_slots"], facts["worker_kv_blocks"], facts["worker_token_budget"]) == (16.0, 128.0, 8192.0)
    assert not {"slots", "kv_blocks", "max_context_tokens"} & facts.keys()


# What the router knows


def test_what_routing_gave_away():
    read = Read().page(OVERLOADED)
    best, chosen = (values(read, f"kvitals_router_{which}_prefix_tokens_total") for which in ("best", "chosen"))
    assert (best, chosen) == (56832.0, 51168.0)
    assert values(read, "kvitals_router_workers") == 2.0
    assert values(read, "kvitals_router_worker_active_blocks", **WORKERS) == 370.0
    assert values(read, "kvitals_router_worker_last_ttft_seconds", **WORKERS) == pytest.approx(11.168, abs=0.001)


def test_latency_is_the_frontends_though_its_router_tells_it_too():
    read = Read().page(OVERLOADED)
    assert values(read, "kvitals_ttft_seconds_sum") == pytest.approx(467.717, abs=0.001)  # the router has 467.712
    assert values(read, "kvitals_router_requests_total") == 333.0


# Several models, other names


def test_a_frontend_of_two_models_is_of_neither():
    lines = "".join(f'dynamo_frontend_active_requests{{model="{model}"}} {n}\n' for model, n in (("a", 3), ("b", 4)))
    read = Read().page(lines + "dynamo_frontend_event_loop_stall_total 0\n")
    assert {s["model"]: v for s, v in read.series().items() if s.name == "kvitals_router_requests_in_flight"} == {
        "a": 3.0,
        "b": 4.0,
    }
    [info] = [s for s in read.series() if s.name == "kvitals_engine_info"]
    assert "model" not in info


def test_a_prefix_of_the_operators_own():
    theirs = OVERLOADED.replace("dynamo_frontend_", "nv_llm_http_service_")
    read = Read()
    read.translator = Translator(read.window, "p", Identity("h:1"), MAPS, {"nv_llm_http_service_": "dynamo_frontend_"})
    assert read.page(theirs).translator.reading.system.system == "dynamo"
    assert values(read, "kvitals_requests_unanswered") == 97.0


# Verdicts


def judged(*pages: str) -> dict[str, Judgement]:
    knowledge, read = load(), Read()
    for page in pages:
        read.page(page)
    objectives = read.window.group("objectives")
    slo = {"ttft_p99": 1.0, "itl_p99": 0.3}
    names = [Labels({"__name__": "kvitals_slo_seconds", "engine": "h:1", "slo": name}) for name in slo]
    objectives.append(read.t, [objectives.column(name) for name in names], list(slo.values()))
    judge = Judge(knowledge, Signals(knowledge, read.window))
    judgements = judge.judge(EvaluationSpan(read.t, fast=len(pages) - 2.0, cold=True))
    found = {j.rule.code: j for j in judgements if j.rule.scope == "engine"}
    assert judge.crashed == {}
    return found


def test_an_overloaded_frontend_is_not_well():
    found = judged(*[FRONTEND] * 6, *[OVERLOADED] * 14)
    assert found["LAT01"].outcome == "fired"
    assert found["LAT02"].outcome == "clear"
    assert {code for code, j in found.items() if j.outcome == "unknown"} <= {"LAT12", "TEL12"}  # history; a start time
    assert (found["KVC01"].outcome, found["SCH01"].outcome) == ("n/a", "n/a")  # engines are judged by these


def test_a_frontend_whose_workers_answer_nothing_has_traffic():
    """Requests are open, no first token came for the whole window: that is not "nobody asks"."""
    assert judged(*[OVERLOADED] * 12)["SCH10"].outcome == "clear"  # nothing grows in a page that stands still
