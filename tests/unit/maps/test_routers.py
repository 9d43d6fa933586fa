"""Routers and gateways: told from the engines whose names they borrow, and what their pages mean."""

from pathlib import Path

import pytest

from agent.families import Translator
from agent.senses.exposition import PageParser
from agent.senses.reading import recognise
from agent.senses.status import Identity
from rules.engine_map import load_map, systems
from tests.goldens.names import inventory
from tests.unit.agent.test_families import Watched

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
