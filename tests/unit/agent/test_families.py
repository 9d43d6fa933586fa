"""From pages to families: identity, versions, folding, what is missing or not known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_stage import Watched, page

from kvitals.agent.collectors.page_parser import MAX_NAME_SERIES
from kvitals.agent.families import VERSION
from kvitals.rules.engine_map import load_map
from kvitals.series.types import Labels

# Identity


def test_an_unnamed_engine_is_its_address_and_rank():
    watched = Watched(node="n1", pool="chat")
    assert watched.feed(page("loaded")) == "ok"
    labels = next(iter(watched.now("kvitals_requests_running")))
    assert labels == Labels(
        {
            "__name__": "kvitals_requests_running",
            "engine": "h:8000/0",
            "model": "./tiny",
            "node": "n1",
            "pool": "chat",
        }
    )
    assert watched.value("kvitals_requests_running") == 7.0


def test_a_named_engine_has_its_name():
    watched = Watched("llama")
    watched.feed(page("loaded"))
    assert {labels["engine"] for labels in watched.now("kvitals_target_up")} == {"llama"}


@pytest.mark.parametrize(("name", "prefix"), [("", "h:8000"), ("llama", "llama")])
def test_each_rank_is_an_engine(name, prefix):
    watched = Watched(name)
    watched.feed(page("dp2-ngram"))
    ranks = {f"{prefix}/0", f"{prefix}/1"}
    for family in ("kvitals_target_up", "kvitals_kv_usage_ratio", "kvitals_engine_info"):
        assert {labels["engine"] for labels in watched.now(family)} == ranks
    tokens = {labels["engine"]: v for labels, v in watched.now("kvitals_prompt_tokens_total").items()}
    assert tokens == {f"{prefix}/0": 580.0, f"{prefix}/1": 870.0}
    # The API server serves both: what it counts belongs to neither.
    assert {labels["engine"] for labels in watched.now("kvitals_http_requests_total")} == {prefix}
    assert {labels["model"] for labels in watched.now("kvitals_requests_rejected_total")} == {"tiny"}


def test_a_target_that_never_answered_is_its_address_and_keeps_its_past_when_it_does():
    watched = Watched()
    watched.fail()
    watched.fail()
    assert watched.one('kvitals_target_up{engine="h:8000"}') == [0.0, 0.0]
    watched.feed(page("loaded"))
    assert watched.history('kvitals_target_up{engine="h:8000"}') == {}
    assert watched.one('kvitals_target_up{engine="h:8000/0"}') == [0.0, 0.0, 1.0]
    assert watched.one('kvitals_target_state{engine="h:8000/0",reason="refused"}') == [1.0, 1.0, None]
    assert watched.one('kvitals_target_state{engine="h:8000/0",reason="ok"}') == [None, None, 1.0]


def test_more_ranks_after_a_restart():
    watched = Watched("llama")
    watched.feed(page("loaded"))
    watched.feed(page("dp2-ngram"))
    assert {labels["engine"] for labels in watched.now("kvitals_target_up")} == {"llama/0", "llama/1"}
    assert watched.one('kvitals_target_up{engine="llama"}') == [1.0, None]


# Values


def test_a_histogram_keeps_its_own_bounds():
    watched = Watched()
    watched.feed(page("loaded"))
    buckets = watched.now("kvitals_ttft_seconds_bucket")
    assert len(buckets) == 23
    assert watched.value('kvitals_ttft_seconds_bucket{le="10.0"}') == 10.0
    assert watched.value('kvitals_ttft_seconds_bucket{le="+Inf"}') == watched.value("kvitals_ttft_seconds_count")


def test_labels_are_mapped():
    watched = Watched()
    watched.feed(page("loaded"))
    assert watched.value('kvitals_requests_finished_total{reason="length"}') == 42.0
    assert watched.value('kvitals_cached_tokens_by_medium_total{medium="device"}') == 12032.0
    assert watched.value('kvitals_engine_sleep{state="awake"}') == 1.0
    assert watched.value('kvitals_http_requests_total{handler="/v1/completions",status="4xx"}') == 16.0


def test_only_changes_are_written_yet_all_is_there():
    watched = Watched()
    for name in ("preload", "loaded", "after", "after"):
        watched.feed(page(name))
    assert watched.one("kvitals_preemptions_total") == [5.0, 5.0, 15.0, 15.0]
    assert watched.one("kvitals_requests_running") == [6.0, 7.0, 0.0, 0.0]
    ended = page("after")
    fresh = Watched()
    fresh.feed(ended)
    for family in ("kvitals_itl_seconds_bucket", "kvitals_http_requests_total", "kvitals_kv_usage_ratio"):
        assert watched.now(family) == fresh.now(family)


V0 = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 1.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 2.0
vllm:time_per_output_token_seconds_count{model_name="m"} 2.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.5
# TYPE vllm:model_forward_time_milliseconds histogram
vllm:model_forward_time_milliseconds_bucket{le="10.0",model_name="m"} 1.0
vllm:model_forward_time_milliseconds_bucket{le="+Inf",model_name="m"} 2.0
vllm:model_forward_time_milliseconds_count{model_name="m"} 2.0
vllm:model_forward_time_milliseconds_sum{model_name="m"} 500.0
"""


