"""No lever is offered that is in force, that the engine lacks, that contradicts another, or that helps nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from msgspec.structs import replace

from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.levers import Levers
from kvitals.diagnoser.questions import Questions
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import triage
from kvitals.rules.finding import DocumentSource, LeverAdvice
from kvitals.rules.loader import Knowledge, load
from kvitals.rules.model import SCOPES, Lever, LeverUse, Rule, SystemSetting
from kvitals.series.types import Labels
from kvitals.series.window import Window
from tests.support.loops import for_each

KNOWLEDGE = load()
SPAN = EvaluationSpan(1000.0)
WHOLE = Labels({"cluster": "k", "node": "n", "pool": "p", "engine": "e"})
USES = [
    pytest.param(rule, KNOWLEDGE.levers[use.lever], id=f"{rule.code} {use.lever}")
    for rule in KNOWLEDGE.rules.values()
    for use in rule.levers
]
each_use = for_each("rule, lever", USES)


def judge(system: str = "vllm", version: str = "0.32.0") -> Judge:
    """A judge that knows one engine."""
    window = Window(7200, 1000)
    group = window.group("engines")
    up = group.column(WHOLE.with_(__name__="kvitals_target_up"))
    info = group.column(WHOLE.with_(__name__="kvitals_engine_info", system=system, version=version))
    assert up is not None
    assert info is not None
    group.append(SPAN.at, [up, info], [1.0, 1.0])
    return Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))


JUDGES = {system: judge(system) for system in ("vllm", "llamacpp")}


class Told(Questions):
    """Questions with the value of every expression told: those in `false` have none."""

    def __init__(self, judge: Judge, false: set[str]) -> None:
        super().__init__(judge, SPAN)
        self._false = frozenset(false)

    def number(self, judgement: Judgement, query: str, more: Mapping[str, str] | None = None) -> float | None:
        return None if query in self._false else 1.0


IN_FORCE = {lever.in_force for lever in KNOWLEDGE.levers.values() if lever.in_force}
POSSIBLE = {lever.possible for lever in KNOWLEDGE.levers.values() if lever.possible}


def fired(rule: Rule) -> Judgement:
    return Judgement(rule, WHOLE.keep(SCOPES[rule.scope]), "fired", "as planted", None)


def offered(rule: Rule, false: set[str], system: str = "vllm", **more: object) -> list[str]:
    levers = Levers(Told(JUDGES[system], false))
    return [a.lever for a in levers.advise(fired(rule), str, **more)]  # type: ignore[arg-type]


@each_use
def test_what_is_in_force_is_not_offered(rule: Rule, lever: Lever) -> None:
    if lever.in_force:
        assert lever.name not in offered(rule, IN_FORCE - {lever.in_force})


@each_use
def test_what_is_not_possible_is_not_offered(rule: Rule, lever: Lever) -> None:
    if lever.possible:
        assert lever.name not in offered(rule, IN_FORCE | {lever.possible})


@each_use
def test_what_no_figure_shows_to_fit_is_offered_last_with_what_has_to_hold(rule: Rule, lever: Lever) -> None:
    """An FP8 KV cache was the first advice where the page hides that the engine computes on a CPU."""
    if not lever.proven_when:
        return
    levers = Levers(Told(JUDGES["vllm"], IN_FORCE | {lever.proven_when}))
    advice = levers.advise(fired(rule), str)
    needs = {lever.name for lever in KNOWLEDGE.levers.values() if lever.proven_when}
    doubtful = [one.lever in needs for one in advice]
    assert doubtful == sorted(doubtful)
    assert all(one.title == KNOWLEDGE.levers[one.lever].unproven_title for one in advice if one.lever in needs)
    shown = Levers(Told(JUDGES["vllm"], IN_FORCE)).advise(fired(rule), str)
    assert all(one.title == KNOWLEDGE.levers[one.lever].title for one in shown)


def test_levers_that_need_a_gpu_are_not_offered_on_a_cpu() -> None:
    needs = {lever.name for lever in KNOWLEDGE.levers.values() if lever.proven_when}
    assert needs >= {"kv-quantization", "weight-quantization", "captured-graphs", "host-tier"}
    assert all("kvitals:on_cpu) > 0" in KNOWLEDGE.levers[name].possible for name in needs)


@each_use
def test_what_the_engine_has_no_setting_for_is_not_offered(rule: Rule, lever: Lever) -> None:
    assert all(s.system != "llamacpp" for s in lever.settings)
    if lever.settings and not lever.outside:
        assert lever.name not in offered(rule, IN_FORCE, "llamacpp")


@each_use
def test_what_moves_nothing_that_is_amiss_is_not_offered(rule: Rule, lever: Lever) -> None:
    quantities = ("ttft", "itl", "throughput", "hits", "errors", "fairness", "cost", "truth")
    others = set(quantities) - set(lever.moves)
    assert lever.name not in offered(rule, IN_FORCE, amiss=others or {"nothing"})


@each_use
def test_of_levers_that_contradict_one_is_offered(rule: Rule, lever: Lever) -> None:
    names = offered(rule, IN_FORCE)
    if lever.name in names:
        assert not set(names) & set(lever.contradicts)


def pairs() -> Iterator[tuple[Rule, Rule, str, str]]:
    """Rules whose levers contradict one another, first one and then the other."""
    for a in KNOWLEDGE.rules.values():
        for b in KNOWLEDGE.rules.values():
            for use in a.levers:
                for against in set(KNOWLEDGE.levers[use.lever].contradicts) & {u.lever for u in b.levers}:
                    yield a, b, use.lever, against


def test_findings_of_one_engine_and_of_what_it_is_part_of_do_not_contradict() -> None:
    checked = 0
    for a, b, lever, against in pairs():
        levers = Levers(Told(JUDGES["vllm"], IN_FORCE))
        first = {advice.lever for advice in levers.advise(fired(a), str)}
        second = {advice.lever for advice in levers.advise(fired(b), str)}
        if lever in first:
            nested = "engine" in (a.scope, b.scope) or a.scope == b.scope or "fleet" in (a.scope, b.scope)
            assert not nested or against not in second
            checked += 1
    assert checked > 20


def test_engines_beside_one_another_may_get_opposite_advice() -> None:
    window = Window(7200, 1000)
    group = window.group("engines")
    columns = [group.column(Labels({"__name__": "kvitals_target_up", "engine": name})) for name in "ab"]
    group.append(SPAN.at, [c for c in columns if c is not None], [1.0, 1.0])
    levers = Levers(Told(Judge(KNOWLEDGE, Signals(KNOWLEDGE, window)), IN_FORCE))
    more, less = KNOWLEDGE.rules["SCH01"], KNOWLEDGE.rules["KVC09"]

    def names(rule: Rule, engine: str) -> list[str]:
        return [a.lever for a in levers.advise(Judgement(rule, Labels({"engine": engine}), "fired", "", None), str)]

    assert "raise-max-num-seqs" in names(more, "a")
    assert "lower-max-num-seqs" not in names(less, "a")
    assert "lower-max-num-seqs" in names(less, "b")


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.28.0", []), ("0.29.0", ["--max-num-queued-reqs"]), ("", ["--max-num-queued-reqs"])],
)
def test_a_setting_is_for_the_version(version: str, expected: list[str]) -> None:
    levers = Levers(Told(judge("vllm", version), IN_FORCE))
    advice = next(a for a in levers.advise(fired(KNOWLEDGE.rules["GRD01"]), str) if a.lever == "admission-control")
    assert [advice.setting.flag] * bool(advice.setting) == expected if advice.setting else not expected
    if advice.setting is None:
        assert advice.setting_note == "no setting is known for vllm 0.28.0: it is applied outside of the engine"


# What a rule or a lever of somebody's own may say.


def advised(knowledge: Knowledge, *rules: Rule, false: set[str] = IN_FORCE) -> list[list[str]]:
    """The levers of each rule's finding, in this order, on one engine."""
    window = judge().signals.source.families
    levers = Levers(Told(Judge(knowledge, Signals(knowledge, window)), false))
    return [[a.lever for a in levers.advise(fired(rule), str)] for rule in rules]


