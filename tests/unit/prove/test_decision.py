"""The answer, from blocks as they come in: simulated changes of known effect, read after every block."""

from collections.abc import Mapping

import pytest

from kvitals.app.prove.guard_rails import GuardRails, GuardWatch, guard_rails, window_seconds
from kvitals.diagnoser import change_proof
from kvitals.diagnoser.change_proof import ProofVerdict, SignalTrial, conclusion, decide, signals_to_test
from kvitals.rules.finding import PredictedValue
from kvitals.rules.loader import load
from tests.unit.prove.blocks import correlated_blocks
from tests.unit.prove.proofs import effect

KNOWN = load()
SLOTS = KNOWN.levers["raise-max-num-seqs"]
BEFORE, AFTER, RUNS = 24, 40, 30
ALPHA = 0.05


def simulated(ratios: Mapping[str, float], seed: int, correlation: float = 0.0, spread: float = 0.15) -> ProofVerdict:
    """The answer to a change that multiplies signals by ratios; it is asked for after every block."""
    tested = signals_to_test([], [], KNOWN.signals)
    trials, after = [], {}
    for number, one in enumerate(tested):
        values = correlated_blocks(1000 * seed + number, BEFORE + AFTER, correlation, spread)
        trial = SignalTrial(one, ALPHA / len(tested), values[:BEFORE].tolist())
        trial.end_before()
        trials.append(trial)
        after[one.name] = (values[BEFORE:] * ratios.get(one.name, 1.0)).tolist()
    for k in range(4, AFTER + 1, 4):
        for trial in trials:
            trial.read(after[trial.tested.name][:k])
        effects = [trial.effect(1.0, ratios.get(trial.tested.name, 1.0)) for trial in trials]
        if answer := decide(effects, "", k == AFTER):
            return answer[0]
    raise AssertionError("there is an answer when the time is over")


def test_a_change_without_effect_is_never_said_to_have_worked() -> None:
    answers = [simulated({}, seed) for seed in range(RUNS)]
    assert answers.count("worked") + answers.count("in part") <= ALPHA * RUNS
    assert answers.count("no effect") >= RUNS // 2


@pytest.mark.parametrize("correlation", [0.3, 0.6])
def test_nor_with_blocks_that_depend_on_one_another(correlation: float) -> None:
    answers = [simulated({}, seed, correlation) for seed in range(RUNS)]
    assert answers.count("worked") + answers.count("in part") <= ALPHA * RUNS


def test_a_harmful_change_is_never_said_to_have_worked() -> None:
    harm = {"ttft_mean_seconds": 2.5, "finished_per_second": 0.6, "prefix_hit_ratio": 0.5}
    answers = [simulated(harm, seed, correlation) for seed in range(RUNS) for correlation in (0.0, 0.4)]
    assert "worked" not in answers and "in part" not in answers
    assert answers.count("worse") >= 0.75 * len(answers)


def test_a_helpful_change_is_said_to_have_worked() -> None:
    answers = [simulated({"ttft_mean_seconds": 0.4, "finished_per_second": 1.5}, seed) for seed in range(RUNS)]
    assert answers.count("worked") >= 0.7 * RUNS
    assert "worse" not in answers


def test_a_gain_beside_a_loss_is_in_part() -> None:
    answers = [simulated({"ttft_mean_seconds": 0.3, "itl_mean_seconds": 3.0}, seed) for seed in range(10)]
    assert set(answers) <= {"in part", "worse", "undecided"}


def test_less_throughput_is_worse_whatever_else_became_better() -> None:
    found = decide([effect(), effect(metric="finished_per_second", verdict="worse", not_worse=False)], "", False)
    assert found == ("worse", "")


def test_another_load_is_undecided_with_its_reason() -> None:
    assert decide([effect()], "prompts were 10 tokens on average and are 900", last=False) is None
    verdict, why = decide([effect()], "prompts were 10 tokens on average and are 900", last=True) or ("", "")
    assert verdict == "undecided" and "prompts were 10 tokens" in why


def test_a_gain_waits_until_nothing_else_can_be_much_worse() -> None:
    unclear = effect(metric="finished_per_second", title="requests that finish", verdict="open", not_worse=False)
    assert decide([effect(), unclear], "", last=False) is None
    verdict, why = decide([effect(), unclear], "", last=True) or ("", "")
    assert (verdict, why) == ("undecided", "more time is needed for a verdict on requests that finish")


def test_less_than_half_of_a_prediction_is_in_part() -> None:
    told = PredictedValue("ttft_mean_seconds", "TTFT", 1.0, 0.1, "seconds", "about", None, "formula", "1 s → 100 ms")
    assert decide([effect(before=1.0, after=0.4, predicted=told)], "", False) == ("worked", "")
    assert decide([effect(before=1.0, after=0.8, predicted=told)], "", False) == ("in part", "")


