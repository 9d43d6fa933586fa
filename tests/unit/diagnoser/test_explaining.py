"""What explains what: causes of an entity, of its node and of its pool, and of nothing beside it."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import headline, triage
from kvitals.rules.finding import DocumentSource, Finding, Triage
from kvitals.rules.loader import load
from kvitals.rules.model import SCOPES
from kvitals.series.types import Labels
from kvitals.series.window import Window
from kvitals.ui.cli.render import show

KNOWLEDGE = load()
SPAN = EvaluationSpan(1000.0)
ENGINES = {
    "a": Labels({"engine": "a", "node": "n1", "pool": "chat"}),
    "b": Labels({"engine": "b", "node": "n1", "pool": "batch"}),
    "c": Labels({"engine": "c", "node": "n2", "pool": "chat"}),
    "far": Labels({"engine": "far"}),  # of no node and no pool
}


@pytest.fixture(scope="module")
def judge() -> Judge:
    window = Window(7200, 1000)
    group = window.group("engines")
    columns = [group.column(labels.with_(__name__="kvitals_target_up")) for labels in ENGINES.values()]
    group.append(SPAN.at, [c for c in columns if c is not None], [1.0] * len(columns))
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    judge.judge(SPAN)
    return judge


def said(code: str, outcome: str = "fired", **labels: str) -> Judgement:
    """A rule's judgement on an entity."""
    rule = KNOWLEDGE.rules[code]
    entity = Labels(labels)
    assert set(entity) <= set(SCOPES[rule.scope])
    return Judgement(rule, entity, outcome, "as planted", None)  # type: ignore[arg-type]


def on(code: str, engine: str, outcome: str = "fired") -> Judgement:
    return said(code, outcome, **ENGINES[engine].keep(SCOPES["engine"]))


def told(judge: Judge, *judgements: Judgement) -> Triage:
    document = triage(judge, judgements, SPAN, DocumentSource("live", "x"))
    assert headline(judge, judgements, SPAN) == document.verdict
    return document


def explained(document: Triage) -> dict[str, set[str]]:
    """Symptom and engine -> the causes that are said to explain it, as the causes and as the symptoms tell."""
    by_id = {f.id: f for f in document.symptoms}
    found: dict[str, set[str]] = {_name(f): set(f.explained_by) for f in document.symptoms}
    from_causes: dict[str, set[str]] = {name: set() for name in found}
    for cause in document.causes:
        for id_ in cause.explained:
            from_causes[_name(by_id[id_])].add(cause.code)
    assert from_causes == found
    return found


def _name(finding: Finding) -> str:
    return f"{finding.code} {finding.entity.title}"


LATE = [on("LAT01", engine) for engine in ENGINES]


def test_a_cause_of_a_node_explains_what_is_seen_of_its_engines(judge: Judge) -> None:
    document = told(judge, *LATE, said("TEN03", node="n1"))
    assert explained(document) == {"LAT01 a": {"TEN03"}, "LAT01 b": {"TEN03"}, "LAT01 c": set(), "LAT01 far": set()}


def test_a_cause_of_a_pool_explains_what_is_seen_of_its_engines(judge: Judge) -> None:
    document = told(judge, *LATE, said("PDX03", pool="chat"))
    assert explained(document) == {"LAT01 a": {"PDX03"}, "LAT01 b": set(), "LAT01 c": {"PDX03"}, "LAT01 far": set()}


def test_a_cause_of_engines_of_no_node_says_nothing_of_the_others(judge: Judge) -> None:
    document = told(judge, *LATE, said("TEN03"))
    assert explained(document) == {"LAT01 a": set(), "LAT01 b": set(), "LAT01 c": set(), "LAT01 far": {"TEN03"}}


def test_an_engine_explains_itself_alone(judge: Judge) -> None:
    document = told(judge, *LATE, on("KVC01", "a"))
    assert explained(document) == {"LAT01 a": {"KVC01"}, "LAT01 b": set(), "LAT01 c": set(), "LAT01 far": set()}
    assert [f.entity.title for f in document.symptoms if not f.explained_by] == ["b", "c", "far"]