def with_levers(*levers: Lever) -> Knowledge:
    known = load()
    known.levers.update({lever.name: lever for lever in levers})
    return known


def own(name: str, **changed: object) -> Lever:
    return replace(KNOWLEDGE.levers["restart"], name=name, in_force="", possible="", **changed)


def offering(code: str, *names: str) -> Rule:
    return replace(KNOWLEDGE.rules[code], levers=tuple(LeverUse(lever=name, why="so") for name in names))


def test_who_contradicts_whom_is_known_from_either_side() -> None:
    """A lever of somebody's own may contradict one that ships, which knows nothing of it."""
    knowledge = with_levers(own("drain", contradicts=("restart",)), own("sip"))
    for first, second in (("drain", "restart"), ("restart", "drain")):
        assert advised(knowledge, offering("KVC01", first, second)) == [[first]]
        assert advised(knowledge, offering("KVC01", first), offering("SCH01", second)) == [[first], []]
    assert advised(knowledge, offering("KVC01", "sip", "restart")) == [["sip", "restart"]]


def setting(now: str, to: str = "", value: str = "") -> SystemSetting:
    return SystemSetting(system="vllm", flag="--x", now=now, to=to, value=value)


@pytest.mark.parametrize(
    ("one", "is_offered"),
    [
        (setting("vector(1)", to="vector(1)"), False),  # both have the value that is told: 1
        (setting("vector(1)", value="1"), False),
        (setting("vector(1)", value="2"), True),
        (setting("nowhere", to="vector(1)"), True),  # today's value is not known
        (setting("nowhere", to="nowhere"), True),  # nor what to try: the flag alone helps
    ],
)
def test_what_is_set_as_it_would_be_is_not_offered(one: SystemSetting, is_offered: bool) -> None:
    knowledge = with_levers(own("turn", settings=(one,), outside=False), own("sip", contradicts=("turn",)))
    rule = offering("KVC01", "turn", "sip")
    assert advised(knowledge, rule, false={"nowhere"}) == [["turn"] if is_offered else ["sip"]]