def test_signals_of_the_lever_decide_and_others_are_shown_beside() -> None:
    found = {one.name: one.decides for one in signals_to_test([SLOTS], [], KNOWN.signals)}
    assert found["ttft_mean_seconds"] and found["finished_per_second"]
    assert not found["itl_mean_seconds"]
    assert "failed_per_request" not in found  # a guard rail


def test_the_conclusion_can_be_read_aloud() -> None:
    beside = effect(title="mean time between tokens", verdict="worse", decides=False, text="10 ms → 30 ms")
    assert conclusion("worked", "", [effect(), beside]) == (
        "The change worked: mean time to first token 970 ms → 12 ms."
        " At the cost of mean time between tokens 10 ms → 30 ms."
    )
    assert conclusion("undecided", "the load differs", []) == "Undecided: the load differs."


BUSY = {"finished_per_second": 5.0, "running_avg": 3.0, "ttft_p99_seconds": 0.5, "ttft_mean_seconds": 0.2}


def rails(**before: float) -> GuardRails:
    return guard_rails({"ttft_p99": 2.0}, [{**BUSY, **before}])


def test_an_objective_that_was_kept_is_the_limit() -> None:
    assert rails().broken({**BUSY, "ttft_p99_seconds": 1.9}) == []
    assert rails().broken({**BUSY, "ttft_p99_seconds": 2.1}) == ["TTFT p99 2.1 s, limit 2 s (objective)"]


def test_an_objective_that_was_missed_may_not_become_much_worse() -> None:
    assert rails(ttft_p99_seconds=4.0).broken({**BUSY, "ttft_p99_seconds": 5.9}) == []
    assert rails(ttft_p99_seconds=4.0).broken({**BUSY, "ttft_p99_seconds": 6.1})


def test_the_mean_stands_in_where_too_few_requests_make_no_percentile() -> None:
    few = {"finished_per_second": 0.4, "running_avg": 3.0, "ttft_mean_seconds": 2.5}
    assert rails().broken(few) == ["TTFT p99 2.5 s, limit 2 s (objective)"]


@pytest.mark.parametrize(
    "worse", [{"failed_per_request": 0.1}, {"preemptions_per_request": 0.8}, {"finished_per_second": 0.0}]
)
def test_errors_preemptions_and_a_standstill_break_a_guard_rail(worse: Mapping[str, float]) -> None:
    assert len(rails().broken({**BUSY, **worse})) == 1


def test_what_is_not_reported_breaks_nothing_and_one_check_is_chance() -> None:
    assert rails().broken({}) == []
    watch = GuardWatch(rails())
    bad = {**BUSY, "ttft_p99_seconds": 3.0}
    assert [bool(watch.check(values)) for values in (bad, BUSY, bad, bad)] == [False, False, False, True]


def test_a_check_is_long_enough_for_a_percentile_and_never_longer_than_a_minute() -> None:
    assert [window_seconds(rate) for rate in (20.0, 1.0, 0.1, 0.0)] == [15.0, 30.0, 60.0, 60.0]


def test_each_reason_for_no_verdict_is_a_sentence() -> None:
    assert change_proof._why_open([]) == "no signal has values"
    noted = [effect(title=title, verdict="open", note="too few blocks") for title in ("TTFT", "ITL")]
    assert change_proof._why_open(noted) == "TTFT and ITL: too few blocks"
    vary = "the blocks vary too much for a verdict on ITL; give more time with --for"
    measured = effect(title="ITL", verdict="open", note="")
    assert change_proof._why_open([measured]) == vary
    assert change_proof._why_open([noted[0], measured]) == vary, "a signal that no side has is no reason"


def drifting(after: list[float], upwards: bool = True, name: str = "ttft_mean_seconds") -> SignalTrial:
    """A trial of a signal that grew fivefold before the change, or fell so."""
    before = [10.0 * (1 + k / 6) for k in range(BEFORE)]
    (tested,) = [one for one in signals_to_test(SLOTS_ONLY, [], KNOWN.signals) if one.name == name]
    trial = SignalTrial(tested, ALPHA / 4, before if upwards else before[::-1])
    trial.end_before()
    assert trial.factor is None
    trial.read(after)
    return trial


SLOTS_ONLY = [SLOTS]


def test_a_growing_queue_that_a_change_ends_is_proof() -> None:
    """TTFT fell from 5.5 min to 10 ms, and the change was rolled back: "it drifted before the change"."""
    shown = drifting([0.01] * 12).effect(330.0, 0.01)
    assert shown.verdict == "better" and shown.not_worse
    assert "got worse before the change" in shown.note


@pytest.mark.parametrize(
    ("after", "upwards"),
    [([0.01] * 2, True), ([0.01] * 11 + [12.0], True), ([0.01] * 12, False), ([60.0] * 12, True)],
    ids=["too few blocks", "one is as bad", "it got better before", "it goes on to drift"],
)
def test_a_drift_alone_is_no_proof(after: list[float], upwards: bool) -> None:
    assert drifting(after, upwards).effect(30.0, 1.0).verdict == "open"
