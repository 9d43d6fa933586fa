"""Tail attribution against mixtures of which the answer is known because they were made so."""

import random
import sys
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.agent.records import encode
from kvitals.agent.requests import slow_tail_families
from kvitals.agent.requests.columns import join_blocks, lay_out
from kvitals.agent.requests.observation import PHASES, PartsRecord
from kvitals.agent.requests.record import RequestPhase, RequestRecord
from kvitals.agent.requests.slow_tail import (
    MIN_BULK,
    MIN_TAIL,
    Recent,
    TailReport,
    prompt_class,
    spent,
)
from kvitals.agent.requests.slow_tail_families import Tails, families
from kvitals.rules.loader import family_of, load
from kvitals.series.promql import evaluate
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp
from kvitals.series.window import Window
from tests.unit.requests.parts import llm, tap
from tests.unit.requests.test_request_pipeline import T, node, page

START, END = 1_000.0, 2_000.0


def request(
    number: int,
    at: float = 1_100.0,
    *,
    engine: str = "a",
    tenant: str = "",
    prompt: int | None = 100,
    output: int | None = 10,
    cached: int | None = None,
    itl_max: float | None = None,
    unknown: Sequence[str] = (),
    placed: bool = True,
    **seconds: float,
) -> RequestRecord:
    """A request that began at `at`, with phases one after the other; what is `unknown` took as long and is not told."""
    phases, when = [], at
    for name in (*PHASES, "unattributed"):
        if name in seconds:
            hidden = name in unknown
            told = None if hidden else seconds[name]
            phases.append(
                RequestPhase(name, told, "unknown" if hidden else "measured", when if placed and not hidden else None)
            )
            when += seconds[name]
    return RequestRecord(
        id=f"r{number}",
        start=at,
        end=when,
        complete=True,
        engines={"unified": engine} if engine else {},
        tenant=tenant,
        phases=tuple(phases),
        ttft=when - at - seconds.get("decode", 0.0),
        e2e=when - at,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        itl_max=itl_max,
        status=200,
    )


def mixture(fast: int = 40, slow: int = 6, **slow_seconds: float) -> list[RequestRecord]:
    """Some alike and some with longer phases, which miss an objective of 1 s."""
    usual = {"queue": 0.01, "prefill": 0.1, "decode": 0.5}
    found = [request(i, 1_200 + i, **usual) for i in range(fast)]
    return found + [request(fast + i, 1_300 + 20 * i, **(usual | slow_seconds)) for i in range(slow)]


def explained(records: Sequence[RequestRecord]) -> TailReport:
    return Recent(records, START, END).explain(objective=lambda _: 1.0)


def shares(report: TailReport) -> dict[str, float | None]:
    return {phase.name: phase.share for phase in report.phases}


def test_the_phase_that_was_made_longer_explains_the_tail() -> None:
    report = explained(mixture(queue=4.01, prefill=1.1))
    assert report.why_unknown == ""
    assert (report.tail, report.bulk, report.by, report.threshold) == (6, 40, "objective", 1.0)
    assert shares(report) == pytest.approx({"queue": 0.8, "prefill": 0.2, "unattributed": 0.0})
    assert [p.name for p in report.phases] == ["queue", "prefill", "unattributed"]
    assert report.dominant is not None and report.dominant.seconds == pytest.approx(4.0)
    assert "80 % of the difference is queue, 20 % prefill." in report.sentence
    assert "The slowest 6 of 46 requests took 5.11 s to the first token on average, 5 s more" in report.sentence


def test_decode_is_of_the_end_and_not_of_the_first_token() -> None:
    slow = mixture(decode=9.0, queue=2.01)
    assert set(shares(explained(slow))) == {"queue", "prefill", "unattributed"}
    report = Recent(mixture(94, 6, decode=9.0, queue=2.01), START, END).explain("e2e")
    assert report.why_unknown == "" and report.by == "p95" and report.tail == 6
    assert shares(report) == pytest.approx({"decode": 8.5 / 10.5, "queue": 2 / 10.5, "prefill": 0, "unattributed": 0})