@pytest.mark.parametrize(
    ("direction", "is_offered"), [("up", True), ("down", False), ("", True)], ids=["up", "down", "either"]
)
def test_a_number_against_the_direction_of_a_lever_is_not_offered(direction: str, is_offered: bool) -> None:
    more = setting("vector(1)", to="vector(2)", value="2")
    knowledge = with_levers(own("turn", settings=(more,), outside=False, direction=direction))
    assert advised(knowledge, offering("KVC01", "turn")) == [["turn"] if is_offered else []]


@pytest.mark.parametrize("first", ["KVC09", "SCH01"])
def test_the_first_cause_has_the_choice_of_levers(first: str) -> None:
    """Levers are chosen in the order of the causes, not of their codes."""
    knowledge = with_levers(own("drain", contradicts=("restart",)))
    one = Judge(knowledge, judge().signals)
    one.judge(SPAN)
    offers = {"KVC09": "drain", "SCH01": "restart"}
    rules = [replace(offering(c, offers[c]), severity="page" if c == first else "ticket") for c in offers]
    document = triage(one, [fired(rule) for rule in rules], SPAN, DocumentSource("live", "x"))
    assert [(cause.code, [a.lever for a in cause.levers]) for cause in document.causes] == [
        (first, [offers[first]]),
        (next(c for c in offers if c != first), []),
    ]


def note_of(version: str) -> str:
    """The note beside a setting of SPC03 on a vLLM of some version."""
    levers = Levers(Told(judge("vllm", version), IN_FORCE))
    advice = levers.advise(fired(KNOWLEDGE.rules["SPC03"]), str)
    setting = next(one.setting for one in advice if one.lever == "speculative-decoding")
    assert setting is not None
    return setting.note


def test_a_version_newer_than_the_flags_is_reported_with_the_setting() -> None:
    assert note_of("0.99.0").startswith("0.99.0 is newer than the flags that this kvitals knows (to 0.")
    assert "newer" not in note_of("0.32.0")


