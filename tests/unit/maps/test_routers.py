"""Routers and gateways: told from the engines whose names they borrow, and what their pages mean."""

from pathlib import Path

import pytest

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.page_reading import recognise
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import Translator
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.inspect import inspect
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.engine_map import find_map, load_map, systems
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import load
from kvitals.series.types import Labels
from tests.goldens.names import inventory
from tests.unit.agent.page_stage import Watched

PAGES = Path(__file__).parents[2] / "fixtures" / "exposition"
MAPS = [load_map(system) for system in systems()]
ROUTERS = [m.system for m in MAPS if m.kind in ("router", "gateway")]


class Seen(Watched):
    """A target that all maps look at."""

    def __init__(self, *pages: str) -> None:
        super().__init__()
        self.translator = Translator(self.window, "t", Identity("h:1", "", {}), MAPS)
        for page in pages:
            self.feed(page)

    def values(self, family: str, label: str = "engine") -> dict[str, float]:
        """The family's newest values by one label, added up over the others."""
        found: dict[str, float] = {}
        for labels, value in self.now(family).items():
            key = labels.get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found


def recognised(text: str) -> str | None:
    found = recognise(PageParser().parse(text.encode()).layout, MAPS)
    return found.system if found else None


@pytest.mark.parametrize("page", sorted(PAGES.rglob("vllm-0.32-*.prom")), ids=lambda path: path.stem)
def test_an_engines_page_is_never_a_routers(page):
    assert recognised(page.read_text()) == "vllm"


@pytest.mark.parametrize("system", ROUTERS)
def test_a_page_with_all_names_of_a_router_is_that_routers(system):
    assert recognised("".join(f"{name.name} 1\n" for name in inventory(system))) == system


@pytest.mark.parametrize("name", load_map("production_stack_router").recognise.names)
def test_one_name_of_its_own_tells_the_production_stacks_router(name):
    assert recognised(f'{name} 1\nvllm:num_requests_running{{server="http://a:8000"}} 3\n') == "production_stack_router"


def captured(name: str) -> str:
    return (PAGES / "captured" / f"{name}.prom").read_text()


@pytest.mark.parametrize(
    ("page", "healthy"), [("sglang-router-0.3.2-one-worker-dead", 1.0), ("vllm-router-0.1.17-one-worker-dead", 1.0)]
)
def test_a_dead_worker_shows_in_its_breaker_and_not_in_its_health(page, healthy):
    seen = Seen(captured(page))
    dead, alive = "http://127.0.0.1:8202", "http://127.0.0.1:8201"
    assert seen.values("kvitals_router_worker_healthy", "worker") == {dead: healthy, alive: 1.0}
    assert seen.values("kvitals_router_worker_breaker_state", "worker") == {dead: 1.0, alive: 0.0}
    assert seen.value('kvitals_router_worker_breaker_changes_total{state="open"}') == 1.0
    assert seen.value(f'kvitals_router_worker_outcomes_total{{outcome="failure",worker="{dead}"}}') == 10.0
    assert seen.values("kvitals_router_retries_total") == {"h:1": 10.0}
    assert seen.values("kvitals_router_requests_total") == {"h:1": 280.0}


def test_a_summary_of_first_tokens_has_no_percentiles_and_a_histogram_has():
    old = 'smg_router_ttft_seconds{model="m",quantile="0.99"} 3\nsmg_router_ttft_seconds_count{model="m"} 7\n'
    seen = Seen(old)
    assert seen.now("kvitals_ttft_seconds_bucket") == {} and seen.value("kvitals_ttft_seconds_count") == 7.0
    new = 'smg_router_ttft_seconds_bucket{model="m",le="+Inf"} 7\nsmg_router_ttft_seconds_count{model="m"} 7\n'
    assert Seen(new).value("kvitals_ttft_seconds_bucket") == 7.0


