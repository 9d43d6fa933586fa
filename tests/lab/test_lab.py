"""The lab's arithmetic, which the product's accuracy is measured by. No engine is started here."""

from __future__ import annotations

import itertools
import json
import random
import statistics

import pytest

from .engines import DEFAULT_FLAGS, command_line
from .load import Load, Sample, summary
from .metrics import _quantile, parse, total
from .paths import LabError
from .product import kvitals_command, read_verdict, slo_arguments
from .scenario import PHASES, load_scenario, names
from .tables import Outcome, grid, outcomes
from .traffic import InfiniteCache, Prompts, Tenant, percentile, poisson

ALL = [load_scenario(name) for name in names()]
BLOCK = list(range(100, 132))


# -- what a cache could have had ---------------------------------------------------------------------------


def test_nothing_is_attainable_at_first():
    assert InfiniteCache(32).attainable(BLOCK * 3) == 0


def test_a_shared_prefix_is_attainable_in_whole_blocks():
    cache = InfiniteCache(32)
    cache.add([*BLOCK, *BLOCK, 1, 2, 3])
    assert cache.attainable([*BLOCK, *BLOCK, 7, 8, 9]) == 64
    assert cache.attainable([*BLOCK, 5, 6, *BLOCK]) == 32


def test_a_whole_prompt_is_never_attainable():
    """One token must be computed to sample from: of two blocks seen before, vLLM computes the last anew."""
    cache = InfiniteCache(32)
    cache.add(BLOCK * 2)
    assert cache.attainable(BLOCK * 2) == 32
    assert cache.attainable([*BLOCK * 2, 1]) == 64


def test_a_block_counts_only_behind_what_it_was_computed_behind():
    cache = InfiniteCache(32)
    cache.add([*BLOCK, *range(200, 232)])
    assert cache.attainable([*range(200, 232), 1]) == 0


def test_salt_in_front_leaves_nothing_attainable():
    cache = InfiniteCache(32)
    prompts = Prompts(Tenant("a", prefix=480, salt=4), "seed")
    for _ in range(5):
        prompt = prompts.ask(prompts.session()).prompt
        assert cache.attainable(prompt) == 0
        cache.add(prompt)


@pytest.mark.parametrize("length", [0, 1, 31, 32])
def test_prompts_without_a_whole_block_to_spare_attain_nothing(length):
    cache = InfiniteCache(32)
    cache.add(BLOCK * 2)
    assert cache.attainable((BLOCK * 2)[:length]) == 0


# -- what tenants ask --------------------------------------------------------------------------------------


def test_the_same_seed_asks_the_same():
    def asked(seed):
        prompts = Prompts(Tenant("a", prefix=64, prefixes=4), seed)
        return [prompts.ask(prompts.session()).prompt for _ in range(6)]

    assert asked("one") == asked("one")
    assert asked("one") != asked("two")


def test_system_prompts_outlive_the_seed():
    """The incident's tenants have the baseline's system prompts, whatever the phases' seeds."""
    tenant = Tenant("a", prefix=64, prefixes=3)
    before, after = (Prompts(tenant, seed).every_system() for seed in ("baseline", "incident"))
    assert [ask.prompt[:64] for ask in before] == [ask.prompt[:64] for ask in after]
    assert len({tuple(ask.prompt[:64]) for ask in before}) == 3


def test_tenants_share_nothing():
    first, second = (Prompts(Tenant(name, prefix=64), "seed").every_system()[0] for name in ("a", "b"))
    assert first.prompt[:32] != second.prompt[:32]


def test_prompts_have_exactly_the_length_asked_for():
    prompts = Prompts(Tenant("a", prefix=50, question=7, salt=3), "seed")
    assert len(prompts.ask(prompts.session()).prompt) == 60


def test_a_session_grows_until_its_turns_are_over():
    prompts = Prompts(Tenant("a", prefix=10, question=5, turns=3), "seed")
    session = prompts.session()
    lengths = []
    for _ in range(4):
        session = prompts.next_session(session)
        ask = prompts.ask(session)
        session.remember(ask.prompt[-5:], [1, 2])
        lengths.append(len(ask.prompt))
    assert lengths == [15, 22, 29, 15]


def test_without_turns_each_request_draws_its_system_prompt():
    prompts = Prompts(Tenant("a", prefix=32, prefixes=24, question=1), "seed")
    session, heads = prompts.session(), set()
    for _ in range(50):
        session = prompts.next_session(session)
        heads.add(tuple(prompts.ask(session).prompt[:32]))
    assert len(heads) > 12


def test_poisson_arrivals_come_at_their_rate():
    pauses = list(itertools.islice(poisson(5.0, random.Random(1)), 4000))
    assert statistics.fmean(pauses) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(pauses) == pytest.approx(0.2, rel=0.1)


# -- what is made of the measurements ----------------------------------------------------------------------


def test_percentile_is_the_nearest_rank():
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([3.0], 0.99) == 3
    assert percentile([], 0.5) is None