def test_what_no_phase_tells_is_unattributed() -> None:
    assert shares(explained(mixture(unattributed=2.0)))["unattributed"] == pytest.approx(1.0)
    report = explained([msgspec.structs.replace(r, phases=()) for r in mixture(queue=3.0)])
    told = {name: share for name, share in shares(report).items() if share is not None}
    assert told == {"unattributed": pytest.approx(1.0)}
    assert "100 % of the difference is time in no reported phase" in report.sentence


def test_an_unknown_phase_is_not_0() -> None:
    usual = {"queue": 0.01, "prefill": 0.1, "decode": 0.5}
    fast = [request(i, 1_100 + i, **usual) for i in range(40)]
    slow = [
        request(50 + i, 1_300 + i, unknown=["queue"] if i < 2 else [], queue=4.01, prefill=0.1, decode=0.5)
        for i in range(8)
    ]
    report = explained(fast + slow)
    queue = next(p for p in report.phases if p.name == "queue")
    assert queue.known == 0.75
    assert shares(report) == pytest.approx({"queue": 0.75, "prefill": 0.0, "unattributed": 0.25})
    hidden = [request(50 + i, 1_300 + i, unknown=["queue"], queue=4.01, prefill=0.1, decode=0.5) for i in range(8)]
    report = explained(fast + hidden)
    assert shares(report) == {"queue": None, "prefill": pytest.approx(0.0), "unattributed": pytest.approx(1.0)}
    assert report.dominant is not None and report.dominant.name == "unattributed"


def test_a_phase_that_was_shorter_in_the_tail_is_below_0() -> None:
    report = explained(mixture(queue=4.09, prefill=0.02))
    assert shares(report) == pytest.approx({"queue": 4.08 / 4.0, "prefill": -0.02, "unattributed": 0.0})


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "no request has a reported time"),
        (mixture(40, 4, queue=4.0), "too few"),
        (mixture(10, 4, queue=4.0), "too few"),
        (mixture(200, 0), "0 slow"),
    ],
)
def test_where_there_is_too_little_it_is_unknown(records: list[RequestRecord], why: str) -> None:
    report = explained(records)
    assert why in report.why_unknown
    assert report.phases == () and report.tail_mean is None
    assert report.sentence.startswith("The cause of slow TTFT is unknown: ")
    assert families(report, {}, "node") == {}


def test_more_than_half_above_the_objective_is_no_tail() -> None:
    slow = [request(i, 1_100 + i / 10, queue=2.0 + i / 1000, prefill=0.1) for i in range(200)]
    report = explained(slow)
    assert (report.by, report.tail) == ("p95", 10)


def test_the_objective_is_none_of_the_time_from_end_to_end() -> None:
    slow = [request(i, 1_100 + i / 10, queue=0.01, prefill=0.1, decode=5.0 + i / 1000) for i in range(200)]
    report = Recent(slow, START, END).explain("e2e", lambda record: 5.25)
    assert (report.by, report.tail) == ("p95", 10)


def test_only_requests_of_the_window_count() -> None:
    early = [request(1_000 + i, 100.0, queue=50.0, prefill=0.1) for i in range(30)]
    assert explained(mixture(queue=4.0) + early).requests == 46


def test_a_request_without_a_first_token_is_said() -> None:
    gone = [msgspec.structs.replace(request(900 + i, queue=9.0), ttft=None, aborted=True) for i in range(3)]
    report = explained(mixture(queue=4.0) + gone)
    assert (report.requests, report.without) == (46, 3)


