"""The lab's arithmetic, which the product's accuracy is measured by. No engine is started here."""

from __future__ import annotations

import itertools
import json
import random
import re
import statistics
import tomllib
from pathlib import Path

import pytest

from .engine_side.pd_proxy import has_failed, prefill_body
from .engines import DEFAULT_FLAGS, command_line
from .install import RECIPES, _with_hosts
from .load import Load, Sample, summary
from .measures import DYNAMO_FRONTEND, DYNAMO_WORKER, SGLANG, VLLM_NIXL, Gained, Per, signature
from .metrics import Watch, parse, quantile_of, total
from .paths import REPO, LabError
from .product import configuration, kvitals_command, read_verdict, slo_arguments, targets
from .scenario import PHASES, SYSTEMS, load_scenario, names
from .systems import MOCKER_FLAGS, SGLANG_FLAGS, Server, arguments, transfer_config, workers_in
from .tables import ENGINE_ROWS, Outcome, grid, outcomes, truth
from .traffic import InfiniteCache, Prompts, Tenant, percentile, poisson

ALL = [load_scenario(name) for name in names()]
BLOCK = list(range(100, 132))
CAPTURED = REPO / "tests/fixtures/exposition/captured"


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
    assert quantile_of({0.1: 0, 0.2: 100, inf: 100}, 0.5) == 0.15
    assert quantile_of({0.1: 1, inf: 100}, 0.99) == 0.1
    assert quantile_of({0.1: 0, inf: 0}, 0.5) is None


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