def test_the_decode_sides_part_is_not_the_time_to_first_token():
    decode = 'smg_router_ttft_seconds_count{model="m",backend_type="pd"} 7\n'
    assert Seen(decode).now("kvitals_ttft_seconds_count") == {}
    assert Seen(decode + 'smg_pd_ttft_seconds_count{model="m"} 5\n').value("kvitals_ttft_seconds_count") == 5.0


def test_refusals_are_told_from_admissions():
    page = "".join(f'smg_http_rate_limit_total{{result="{result}"}} 4\n' for result in ("allowed", "rejected"))
    for outcome in ("admitted", "rejected_queue_full", "client_cancelled"):
        page += f'smg_scheduler_admit_total{{class="x",outcome="{outcome}"}} 2\n'
    assert Seen(page).values("kvitals_requests_rejected_total", "reason") == {"rate_limit": 4.0, "queue_full": 2.0}


def test_an_endpoint_picker_of_either_name():
    page = """
inference_{0}_request_total{{model_name="m",target_model_name="a",priority="0"}} 3
inference_{0}_request_total{{model_name="m",target_model_name="b",priority="1"}} 4
inference_{0}_request_duration_seconds_bucket{{model_name="m",target_model_name="a",le="0.4"}} 3
inference_{0}_request_duration_seconds_bucket{{model_name="m",target_model_name="b",le="0.4"}} 4
inference_{0}_running_requests{{model_name="m"}} 2
inference_{0}_input_tokens_sum{{model_name="m",target_model_name="a"}} 100
inference_pool_average_kv_cache_utilization{{name="p"}} 0.25
"""
    for name, version in (("model", "0.4"), ("objective", "1.1")):
        seen = Seen(page.format(name) + "inference_extension_prefix_indexer_size 12\n")
        assert seen.values("kvitals_router_requests_total", "model") == {"m": 7.0}
        assert seen.values("kvitals_e2e_seconds_bucket") == {"h:1": 7.0}
        assert seen.values("kvitals_router_requests_in_flight") == {"h:1": 2.0}
        assert seen.values("kvitals_router_request_tokens_sum", "type") == {"input": 100.0}
        assert seen.values("kvitals_router_pool_kv_usage_ratio", "inference_pool") == {"p": 0.25}
        assert next(iter(seen.now("kvitals_engine_info")))["version"] == version


def test_tenants_of_the_endpoint_picker_are_summed():
    queue = "inference_extension_flow_control_queue_size"
    page = "".join(f'{queue}{{fairness_id="{who}",priority="0",model_name="m"}} 5\n' for who in ("ann", "bob"))
    seen = Seen(page)
    assert seen.values("kvitals_requests_waiting") == {"h:1": 10.0}
    assert "ann" not in str(seen.history("kvitals_requests_waiting"))


def test_the_endpoint_pickers_first_output_is_no_time_to_first_token():
    seen = Seen('inference_objective_request_ttft_seconds_count{model_name="m",target_model_name="a"} 3\n')
    assert seen.now("kvitals_ttft_seconds_count") == {}
    assert seen.value("kvitals_router_first_output_seconds_count") == 3.0


def test_a_choice_that_failed_is_of_no_engine():
    name = "inference_extension_scheduler_attempts_total"
    seen = Seen(f'{name}{{status="failure",pod_name=""}} 2\n{name}{{status="success",pod_name="a"}} 5\n')
    assert seen.value("kvitals_router_decision_failures_total") == 2.0
    assert seen.values("kvitals_router_worker_selected_total", "worker") == {"a": 5.0}