def test_who_they_are() -> None:
    usual = {"queue": 0.01, "prefill": 0.1, "decode": 0.5}
    fast = [
        request(i, 1_100 + i, tenant=f"t-{i % 4}", engine="ab"[i % 2], prompt=100, cached=90, **usual)
        for i in range(36)
    ]
    slow = [
        request(50 + i, 1_300 + i, tenant="t-long", engine="ab"[i % 2], prompt=6_000, cached=0, prefill=4.0)
        for i in range(6)
    ]
    report = explained(fast + slow)
    first = {group: values[0] for group, values in report.groups.items()}
    assert (first["tenant"].value, first["tenant"].tail, first["tenant"].all) == ("t-long", 6, 6)
    assert (first["tenant"].share, first["tenant"].lift) == (1.0, 7.0)
    assert (first["prompt_tokens"].value, first["prompt_tokens"].lift) == ("4097-8192", 7.0)
    assert (first["cached"].value, first["cached"].lift) == ("none", 7.0)
    assert first["engine"].lift == pytest.approx(1.0)
    assert "100 % of them are of tenant t-long, compared with 14 % of all requests." in report.sentence


def queued_behind(heavy: str = "t-heavy") -> list[RequestRecord]:
    """An engine with one slot: a heavy tenant's long requests, one after the other, each with a light one behind."""
    found, t = [], 1_100.0
    for i in range(8):
        found.append(request(100 + i, t, tenant=heavy, prompt=900, output=100, prefill=1.0, decode=4.0))
        found.append(request(200 + i, t, tenant="t-light", queue=5.0, prefill=0.01, decode=0.1))
        t += 6.0
    fast = (request(300 + i, 1_500.0 + i, tenant="t-light", prefill=0.01, decode=0.1) for i in range(60))
    return [*found, *fast]


def test_whom_they_waited_behind() -> None:
    report = explained(queued_behind())
    assert report.dominant is not None and report.dominant.name == "queue"
    behind = report.behind
    assert behind is not None and behind.measure == "token_seconds"
    assert behind.occupants[0].tenant == "t-heavy"
    assert behind.occupants[0].share == pytest.approx(1.0, abs=0.01)
    assert (behind.own, behind.waiting, behind.unplaced) == (pytest.approx(0.0, abs=0.01), 8, 0)
    assert "queued behind tenant t-heavy, 100 % of the occupied time" in report.sentence


def test_behind_ones_own() -> None:
    behind = explained(queued_behind("t-light")).behind
    assert behind is not None and behind.own == pytest.approx(1.0)


def test_another_engine_does_not_stand_in_front() -> None:
    elsewhere = [
        msgspec.structs.replace(r, engines={"unified": "b"}) if r.tenant == "t-heavy" else r for r in queued_behind()
    ]
    report = explained(elsewhere)
    assert report.behind is None and "still run" in report.why_not_behind


def test_without_tokens_time_counts_and_without_starts_nothing_does() -> None:
    behind = explained([msgspec.structs.replace(r, output_tokens=None) for r in queued_behind()]).behind
    assert behind is not None and behind.measure == "request_seconds"
    assert behind.occupants[0].amount == pytest.approx(8 * 5.0)
    unplaced = [
        msgspec.structs.replace(r, phases=tuple(msgspec.structs.replace(p, start=None) for p in r.phases))
        for r in queued_behind()
    ]
    report = explained(unplaced)
    assert report.behind is None and "is unknown" in report.why_not_behind


def test_transfer_that_hides_in_the_queue_is_said() -> None:
    records = [
        msgspec.structs.replace(
            r,
            engines={"prefill": "p", "decode": "d"},
            phases=(*r.phases[:2], RequestPhase("transfer", None, "unknown"), *r.phases[2:]),
        )
        for r in mixture(queue=4.0)
    ]
    report = explained(records)
    assert report.queue_has_transfer and report.behind is None
    assert "may include KV transfer" in report.sentence


