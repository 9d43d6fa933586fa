"""From page to page: restarts, broken sums, adapters that come and go."""

import math
import re
from collections.abc import Iterator

import pytest
from page_stage import Watched, page

from kvitals.agent.collectors import page_plan
from kvitals.agent.collectors.page_plan import RawHistogram
from kvitals.agent.families import CONFIGURATION, MAX_ADAPTERS, VERSION

# Engine truth


def set_value(text: str, series: str, value: float) -> str:
    found, n = re.subn(rf"^({re.escape(series)}(?:{{[^}}]*}})?) \S+$", rf"\1 {value!r}", text, flags=re.MULTILINE)
    assert n
    return found


def get_value(text: str, series: str) -> float:
    return float(re.search(rf"^{re.escape(series)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)[1])


def with_first_bucket(text: str, name: str, value: float) -> str:
    """The page with another value of the first bucket of each series of a histogram."""
    seen: set[str] = set()

    def replaced(match: re.Match[str]) -> str:
        others = re.sub(r'le="[^"]*",?', "", match[1])
        first, _ = others not in seen, seen.add(others)
        return f"{match[1]} {value!r}" if first else match[0]

    return re.sub(rf"^({re.escape(name)}_bucket{{[^}}]*}}) \S+$", replaced, text, flags=re.MULTILINE)


QUEUE, PREFILL = "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds"


def with_broken_clock(text: str) -> str:
    """What a failed KV transfer does to vLLM's histograms: one more request, a timestamp never set."""
    for name, jump in ((QUEUE, -1477.0), (PREFILL, 1477.0)):
        text = set_value(text, f"{name}_sum", get_value(text, f"{name}_sum") + jump)
        text = set_value(text, f"{name}_count", get_value(text, f"{name}_count") + 1)
    return text


def test_buckets_out_of_order_are_a_defect_whose_row_is_dropped():
    watched = Watched()
    good = page("loaded")
    bad = with_first_bucket(good, QUEUE, 1e6)
    assert bad != good
    for text in (good, bad, bad, good):
        watched.feed(text)
    count = get_value(good, f"{QUEUE}_count")
    assert watched.one("kvitals_queue_seconds_count") == [count, None, None, count]
    for cells in watched.history("kvitals_queue_seconds_bucket").values():
        assert cells[0] == cells[3] and cells[1] is cells[2] is None
    assert watched.one("kvitals_ttft_seconds_count")[1] is not None
    parts = len(re.findall(rf"^{QUEUE}_(?:bucket|sum|count)", bad, re.MULTILINE))
    assert watched.value('kvitals_scrape_dropped_total{reason="bucket_order"}') == 2 * parts
    assert set(watched.now("kvitals_engine_restarts_total").values()) == {0.0}


@pytest.mark.parametrize("value", ["fall", "nan"])
def test_a_histogram_in_disorder_is_gone_through_once_a_page(value: str, monkeypatch: pytest.MonkeyPatch):
    passes = 0

    class CountedParts(list[int]):
        def __iter__(self) -> Iterator[int]:
            nonlocal passes
            passes += 1
            return super().__iter__()

    monkeypatch.setattr(page_plan, "RawHistogram", lambda together: RawHistogram(-1, -1, CountedParts(), together))
    buckets = 400
    numbers = [str(buckets - n) if value == "fall" else "NaN" for n in range(buckets)]
    lines = [f'{QUEUE}_bucket{{model_name="m",le="{n}.0"}} {number}' for n, number in enumerate(numbers)]
    watched = Watched()
    watched.feed("\n".join([f"# TYPE {QUEUE} histogram", *lines, f'{QUEUE}_count{{model_name="m"}} 3', ""]))
    reason = "bucket_order" if value == "fall" else "out_of_range"
    assert watched.value(f'kvitals_scrape_dropped_total{{reason="{reason}"}}') >= buckets
    assert 0 < passes <= 4


def test_a_sum_that_falls_is_a_defect_whose_interval_is_dropped():
    watched = Watched()
    before = page("loaded")
    broken = with_broken_clock(before)
    after = set_value(broken, f"{QUEUE}_sum", get_value(broken, f"{QUEUE}_sum") + 2.0)
    after = set_value(after, f"{QUEUE}_count", get_value(after, f"{QUEUE}_count") + 1)
    for text in (before, broken, broken, after):
        watched.feed(text)
    total, count = get_value(before, f"{QUEUE}_sum"), get_value(before, f"{QUEUE}_count")
    assert watched.one("kvitals_queue_seconds_sum") == [total, None, pytest.approx(total), pytest.approx(total + 2.0)]
    assert watched.one("kvitals_queue_seconds_sum")[2] >= total  # to fall by rounding would be a reset
    assert watched.one("kvitals_queue_seconds_count") == [count, None, count, count + 1]
    for cells in watched.history("kvitals_queue_seconds_bucket").values():
        assert cells[1] is None and cells[0] == cells[2] <= cells[3]
    prefill = get_value(before, f"{PREFILL}_sum")  # it shares the timestamp
    assert watched.one("kvitals_prefill_seconds_sum") == [prefill, None, *[pytest.approx(prefill)] * 2]
    assert watched.one("kvitals_ttft_seconds_sum")[1] is not None
    assert watched.value('kvitals_scrape_dropped_total{reason="falling_sum"}') > 20
    assert watched.value("kvitals_engine_restarts_total") == 0.0


def test_a_shift_survives_a_change_of_layout():
    watched = Watched()
    before = page("loaded")
    broken = with_broken_clock(before)
    watched.feed(before)
    watched.feed(broken)
    watched.feed(broken + '# TYPE vllm:brand_new gauge\nvllm:brand_new{engine="0"} 1\n')
    total = get_value(before, f"{QUEUE}_sum")
    assert watched.one("kvitals_queue_seconds_sum") == [total, None, pytest.approx(total)]


def test_a_sum_that_falls_across_a_change_of_layout_is_seen():
    watched = Watched()
    before = page("loaded")
    watched.feed(before)
    watched.feed(with_broken_clock(before) + '# TYPE vllm:brand_new gauge\nvllm:brand_new{engine="0"} 1\n')
    assert watched.one("kvitals_queue_seconds_sum") == [get_value(before, f"{QUEUE}_sum"), None]


def restarted(text: str, start: float = 1.8e9) -> str:
    """The page of a new process: another start time, all counters at nothing."""
    lines = []
    for line in text.split("\n"):
        head, _, _ = line.rpartition(" ")
        counts = re.search(r"_(total|bucket|sum|count)(\{|$)", head) and not line.startswith("#")
        lines.append(f"{head} 0.0" if counts else line)
    return set_value("\n".join(lines), "process_start_time_seconds", start)


def test_a_restart_is_counted_and_ends_the_shifts():
    watched = Watched()
    text = page("loaded")
    watched.feed(text)
    watched.feed(with_broken_clock(text))
    watched.feed(restarted(text))
    assert watched.one("kvitals_engine_restarts_total") == [0.0, 0.0, 1.0]
    assert watched.value("kvitals_queue_seconds_sum") == 0.0
    assert watched.one("kvitals_generation_tokens_total")[-1] == 0.0
    watched.feed(restarted(text))
    assert watched.value("kvitals_engine_restarts_total") == 1.0


def test_after_a_restart_what_was_learned_elsewhere_is_asked_again():
    watched = Watched()
    text = page("loaded")
    watched.feed(text)
    assert watched.translator.wants_facts
    watched.translator.learn(VERSION, {}, {"version": "0.32.0"})
    watched.translator.learn("command line", {"slots": 16.0}, {})
    watched.translator.learn(CONFIGURATION, {"gpus": 1.0}, {})
    watched.translator.wants_facts = False
    watched.feed(restarted(text))
    assert watched.translator.wants_facts
    assert watched.now('kvitals_engine_fact{fact="slots"}') == {}
    assert watched.value('kvitals_engine_fact{fact="gpus"}') == 1.0
    watched.feed(restarted(text))
    assert watched.translator.reading.version == "0.32"


def test_without_a_start_time_a_falling_counter_is_a_restart():
    watched = Watched()
    text = page("dp2-ngram")
    watched.feed(text)
    zeroed = re.sub(r'^(vllm:generation_tokens_total\{engine="1".*\}) .*$', r"\1 0.0", text, flags=re.MULTILINE)
    watched.feed(zeroed)
    restarts = {labels["engine"]: v for labels, v in watched.now("kvitals_engine_restarts_total").items()}
    assert restarts == {"h:8000/0": 0.0, "h:8000/1": 1.0}


def test_a_gauge_may_fall():
    watched = Watched()
    watched.feed(page("loaded"))
    watched.feed(set_value(page("loaded"), "vllm:kv_cache_usage_perc", 0.1))
    assert watched.one("kvitals_kv_usage_ratio")[1] == 0.1
    assert watched.value("kvitals_engine_restarts_total") == 0.0


def test_a_gauge_that_is_not_a_number_has_no_sample():
    watched = Watched()
    usage = get_value(page("loaded"), "vllm:kv_cache_usage_perc")
    none = set_value(page("loaded"), "vllm:kv_cache_usage_perc", math.nan)
    for text in (page("loaded"), none, none, page("loaded")):
        watched.feed(text)
    assert watched.one("kvitals_kv_usage_ratio") == [usage, None, None, usage]
    assert watched.one('kvitals_family_unusable{reason="not_a_number"}') == [None, 1.0, 1.0, None]
    assert all(n == 0 for n in watched.now("kvitals_scrape_dropped_total").values())


@pytest.mark.parametrize(
    ("name", "number", "family", "reason"),
    [
        ("vllm:kv_cache_usage_perc", 40.0, "kvitals_kv_usage_ratio", "above_one"),
        ("vllm:kv_cache_usage_perc", -0.5, "kvitals_kv_usage_ratio", "negative"),
        ("vllm:kv_cache_usage_perc", math.inf, "kvitals_kv_usage_ratio", "out_of_range"),
        ("vllm:num_requests_waiting", -50.0, "kvitals_requests_waiting", "negative"),
        ("vllm:num_requests_running", 1e308, "kvitals_requests_running", "out_of_range"),
        ("vllm:prompt_tokens_total", -5.0, "kvitals_prompt_tokens_total", "negative"),
        (f"{QUEUE}_count", -5.0, "kvitals_queue_seconds_count", "negative"),
        (f"{QUEUE}_count", -5.0, "kvitals_queue_seconds_sum", "negative"),
    ],
)
def test_a_value_that_cannot_be_true_has_no_sample(name, number, family, reason):
    watched = Watched()
    good = page("loaded")
    bad = set_value(good, name, number)
    for text in (good, bad, bad, good):
        watched.feed(text)
    (cells,) = watched.history(family).values()
    assert cells[0] == cells[3] and cells[1] is cells[2] is None
    assert watched.value(f'kvitals_scrape_dropped_total{{reason="{reason}"}}') == 2
    unusable = watched.one(f'kvitals_family_unusable{{reason="{reason}"}}')
    assert unusable == [None, 1.0, 1.0, None]
    assert set(watched.now("kvitals_engine_restarts_total").values()) == {0.0}


def test_a_value_that_cannot_be_true_is_not_used_when_its_line_stands_still():
    """Lines that do not change for long are not listed any more as what may have changed."""
    watched = Watched()
    good = page("loaded")
    watched.feed(good)
    watched.feed(set_value(good, "vllm:kv_cache_usage_perc", 0.5))
    for _ in range(300):
        watched.feed(set_value(good, "vllm:kv_cache_usage_perc", 40.0))
    assert watched.one("kvitals_kv_usage_ratio")[2:] == [None] * 300
    assert watched.value('kvitals_scrape_dropped_total{reason="above_one"}') == 300


@pytest.mark.parametrize("number", [1.0000001, 1.04, -0.0, -1e-12])
def test_a_share_may_be_a_little_beyond_its_bounds(number):
    watched = Watched()
    watched.feed(set_value(page("loaded"), "vllm:kv_cache_usage_perc", number))
    assert watched.value("kvitals_kv_usage_ratio") == number


@pytest.mark.parametrize("number", ["NaN", "+Inf", "1e300"])
def test_a_counter_that_no_engine_can_count_is_left_out_and_counted(number):
    watched = Watched()
    watched.feed(page("loaded"))
    line = re.search(r"(?m)^(vllm:prompt_tokens_total\{.*\}) (\S+)$", page("loaded"))
    watched.feed(page("loaded").replace(line[0], f"{line[1]} {number}"))
    assert not watched.now("kvitals_prompt_tokens_total")
    assert watched.value('kvitals_scrape_dropped_total{reason="out_of_range"}') == 1
    watched.feed(page("loaded"))
    assert watched.value("kvitals_prompt_tokens_total") == float(line[2])


# LoRA


def lora(*reports: tuple[str, float]) -> str:
    name = "vllm:lora_requests_info"
    lines = [
        f'{name}{{max_lora="4",running_lora_adapters="{names}",waiting_lora_adapters="{names}"}} {t}\n'
        for names, t in reports
    ]
    return page("loaded") + f"# TYPE {name} gauge\n" + "".join(lines)


def test_the_newest_lora_report_holds():
    watched = Watched()
    watched.feed(lora(("", 10.0), ("a,b", 12.0)))
    watched.feed(lora(("", 10.0), ("a,b", 12.0), ("b", 13.0)))
    watched.feed(lora(("", 14.0), ("a,b", 12.0), ("b", 13.0)))
    assert watched.one("kvitals_lora_adapters_active") == [2.0, 1.0, 0.0]
    assert watched.one('kvitals_lora_adapter_active{adapter="a"}') == [1.0, 0.0, 0.0]
    assert watched.one('kvitals_lora_adapter_active{adapter="b"}') == [1.0, 1.0, 0.0]
    assert watched.one("kvitals_lora_report_timestamp_seconds") == [12.0, 13.0, 14.0]
    assert watched.value('kvitals_engine_fact{fact="lora_slots"}') == 4.0
    watched.feed(page("loaded"))
    assert watched.now("kvitals_lora_adapters_active") == {}


def test_lora_adapters_are_bounded():
    watched = Watched()
    for i in range(150):
        watched.feed(lora((f"adapter-{999 - i}", float(i))))
    names = watched.now("kvitals_lora_adapter_active")
    assert len(names) == MAX_ADAPTERS + 1
    assert {labels["adapter"]: value for labels, value in names.items() if value} == {"other": 1.0}
    watched.feed(lora(("adapter-999", 1000.0)))
    assert sum(watched.now("kvitals_lora_adapter_active").values()) == 1.0
    assert watched.value('kvitals_lora_adapter_active{adapter="adapter-999"}') == 1.0


def test_lora_adapters_that_went_away_give_their_places_back():
    watched = Watched()
    for i in range(MAX_ADAPTERS):
        watched.feed(lora((f"old-{i}", float(i))))
    watched.t += watched.window.retention
    watched.feed(lora(("new", 1000.0)))
    watched.feed(lora(("new", 1001.0)))
    assert {labels["adapter"] for labels in watched.now("kvitals_lora_adapter_active")} == {"new"}