def test_an_unknown_version_is_reported_with_the_setting() -> None:
    assert note_of("").startswith("The engine's version is not reported; this flag is for >=0.8.2.")
    assert "not reported" not in note_of("0.32.0")


def test_a_page_has_a_lever_for_whatever_its_cause_does() -> None:
    """A stopped process was a page without any lever where only gaps between tokens were late."""
    known = load()
    causes = [rule for rule in known.rules.values() if rule.kind == "cause" and rule.severity == "page"]
    felt = {code for code, rule in known.rules.items() if rule.kind == "symptom" and rule.severity != "info"}
    assert len(causes) > 3
    for cause in causes:
        moved = {quantity for one in cause.levers for quantity in known.levers[one.lever].moves}
        for code in felt.intersection(cause.explains):
            assert moved.intersection(known.rules[code].about), (cause.code, code)


@pytest.mark.parametrize(("halted", "offered"), [(0.0, ["restart"]), (1.0, ["health-aware-fallback"])])
def test_a_stopped_process_is_continued_and_not_restarted(halted: float, offered: list[str]) -> None:
    """The page of a stopped process cannot be read: "Restart the engine" stood before `kill -CONT` (ENG13)."""
    window = Window(7200, 1000)
    group = window.group("engines")
    values = {
        WHOLE.with_(__name__="kvitals_target_up"): 0.0,
        WHOLE.with_(__name__="kvitals_target_state", reason="timeout"): 1.0,
        WHOLE.with_(__name__="kvitals_engine_processes_halted"): halted,
    }
    columns = [group.column(labels) for labels in values]
    for at in (SPAN.at - 30, SPAN.at - 15, SPAN.at):
        group.append(at, [column for column in columns if column is not None], list(values.values()))
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    cold = EvaluationSpan(SPAN.at, cold=True)
    document = triage(judge, judge.judge(cold), cold, DocumentSource("agent", "here"))
    [lost] = [one for one in document.telemetry if one.code == "TEL01"]
    assert [one.lever for one in lost.levers] == offered


@pytest.mark.parametrize(("counted", "offered"), [(True, []), (False, ["statistics-on"])])
def test_statistics_are_not_to_be_switched_on_where_they_are(counted: bool, offered: list[str]) -> None:
    """One metric was missing, and "remove --disable-log-stats" was the only lever, a restart."""
    window = Window(7200, 1000)
    group = window.group("engines")
    names = {"kvitals_target_up": 1.0, "kvitals_family_missing": 1.0}
    names |= {"kvitals_ttft_seconds_count": 50.0} if counted else {}
    columns = [group.column(WHOLE.with_(__name__=name)) for name in names]
    for at in (SPAN.at - 30, SPAN.at - 15, SPAN.at):
        group.append(at, [column for column in columns if column is not None], list(names.values()))
    judge, cold = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window)), EvaluationSpan(SPAN.at, cold=True)
    document = triage(judge, judge.judge(cold), cold, DocumentSource("agent", "here"))
    [missing] = [one for one in document.telemetry if one.code == "TEL02"]
    assert [one.lever for one in missing.levers] == offered


@pytest.mark.parametrize(
    ("heavy", "others", "named"),
    [
        (900.0, ("bolt", "cube"), "Tenant acme has more than half of the reported tokens."),
        (10.0, ("bolt", "cube"), ""),
    ],
)
def test_a_limit_for_a_tenant_names_the_tenant(heavy: float, others: tuple[str, ...], named: str) -> None:
    """ "Rate-limit the tenant" did not say which one, though request records knew."""
    [limit] = [one for one in advised_of_tenants(heavy, others) if one.lever == "tenant-rate-limit"]
    general = "If one tenant holds the blocks, a limit at the gateway frees them for the others."
    assert limit.why == f"{named} {general}".strip(), "the first sentence is what the screen has room for"


