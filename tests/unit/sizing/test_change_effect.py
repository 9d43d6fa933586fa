"""Whether a change worked: what counts as a change, as a like load, and as an effect. Recordings of real changes are in
tests/captures/test_since_change.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.diagnoser import change_effect
from kvitals.diagnoser.change_effect import (
    BeforeAfter,
    ConfigurationChange,
    LoadCourse,
    Period,
    SettingChange,
    SignalCourse,
    SignalCourses,
)
from kvitals.rules.engine_flags import GUESSED
from kvitals.rules.finding import Effect, LeverAdvice, LeverSetting, PredictedValue
from kvitals.rules.loader import load
from kvitals.series.promql import Expr, Series
from kvitals.series.types import METRIC_NAME, Labels

ENGINE = Labels({"engine": "chat"})
KNOWN = load([])


def facts(rows: Mapping[float, Mapping[str, float]]) -> change_effect.Ask:
    """What an engine told of its numbers at each time."""

    def ask(expr: Expr, start: float, end: float, step: float) -> list[Series]:
        if "engine_fact" not in str(expr):
            return []
        names = {name for row in rows.values() for name in row}
        found = []
        for name in sorted(names):
            points = [(t, row[name]) for t, row in rows.items() if name in row]
            times, values = np.array(points).T
            labels = Labels(
                {METRIC_NAME: "kvitals_engine_fact", "engine": "chat", "fact": name, "source": "command line"}
            )
            found.append(Series(labels, times, values))
        return found

    return ask


def test_a_change_is_what_both_tell_otherwise() -> None:
    rows = {0.0: {"slots": 2.0, "kv_blocks": 1024.0}, 10.0: {"slots": 2.0}, 20.0: {"slots": 16.0, "kv_blocks": 1020.0}}
    (found,) = change_effect.changes(facts(rows), 0.0, 30.0, 1.0)
    assert found.settings == (SettingChange("slots", "2", "16"),)
    assert (found.last, found.first, found.entity) == (10.0, 20.0, ENGINE)


def test_a_fact_that_is_not_told_for_a_while_did_not_change() -> None:
    rows = {0.0: {"slots": 2.0, "a": 1.0}, 10.0: {"a": 1.0}, 20.0: {"slots": 2.0, "a": 1.0}}
    assert change_effect.changes(facts(rows), 0.0, 30.0, 1.0) == []


def told(unset: str, **numbers: float) -> dict[str, str]:
    """What an engine of a known version tells. unset: the facts whose flags its command line lacks."""
    info = {"engine": "e", "system": "vllm", "version": "0.32.0", "version_source": "build"}
    rows = [(change_effect.INFO, Labels(info | ({"unset": unset} if unset else {})), 1.0)]
    rows += [(change_effect.FACT, Labels({"fact": name}), value) for name, value in numbers.items()]
    return {k: v for row in rows for k, v in change_effect.stated_settings(*row).items()}


def test_a_flag_that_was_not_set_before_is_a_change() -> None:
    """`--max-num-batched-tokens 512` where there was none: the engine had chosen a value that nobody reports."""
    before, after = told("slots,token_budget"), told("slots", token_budget=512.0)
    (there,) = change_effect.differences(before, after)
    assert str(there) == "token_budget not set → 512"
    (gone,) = change_effect.differences(change_effect.known_since(before, after), before)
    assert str(gone) == "token_budget 512 → not set"
    assert change_effect.differences(told("", queue_limit_tokens=4.0), after) == (), (
        "which flags it lacked was not known"
    )


def test_a_number_that_is_reported_stands_over_a_flag_that_is_not_set() -> None:
    def ask(expr: Expr, start: float, end: float, step: float) -> list[Series]:
        times = np.array([0.0, 10.0])
        if "engine_info" in str(expr):
            labels = {"engine": "chat", "system": "vllm", "unset": "slots"}
            return [Series(Labels({METRIC_NAME: change_effect.INFO, **labels}), times, np.ones(2))]
        values = np.array([16.0, 32.0])
        return [Series(Labels({METRIC_NAME: change_effect.FACT, "engine": "chat", "fact": "slots"}), times, values)]

    (found,) = change_effect.changes(ask, 0.0, 30.0, 1.0)
    assert found.settings == (SettingChange("slots", "16", "32"),)


def test_a_setting_without_a_value_before_pulled_no_lever_and_is_no_error() -> None:
    new = told("", slots=16.0)
    change = ConfigurationChange(ENGINE, 0.0, 1.0, change_effect.differences(told("slots"), new), told("slots"), new)
    sides = BeforeAfter(lambda query: 1.0, lambda query: 1.0)
    assert [lever.name for lever in change_effect.pulled_levers(change, KNOWN, sides)] == []


def version(text: str, source: str) -> dict[str, str]:
    labels = Labels({"engine": "e", "system": "vllm", "version": text, "version_source": source})
    return change_effect.stated_settings("kvitals_engine_info", labels, 1.0)


def test_a_change_of_the_version_states_both() -> None:
    old, new = (version(text, "version endpoint") for text in ("0.31.0", "0.32.0"))
    assert [str(change) for change in change_effect.differences(old, new)] == ["version 0.31.0 → 0.32.0"]


def test_a_guess_that_rises_is_no_change_of_the_version() -> None:
    """A metric appeared with the first request, and a review listed an upgrade."""
    assert change_effect.differences(version("0.9", GUESSED), version("0.32", GUESSED)) == ()


def test_a_wrong_guess_is_no_change_of_the_version() -> None:
    """Every agent that started reported one for each of its engines, and `--since-change` judged that."""
    told, guess = version("0.32.0", "version endpoint"), version("0.20", GUESSED)
    assert change_effect.differences(guess, told) == change_effect.differences(told, guess) == ()
    known = change_effect.known_since(told, guess)  # a new process, before its version is asked for
    (upgrade,) = change_effect.differences(known, version("0.33.0", "version endpoint"))
    assert (upgrade.before, upgrade.after) == ("0.32.0", "0.33.0")
    assert change_effect.known_since(guess, told) == told


def test_a_version_of_another_source_did_not_change() -> None:
    same = {"version": "0.32.0"}
    assert change_effect.differences(same | {"version_source": GUESSED}, same | {"version_source": "build"}) == ()


def test_a_version_told_to_more_places_did_not_change() -> None:
    assert change_effect.differences({"version": "0.32"}, {"version": "0.32.0"}) == ()
    assert change_effect.differences({"version": "0.3"}, {"version": "0.32.0"}) != ()


def load_course(loads: list[float], gap: float = 5.0) -> LoadCourse:
    return LoadCourse([gap * i for i in range(len(loads))], loads, gap)


def test_the_last_load_is_what_is_compared() -> None:
    of = load_course([4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 3, 3, 3, 3, 3, 0])
    assert change_effect.busy(of, 0.0, 45.0) == Period(25.0, 25.0)
    assert change_effect.busy(of, 50.0, 75.0) == Period(70.0, 20.0)
    assert change_effect.busy(of, 60.0, 75.0) is None  # 10 s are too short
    assert change_effect.busy(of, 0.0, 45.0, most=20.0) == Period(25.0, 20.0)


def test_a_load_that_is_too_short_is_not_the_last_one() -> None:
    """Seen: 80 s of load after a change, then a restart and 9 s of load, were "fewer than 15 s with load"."""
    of = load_course([4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 3, 3])
    assert change_effect.busy(of, 0.0, 60.0) == Period(25.0, 25.0)


def test_a_short_pause_does_not_end_a_load() -> None:
    of = load_course([4, 4, 0, 0, 4, 4, 4])
    assert change_effect.busy(of, 0.0, 30.0) == Period(30.0, 30.0)


def test_load_is_what_runs_and_waits_at_each_row() -> None:
    def ask(expr: Expr, start: float, end: float, step: float) -> list[Series]:
        times = np.arange(start, end + step / 2, step)
        if "waiting" in str(expr):
            return [Series(ENGINE, times[2:], np.full(len(times) - 2, 3.0))]
        return [Series(ENGINE, times, np.full(len(times), 2.0))]

    found = change_effect.load_course(ask, 0.0, 24.0, 6.0)
    assert (found.times, found.requests) == ([0.0, 6.0, 12.0, 18.0, 24.0], [2.0, 2.0, 5.0, 5.0, 5.0])


def test_parts_of_a_period_are_in_order_and_fill_it() -> None:
    assert Period(100.0, 40.0).parts == [(70.0, 10.0), (80.0, 10.0), (90.0, 10.0), (100.0, 10.0)]


def values(**of: float) -> dict[str, dict[Labels, float]]:
    return {name: {ENGINE: value} for name, value in of.items()}


GAUGES = {"finished_per_second": 10.0, "running_avg": 4.0, "waiting_avg": 4.0, "prompt_tokens_mean": 300.0}
LOAD = {**GAUGES, "residence_concurrency": 8.0}


@pytest.mark.parametrize(
    ("after", "alike"),
    [
        ({}, True),
        ({"finished_per_second": 20.0}, True),  # as many clients, who are served sooner
        (
            {"running_avg": 1.0, "waiting_avg": 0.0, "residence_concurrency": 1.0},
            True,
        ),  # as many arrive, and are gone sooner
        (
            {"finished_per_second": 20.0, "running_avg": 2.0, "waiting_avg": 0.0, "residence_concurrency": 2.0},
            True,
        ),  # clients that think in between
        ({"finished_per_second": 3.0, "running_avg": 1.0, "waiting_avg": 0.0, "residence_concurrency": 1.0}, False),
        ({"finished_per_second": 20.0, "running_avg": 12.0, "residence_concurrency": 16.0}, False),
        ({"prompt_tokens_mean": 600.0}, False),
        # as many clients of a slower engine, whose requests wait in its API server, which no gauge counts
        ({"finished_per_second": 5.0, "running_avg": 3.0, "waiting_avg": 0.0, "residence_concurrency": 8.2}, True),
        ({"finished_per_second": 5.0, "running_avg": 3.0, "waiting_avg": 0.0, "residence_concurrency": 3.0}, False),
    ],
)
def test_a_like_load_is_as_many_that_come_or_as_many_that_are_there(after: dict[str, float], alike: bool) -> None:
    found = change_effect.unlike(ENGINE, values(**LOAD), values(**{**LOAD, **after}))
    assert (found == "") is alike


def test_without_residence_gauges_alone_count() -> None:
    less = {"finished_per_second": 5.0, "running_avg": 2.0, "waiting_avg": 1.0}
    assert change_effect.unlike(ENGINE, values(**GAUGES), values(**{**GAUGES, **less}))


def test_a_load_that_nobody_tells_is_not_alike() -> None:
    assert "not reported" in change_effect.unlike(ENGINE, values(**LOAD), values(running_avg=4.0))


def predicted(before: float, to: float) -> PredictedValue:
    return PredictedValue(
        "queue_mean_seconds", "mean time in the queue", before, to, "seconds", "about", None, "by hand", ""
    )


def looked(whole: float, *parts: float) -> SignalCourses:
    return SignalCourses(values(queue_mean_seconds=whole), [values(queue_mean_seconds=part) for part in parts])


def effect(before: SignalCourses, after: SignalCourses, told: PredictedValue) -> Effect:
    return change_effect.effects(ENGINE, [], [told], (before, after), KNOWN)[0]


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (looked(0.1, 0.05, 0.15), "worked"),
        (looked(0.7, 0.68, 0.72), "in part"),
        (looked(0.98, 0.9, 1.05), "nothing"),
        (looked(1.6, 1.5, 1.7), "worse"),
    ],
)
def test_an_effect_is_told_by_how_much_of_the_prediction_came(after: SignalCourses, verdict: str) -> None:
    assert effect(looked(1.0, 0.9, 1.1), after, predicted(1.0, 0.0)).verdict == verdict


def test_one_part_that_is_off_does_not_hide_a_change() -> None:
    """Parts of recorded runs on a busy machine."""
    before, after = SignalCourse(0.057, (0.052, 0.112, 0.057, 0.041)), SignalCourse(0.678, (1.244, 0.081, 0.437, 0.729))
    assert before.apart(after) and after.apart(before)
    assert not SignalCourse(7.2, (5.9, 8.1, 9.0, 6.1)).apart(SignalCourse(8.9, (7.0, 9.9, 8.6, 10.0)))


def test_where_it_is_not_known_how_much_a_signal_varies_it_takes_more() -> None:
    assert effect(looked(1.0), looked(0.85), predicted(1.0, 0.5)).verdict == "nothing"
    assert effect(looked(1.0), looked(0.7), predicted(1.0, 0.5)).verdict == "worked"


def test_nothing_is_concluded_from_another_load() -> None:
    told = effect(looked(1.0, 0.9, 1.1), looked(0.1, 0.1, 0.1), predicted(1.0, 0.0))
    assert change_effect.conclude([told], "prompts were longer", [])[0] == "cannot be judged"
    assert change_effect.conclude([], "", [])[0] == "cannot be judged"
    verdict, sentence = change_effect.conclude([told], "", [KNOWN.levers["raise-max-num-seqs"]])
    assert verdict == "worked" and "mean time in the queue 1 s → 100 ms" in sentence


def test_a_lever_was_pulled_where_its_setting_moved_its_way() -> None:
    def change(before: str, after: str) -> ConfigurationChange:
        told = {"system": "vllm", "version": "0.32.0"}
        return ConfigurationChange(ENGINE, 0.0, 1.0, (SettingChange("slots", before, after),), told, told)

    def before(query: str) -> float | None:
        if "0.8 * kvitals:running_p90" in query:
            return 1.0  # what fewer slots would be
        if "running_p90" in query:
            return 16.0  # what more would be
        return 2.0 if 'fact="slots"' in query else None

    sides = BeforeAfter(before, lambda query: None)
    assert [one.name for one in change_effect.pulled_levers(change("2", "16"), KNOWN, sides)] == ["raise-max-num-seqs"]
    assert "raise-max-num-seqs" not in [one.name for one in change_effect.pulled_levers(change("2", "1"), KNOWN, sides)]


@pytest.mark.parametrize(("after", "lever"), [("4", "lower-max-num-seqs"), ("32", "raise-max-num-seqs")])
def test_of_two_opposite_levers_the_one_in_whose_direction_it_went_was_pulled(after: str, lever: str) -> None:
    """Seen: "Allow fewer" and "Allow more" for one change, where both would have set a number on the same side."""
    told = {"system": "vllm", "version": "0.32.0"}
    change = ConfigurationChange(ENGINE, 0.0, 1.0, (SettingChange("slots", "16", after),), told, told)
    wanted = 14.0 if float(after) < 16.0 else 18.0

    def before(query: str) -> float | None:
        return wanted if "running_p90" in query else 16.0 if 'fact="slots"' in query else None

    pulled = change_effect.pulled_levers(change, KNOWN, BeforeAfter(before, lambda query: None))
    assert [one.name for one in pulled] == [lever]


@pytest.mark.parametrize(
    ("dtypes", "levers"),
    [
        (("auto", "auto"), ["raise-kv-budget"]),
        (("fp8", "fp8"), ["raise-kv-budget"]),
        (("auto", "fp8"), ["kv-quantization", "raise-kv-budget"]),
    ],
)
def test_more_blocks_alone_are_no_smaller_type(dtypes: tuple[str, str], levers: list[str]) -> None:
    """What doubles the blocks along with the type is in force by the type."""

    def number(blocks: float, dtype: str) -> Callable[[str], float | None]:
        def ask(query: str) -> float | None:
            if "kv_cache_dtype" in query:
                return 1.0 if dtype == "fp8" else None
            if "kv_blocks_override" not in query:
                return None
            return 2 * blocks if query.startswith(("2 *", "ceil(")) else blocks

        return ask

    change = ConfigurationChange(
        ENGINE, 0.0, 1.0, (SettingChange("kv_blocks_override", "1024", "2048"),), {}, {"system": "vllm"}
    )
    sides = BeforeAfter(number(1024.0, dtypes[0]), number(2048.0, dtypes[1]))
    assert sorted(one.name for one in change_effect.pulled_levers(change, KNOWN, sides)) == levers


def test_what_was_set_takes_the_place_of_what_was_advised() -> None:
    lever = KNOWN.levers["raise-max-num-seqs"]
    setting = LeverSetting("--max-num-seqs", "2", "16", True, "")
    advice = LeverAdvice("raise-max-num-seqs", "", "", "", "", "", "", setting, "", [], [predicted(1.0, 0.0)])
    change = ConfigurationChange(ENGINE, 0.0, 1.0, (SettingChange("slots", "2", "8"),), {}, {})
    real = change_effect.as_set(advice, lever, change)
    assert real.setting is not None and (real.setting.now, real.setting.to) == ("2", "8")
    assert real.predicted == []
    other = ConfigurationChange(ENGINE, 0.0, 1.0, (SettingChange("token_budget", "2", "8"),), {}, {})
    assert change_effect.as_set(advice, lever, other) is advice


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=4), st.floats(0.01, 100))
def test_what_stays_as_it_was_did_nothing(parts: list[float], to: float) -> None:
    whole = sum(parts) / len(parts)
    assert effect(looked(whole, *parts), looked(whole, *parts), predicted(whole, to)).verdict == "nothing"


def test_what_a_lever_harms_decides_as_well_as_what_it_is_pulled_for() -> None:
    fewer = KNOWN.levers["lower-max-num-seqs"]
    assert "ttft" not in fewer.moves
    assert "ttft_mean_seconds" in dict(change_effect.watched_signals([fewer]))


def test_a_prediction_of_no_change_decides_nothing() -> None:
    """Seen: "did nothing that shows: hit rate 0 % → 0 %", where 0 ± 20 points had been expected and TTFT fell to a
    third."""
    hits = PredictedValue("prefix_hit_ratio", "hit rate", 0.0, 0.01, "ratio", "about", 0.2, "by hand", "")
    sides = [
        values(prefix_hit_ratio=0.0, ttft_mean_seconds=seconds, itl_mean_seconds=0.02, finished_per_second=2.5)
        for seconds in (0.9, 0.3)
    ]
    before, after = (SignalCourses(one, [one, one]) for one in sides)
    found = change_effect.effects(ENGINE, [KNOWN.levers["raise-kv-budget"]], [hits], (before, after), KNOWN)
    verdict, sentence = change_effect.conclude(found, "", [KNOWN.levers["raise-kv-budget"]])
    assert verdict == "worked" and "mean time to first token 900 ms → 300 ms" in sentence