def test_old_names_and_units():
    watched = Watched()
    watched.feed(V0)
    assert watched.value('kvitals_requests_running{engine="h:8000/0"}') == 3.0
    assert watched.value("kvitals_kv_usage_ratio") == 0.5
    assert watched.value("kvitals_itl_seconds_sum") == 0.5
    assert watched.value("kvitals_model_forward_seconds_sum") == 0.5
    assert watched.value("kvitals_model_forward_seconds_count") == 2.0
    assert watched.value('kvitals_model_forward_seconds_bucket{le="0.01"}') == 1.0
    assert watched.value('kvitals_model_forward_seconds_bucket{le="+Inf"}') == 2.0
    # Otherwise the same series would exist under a raw bound too
    assert len(watched.now("kvitals_model_forward_seconds_bucket")) == 2


BLOCKS = """# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 100.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
"""


def test_a_unit_that_changed_between_versions():
    watched = Watched()
    watched.feed(BLOCKS)
    watched.translator.learn(VERSION, {}, {"version": "0.8.5"})
    watched.feed(BLOCKS)
    assert watched.value("kvitals_prefix_query_tokens_total") == 1600.0
    watched.translator.learn(VERSION, {}, {"version": "0.9.1"})
    watched.feed(BLOCKS)
    assert watched.value("kvitals_prefix_query_tokens_total") == 100.0
    assert (
        watched.value('kvitals_engine_fact{fact="kv_capacity_tokens"}') == 15984.0
    )  # 999 blocks: one is vLLM's null block


def test_a_scale_that_is_not_known_drops_the_samples_and_says_so():
    watched = Watched()
    watched.translator.learn(VERSION, {}, {"version": "0.8.5"})
    watched.feed(BLOCKS.replace('block_size="16"', 'block_size="None"'))
    assert watched.now("kvitals_prefix_query_tokens_total") == {}
    assert watched.value('kvitals_scrape_dropped_total{reason="scale"}') == 1.0


def test_the_new_name_goes_before_the_old_one():
    text = "".join(
        f'# TYPE {name} gauge\n{name}{{engine="0",model_name="m"}} {value}\n'
        for name, value in (("vllm:gpu_cache_usage_perc", 0.1), ("vllm:kv_cache_usage_perc", 0.2))
    )
    watched = Watched()
    watched.feed(text)
    assert watched.value("kvitals_kv_usage_ratio") == 0.2


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_"])
def test_ray_serves_other_names_and_replicas(prefix):
    text = "".join(
        f"# TYPE {prefix}{name} {type_}\n"
        f'{prefix}{name}{{ReplicaId="{replica}",WorkerId="w",engine="0",model_name="m"}} 2\n'
        for replica in "ab"
        for name, type_ in (("num_requests_running", "gauge"), ("generation_tokens", "counter"))
    )
    watched = Watched()
    assert watched.feed(text) == "ok"
    assert {labels["engine"] for labels in watched.now("kvitals_requests_running")} == {"h:8000/a/0", "h:8000/b/0"}
    assert sum(watched.now("kvitals_generation_tokens_total").values()) == 4.0


def test_labels_that_no_family_has_are_summed_over():
    def text(a: float, b: float) -> str:
        return "# TYPE vllm:num_requests_running gauge\n# TYPE vllm:kv_cache_usage_perc gauge\n" + "".join(
            f'vllm:num_requests_running{{engine="0",model_name="m",pid="{pid}"}} {value}\n'
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="{pid}"}} {value / 10}\n'
            for pid, value in (("1", a), ("2", b))
        )

    watched = Watched()
    watched.feed(text(1.0, 2.0))
    watched.feed(text(1.0, 5.0))
    assert watched.one("kvitals_requests_running") == [3.0, 6.0]
    assert watched.one("kvitals_kv_usage_ratio") == [0.2, 0.5]  # a ratio is not added up


def test_connectors():
    watched = Watched()
    base = page("loaded")
    watched.feed(base + page("class-offloading-tiering") + page("class-nixl"))
    assert watched.translator.reading.unknown == []
    assert watched.translator.reading.missing == []
    assert watched.now('kvitals_tier_read_bytes_total{medium="fs"}')
    assert watched.now("kvitals_transfer_seconds_count")
    assert watched.now("kvitals_offload_load_bytes_total")