def test_the_production_stacks_numbers_are_not_an_engines():
    page = """
vllm:num_requests_running{server="http://a:8000"} 3
vllm:num_requests_running{server="http://b:8000"} 4
vllm:healthy_pods_total{server="http://a:8000"} 1
vllm:avg_itl{server="http://a:8000"} -1
vllm:gpu_prefix_cache_hits_total{server="http://a:8000"} 100
vllm:request_latency_seconds_count{server="http://a:8000",model="m",status="success"} 6
vllm:request_latency_seconds_count{server="http://a:8000",model="m",status="error"} 1
"""
    seen = Seen(page, page.replace('pods_total{server="http://a:8000"} 1', 'pods_total{server="http://a:8000"} 0'))
    assert seen.now("kvitals_requests_running") == {} and seen.now("kvitals_prefix_hit_tokens_total") == {}
    workers = {"http://a:8000": 3.0, "http://b:8000": 4.0}
    assert seen.values("kvitals_router_worker_requests", "worker") == workers
    assert seen.values("kvitals_e2e_seconds_count") == {"h:1": 7.0}
    assert seen.values("kvitals_router_worker_healthy") == {"h:1": 0.0}
    assert seen.values("kvitals_engine_restarts_total") == {"h:1": 0.0}


# What rules say of them


KNOWLEDGE = load()
EPP = """
process_start_time_seconds 1.7e9
inference_objective_request_total{{model_name="m",target_model_name="a",priority="0"}} {n}
inference_objective_request_duration_seconds_bucket{{model_name="m",target_model_name="a",le="0.4"}} {n}
inference_objective_request_duration_seconds_bucket{{model_name="m",target_model_name="a",le="+Inf"}} {n}
inference_objective_request_duration_seconds_sum{{model_name="m",target_model_name="a"}} {n}
inference_objective_request_duration_seconds_count{{model_name="m",target_model_name="a"}} {n}
inference_objective_running_requests{{model_name="m"}} 2
"""
LITELLM = """
litellm_proxy_total_requests_metric_total{{requested_model="m",team="ann"}} {n}
litellm_llm_api_time_to_first_token_metric_bucket{{model="m",team="ann",le="2.0"}} 0
litellm_llm_api_time_to_first_token_metric_bucket{{model="m",team="ann",le="5.0"}} {n}
litellm_llm_api_time_to_first_token_metric_bucket{{model="m",team="ann",le="+Inf"}} {n}
litellm_llm_api_time_to_first_token_metric_count{{model="m",team="ann"}} {n}
litellm_llm_api_time_to_first_token_metric_sum{{model="m",team="ann"}} {n}
"""


def looked_at(first: str, then: str) -> tuple[Judge, EvaluationSpan]:
    """A judge after twenty seconds in which one page becomes the other, and the moment."""
    seen = Seen()
    for page in [first] * 8 + [then] * 12:
        seen.feed(page)
    objectives = seen.window.group("objectives")
    for slo, seconds in (("ttft_p99", 2.0), ("itl_p99", 0.2)):
        column = objectives.column(Labels({"__name__": "kvitals_slo_seconds", "engine": "h:1", "slo": slo}))
        objectives.append(seen.t, [column], [seconds])
    return Judge(KNOWLEDGE, Signals(KNOWLEDGE, seen.window)), EvaluationSpan(seen.t, fast=18.0, cold=True)


def judged(first: str, then: str) -> dict[str, Judgement]:
    """Outcomes by code over twenty seconds, in which one page becomes the other; of pools other pages tell."""
    judge, span = looked_at(first, then)
    found = {j.rule.code: j for j in judge.judge(span) if j.rule.scope not in ("pool", "fleet")}
    assert judge.crashed == {}
    return found


IDLE_AND_BUSY = {
    "sglang-router": (captured("sglang-router-0.3.2"), captured("sglang-router-0.3.2-one-worker-dead")),
    "vllm-router": (captured("vllm-router-0.1.17"), captured("vllm-router-0.1.17-one-worker-dead")),
    "epp": (EPP.format(n=100), EPP.format(n=200)),
    "litellm": (LITELLM.format(n=100), LITELLM.format(n=200)),
    "idle litellm": (LITELLM.format(n=100), LITELLM.format(n=100)),
}


@pytest.mark.parametrize("name", IDLE_AND_BUSY)
def test_nothing_is_unknown_of_a_router_but_what_it_should_tell(name):
    unknown = {code: j.reason for code, j in judged(*IDLE_AND_BUSY[name]).items() if j.outcome == "unknown"}
    assert unknown == {}


