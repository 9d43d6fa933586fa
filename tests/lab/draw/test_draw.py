"""Drawn incidents: what a seed draws, what harm is, and what arms prove. Nothing is played here."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from ..incidents.incident import Act
from ..incidents.stand import Stand
from ..load import CUT, Load, Sample
from ..scenario import Slo
from ..systems import Site
from ..traffic import Tenant
from .arms import MORE, Play, flags_of, plays
from .faults import BLOCK, BY_NAME, FAULTS
from .grammar import COURSES, FIRST_WITH_COURSE, HEALTHY, SYSTEMS, draw, of_faults
from .plan import incident_of
from .score import wilson
from .truth import Arm, Harm, harm, restored, truth_of

SEEDS = range(3000, 3400)
SLO = Slo(0.5, 0.2)
ORDER = Harm(100, 0, 1000, 0, 0)
BROKEN = Harm(100, 40, 1000, 0, 0)
SLOTS, DEMAND = BY_NAME["few slots"].codes, BY_NAME["flood"].codes


def test_a_seed_draws_one_incident_for_ever() -> None:
    assert [draw(seed) for seed in SEEDS[:20]] == [draw(seed) for seed in SEEDS[:20]]
    assert len({repr(draw(seed).plan()) for seed in SEEDS}) > 0.98 * len(SEEDS)


def test_all_systems_and_faults_are_drawn_and_a_third_has_none() -> None:
    drawn = [draw(seed) for seed in SEEDS]
    assert {one.system for one in drawn} == set(SYSTEMS)
    assert {fault.name for one in drawn for fault, _ in one.faults} == {fault.name for fault in FAULTS}
    assert sum(not one.faults for one in drawn) / len(drawn) == pytest.approx(HEALTHY, abs=0.06)
    assert any(len(one.faults) == 2 for one in drawn)


def test_every_play_fits_its_engine() -> None:
    """vLLM refuses to start with fewer blocks than the longest request needs, or fewer tokens in a step than slots."""
    wrong = []
    for one in map(draw, SEEDS):
        for name, plan in (("drawn", one.plan()), *((p.name, p.plan) for p in plays(one))):
            flags = plan.flags
            blocks, budget = flags.get("num_gpu_blocks_override"), flags.get("max_num_batched_tokens")
            room = min(int(flags.get("max_model_len") or 2048), (int(blocks or 1024) - 1) * BLOCK)
            if plan.system == "vllm" and plan.longest > room:
                wrong.append(f"{one.name} {name}: {plan.longest} tokens in {room}")
            if plan.system == "vllm" and budget and int(budget) < int(flags.get("max_num_seqs") or 16):
                wrong.append(f"{one.name} {name}: {flags}")
    assert not wrong


def test_arms_take_each_fault_away_and_widen_what_demand_may_be_bound_by() -> None:
    one = of_faults(3000, "vllm", [("flood", 0.8), ("few slots", 1.0)])
    arms = {play.name: play for play in plays(one)}
    assert list(arms) == [
        "without flood",
        "without few slots",
        "calm",
        f"{MORE} times the slots",
        f"{MORE} times the blocks",
    ]
    assert one.plan().flags["max_num_seqs"] == 1
    assert arms["without few slots"].plan.flags["max_num_seqs"] == one.calm.flags["max_num_seqs"]
    assert "guest" not in [t.name for t in arms["without flood"].plan.tenants]
    assert arms[f"{MORE} times the slots"].plan.flags["max_num_seqs"] == MORE
    assert arms["calm"].plan == one.calm


def test_the_same_arm_sends_the_same_requests() -> None:
    one = of_faults(3000, "vllm", [("flood", 0.8), ("long prompts", 0.6)])
    kept = next(play for play in plays(one) if play.name == "without flood").plan.tenants[-1]
    assert kept == next(t for t in one.plan().tenants if t.name == "reports")


def test_demand_comes_at_once_in_a_ramp_or_in_pulses() -> None:
    drawn = [draw(seed) for seed in SEEDS]
    assert {one.course for one in drawn} == set(COURSES)
    for one in drawn:
        calm = {tenant.name for tenant in one.calm.tenants}
        added = [tenant for tenant in one.plan().tenants if tenant.name not in calm]
        assert {bool(t.ramp_s) for t in added} <= {one.course == "ramp"}
        assert {bool(t.pulse_s) for t in added} <= {one.course == "pulse"}
        assert not any(t.ramp_s or t.pulse_s for t in one.calm.tenants)


def test_what_was_played_before_there_were_courses_stays_what_it_was() -> None:
    assert {draw(seed).course for seed in range(1000, FIRST_WITH_COURSE)} == {"at once"}


def test_a_tenant_pauses_between_its_pulses() -> None:
    tenant = Tenant("t", pulse_s=6.0)
    load = Load((), (tenant,))
    load.started = time.time() - 7.0
    assert load._off(tenant) == pytest.approx(5.0, abs=0.5)
    load.started = time.time() - 13.0
    assert load._off(tenant) == 0.0
    assert load._off(Tenant("always")) == 0.0


def sample(ttft: float | None, *itl: float, status: str = "ok", sent: float = 0.0) -> Sample:
    return Sample("t", sent, 10, 0, status=status, ttft=ttft, itl=list(itl))


def test_harm_counts_late_missing_and_failed_requests() -> None:
    samples = [
        sample(0.4, 0.1, 0.3),
        sample(0.6),
        sample(None, status=CUT, sent=9.0),  # unanswered for longer than the objective
        sample(None, status=CUT, sent=9.8),  # still in time when the load ended
        sample(None, status="503"),
    ]
    seen = harm(samples, 10.0, SLO)
    assert seen == Harm(requests=4, late=3, gaps=2, late_gaps=1, failed=1)
    assert seen.value == 75.0


def test_harm_after_a_restart_leaves_out_what_was_sent_before() -> None:
    samples = [sample(None, status="ClientError", sent=1.0), sample(2.0, sent=4.0), sample(0.1, sent=6.0)]
    assert harm(samples, 10.0, SLO, since=5.0) == Harm(requests=1, late=0, gaps=0, late_gaps=0, failed=0)


def test_a_restart_is_measured_once_the_engine_is_back() -> None:
    one = of_faults(3000, "vllm", [("dead", 1.0)])
    (without,) = plays(one)
    act = Act(do="restart", engine="engine", after_s=1.0)
    lever = Play("lever restart", "lever", one.before(), replace(one.plan(), acts=(*one.plan().acts, act)))
    assert lever.recovers and not without.recovers
    assert not Play("lever x", "lever", one.before(), one.plan()).recovers


async def nothing() -> None:
    """What a stand without servers has to check."""


async def slowly(act: object) -> None:
    await asyncio.sleep(0.3)


async def test_an_incident_may_last_until_its_acts_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow act, 0.3 s, in an incident of 0.1 s: its load is on for 0.1 s after it."""
    quiet = replace(of_faults(3000, "vllm", []).calm, tenants=())
    trouble = replace(quiet, acts=(Act(do="restart", engine="engine"),))
    nowhere = Site((), (), check=nothing, kill=slowly)
    it = Stand(incident_of("drawn", 1, quiet, trouble), nowhere, None, ())
    ends: list[float] = []

    async def end() -> None:
        assert it.acted is not None
        ends.append(time.time() - it.acted)

    monkeypatch.setattr(it, "_do", slowly)
    await it.play(0.0, 0.1, end=end, after_acts=True)
    assert ends[0] >= 0.09


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (ORDER, "in order"),
        (Harm(100, 1, 1000, 0, 0), "in order"),
        (Harm(20, 1, 1000, 0, 0), "marginal"),  # one late request of twenty says little
        (Harm(1000, 15, 9000, 0, 0), "marginal"),
        (BROKEN, "breached"),
        (Harm(0, 0, 0, 0, 0), "in order"),
    ],
)
def test_state(seen: Harm, state: str) -> None:
    assert seen.state == state