def test_old_offload_counters_are_split_by_direction():
    text = "# TYPE vllm:kv_offload_total_bytes_total counter\n" + "".join(
        f'vllm:kv_offload_total_bytes_total{{engine="0",model_name="m",transfer_type="{kind}"}} {value}\n'
        for kind, value in (("CPU_to_GPU", 5), ("GPU_to_CPU", 7), ("GPU_to_DISK", 9))
    )
    watched = Watched()
    watched.feed(text)
    assert watched.value("kvitals_offload_load_bytes_total") == 5.0
    assert watched.value("kvitals_offload_store_bytes_total") == 7.0


# Facts and what is said of the target


def test_facts_of_a_page():
    watched = Watched()
    watched.feed(page("dp2-ngram"))
    for rank in "01":
        engine = f"h:8000/{rank}"
        assert (
            watched.value(f'kvitals_engine_fact{{engine="{engine}",fact="kv_blocks"}}') == 63.0
        )  # the label has both, each with its null block
        assert watched.value(f'kvitals_engine_fact{{engine="{engine}",fact="kv_capacity_tokens"}}') == 2016.0
        assert watched.value(f'kvitals_engine_fact{{engine="{engine}",fact="kv_cache_metrics"}}') == 0.0
    assert watched.now('kvitals_engine_fact{fact="offload_size_gib"}') == {}  # "None"
    [info] = watched.now('kvitals_engine_info{engine="h:8000/0"}')
    assert (info["system"], info["version"], info["model"], info["kv_cache_dtype"]) == ("vllm", "0.32", "tiny", "auto")


def test_facts_from_elsewhere_and_where_they_were_learned():
    watched = Watched()
    watched.translator.learn("command line", {"slots": 16.0}, {"connector": "NixlConnector"})
    watched.feed(page("loaded"))
    assert watched.value('kvitals_engine_fact{fact="slots",source="command line"}') == 16.0
    assert watched.value('kvitals_engine_fact{fact="block_tokens",source="metrics page"}') == 32.0
    assert next(iter(watched.now("kvitals_engine_info")))["connector"] == "NixlConnector"
    watched.translator.learn("command line", {"slots": 32.0}, {})
    watched.feed(page("loaded"))
    assert watched.one('kvitals_engine_fact{fact="slots"}') == [16.0, 32.0]


def test_a_version_that_is_told_replaces_the_guess():
    watched = Watched()
    watched.feed(page("loaded"))
    assert next(iter(watched.now("kvitals_engine_info")))["version_source"] == "names on the page"
    watched.translator.learn(VERSION, {}, {"version": "0.34.1"})
    watched.feed(page("after"))
    [info] = watched.now("kvitals_engine_info")
    assert (info["version"], info["version_source"], info["untested"]) == ("0.34.1", "version endpoint", "true")
    assert watched.one("kvitals_preemptions_total") == [5.0, 15.0]


def test_a_working_tree_build_does_not_tell_its_version():
    watched = Watched()
    watched.translator.learn(VERSION, {}, {"version": "0.1.dev9999+gabc"})
    watched.feed(page("loaded"))
    assert watched.translator.reading.version == "0.32"
    assert watched.now("kvitals_family_missing") == {}


def test_missing_families():
    watched = Watched()
    text = page("loaded")
    without = "\n".join(line for line in text.split("\n") if "inter_token_latency" not in line)
    watched.feed(without)
    assert [labels["family"] for labels in watched.now("kvitals_family_missing")] == ["kvitals_itl_seconds"]
    assert [labels["raw"] for labels in watched.now("kvitals_family_missing")] == ["inter_token_latency_seconds"]
    watched.feed(text)
    assert watched.now("kvitals_family_missing") == {}


def test_names_of_other_versions_are_taken_and_said():
    watched = Watched()
    watched.translator.learn(VERSION, {}, {"version": "0.32.0"})
    text = page("loaded").replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    watched.feed(text)
    assert watched.value("kvitals_kv_usage_ratio") == pytest.approx(0.745, abs=0.001)
    assert [labels["raw"] for labels in watched.now("kvitals_family_outdated")] == ["gpu_cache_usage_perc"]


def test_unknown_names_are_counted_and_listed():
    watched = Watched()
    watched.feed(page("loaded") + "# TYPE vllm:brand_new gauge\nvllm:brand_new 1\n")
    assert watched.value("kvitals_scrape_unknown_names") == 1.0
    assert watched.translator.reading.unknown == ["vllm:brand_new"]


def test_a_metrics_page_of_something_else():
    watched = Watched()
    assert watched.feed("# TYPE node_load1 gauge\nnode_load1 1.5\n") == "no_engine"
    assert watched.value("kvitals_target_up") == 0.0
    assert "vLLM" in watched.translator.status.last.message
    assert watched.feed("# TYPE node_load1 gauge\nnode_load1 1.6\n") == "no_engine"
    assert watched.feed(page("loaded")) == "ok"
    assert watched.feed("# TYPE node_load1 gauge\nnode_load1 1.5\n") == "no_engine"
    assert watched.one("kvitals_requests_running") == [None, None, 7.0, None]