def test_who_explains_more_comes_first(judge: Judge) -> None:
    document = told(judge, *LATE, on("SCH01", "a"), said("TEN03", node="n1"))
    assert [c.code for c in document.causes] == ["TEN03", "SCH01"]  # two engines' symptoms and one's
    alone = told(judge, on("LAT01", "a"), on("LAT04", "a"), on("SCH01", "a"), said("TEN03", node="n1"))
    assert [c.code for c in alone.causes] == ["SCH01", "TEN03"]  # two symptoms and one


def test_a_page_that_explains_a_symptom_comes_before_a_ticket_that_explains_more(judge: Judge) -> None:
    """ "Load imbalance" of a pool was the verdict, and an engine's full KV cache stood below it as "Also 1 page"."""
    document = told(judge, *LATE, on("KVC01", "a"), said("TEN03", node="n1"))
    assert [(c.code, c.severity) for c in document.causes] == [("KVC01", "page"), ("TEN03", "ticket")]


def test_a_page_without_a_symptom_comes_before_a_ticket_that_explains_some(judge: Judge) -> None:
    """ "Load imbalance" was the verdict of a pool of which one engine made no progress: it has no late token."""
    document = told(judge, *LATE, on("ENG01", "c"), said("TEN03", node="n1"))
    assert [(c.code, c.severity) for c in document.causes] == [("ENG01", "page"), ("TEN03", "ticket")]


def test_what_is_for_information_comes_after_what_it_explains(judge: Judge) -> None:
    document = told(judge, on("LAT01", "a"), on("PFX16", "a"), on("KVC06", "a"))
    assert [(c.code, c.severity) for c in document.causes] == [("KVC06", "ticket"), ("PFX16", "info")]
    assert "PFX16" in document.causes[0].explained_by
    assert document.leading_causes[0].code == "KVC06", "the box below the verdict was of PFX16, without a lever"


def test_what_something_for_information_explains_comes_no_later_for_it(judge: Judge) -> None:
    document = told(judge, on("LAT01", "a"), on("PFX16", "a"), on("KVC06", "a"), on("SCH09", "b"))
    assert [c.code for c in document.causes] == ["KVC06", "PFX16", "SCH09"]  # the last explains no open symptom


def test_the_first_cause_explains_the_worst_open_symptom(judge: Judge) -> None:
    document = told(judge, on("ENG05", "a"), on("ENG06", "a"), on("KVC01", "a"), on("LOR02", "a"))
    assert [c.code for c in document.causes] == ["LOR02", "KVC01"]  # ENG05 is worse than ENG06
    assert document.verdict == f"{KNOWLEDGE.rules['LOR02'].title}."


@pytest.mark.parametrize("cause", ["KVC01", "SCH01"])
def test_a_queue_explains_aborts_only_where_it_makes_clients_wait(judge: Judge, cause: str) -> None:
    """More slots did nothing for clients that hang up though first tokens are in time: 70 % of them, then 69 %."""
    clear = [on(code, "a", "clear") for code in ("LAT01", "SCH10", "LAT02", "LAT16")]
    in_time = told(judge, on("ENG06", "a"), on(cause, "a"), *clear)
    assert explained(in_time) == {"ENG06 a": set()}
    assert in_time.verdict.startswith("Cause unknown: clients abort")
    late = told(judge, on("ENG06", "a"), on(cause, "a"), on("LAT01", "a"), *clear[1:])
    assert explained(late) == {"ENG06 a": {cause}, "LAT01 a": {cause}}
    not_known = told(judge, on("ENG06", "a"), on(cause, "a"), on("LAT01", "a", "unknown"))
    assert explained(not_known) == {"ENG06 a": {cause}}


def test_where_no_cause_explains_the_worst_symptom_the_cause_is_unknown(judge: Judge) -> None:
    document = told(judge, on("LAT02", "a"), on("PFX02", "a"), on("PFX11", "a"))
    assert document.verdict == (
        "Cause unknown: ITL p99 above objective, and"
        f" “{KNOWLEDGE.rules['PFX02'].title}” is true but does not explain this symptom."
    )
    assert document.healthy is False


def test_a_cause_by_way_of_another_explains_the_worst_symptom(judge: Judge) -> None:
    document = told(judge, on("LAT01", "a"), on("PFX01", "a"), on("KVC16", "a"), on("KVC01", "a"))
    assert [c.code for c in document.causes] == ["KVC16", "KVC01"]
    assert document.verdict == f"{KNOWLEDGE.rules['KVC16'].title}."