def longest_prompt(scenario):
    """Tokens that a request may have: what the model takes, and what the KV cache can hold."""
    if scenario.system == "sglang":
        return int(scenario.flags.get("max_total_tokens") or SGLANG_FLAGS["max_total_tokens"])
    default = MOCKER_FLAGS if scenario.system == "dynamo" else DEFAULT_FLAGS
    blocks = int(scenario.flags.get("num_gpu_blocks_override") or default["num_gpu_blocks_override"])
    longest = int(scenario.flags.get("max_model_len") or DEFAULT_FLAGS["max_model_len"])
    return min(longest, (blocks - 1) * scenario.block_size)


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_every_prompt_fits_the_engine(scenario):
    for tenant in (tenant for phase in PHASES for tenant in scenario.load(phase)):
        turn = tenant.question + tenant.answer
        assert tenant.salt + tenant.prefix + tenant.turns * turn <= longest_prompt(scenario)


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_every_scenario_says_what_is_wrong(scenario):
    assert scenario.wrong.endswith(".")
    assert scenario.baseline and scenario.incident
    assert slo_arguments(scenario.slo)[::2] == ["--slo", "--slo"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_situations_of_a_system_differ_in_what_there_is_to_find(system):
    scenarios = [load_scenario(name) for name in names([system])]
    assert [one.name for one in scenarios if not one.expect] == ["healthy" if system == "vllm" else f"{system}_healthy"]
    codes = [code for one in scenarios for code in one.expect]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_what_a_scenario_says_of_its_engines_and_tenants_exists(scenario):
    tenants = {tenant.name for phase in PHASES for tenant in scenario.load(phase)}
    assert scenario.pair.hangs_up in {"", *tenants}
    assert scenario.dies in {"", *scenario.engines}
    if scenario.system == "pd":
        assert scenario.engines == ("prefill", "decode")


def test_an_unknown_scenario_is_told_with_those_there_are():
    with pytest.raises(LabError, match=r"no scenario called 'nonsense'; there are .*few_slots"):
        load_scenario("nonsense")


# -- systems -----------------------------------------------------------------------------------------------


def test_what_is_added_to_an_environment_is_installed_behind_its_host():
    assert _with_hosts(["nixl", "vllm", "dynamo"]) == ["vllm", "nixl", "dynamo"]
    with pytest.raises(
        LabError, match="no system called tgi; there are vllm, nixl, sglang, sglang-traces, router, dynamo"
    ):
        _with_hosts(["tgi"])


def test_dependencies_are_left_out_or_taken_in_another_version():
    lines = RECIPES["sglang"].overrides.splitlines()
    assert "triton ; sys_platform == 'never'" in lines
    assert "torch==2.13.0+cpu" in lines


def test_arguments_set_values_and_switches_and_leave_out_what_is_off():
    flags = {"max_num_seqs": 4, "enable_metrics": True, "trust": False, "hangs_up": None}
    assert arguments(flags) == ["--max-num-seqs", "4", "--enable-metrics"]


def test_the_transfer_configuration_is_one_word():
    """It stands in a process title, where blanks tell arguments apart."""
    assert " " not in transfer_config(6)
    assert json.loads(transfer_config(6))["kv_connector_extra_config"] == {"kv_lease_duration": 6}


def test_workers_are_counted_in_a_frontends_health():
    page = (CAPTURED / "dynamo-1.6.1-health.json").read_text()
    assert workers_in(page) == 2
    assert workers_in("{}") == 0


def test_the_product_is_told_of_roles_by_a_configuration(monkeypatch, tmp_path):
    monkeypatch.setattr("tests.lab.product.RUN", tmp_path)
    pair = [Server(role, f"http://127.0.0.1:820{n}", VLLM_NIXL, role) for n, role in enumerate(("prefill", "decode"))]
    told = tomllib.loads(configuration(pair))
    assert [target["labels"]["role"] for target in told["target"]] == ["prefill", "decode"]
    assert told["agent"] == {"discover": False}
    words = targets(pair)
    assert words[:3] == [pair[0].url, pair[1].url, "--config"]
    assert Path(words[3]).read_text() == configuration(pair)
    assert targets([Server("one", "http://127.0.0.1:8201", SGLANG)]) == ["http://127.0.0.1:8201"]


# -- the proxy before a pair -------------------------------------------------------------------------------


def test_a_prefill_is_one_token_whose_kv_is_kept():
    body = {"prompt": [1], "max_tokens": 24, "min_tokens": 24, "stream": True, "stream_options": {}}
    asked = prefill_body(body)
    assert (asked["max_tokens"], asked["min_tokens"], asked["stream"]) == (1, 1, False)
    assert asked["kv_transfer_params"]["do_remote_decode"] is True
    assert "stream_options" not in asked
    assert body["max_tokens"] == 24


@pytest.mark.parametrize(
    ("status", "first", "failed"),
    [
        (200, b'data: {"choices": []}', False),
        (200, b'data: {"error": {"code": 500}}', True),
        (500, b"", True),
        (400, b'{"error": "bad request"}', True),
    ],
)
def test_a_failed_answer_is_known_by_its_first_piece(status, first, failed):
    assert has_failed(status, first) is failed


# -- what servers say of themselves ------------------------------------------------------------------------


def watched(*pages):
    watch = Watch("http://127.0.0.1:9")
    watch._snapshots = [parse(page) for page in pages]
    return watch


def captured(name):
    return (CAPTURED / f"{name}.prom").read_text()


def test_what_a_page_does_not_say_is_none_and_no_zero():
    seen = watched("a_total 1\n", 'a_total{x="1"} 4\nb_total 0\n')
    assert Gained("a_total").of(seen) == 3
    assert Gained("b_total").of(seen) == 0
    assert Gained("c_total").of(seen) is None
    assert Per("a_total", "b_total").of(seen) is None


def test_sglang_is_read_in_its_own_words():
    said = signature(watched(captured("sglang-0.5.23-idle"), captured("sglang-0.5.23-after")), SGLANG)
    assert said["requests"] == 162
    assert said["prompt_tokens"] == 54272
    assert said["hit_ratio"] == 0.16
    assert said["evicted_tokens"] > 50_000
    assert said["errors"] is None


def test_a_pair_is_read_with_its_transfers():
    before, after = (captured(f"vllm-0.32-nixl-decode-after-{what}") for what in ("transfers", "failed-transfer"))
    said = signature(watched(before, after), VLLM_NIXL)
    assert (said["requests"], said["errors"], said["kv_transfers_failed"]) == (4, 4, 8)
    held = captured("vllm-0.32-nixl-prefill-orphans-held")
    expired = signature(watched(held, captured("vllm-0.32-nixl-prefill-after-expiry")), VLLM_NIXL)
    assert expired["kv_leases_expired"] == 6


def test_dynamo_is_read_by_frontend_and_by_worker():
    before, after = captured("dynamo-1.6.1-frontend-loaded"), captured("dynamo-1.6.1-frontend-overloaded")
    front = signature(watched(before, after), DYNAMO_FRONTEND)
    assert front["waiting"] == 97
    assert front["errors"] == 0
    worker = signature(watched(captured("dynamo-1.6.1-mocker-worker1-overloaded")), DYNAMO_WORKER)
    assert (worker["running"], worker["waiting"]) == (10, 50)


@pytest.mark.parametrize("dialect", [VLLM_NIXL, SGLANG, DYNAMO_FRONTEND, DYNAMO_WORKER])
def test_every_row_has_a_name_in_the_table(dialect):
    assert set(dialect) <= set(ENGINE_ROWS)


def test_the_table_of_truth_has_clients_beside_servers():
    phase = {"name": "baseline", **summary([]), "tenants": {}, "engines": {"one": {"requests": 2}, "gone": {}}}
    document = {
        "scenario": "x", "wrong": "Nothing.", "expect": [], "slo": {"ttft_p99": 1.0, "itl_p99": 1.0},
        "engines": [{"name": "one"}], "phases": [phase],
        "compared": {"clients": {"requests": 7, "errors": 1}, "servers": {"one": {"requests": 6}, "gone": None}},
    }  # fmt: skip
    table = truth(document)
    assert "requests finished        7    6     -" in table
    assert "of them errors           1    -     -" in table


def test_the_readme_names_every_file_of_the_lab():
    folder = Path(__file__).parent
    text = (folder / "README.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    own = {path.name for path in folder.glob("*.py") if not path.name.startswith(("test_", "__"))}
    folders = {f"{path.name}/" for path in folder.iterdir() if (path / "__init__.py").exists()} | {"engine_side/"}
    assert own | folders == set(re.findall(r"`([a-z_]+(?:\.py|/))`", table))
