"""After an abrupt change a symptom counts before its `for` is over, once the seconds since then show it too."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from copy import copy
from dataclasses import replace

import msgspec
import pytest

from kvitals.agent.records import ScrapeRecord, decode
from kvitals.app.demo import FOLDER
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import Config
from kvitals.diagnoser.cases.notation import WrittenSeries
from kvitals.diagnoser.cases.running import Bench
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement, Memory
from kvitals.diagnoser.late_requests import beyond_chance
from kvitals.diagnoser.short_window import add_hidden_causes, open_symptoms, promote_causes
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import headline
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import load
from kvitals.rules.model import Scope
from kvitals.series.recordings import CaptureReader
from kvitals.series.types import Labels

KNOWLEDGE = load()
_ALONE = Bench(KNOWLEDGE).alone("LAT01")
ALONE = replace(_ALONE, signals={**_ALONE.signals, "ttft_requests": KNOWLEDGE.signals["ttft_requests"]})
START, STEP, BEFORE = 1_700_000_000.0, 5.0, 30
CHANGE = START + BEFORE * STEP


def requests(late: str) -> dict[str, str]:
    """An engine with ten first tokens per sample. late: how many of them take 4 s after the change, in a case file's
    notation; all of the others take less than 1 s, and the objective is 2 s."""
    late_before = f"0x{BEFORE}"
    return {
        'kvitals_target_up{engine="e"}': f"1x{BEFORE + 30}",
        'kvitals_slo_seconds{engine="e",slo="ttft_p99",class=""}': f"2x{BEFORE + 30}",
        'kvitals_ttft_seconds_bucket{engine="e",le="1"}': f"0+10x{BEFORE} {late}",
        'kvitals_ttft_seconds_bucket{engine="e",le="2"}': f"0+10x{BEFORE} {late}",
        'kvitals_ttft_seconds_bucket{engine="e",le="5"}': f"0+10x{BEFORE + 30}",
        'kvitals_ttft_seconds_bucket{engine="e",le="+Inf"}': f"0+10x{BEFORE + 30}",
        'kvitals_ttft_seconds_count{engine="e"}': f"0+10x{BEFORE + 30}",
        'kvitals_requests_running{engine="e"}': f"{late_before} 4x29",
    }


LASTING = requests(f"{10 * BEFORE}x29")
HICCUP = requests(f"{10 * BEFORE} {10 * BEFORE + 10}+10x28")


@pytest.mark.parametrize("bound", ["abc", "", "NaN"])
def test_a_bucket_whose_bound_is_no_number_does_not_count(bound: str) -> None:
    """A Prometheus gives buckets as engines wrote them."""
    series = LASTING | {f'kvitals_ttft_seconds_bucket{{engine="e",le="{bound}"}}': f"0+500x{BEFORE + 30}"}
    assert first_fired(course(series)) == first_fired(course(LASTING))


def course(series: dict[str, str], *, glances: bool = True) -> list[tuple[float, Judgement, str]]:
    """Seconds since the change, what is judged then, and the verdict; each 5 s as an agent does."""
    source = WrittenSeries(series, START, STEP)
    judge = Judge(ALONE, Signals(ALONE, source), glances=glances)
    found = []
    for number in range(BEFORE + 20):
        span = EvaluationSpan(START + number * STEP)
        judgements = judge.judge(span)
        found.append((span.at - CHANGE, judgements[0], headline(judge, judgements, span)))
    return [one for one in found if one[0] > 0]


def first_fired(found: list[tuple[float, Judgement, str]]) -> float:
    return next(after for after, judgement, _ in found if judgement.outcome == "fired")


def test_a_lasting_change_counts_within_twenty_seconds() -> None:
    assert first_fired(course(LASTING)) <= 20
    assert first_fired(course(LASTING, glances=False)) > 30


def test_it_stays_one_episode_when_its_time_is_over() -> None:
    since = {judgement.since for after, judgement, _ in course(LASTING) if judgement.outcome == "fired"}
    slow = {judgement.since for _, judgement, _ in course(LASTING, glances=False) if judgement.outcome == "fired"}
    assert len(since) == 1
    assert since == slow


def test_a_hiccup_counts_no_earlier_than_by_its_time() -> None:
    assert first_fired(course(HICCUP)) == first_fired(course(HICCUP, glances=False))


@pytest.mark.parametrize("series", [LASTING, HICCUP], ids=["lasting", "hiccup"])
def test_no_verdict_is_no_trouble_while_the_objective_is_breached(series: dict[str, str]) -> None:
    verdicts = [verdict for _, judgement, verdict in course(series) if judgement.is_true and not judgement.over]
    assert verdicts
    assert [verdict for verdict in verdicts if verdict.startswith("No trouble")] == []


def test_a_hiccup_is_over_once_enough_came_in_time() -> None:
    """A minute of in-time requests after a burst of 3 s was "Cause unknown", high confidence."""
    over = [after for after, judgement, _ in course(HICCUP) if judgement.outcome == "fired" and judgement.over]
    assert 25 <= min(over) <= 45
    assert not any(judgement.over for _, judgement, _ in course(LASTING))


def diluted(late: int) -> dict[str, str]:
    """Before the change 2,000 first tokens per sample, after it 60; of these `late` take 4 s."""
    before, after = f"0+2000x{BEFORE}", 2000 * BEFORE
    every = f"{before} {after}+60x29"
    return {
        **requests(f"{10 * BEFORE}x29"),
        'kvitals_ttft_seconds_bucket{engine="e",le="1"}': f"{before} {after}+{60 - late}x29",
        'kvitals_ttft_seconds_bucket{engine="e",le="2"}': f"{before} {after}+{60 - late}x29",
        'kvitals_ttft_seconds_bucket{engine="e",le="5"}': every,
        'kvitals_ttft_seconds_bucket{engine="e",le="+Inf"}': every,
        'kvitals_ttft_seconds_count{engine="e"}': every,
    }


def test_the_last_seconds_show_what_a_minute_of_calm_traffic_hides() -> None:
    found = course(diluted(late=12))
    assert first_fired(found) <= 20
    assert all(judgement.outcome != "fired" for after, judgement, _ in course(diluted(12), glances=False) if after < 40)
    shown = next(judgement for _, judgement, _ in found if judgement.outcome == "fired")
    assert shown.short is not None and shown.short < 30


def test_one_late_request_in_each_few_seconds_is_no_symptom_that_counts() -> None:
    assert all(judgement.outcome != "fired" for after, judgement, _ in course(diluted(late=1)) if after <= 40)


@pytest.mark.parametrize(
    ("late", "total", "beyond"), [(1, 30, False), (9, 30, False), (10, 30, True), (20, 1000, False), (40, 1000, True)]
)
def test_late_beyond_chance(late: float, total: float, beyond: bool) -> None:
    assert beyond_chance(late, total) is beyond


def test_what_explains_a_cause_of_an_open_symptom_counts_too() -> None:
    engine, node = Labels({"engine": "e"}), Labels({"node": "n"})
    rules = load().rules

    def fired(code: str, entity: Labels) -> Judgement:
        return Judgement(rules[code], entity, "fired", "", None)

    def around(judgement: Judgement) -> dict[Scope, Labels]:
        return {"engine": engine, "node": node} if judgement.entity == engine else {"node": node}

    cascade, symptom = fired("KVC05", engine), fired("LAT01", engine)
    twice = msgspec.structs.replace(fired("PFX03", node), outcome="clear", early=5.0)
    assert "LAT01" in cascade.rule.explains
    assert "KVC05" in twice.rule.explains
    assert "LAT01" not in twice.rule.explains
    with_symptom = open_symptoms([symptom, cascade, twice], around)
    assert [j.outcome for j in promote_causes([twice], with_symptom)] == ["fired"]
    without_symptom = open_symptoms([cascade, twice], around)
    assert [j.outcome for j in promote_causes([twice], without_symptom)] == ["clear"]


@pytest.mark.parametrize(("symptom_since", "expected"), [(1035.0, 1035.0), (990.0, 1010.0)])
def test_a_hidden_cause_begins_with_what_it_explains_on_its_own_engine(symptom_since: float, expected: float) -> None:
    """The short window is as long as the oldest trouble of any engine; a cause of another engine was said to have begun
    then, 14 s before its symptom."""
    engine, rules = Labels({"engine": "e"}), load().rules
    long_window = Judgement(rules["KVC01"], engine, "clear", "", None)
    in_short = msgspec.structs.replace(long_window, outcome="fired")
    symptom = msgspec.structs.replace(
        Judgement(rules["LAT01"], engine, "fired", "", None), since=symptom_since, since_at_least=False
    )
    open_ = open_symptoms([symptom, in_short], lambda _: {"engine": engine})
    short = EvaluationSpan(1050.0, 40.0, 40.0, cold=True)
    (shown,) = add_hidden_causes([in_short], [long_window], short, open_, {})
    assert shown.since == expected


def test_a_cause_does_not_come_and_go_with_the_length_of_the_window() -> None:
    """Pages read every 2 s, and no process to read the number of slots from: at two moments of three the running
    requests were no plateau, and the verdict went from the cause to "Cause unknown" and back, three times in 40 s."""
    pipeline = Pipeline(Setup(KNOWLEDGE, Config()), DocumentSource("agent", "a test"))
    with CaptureReader.open(FOLDER / "few_slots.kvcap") as reader:
        pipeline.node.expect(reader.header.meta)
        pages = [record for record in reader if isinstance(decode(record), ScrapeRecord)]
    verdicts = {}
    for at in pipeline.replay(pages[1::2], step=2.0):
        pipeline.observe_span(EvaluationSpan(at, seen=at - pages[1].t))
        verdicts[pipeline.verdict()] = at
    since = [cause.since for cause in pipeline.triage().causes if cause.code == "SCH01"]
    assert not [verdict for verdict in verdicts if verdict.startswith("Cause unknown")]
    assert since and since[0] is not None and since[0] < pages[-1].t - 40


def test_a_restarted_agent_knows_a_cause_that_only_a_short_window_showed() -> None:
    """After a restart in an incident the verdict was "Cause unknown" until the window was full."""
    with CaptureReader.open(FOLDER / "few_slots.kvcap") as reader:
        meta = reader.header.meta
        pages = [record for record in reader if isinstance(decode(record), ScrapeRecord)]

    def agent(known: Mapping[str, Memory]) -> Pipeline:
        pipeline = Pipeline(Setup(KNOWLEDGE, Config()), DocumentSource("agent", "a test"))
        pipeline.node.expect(meta)
        pipeline.judge.memory.update(known)
        return pipeline

    first, restarted = agent({}), 0
    for at in first.replay(pages[1::2], step=2.0):
        first.observe_span(EvaluationSpan(at, seen=at - pages[1].t))
        if not any(j.rule.code == "SCH01" and j.short and not j.last_true for j in first.judgements):
            continue
        second = agent({key: copy(of) for key, of in first.judge.memory.items()})
        after = [page for page in pages[1::2] if page.t > at]
        for later in itertools.islice(second.replay(after, step=2.0), 1, 8):
            second.observe_span(EvaluationSpan(later, seen=later - after[0].t))
            assert second.verdict().startswith("Requests wait for slots"), later - at
        restarted += 1
    assert restarted


def test_a_finding_and_its_levers_have_one_value_of_a_quantity() -> None:
    """A finding had the figures of the short window that shows it, and its levers those of the last minute."""
    pipeline = Pipeline(Setup(KNOWLEDGE, Config()), DocumentSource("agent", "a test"))
    with CaptureReader.open(FOLDER / "few_slots.kvcap") as reader:
        pipeline.node.expect(reader.header.meta)
        pages = [record for record in reader if isinstance(decode(record), ScrapeRecord)]
    of_short = 0
    for at in pipeline.replay(pages[1::2], step=2.0):
        pipeline.observe_span(EvaluationSpan(at, seen=at - pages[1].t))
        short = {j.rule.code for j in pipeline.judgements if j.short and not j.last_true}
        for cause in pipeline.triage().causes:
            measured = {measure.signal: measure.value for measure in cause.measures}
            for effect in (effect for lever in cause.levers for effect in lever.predicted):
                if effect.metric in measured:
                    assert effect.from_ == pytest.approx(measured[effect.metric]), (at, cause.code, effect.metric)
                    of_short += cause.code in short
    assert of_short


def test_a_restart_before_the_change_is_one_in_the_seconds_after_it_as_well() -> None:
    """The hit rate of an engine "fell without a restart", 48 s after its restart: the short window saw none."""
    restart, rest = BEFORE - 10, 40
    counters = {"prefix_query_tokens_total": 1000, "prompt_tokens_total": 1000, "requests_arrived_total": 2}
    series = requests(f"{10 * BEFORE}x29") | {
        'kvitals_process_start_time_seconds{engine="e"}': f"{START - 900:.0f}x{restart - 1} {START + 100:.0f}x{rest}",
        'kvitals_prefix_hit_tokens_total{engine="e"}': f"0+700x{restart - 1} 0x{rest}",
        'kvitals_request_prompt_tokens_count{engine="e"}': f"0+2x{restart - 1} 0+2x{rest}",
        'kvitals_request_prompt_tokens_sum{engine="e"}': f"0+1000x{restart - 1} 0+1000x{rest}",
        'kvitals_engine_fact{engine="e",fact="block_tokens"}': f"16x{BEFORE + 30}",
    }
    for name, step in counters.items():
        series[f'kvitals_{name}{{engine="e"}}'] = f"0+{step}x{restart - 1} 0+{step}x{rest}"
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, WrittenSeries(series, START, STEP)), glances=True)
    fired = set()
    for number in range(BEFORE + 15):
        fired |= {one.rule.code for one in judge.judge(EvaluationSpan(START + number * STEP)) if one.outcome == "fired"}
    assert "LAT01" in fired
    assert "PFX10" not in fired