def test_a_cause_explains_nothing_while_the_way_to_it_is_not_seen_to_be_open(judge: Judge) -> None:
    """Prompts that share nothing make first tokens late where it is their prefill that takes the time."""
    document = told(judge, on("LAT01", "a"), on("PFX11", "a"))
    assert ([c.code for c in document.causes], [n.code for n in document.notes]) == ([], ["PFX11"])
    assert document.verdict.startswith("Cause unknown: TTFT p99 may be above objective")


def test_slots_that_bind_while_the_objective_is_kept_are_noted(judge: Judge) -> None:
    """A batch queue: it waits, and nothing that anybody promised is late."""
    kept = [on("LAT01", "a", "clear"), on("SCH10", "a", "clear")]
    document = told(judge, on("SCH01", "a"), *kept)
    assert (document.causes, [(n.code, n.severity) for n in document.notes]) == ([], [("SCH01", "info")])
    assert document.healthy is not False
    for others in ([], [kept[0]], [on("LAT01", "a"), kept[1]], [on("LAT01", "a", "unknown"), kept[1]]):
        expected = ["SCH01"] if others != [kept[0]] else []
        assert [c.code for c in told(judge, on("SCH01", "a"), *others).causes] == expected


@pytest.mark.parametrize("symptom", ["", "PFX01", "LAT04"])
def test_information_that_explains_nothing_felt_is_noted(judge: Judge, symptom: str) -> None:
    """Also where it explains a symptom that is for information itself."""
    document = told(judge, on("PFX11", "a"), *([on(symptom, "a")] if symptom else []))
    assert document.causes == []
    assert [n.code for n in document.notes] == ["PFX11"]
    assert KNOWLEDGE.rules["PFX11"].title not in document.verdict


def test_a_cause_of_the_node_that_was_not_so_is_ruled_out(judge: Judge) -> None:
    document = told(judge, on("LAT01", "a"), said("TEN03", "clear", node="n1"), said("TEN03", "clear", node="n2"))
    assert [(r.code, r.entity) for r in document.ruled_out] == [("TEN03", "n1")]


def test_a_symptom_that_another_engines_cause_explains_is_not_folded_away(judge: Judge) -> None:
    out = io.StringIO()
    show(told(judge, *LATE, on("KVC01", "a"), said("TEN03", node="n1")), Console(file=out, width=200))
    text = out.getvalue()
    for engine in ("c", "far"):
        assert f"LAT01 {KNOWLEDGE.rules['LAT01'].unproven_title}  ticket · {engine}" in text
    assert f"LAT01 (ticket)  {KNOWLEDGE.rules['LAT01'].unproven_title} on b." in text


@pytest.mark.parametrize(("node", "counts"), [("n1", True), ("n2", False)])
def test_a_cause_of_the_node_counts_at_once_where_an_engine_has_the_symptom(
    judge: Judge, node: str, counts: bool
) -> None:
    early = Judgement(KNOWLEDGE.rules["TEN03"], Labels({"node": node}), "clear", "not long yet", None, early=5.0)
    promoted = judge._promoted([on("LAT01", "a"), early], SPAN.at)
    assert (promoted[1].outcome == "fired") is counts


def test_a_fault_that_does_not_count_yet_is_no_healthy_engine(judge: Judge) -> None:
    """For ten seconds after a stop of 8 s the agent said "No trouble found", then that a process had been stopped."""
    clear = [on(code, engine, "clear") for code in ("LAT01", "SCH10") for engine in ENGINES]
    early = replace(on("ENG13", "a", "clear"), early=5.0)
    assert told(judge, *clear, early).verdict.startswith(
        "Too early to judge: “A process of the engine is or was stopped” is true, and counts if it stays so for 10 s."
    )
    slots = replace(on("SCH01", "a", "clear"), early=5.0)
    assert not told(judge, *clear, slots).verdict.startswith("Too early"), "a ticket's cause comes and goes"


