"""TensorRT-LLM, TGI, llama.cpp, gateways with OpenTelemetry or LiteLLM names: units, kinds, what is not the same."""

import pytest

from kvitals.agent.families import SERVER_INFO
from kvitals.rules.engine_map import load_map
from tests.unit.maps.test_routers import Seen, recognised

TRT = '{{model_name="m",engine_type="trtllm"}}'.format()


def test_time_per_output_token_of_tensorrt_is_a_mean_per_request():
    seen = Seen(f"trtllm_time_per_output_token_seconds_count{TRT} 4\n")
    assert seen.value("kvitals_tpot_seconds_count") == 4.0
    assert seen.now("kvitals_itl_seconds_count") == {}


def test_the_batch_is_what_runs_and_active_requests_stand_in_for_it():
    active, batch = f"trtllm_num_requests_running{TRT} 9\n", f"trtllm_num_scheduled_requests{TRT} 4\n"
    assert Seen(active + batch).value("kvitals_requests_running") == 4.0
    assert Seen(active).value("kvitals_requests_running") == 9.0


def test_gauges_of_several_processes_are_copies():
    page = "".join(f'trtllm_kv_cache_utilization{{model_name="m",pid="{pid}"}} 0.5\n' for pid in (7, 12))
    page += "".join(f'trtllm_num_requests_waiting{{model_name="m",pid="{pid}"}} 3\n' for pid in (7, 12))
    seen = Seen(page)
    assert (seen.value("kvitals_kv_usage_ratio"), seen.value("kvitals_requests_waiting")) == (0.5, 3.0)


def test_configuration_on_the_page_is_facts():
    page = f"trtllm_max_batch_size_static{TRT} 256\ntrtllm_kv_cache_tokens_per_block{TRT} 32\n"
    seen = Seen(page)
    assert seen.value('kvitals_engine_fact{fact="slots"}') == 256.0
    assert seen.value('kvitals_engine_fact{fact="block_tokens",source="metrics page"}') == 32.0


def test_prefixes_of_older_documents_are_known():
    assert Seen("trtllm:num_requests_waiting 2\n").value("kvitals_requests_waiting") == 2.0


def test_tensorrt_beside_another_program_is_a_guest():
    assert (
        recognised("vllm:num_requests_running 1\nvllm:num_requests_waiting 1\ntrtllm_num_requests_waiting 2\n")
        == "vllm"
    )
    assert recognised("trtllm_num_requests_waiting 2\n") == "trtllm"


def test_what_triton_says_in_labels():
    page = "".join(
        f'nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="{kind}",version="1"}} {n}\n'
        for kind, n in (("waiting", 3), ("scheduled", 8), ("active", 11), ("max", 512), ("context", 1))
    )
    page += "".join(
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}",model="tensorrt_llm",version="1"}} {n}\n'
        for kind, n in (("fraction", 0.4875), ("tokens_per", 64), ("used", 1), ("free", 6239), ("max", 6239))
    )
    seen = Seen(page)
    assert (seen.value("kvitals_requests_waiting"), seen.value("kvitals_requests_running")) == (3.0, 8.0)
    assert seen.value("kvitals_kv_usage_ratio") == 0.4875
    facts = seen.values("kvitals_engine_fact", "fact")
    assert facts == {"slots": 512.0, "kv_blocks": 6239.0, "block_tokens": 64.0}


def test_an_overloaded_tgi_is_told_from_one_that_fails():
    page = "".join(f'tgi_request_failure{{err="{why}"}} {n}\n' for why, n in (("overloaded", 7), ("generation", 2)))
    seen = Seen(page + "tgi_request_success 50\ntgi_request_count 59\n")
    assert seen.values("kvitals_requests_rejected_total", "reason") == {"overloaded": 7.0}
    assert seen.values("kvitals_requests_failed_total", "reason") == {"generation": 2.0}
    assert seen.value("kvitals_requests_finished_total") == 50.0


def test_tgis_time_per_token_has_prefill_in_it():
    seen = Seen("tgi_request_mean_time_per_token_duration_count 3\ntgi_queue_size 4\n")
    assert seen.now("kvitals_tpot_seconds_count") == {}
    assert seen.value("kvitals_request_seconds_per_token_count") == 3.0


def test_steps_of_both_kinds_are_steps():
    page = "".join(f'tgi_batch_inference_count{{method="{m}"}} {n}\n' for m, n in (("prefill", 2), ("decode", 90)))
    assert Seen(page).value("kvitals_steps_total") == 92.0


LLAMA = """
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 96641
llamacpp:prompt_tokens_cached_total 4000
llamacpp:prompt_seconds_total 12.5
llamacpp:tokens_predicted_total 23210
llamacpp:tokens_predicted_seconds_total 500
llamacpp:n_decode_total 23381
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max 42094
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:prompt_tokens_seconds 424.925
"""