def test_a_router_that_sees_no_tokens_is_not_judged_by_them_and_is_by_its_errors():
    found = judged(*IDLE_AND_BUSY["vllm-router"])
    assert found["LAT01"].outcome == "n/a" and "kvitals_ttft_seconds" in found["LAT01"].reason
    assert found["KVC01"].reason == "not for a router"
    assert (found["TEL01"].outcome, found["TEL02"].outcome, found["ENG05"].outcome) == ("clear", "clear", "clear")


@pytest.mark.parametrize("name", ["sglang-router", "vllm-router", "epp"])
def test_a_router_lacks_nothing_for_being_on_call(name):
    judge, span = looked_at(*IDLE_AND_BUSY[name])
    judge.judge(span)
    (target,) = inspect(judge, span, DocumentSource("live", "x")).targets
    assert [lack.what for score in target.scores for lack in score.lacks] == []


def test_a_gateway_is_judged_by_its_time_to_first_token():
    found = judged(*IDLE_AND_BUSY["litellm"])
    assert found["LAT01"].outcome == "fired"
    assert found["LAT02"].outcome == "n/a"  # it does not measure gaps


def test_an_idle_gateway_is_not_judged_at_all():
    assert judged(*IDLE_AND_BUSY["idle litellm"])["LAT01"].reason.startswith("no traffic")


@pytest.mark.parametrize(("status", "outcome"), [("500", "fired"), ("429", "clear")])
def test_errors_at_a_gateway_count_unless_the_client_made_them(status, outcome):
    errors = f'litellm_proxy_failed_requests_metric_total{{exception_status="{status}"}} '
    first, then = IDLE_AND_BUSY["litellm"]
    assert judged(first + errors + "5\n", then + errors + "25\n")["ENG05"].outcome == outcome


def test_the_endpoint_pickers_own_queue_can_grow():
    size = 'inference_extension_flow_control_queue_size{fairness_id="a",priority="0",model_name="m"} '
    pages = [EPP.format(n=100 + i) + size + f"{10 * i + 5}\n" for i in range(20)]
    seen = Seen(*pages)
    signals = Signals(KNOWLEDGE, seen.window)
    known = signals.observe(EvaluationSpan(seen.t, fast=18.0, cold=True))
    entity = Labels({"engine": "h:1"})
    assert known["waiting_growth_per_second"].values[entity] == pytest.approx(10.0)
    assert known["drain_seconds"].values[entity] == pytest.approx(105.0, rel=0.1)


def test_a_system_that_nobody_knows_is_no_file_to_read():
    assert find_map("../codes/LAT01-ttft-slo-breach") is None and find_map("") is None
    assert find_map("epp") is load_map("epp")


def test_a_tap_tells_what_is_under_way_and_what_the_agent_does_not_have():
    seen = Seen(captured("kvitals-tap-0.1-loaded"))
    assert seen.values("kvitals_router_requests_in_flight") == {"h:1": 1.0}
    assert 2.0 < seen.value("kvitals_router_oldest_request_seconds") < 10.0
    assert seen.values("kvitals_router_responses_total", "code") == {"200": 17.0, "404": 1.0}
    assert seen.values("kvitals_requests_aborted_total") == {"h:1": 2.0}
    assert seen.values("kvitals_tap_refused_total", "reason") == {"malformed": 1.0}
    assert seen.values("kvitals_tap_parts_dropped_total", "reason") == {"full": 0.0, "refused": 0.0}
    assert seen.value("kvitals_tap_agent_up") == 0.0 and seen.value("kvitals_tap_parts_waiting") == 4.0


def test_a_tap_before_an_engine_that_went_tells_of_the_failures():
    seen = Seen(captured("kvitals-tap-0.1-loaded"), captured("kvitals-tap-0.1-engine-gone"))
    assert seen.values("kvitals_router_errors_total", "reason") == {"closed": 1.0, "connect": 1.0}
    assert seen.value("kvitals_router_oldest_request_seconds") == 0.0