def test_the_worst_are_the_evidence() -> None:
    records = mixture(queue=4.0)
    records.append(request(999, 1_700.0, queue=30.0, prefill=0.1))
    report = explained(records)
    assert len(report.worst) == 5 and report.worst[0].id == "r999"
    said = msgspec.json.decode(msgspec.json.encode(report))
    assert said["worst"][0]["phases"][0]["name"] == "queue"
    assert msgspec.json.decode(msgspec.json.encode(report), type=TailReport) == report


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (None, "unknown"), (-1, "unknown"), (0, "0-1"), (1, "0-1"), (2, "2-2"), (512, "257-512"), (513, "513-1024"),
        (2**30, "over 16777216"),
    ],
)  # fmt: skip
def test_classes_of_prompts(tokens: int | None, name: str) -> None:
    assert prompt_class(tokens) == name


@pytest.mark.parametrize(
    ("cached", "prompt", "name"),
    [(None, 10, "unknown"), (5, None, "unknown"), (5, 0, "unknown"), (0, 10, "none"), (4, 10, "part"), (5, 10, "most")],
)
def test_classes_of_cache_hits(cached: int | None, prompt: int | None, name: str) -> None:
    others = [request(i, 1_200 + i, cached=cached, prompt=prompt, queue=0.01 * (i > 39)) for i in range(50)]
    (group,) = Recent(others, START, END).explain().groups["cached"]
    assert (group.value, group.all) == (name, 50)


def test_of_the_gateway_only_what_fits_before_the_first_token_counts() -> None:
    """The phases tell 3 s of gateway, most of it behind the first token, which came after 1 s."""
    one = msgspec.structs.replace(request(1, gateway=3.0, queue=0.2, prefill=0.5, decode=4.0), ttft=1.0)
    laid_out = join_blocks([lay_out([one])])
    assert list(spent(laid_out, laid_out.of("ttft"), "ttft")[0]) == pytest.approx([0.3, 0.2, 0.0, 0.5, 0.0, 0.0])
    assert list(spent(laid_out, laid_out.of("e2e"), "e2e")[0]) == pytest.approx([3.0, 0.2, 0.0, 0.5, 0.0, 4.0])


SECONDS = st.floats(0.0, 100.0, allow_nan=False)
PHASE = st.dictionaries(st.sampled_from([*PHASES, "unattributed"]), SECONDS, max_size=7)
REQUEST = st.tuples(
    PHASE, st.sets(st.sampled_from(PHASES), max_size=3), st.sampled_from(["", "t-1", "t-2"]), st.booleans()
)


def made(drawn: Sequence[tuple[dict[str, float], set[str], str, bool]]) -> list[RequestRecord]:
    return [
        request(i, 1_000.0 + i, tenant=tenant, placed=placed, unknown=sorted(unknown), **seconds)
        for i, (seconds, unknown, tenant, placed) in enumerate(drawn)
    ]


@given(st.lists(REQUEST, min_size=30, max_size=60), st.floats(0.0, 200.0), st.sampled_from(["ttft", "e2e"]))
@settings(max_examples=60, deadline=None)
def test_shares_add_up(drawn: list[tuple[dict[str, float], set[str], str, bool]], goal: float, of: str) -> None:
    report = Recent(made(drawn), 0.0, 1e9).explain(of, lambda _: goal)  # type: ignore[arg-type]
    if report.why_unknown:
        return
    assert report.tail >= MIN_TAIL and report.bulk >= MIN_BULK
    assert report.tail_mean is not None and report.bulk_mean is not None
    excess = report.tail_mean - report.bulk_mean
    assert excess > 0
    assert sum(p.seconds for p in report.phases if p.seconds is not None) == pytest.approx(excess, abs=1e-6)
    if excess > 1e-6:
        assert sum(p.share for p in report.phases if p.share is not None) == pytest.approx(1.0, abs=1e-5)
    for values in report.groups.values():
        assert sum(one.tail for one in values) <= report.tail
        assert all(0 < one.tail <= one.all for one in values)
    if report.behind is not None:
        assert sum(one.share for one in report.behind.occupants) == pytest.approx(1.0)