def test_llamacpps_prompt_tokens_are_those_that_were_computed():
    seen = Seen(LLAMA)
    assert seen.now("kvitals_prompt_tokens_total") == {}
    sources = {"local_compute": 96641.0, "local_cache_hit": 4000.0}
    assert seen.values("kvitals_prompt_tokens_by_source_total", "source") == sources
    assert seen.values("kvitals_request_phase_seconds_total", "phase") == {"prefill": 12.5, "decode": 500.0}
    assert (seen.value("kvitals_requests_running"), seen.value("kvitals_requests_waiting")) == (2.0, 1.0)


def test_llamacpps_fill_is_no_pressure():
    seen = Seen("llamacpp:kv_cache_usage_ratio 0.9\nllamacpp:requests_processing 0\n")
    assert seen.now("kvitals_kv_usage_ratio") == {} and seen.value("kvitals_kv_filled_ratio") == 0.9


@pytest.mark.parametrize(
    ("system", "answer", "facts", "strings"),
    [
        (
            "llamacpp",
            {"total_slots": 4, "default_generation_settings": {"n_ctx": 65536}, "model_alias": "m", "model_path": "/x"},
            {"slots": 4.0, "max_context_tokens": 65536.0},
            {"served_model_name": "m"},
        ),
        (
            "tgi",
            {"model_id": "m", "version": "3.3.7", "max_total_tokens": 4096, "max_concurrent_requests": 128},
            {"max_context_tokens": 4096.0, "queue_limit_requests": 128.0},
            {"version": "3.3.7", "served_model_name": "m"},
        ),
        ("litellm", {"status": "healthy", "litellm_version": "1.109.1"}, {}, {"version": "1.109.1"}),
    ],
)
def test_endpoints_tell_facts(system, answer, facts, strings):
    endpoint = load_map(system).endpoint
    assert endpoint is not None
    assert endpoint.learn(answer) == (facts, strings)


def test_a_version_from_an_endpoint_is_the_programs():
    seen = Seen("tgi_queue_size 4\n")
    seen.translator.learn(SERVER_INFO, *load_map("tgi").endpoint.learn({"version": "3.3.7"}))
    seen.feed("tgi_queue_size 4\n")
    assert next(iter(seen.now("kvitals_engine_info")))["version"] == "3.3.7"


@pytest.mark.parametrize("suffix", ["", "_seconds"])
def test_gen_ai_names_with_and_without_the_unit(suffix):
    labels = 'gen_ai_request_model="m",gen_ai_operation_name="chat",otel_scope_name="envoyproxy/ai-gateway"'
    page = "".join(
        f"gen_ai_server_{name}{suffix}_{part}{{{labels}}} 3\n"
        for name in ("time_to_first_token", "time_per_output_token", "request_duration")
        for part in ("sum", "count")
    )
    seen = Seen(page)
    for family in ("ttft", "tpot", "e2e"):
        assert seen.values(f"kvitals_{family}_seconds_count", "model") == {"m": 3.0}


@pytest.mark.parametrize("name", ["gen_ai_client_token_usage", "gen_ai_client_token_usage_token"])
def test_gen_ai_tokens_by_type(name):
    page = "".join(f'{name}_sum{{gen_ai_token_type="{kind}"}} 10\n' for kind in ("input", "output", "cached_input"))
    tokens = Seen(page).values("kvitals_router_request_tokens_sum", "type")
    assert tokens == {"input": 10.0, "output": 10.0, "cached_input": 10.0}


def test_users_of_litellm_are_summed_and_their_names_not_kept():
    labels = '{{team="{0}",user_email="{0}@example.com",end_user="{0}",model="m"}}'
    page = "".join(f"litellm_input_tokens_metric_total{labels.format(who)} 100\n" for who in ("ann", "bob"))
    page += 'litellm_overhead_latency_metric_sum{model_group="m"} 0.25\nlitellm_spend_metric_total{model="m"} 1.5\n'
    seen = Seen(page)
    assert seen.values("kvitals_router_tokens_total", "type") == {"input": 200.0}
    assert seen.value("kvitals_router_overhead_seconds_sum") == 0.25
    assert "ann" not in str(seen.history("kvitals_router_tokens_total"))


def test_a_deployment_is_as_bad_as_its_worst_state():
    page = "".join(f'litellm_deployment_state{{model_id="d",api_base="{b}"}} {b}\n' for b in (0, 2, 1))
    assert Seen(page).values("kvitals_gateway_deployment_state", "deployment") == {"d": 2.0}