def test_restored_is_in_logarithms() -> None:
    assert restored(BROKEN, ORDER) == 1.0
    assert restored(BROKEN, BROKEN) == 0.0
    assert restored(BROKEN, Harm(1000, 63, 1, 0, 0)) == pytest.approx(0.5, abs=0.01)
    assert restored(BROKEN, Harm(100, 80, 1, 0, 0)) < 0


def arm(name: str, seen: Harm, kind: str = "fault") -> Arm:
    return Arm(name, kind, seen)  # type: ignore[arg-type]


def test_the_cause_is_what_restores_the_objective() -> None:
    arms = [
        arm("without flood", BROKEN),
        arm("without few slots", ORDER),
        arm("calm", ORDER, kind="calm"),
    ]
    truth = truth_of(BROKEN, arms)
    assert (truth.state, truth.codes, truth.also) == ("breached", SLOTS, (*DEMAND, *SLOTS))
    assert truth.restored == {"without flood": 0.0, "without few slots": 1.0, "calm": 1.0}


def test_where_both_faults_are_needed_both_are_causes() -> None:
    arms = [
        arm("without flood", BROKEN),
        arm("without few slots", BROKEN),
        arm("calm", ORDER, kind="calm"),
    ]
    assert truth_of(BROKEN, arms).codes == (*DEMAND, *SLOTS)


def test_what_is_not_in_order_without_any_fault_is_void() -> None:
    both = [arm("without flood", BROKEN), arm("calm", BROKEN, kind="calm")]
    assert truth_of(BROKEN, both).state == "void"
    assert truth_of(BROKEN, [arm("without flood", BROKEN)]).state == "void"
    assert truth_of(BROKEN, []).state == "void"


def test_what_was_not_felt_has_no_cause() -> None:
    truth = truth_of(ORDER, [arm("without few slots", ORDER)])
    assert (truth.state, truth.codes, truth.also) == ("in order", (), SLOTS)


def test_settings_that_the_lab_can_apply() -> None:
    assert flags_of("--max-num-batched-tokens", "2,048") == {"max_num_batched_tokens": 2048}
    assert flags_of("--no-enable-prefix-caching", "off") == {"no_enable_prefix_caching": False}
    assert flags_of("--kv-cache-dtype", "fp8") == {}


def test_wilson() -> None:
    """R. G. Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263."""
    low, high = wilson(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_a_plan_knows_its_longest_request() -> None:
    plan = of_faults(3000, "vllm", []).calm
    assert replace(plan, tenants=()).with_tenants(*plan.tenants).longest == plan.longest