@given(st.lists(REQUEST, min_size=30, max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_does_not_matter(
    drawn: list[tuple[dict[str, float], set[str], str, bool]], shuffler: random.Random
) -> None:
    records = made(drawn)
    before = Recent(records, 0.0, 1e9).explain(objective=lambda _: 10.0)
    shuffler.shuffle(records)
    assert Recent(records, 0.0, 1e9).explain(objective=lambda _: 10.0) == before


def test_long_gaps_beside_prefills() -> None:
    """Ten requests decode while a long prompt is in prefill, and have long gaps; the others decode alone."""
    alone = [request(i, 1_100 + 3 * i, prefill=0.01, decode=1.0, itl_max=0.02) for i in range(95)]
    beside, prompts = [], []
    for i in range(5):
        at = 1_500.0 + 10 * i
        prompts.append(request(300 + i, at + 0.5, prefill=1.0, decode=0.1))
        beside.append(request(200 + i, at, prefill=0.01, decode=2.0, itl_max=0.9))
    found = Recent(alone + beside + prompts, START, END).prefills_beside()
    assert found is not None and found.requests == 5
    assert found.tail == pytest.approx(0.5, abs=0.01)
    assert found.bulk == pytest.approx(0.0, abs=0.01)
    assert Recent(beside, START, END).prefills_beside() is None
    assert Recent([], START, END).prefills_beside() is None


def test_families_are_known_and_hold_what_the_report_says() -> None:
    known = load().families
    report = explained(queued_behind())
    series = families(report, {"engine": "a"}, "engine")
    for labels in series:
        family = family_of(labels.name, known)
        assert family is not None
        assert set(labels) - {METRIC_NAME, "engine"} <= set(known[family].labels)
    said = {(labels.name, labels.get("phase", labels.get("tenant", ""))): value for labels, value in series.items()}
    assert said["kvitals_tail_phase_share", "queue"] == pytest.approx(1.0, abs=0.01)
    assert said["kvitals_tail_behind_share", "t-heavy"] == pytest.approx(1.0, abs=0.01)


def test_tenants_beyond_those_with_series_are_other() -> None:
    report = explained(queued_behind())
    tenants = {labels.get("tenant") for labels in families(report, {}, "node", lambda _: "other")} - {None}
    assert tenants == {"other"}


def test_tails_of_engines_pools_and_the_node() -> None:
    window = Window(3600.0, 10_000)
    tails = Tails(window, {"node": "n"}, lambda e: {"node": "n", "pool": "p"} if e in "ab" else None, lambda _: 1.0)
    records = mixture(queue=4.0)
    for record in [*records, *(msgspec.structs.replace(r, engines={"unified": "x"}) for r in records)]:
        tails.add(record)
    tails.advance(1_500.0)
    scopes = {(r.over["scope"], r.over.get("engine", "")) for r in tails.reports}
    assert scopes == {("engine", "a"), ("pool", ""), ("node", "")}
    assert {r.requests for r in tails.reports if r.over["scope"] == "node"} == {92}
    tails.advance(1_501.0)
    assert tails.reports  # it was not time
    now = [Matcher(METRIC_NAME, MatchOp.EQ, "kvitals_tail_phase_share")]
    assert sum(len(frame.labels) for frame in window.select(now, 1_499.0, 1_501.0)) == 3 * (3 + 4)
    tails.advance(2_540.0)
    assert tails.reports == []
    ended = window.select(now, 2_539.0, 2_541.0)
    assert all((frame.values[-1] != frame.values[-1]).all() for frame in ended)


def test_a_look_at_many_requests_is_made_in_steps_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    records = mixture(30, 30, queue=4.0)
    monkeypatch.setattr(slow_tail_families, "CHUNK", 10)
    monkeypatch.setattr(slow_tail_families, "STEP", 20)
    tails = Tails(Window(3600.0, 10_000), {"node": "n"}, lambda _: {"node": "n"})
    for record in records:
        tails.add(record)
    tails.advance(END)
    assert tails.reports == []
    tails.add(request(99, 1_999.5, queue=60.0))  # it came after the look began, so it is of the next one
    for _ in range(8):
        tails.advance(END + 1.0)
    start = END - slow_tail_families.WINDOW_SECONDS
    expected = Recent(records, start, END).explain("ttft", over={"node": "n", "scope": "node"})
    (found,) = (report for report in tails.reports if report.of == "ttft" and report.over["scope"] == "node")
    assert found == expected and found.requests > 0


def test_a_report_states_when_its_first_and_last_requests_ended() -> None:
    tails = Tails(Window(3600.0, 10_000), {"node": "n"}, lambda _: {"node": "n"})
    records = mixture(queue=4.0)
    for record in records:
        tails.add(record)
    tails.flush(max(record.end for record in records) + 1.0)
    ends = [record.end for record in records]
    assert {(report.start, report.end) for report in tails.reports} == {(min(ends), max(ends))}


def test_of_many_requests_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_tail_families, "MAX_RECORDS", 100)
    monkeypatch.setattr(slow_tail_families, "CHUNK", 40)
    tails = Tails(Window(3600.0, 10_000), {"node": "n"}, lambda _: None)
    for i in range(300):
        tails.add(request(i, 1_000.0 + i, queue=1.0))
        tails.advance(1_000.0 + i)
    tails.advance(1_400.0)
    (report, _) = tails.reports
    assert 100 <= report.requests < 140
    tails.advance(3_000.0)
    assert tails.reports == []


def test_between_two_looks_no_more_are_kept_than_the_next_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_tail_families, "MAX_RECORDS", 100)
    monkeypatch.setattr(slow_tail_families, "CHUNK", 10)
    tails = Tails(Window(3600.0, 10_000), {"node": "n"}, lambda _: None)
    records = [request(i, 1_000.0 + i, queue=1.0) for i in range(300)]
    mine = sys.getrefcount(records[0])
    kept = []
    for i, record in enumerate(records):
        tails.add(record)
        tails.advance(1_000.0 + i)
        kept.append(sum(sys.getrefcount(records[n]) > mine for n in range(i + 1)))
    assert max(kept[:100]) == 100 and all(100 <= count < 110 for count in kept[100:])