def test_a_router_in_front_of_vllm_is_no_engine():
    assert Watched().feed("# TYPE vllm_router_requests_total counter\nvllm_router_requests_total 1\n") == "no_engine"


def test_a_failed_scrape_is_a_gap_and_says_why():
    watched = Watched()
    watched.feed(page("loaded"))
    watched.fail("timeout")
    watched.fail("timeout")
    watched.feed(page("after"))
    assert watched.one("kvitals_requests_running") == [7.0, None, None, 0.0]
    assert watched.one("kvitals_target_up") == [1.0, 0.0, 0.0, 1.0]
    assert watched.one("kvitals_scrape_age_seconds") == [0.0, 1.0, 2.0, 0.0]
    assert watched.one('kvitals_target_state{reason="timeout"}') == [None, 1.0, 1.0, None]
    assert watched.one('kvitals_target_state{reason="ok"}') == [1.0, None, None, 1.0]
    assert watched.one("kvitals_scrape_samples") == [508.0, 508.0, 508.0, 509.0]
    # What the engine is stays known while it is down.
    assert len(watched.now("kvitals_engine_info")) == 1


def test_series_that_leave_the_page_end():
    watched = Watched()
    text = page("loaded")
    watched.feed(text)
    watched.feed("\n".join(line for line in text.split("\n") if '/tokenize"' not in line))
    assert watched.one('kvitals_http_requests_total{handler="/tokenize"}') == [6.0, None]
    watched.feed(text)
    assert watched.one('kvitals_http_requests_total{handler="/tokenize"}') == [6.0, None, 6.0]


def test_the_series_cap_is_said():
    watched = Watched(max_series=200)
    watched.feed(page("loaded"))
    assert watched.window.series <= 200
    dropped = watched.now('kvitals_scrape_dropped_total{reason="series_cap"}')
    assert all(value > 200 for value in dropped.values())


@pytest.mark.parametrize("bound", ["abc", "", "NaN", " 1", "1_0"])
def test_a_bucket_whose_bound_is_no_number_is_left_out(bound: str):
    """One such bucket of one engine ended the diagnosis of all."""
    watched = Watched()
    text = page("loaded")
    bucket = f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{bound}",model_name="m"}} 1\n'
    watched.feed(text)
    sound = watched.now("kvitals_ttft_seconds_bucket")
    watched.feed(text + bucket)
    assert sound and watched.now("kvitals_ttft_seconds_bucket").keys() == sound.keys()
    assert list(watched.now('kvitals_scrape_dropped_total{reason="bucket_bound"}').values()) == [1.0]


def test_a_label_that_never_repeats_takes_a_bounded_number_of_series():
    watched = Watched(max_series=50_000)
    line = 'vllm:num_requests_running{{engine="0",model_name="m-{}-{}"}} 1\n'
    for scrape in range(3):
        lines = (line.format(scrape, n) for n in range(20_000))
        watched.feed("# TYPE vllm:num_requests_running gauge\n" + "".join(lines))
        if not scrape:
            assert len(watched.now("kvitals_requests_running")) == MAX_NAME_SERIES
            (dropped,) = watched.now('kvitals_scrape_dropped_total{reason="series_cap"}').values()
            assert dropped == 20_000 - MAX_NAME_SERIES
    assert watched.window.series < MAX_NAME_SERIES + 100  # those that ended are remembered, and count


# Any page that can be parsed can be taken over


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_nothing_on_a_page_crashes_it(data):
    raws = [metric.raw for metric in load_map("vllm").metrics] + ["cache_config_info", "lora_requests_info", "x"]
    watched = Watched(max_series=300)
    names = ["engine", "model_name", "le", "reason", "num_gpu_blocks", "block_size", "max_lora", "tier"]
    label = st.sampled_from(names)
    text = st.text(st.characters(exclude_characters='"\\\n', exclude_categories=("Cs",)), max_size=5)
    for _ in range(3):
        lines = []
        for raw in data.draw(st.lists(st.sampled_from(raws), min_size=1, max_size=12)):
            name = f"vllm:{raw}" + data.draw(st.sampled_from(["", "_bucket", "_sum", "_count"]))
            labels = data.draw(st.dictionaries(label, text, max_size=4))
            inner = ",".join(f'{k}="{v}"' for k, v in labels.items())
            lines.append(f"{name}{{{inner}}} {data.draw(st.floats())!r}\n")
        assert watched.feed("".join(lines)) == "ok"
        if data.draw(st.booleans()):
            watched.fail()