def test_summary_adds_up():
    done = Sample("a", 0.0, 100, 64, "ok", ttft=0.5, itl=[0.1, 0.2], e2e=0.8, answer_tokens=3, cached_tokens=32)
    cut = Sample("a", 1.0, 60, 0)
    made = summary([done, cut])
    assert made["status"] == {"cut": 1, "ok": 1}
    assert (made["prompt_tokens"], made["shared_tokens"], made["unique_tokens"]) == (160, 64, 96)
    assert made["attainable_hit_ratio"] == 0.4
    assert made["cached_tokens"] == 32
    assert made["ttft_s"] == {"p50": 0.5, "p99": 0.5}


def test_summary_of_nothing_claims_nothing():
    made = summary([])
    assert made["requests"] == 0
    assert made["attainable_hit_ratio"] is None
    assert made["ttft_s"] == {"p50": None, "p99": None}


async def test_truth_names_every_tenant_even_one_that_sent_nothing():
    load = Load(["http://127.0.0.1:9"], [Tenant("silent"), Tenant("mute")])
    assert set(load.truth()["tenants"]) == {"silent", "mute"}


def test_exposition_is_parsed_with_labels_and_escapes():
    text = '# HELP x y\nx_total{a="1",b="q\\"{}"} 3\nx_total{a="2"} 4.5\ny 1e-3\nz NaN\n'
    snapshot = parse(text)
    assert total(snapshot, "x_total") == 7.5
    assert total(snapshot, "x_total", a="2") == 4.5
    assert total(snapshot, "y") == 0.001


def test_quantile_interpolates_within_a_bucket():
    inf = float("inf")
    assert _quantile({0.1: 0, 0.2: 100, inf: 100}, 0.5) == 0.15
    assert _quantile({0.1: 1, inf: 100}, 0.99) == 0.1
    assert _quantile({0.1: 0, inf: 0}, 0.5) is None


# -- flags, verdicts, tables -------------------------------------------------------------------------------


def test_flags_override_negate_and_take_away_defaults():
    line = command_line({"max_num_seqs": 2, "enable_prefix_caching": False, "kv_cache_metrics": None})
    assert line[line.index("--max-num-seqs") + 1] == "2"
    assert "--no-enable-prefix-caching" in line
    assert "--kv-cache-metrics" not in line
    assert line.count("--max-num-seqs") == 1


def test_the_command_can_be_said(monkeypatch):
    monkeypatch.setenv("KVITALS", "python -m somewhere")
    assert kvitals_command() == ["python", "-m", "somewhere"]
    assert kvitals_command("kv --fast") == ["kv", "--fast"]


def document(*codes, healthy=False):
    return json.dumps({"healthy": healthy, "causes": [{"code": code} for code in codes]})


def test_only_the_first_cause_counts():
    scenario = load_scenario("few_slots")
    assert read_verdict(document("SCH01", "KVC01"), 1.0).right_for(scenario)
    assert not read_verdict(document("KVC01", "SCH01"), 1.0).right_for(scenario)
    assert not read_verdict(document(), 1.0).right_for(scenario)


def test_healthy_must_be_said_to_be_healthy():
    scenario = load_scenario("healthy")
    assert read_verdict(document(healthy=True), 1.0).right_for(scenario)
    assert not read_verdict(document(healthy=None), 1.0).right_for(scenario)
    assert not read_verdict(document("SCH01", healthy=True), 1.0).right_for(scenario)


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"healthy": true}', '{"causes": [1]}'])
def test_what_is_no_triage_document_is_refused(text):
    with pytest.raises(LabError, match="no triage document"):
        read_verdict(text, 1.0)


def test_the_table_of_verdicts_shows_what_went_wrong():
    scenario = load_scenario("few_slots")
    right = Outcome(scenario, read_verdict(document("SCH01"), 12.34))
    failed = Outcome(scenario, None, "the engine died")
    table = outcomes([right, failed])
    assert right.ok and not failed.ok
    assert "12.3" in table and "NO" in table and "the engine died" in table


def test_grid_aligns_numbers_to_the_right():
    assert grid(("a", "n"), [("x", 1), ("y", 100)]).splitlines()[2:] == ["x    1", "y  100"]


# -- the scenarios -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_every_prompt_fits_the_engine(scenario):
    usable_blocks = int(scenario.flags.get("num_gpu_blocks_override") or 1024) - 1
    longest = min(int(DEFAULT_FLAGS["max_model_len"]), usable_blocks * scenario.block_size)
    for tenant in (tenant for phase in PHASES for tenant in scenario.load(phase)):
        turn = tenant.question + tenant.answer
        assert tenant.salt + tenant.prefix + tenant.turns * turn <= longest


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_every_scenario_says_what_is_wrong(scenario):
    assert scenario.wrong.endswith(".")
    assert scenario.baseline and scenario.incident
    assert slo_arguments(scenario.slo)[::2] == ["--slo", "--slo"]


def test_the_situations_differ_in_what_there_is_to_find():
    assert [one.name for one in ALL if not one.expect] == ["healthy"]
    codes = [code for one in ALL for code in one.expect]
    assert len(codes) == len(set(codes))