def test_a_node_explains_the_tail_of_its_engines() -> None:
    """From parts to families, with the objective that the configuration has for the engine."""
    made, key = node()
    slow = {"queue": 4.0, "prefill": 0.2, "decode": 0.1}
    for n in range(60):
        if n % 5 == 0:
            made.ingest_recorded(page(key, T + n))
        engine = {"phases": slow, "ttft": 4.3, "start": T + n - 4.5} if n % 10 == 9 else {}
        outer = {"ttft": 4.3, "start": T + n - 4.51} if engine else {}
        parts = (tap(n, T + n, engine="127.0.0.1:8000", **outer), llm(n, T + n, engine="", **engine))
        made.ingest_recorded(encode(PartsRecord(t=T + n, source="tap", parts=parts)))
    for after in (70, 101):
        made.ingest_recorded(page(key, T + after))
    (report,) = (r for r in made.requests.tails.reports if r.over["scope"] == "engine" and r.of == "ttft")
    assert (report.by, report.threshold, report.tail) == ("objective", 2.0, 6)
    assert report.over["engine"] == "127.0.0.1:8000/0"
    assert report.dominant is not None and report.dominant.name == "queue"
    found = evaluate('kvitals_tail_phase_share{scope="engine",of="ttft",phase="queue"}', made.window, T + 101)
    assert not isinstance(found, float)
    assert [(labels["engine"], value) for labels, value in found] == [
        ("127.0.0.1:8000/0", pytest.approx(0.97, abs=0.05))
    ]
    signal = load().signals["tail_queue_share"]
    assert signal.samples is not None and signal.samples.min == MIN_TAIL