def test_a_symptom_stands_before_a_metric_that_is_missing(judge: Judge) -> None:
    """One missing metric hid a page, with "Enable engine statistics" as the only lever."""
    document = told(judge, on("LAT02", "a"), on("TEL02", "a"), on("LAT05", "a"))
    assert [one.code for one in document.leading] == ["LAT02", "TEL02", "LAT05"]
    lost = told(judge, on("LAT02", "a"), on("TEL01", "a"))
    assert [one.code for one in lost.leading] == ["TEL01", "LAT02"], "what is known of it is old"


def test_uneven_queues_of_a_pool_explain_no_latency_of_an_engine_without_a_queue() -> None:
    """ "Load imbalance" explained a TTFT of 1.2 s, all of it prefill, on an engine where nothing waited."""
    window = Window(7200, 1000)
    for name, waiting in (("queues", 20.0), ("prefills", 0.0)):
        group = window.group(name)
        labels = Labels({"engine": name, "node": "n1", "pool": "chat"})
        rows = {"kvitals_target_up": 1.0, "kvitals_requests_running": 8.0, "kvitals_requests_waiting": waiting}
        columns = [group.column(labels.with_(__name__=metric)) for metric in rows]
        for at in (SPAN.at - 30, SPAN.at - 15, SPAN.at):
            group.append(at, [one for one in columns if one is not None], list(rows.values()))
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    judge.judge(SPAN)
    late = [said("LAT01", engine=name, node="n1") for name in ("queues", "prefills")]
    assert explained(told(judge, *late, said("SCH13", pool="chat"))) == {
        "LAT01 queues": {"SCH13"},
        "LAT01 prefills": set(),
    }


def starved(ttft: float) -> Judge:
    """An engine whose main thread waits for a CPU 80 % of the time, and all of whose first tokens take this long."""
    window = Window(7200, 1000)
    group = window.group("engine")
    series = {
        "kvitals_target_up{}": (1.0, 0.0),
        "kvitals_requests_running{}": (3.0, 0.0),
        "kvitals_requests_waiting{}": (0.0, 0.0),
        "kvitals_engine_process_longest_run_delay_ratio{part=engine_core}": (0.8, 0.0),
        "kvitals_slo_seconds{slo=ttft_p99}": (2.0, 0.0),
        "kvitals_ttft_seconds_bucket{le=+Inf}": (0.0, 20.0),
        f"kvitals_ttft_seconds_bucket{{le={ttft:g}}}": (0.0, 20.0),
        f"kvitals_ttft_seconds_bucket{{le={ttft * 0.99:g}}}": (0.0, 0.0),
        "kvitals_ttft_seconds_count{}": (0.0, 20.0),
    }
    columns = []
    for name in series:
        family, _, label = name.rstrip("}").partition("{")
        labels = dict([label.split("=")] if label else [])
        column = group.column(ENGINES["a"].with_(__name__=family, **labels))
        assert column is not None
        columns.append(column)
    for step in range(24):
        group.append(SPAN.at - 5 * (23 - step), columns, [first + each * step for first, each in series.values()])
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    judge.judge(SPAN)
    return judge


@pytest.mark.parametrize("code", ["SCH08", "SCH01", "KVC01"])
def test_a_starved_cpu_leads_only_where_cpu_time_alone_would_meet_the_objective(code: str) -> None:
    """Measured beside a CPU that was 75 % taken: more blocks brought TTFT p99 from 4,850 to 1,476 ms."""
    both = on(code, "a"), on("ENG11", "a"), *(on(one, "a") for one in ("LAT01", "LAT02", "LAT04"))
    enough, more = told(starved(ttft=5.0), *both), told(starved(ttft=12.0), *both)
    assert [cause.code for cause in enough.causes] == ["ENG11", code]  # 1 s with the CPU to itself, of 2 s
    assert [cause.code for cause in more.causes] == [code, "ENG11"]  # 2.4 s
    assert explained(more)["LAT01 a"] == {code}


def test_a_starved_cpu_explains_what_no_other_cause_does() -> None:
    alone = told(starved(ttft=12.0), on("ENG11", "a"), on("LAT01", "a"), on("LAT02", "a"))
    assert [cause.code for cause in alone.causes] == ["ENG11"]
    assert explained(alone) == {"LAT01 a": {"ENG11"}, "LAT02 a": {"ENG11"}}