def test_the_only_tenant_is_not_limited() -> None:
    """It takes nothing from others; the queue has more replicas instead, without a restart."""
    levers = advised_of_tenants(900.0, ())
    assert "tenant-rate-limit" not in [one.lever for one in levers]
    assert "data-parallel-scale-out" in [one.lever for one in levers if not one.restart]


def advised_of_tenants(heavy: float, others: tuple[str, ...]) -> list[LeverAdvice]:
    """The levers of a full KV cache, where tenant acme has so many prompt tokens in each sample."""
    window = Window(7200, 1000)
    group = window.group("engines")
    rising = {("acme", "prompt"): heavy, ("acme", "output"): 1.0} | {(other, "prompt"): 100.0 for other in others}
    columns = [
        group.column(WHOLE.with_(__name__=f"kvitals_tenant_{of}_tokens_total", tenant=tenant)) for tenant, of in rising
    ]
    for step in range(13):
        values = [step * each for each in rising.values()]
        group.append(SPAN.at - 60 + 5 * step, [column for column in columns if column is not None], values)
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    judge.judge(SPAN)
    rule = KNOWLEDGE.rules["KVC01"]

    def value(name: str) -> str:
        return "7"

    return Levers(Questions(judge, SPAN)).advise(fired(rule), value)


@pytest.mark.parametrize(("in_time", "offered"), [(0.0, False), (10.0, True)])
def test_fewer_slots_are_offered_only_where_first_tokens_are_in_time(in_time: float, offered: bool) -> None:
    """Measured: preemptions fell from 1.74 to 0.62 per second, and TTFT p99 rose from 4.1 to 8.0 s."""
    window = Window(7200, 1000)
    group = window.group("engines")
    rising = {("ttft_seconds_bucket", "1"): in_time, ("ttft_seconds_bucket", "10"): 10.0}
    rising |= {("ttft_seconds_bucket", "+Inf"): 10.0, ("ttft_seconds_count", ""): 10.0}
    columns = [group.column(WHOLE.with_(__name__=f"kvitals_{name}", le=le)) for name, le in rising]
    columns += [group.column(WHOLE.with_(__name__="kvitals_slo_seconds", slo="ttft_p99"))]
    columns += [group.column(WHOLE.with_(__name__="kvitals_requests_running"))]
    columns += [group.column(WHOLE.with_(__name__="kvitals_target_up"))]
    for step in range(13):
        values = [*(step * each for each in rising.values()), 2.0, 8.0, 1.0]
        group.append(SPAN.at - 60 + 5 * step, [column for column in columns if column is not None], values)
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    judge.judge(SPAN)
    levers = Levers(Questions(judge, SPAN)).advise(fired(KNOWLEDGE.rules["KVC09"]), str)
    assert ("lower-max-num-seqs" in [one.lever for one in levers]) == offered


def test_the_proposed_blocks_fit_the_requests_that_wait_now() -> None:
    """A mean over the calm before gave 202 blocks, and 288 were needed."""
    window = Window(7200, 1000)
    group = window.group("engines")
    facts = {"kv_blocks_override": 100.0, "slots": 64.0}
    columns = [group.column(WHOLE.with_(__name__="kvitals_engine_fact", fact=fact)) for fact in facts]
    columns += [
        group.column(WHOLE.with_(__name__=f"kvitals_{name}"))
        for name in ("target_up", "kv_usage_ratio", "requests_running", "requests_waiting")
    ]
    columns += [group.column(WHOLE.with_(__name__="kvitals_engine_info", system="vllm", version="0.32.0"))]
    for step in range(13):
        values = [*facts.values(), 1.0, 1.0, 10.0, 20.0 if step > 6 else 0.0, 1.0]
        group.append(SPAN.at - 60 + 5 * step, [column for column in columns if column is not None], values)
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    judge.judge(SPAN)
    advised = Levers(Questions(judge, SPAN)).advise(fired(KNOWLEDGE.rules["KVC01"]), str)
    [more] = [one.setting for one in advised if one.lever == "raise-kv-budget"]
    assert more is not None
    assert (more.now, more.to) == ("100", "334")  # 30 requests instead of 10, with 10 % spare
