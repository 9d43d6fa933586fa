"""Which engine an alert is about and which finding it gets, by the labels that each platform writes."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.identity import KnownEngine, known_engine, resolve
from kvitals.app.notify import diagnosis
from kvitals.app.notify.diagnosis import NOT_OF_ENGINES, OfAgent, OfFleet, PrometheusAccess, engines_of_agent
from kvitals.app.notify.finding_match import diagnosis_request, is_about_engines, lead
from kvitals.app.notify.incident_tracker import Rules, settle
from kvitals.app.notify.incoming import Alert
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.recording import RecordingVerdict, judge_recording
from kvitals.config import Config, NodeLabels
from kvitals.rules.finding import Entity, Finding, Triage
from kvitals.rules.loader import load
from tests.support.recordings import judge, setup
from tests.unit.notify.notify_stage import AT, ENGINE, alert, diagnosing, message

NAMED = known_engine({"engine": "chat-a", "pool": "chat"}, {"http://127.0.0.1:29600/metrics", "127.0.0.1:29600"})
POD = known_engine({"engine": "serving/dyn-0", "pool": "dyn", "node": "n1"}, {"10.1.0.7:8000"})
RAW = known_engine({"engine": "10.0.0.1:8000/0", "pool": "pd"}, {"10.0.0.1:8000", "serving/pd-0"})
RANKS = [known_engine({"engine": f"10.0.0.2:8000/{rank}", "pool": "pd"}) for rank in (0, 1)]
ALL = [NAMED, POD, RAW, *RANKS]


@pytest.mark.parametrize(
    ("platform", "labels", "expected"),
    [
        ("our alert", {"engine": "chat-a"}, [NAMED]),
        ("our alert with external labels", {"engine": "chat-a", "cluster": "eu"}, [NAMED]),
        ("a static target", {"instance": "127.0.0.1:29600", "job": "vllm"}, [NAMED]),
        ("a blackbox probe", {"target": "http://127.0.0.1:29600/metrics", "instance": "probe:9115"}, [NAMED]),
        ("a URL as instance", {"instance": "http://127.0.0.1:29600"}, [NAMED]),
        ("a PodMonitor", {"namespace": "serving", "pod": "pd-0", "instance": "10.0.0.1:8000"}, [RAW]),
        ("kube-state-metrics", {"namespace": "serving", "pod": "dyn-0", "instance": "10.9.9.9:8080"}, [POD]),
        ("a pod without its namespace", {"pod": "dyn-0"}, [POD]),
        ("namespace/pod as instance", {"instance": "serving/dyn-0"}, [POD]),
        ("one rank", {"engine": "10.0.0.2:8000/1"}, [RANKS[1]]),
        ("all ranks of a page", {"instance": "10.0.0.2:8000"}, RANKS),
        ("a pool", {"pool": "dyn"}, [POD]),
        ("an engine of another pool", {"engine": "chat-a", "pool": "dyn"}, []),
        ("an engine that is not known", {"instance": "10.7.7.7:8000"}, []),
        ("another namespace", {"namespace": "test", "pod": "nobody"}, []),
        ("a pod of the same name in another namespace", {"namespace": "test", "pod": "dyn-0"}, []),
        ("the same, known by its address", {"namespace": "test", "pod": "pd-0"}, []),
    ],
)
def test_an_alert_names_its_engine(platform: str, labels: dict[str, str], expected: list[KnownEngine]) -> None:
    assert list(resolve(labels, ALL).engines) == expected, platform


@cache
def demo() -> RecordingVerdict:
    return judge(HEAVY_TENANT, setup())


def of_pool(finding: Finding, pool: str) -> Finding:
    return msgspec.structs.replace(finding, entity=Entity("pool", {"pool": pool}, pool), explains=["LAT01"])


@pytest.mark.parametrize(
    ("labels", "pool"),
    [
        ({"engine": "chat-a"}, ""),
        ({"engine": "serving/dyn-0"}, ""),
        ({"instance": "127.0.0.1:29600"}, ""),
        ({"instance": "10.0.0.1:8000"}, "pd"),
        ({"engine": "10.0.0.1:8000/0"}, "pd"),
        ({"pool": "pd"}, "pd"),
        ({"pool": "chat"}, ""),
        ({}, ""),
    ],
)
def test_a_finding_of_a_pool_is_only_for_alerts_of_that_pool(
    labels: dict[str, str], pool: str, full_cache: Triage
) -> None:
    cause = of_pool(full_cache.causes[0], "pd")
    document = msgspec.structs.replace(full_cache, causes=[cause], symptoms=[], telemetry=[], notes=[])
    fired = Alert("firing", {"alertname": "HighTTFT", "severity": "critical", **labels})
    found = lead(document, diagnosis_request([fired], fired.entity, AT), ALL)
    assert (found.entity.labels["pool"] if found else "") == pool


def test_a_cause_on_the_engine_comes_before_one_on_its_pool(full_cache: Triage) -> None:
    """Two full engines of eight make the load of their pool uneven: the first cause is the engines'."""
    own, engines = full_cache.causes[0], [known_engine({"engine": ENGINE, "pool": "pd"})]
    uneven = msgspec.structs.replace(of_pool(own, "pd"), code="SCH13")
    document = msgspec.structs.replace(full_cache, causes=[uneven, own], symptoms=[], telemetry=[], notes=[])
    found = lead(document, diagnosis_request([alert()], alert().entity, AT), engines)
    of_the_pool = lead(document, diagnosis_request([alert()], {"pool": "pd"}, AT), engines)
    assert (found and found.code, of_the_pool and of_the_pool.code) == (own.code, "SCH13")


def test_a_cause_comes_before_one_that_leaves_open_why(full_cache: Triage) -> None:
    own = full_cache.causes[0]
    slower = msgspec.structs.replace(own, code="ENG10")
    document = msgspec.structs.replace(full_cache, causes=[slower, own], symptoms=[], telemetry=[], notes=[])
    request = diagnosis_request([alert()], alert().entity, AT)
    chosen = [lead(document, request, (), partial) for partial in ((), ("ENG10",))]
    assert [found.code for found in chosen if found] == ["ENG10", own.code]


@pytest.mark.parametrize("kind", ["", "symptom", "Latency"])
def test_an_alert_without_our_kind_gets_the_first_cause(kind: str, full_cache: Triage) -> None:
    fired = alert("GPU07", kind=kind)
    found = lead(full_cache, diagnosis_request([fired], fired.entity, AT))
    assert found is not None and found.code == "KVC01"


@pytest.mark.parametrize(("code", "ours"), [("500", ""), ("KVC01", "KVC01"), ("E42", "")])
def test_a_code_of_others_is_no_rule_of_ours(code: str, ours: str) -> None:
    assert Alert("firing", {"alertname": "ApiServer5xx", "code": code}).code == ours
    assert Alert("firing", {"code": code, "kvitals_code": "LAT01"}).code == "LAT01"


def test_an_agent_knows_its_engines_by_name_and_address() -> None:
    judged = demo()
    (engine,) = engines_of_agent(judged.pipeline, judged.document.window.end)
    assert engine.engine == ENGINE
    assert {"127.0.0.1:8201", "http://127.0.0.1:8201/metrics"} & engine.names
    targets = [{"url": "http://127.0.0.1:8201", "name": "chat-a"}]
    (renamed,) = engines_of_agent(judged.pipeline, judged.document.window.end, targets)
    assert "chat-a" in renamed.names


async def test_what_an_agent_does_not_watch_says_whose_it_is() -> None:
    judged = demo()
    of_agent = OfAgent(judged.pipeline, lambda: AT, history=False)
    fired = Alert("firing", {"alertname": "HighTTFT", "instance": "10.7.7.7:8000"})
    diagnosis = await of_agent(diagnosis_request([fired], fired.entity, AT))
    assert diagnosis.how.startswith("not diagnosed: this agent does not watch instance 10.7.7.7:8000")
    known = Alert("firing", {"alertname": "HighTTFT", "instance": "127.0.0.1:8201"})
    assert (await of_agent(diagnosis_request([known], known.entity, AT))).lead is not None


async def test_a_document_over_too_little_history_does_not_contradict_an_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = demo()
    assert judged.pipeline.span is not None
    pipeline = judged.pipeline
    window = msgspec.structs.replace(judged.document.window, cold=True, seconds=10.0)
    document = msgspec.structs.replace(judged.document, causes=[], symptoms=[], window=window)
    monkeypatch.setattr(pipeline, "_document", document)
    diagnosis = await OfAgent(pipeline, lambda: AT, history=False)(diagnosis_request([alert()], alert().entity, AT))
    assert diagnosis.document is None
    assert diagnosis.how == "not diagnosed yet: kvitals has watched only 10 s, which is too little"


def test_a_replayed_agent_has_the_configured_labels() -> None:
    config = Config(labels=NodeLabels(cluster="eu", node="gpu-7"))
    pipeline = judge_recording(HEAVY_TENANT, Setup(load(), config)).pipeline
    assert isinstance(pipeline, Pipeline) and pipeline.span is not None
    (engine,) = engines_of_agent(pipeline, pipeline.span.at)
    assert engine.place == {"cluster": "eu", "node": "gpu-7"}


OWN = {"alertname": "TTFTHigh", "severity": "critical"}
QUERY = (
    "http://prometheus:9090/graph?g0.expr=histogram_quantile%280.99%2C+rate%28vllm%3Atime_to_first_token_seconds_bucket"
)


@pytest.mark.parametrize(
    ("labels", "url", "expected"),
    [
        ({"job": "apiserver", "code": "500"}, "http://prometheus:9090/graph?g0.expr=apiserver_request_total", False),
        ({"alertname": "Watchdog", "severity": "none"}, "http://prometheus:9090/graph?g0.expr=vector%281%29", False),
        ({"namespace": "kube-system", "deployment": "coredns"}, "", False),
        ({"cluster": "eu"}, "", False),
        (OWN, QUERY, True),
        (OWN, "http://prometheus:9090/graph?g0.expr=job%3Avllm%3Attft", True),
        ({"kvitals_code": "LAT01"}, "", True),
        ({"pool": "chat"}, "", True),
        ({"node": "n1"}, "", True),
        ({"namespace": "serving", "pod": "dyn-0"}, "", True),
        ({"instance": "10.0.0.1:8000"}, "", True),
    ],
)
async def test_what_names_no_engine_and_reads_none_is_not_diagnosed(
    labels: dict[str, str], url: str, *, expected: bool
) -> None:
    """An alert of the API server of Kubernetes had the title "KV cache full"."""
    fired = Alert("firing", labels, url=url)
    about = diagnosis_request([fired], fired.entity, AT)
    assert is_about_engines(about) is expected
    if not expected:
        found = await OfFleet(PrometheusAccess("http://127.0.0.1:1"), setup())(about)
        assert (found.how, found.lead, found.document) == (NOT_OF_ENGINES, None, None)


@pytest.mark.parametrize(("code", "title"), [("", "Certificate expires: {}"), ("LAT01", "{}")])
async def test_an_alert_of_others_keeps_its_title(code: str, title: str, full_cache: Triage) -> None:
    said = {"summary": "Certificate expires"}
    fired = Alert("firing", {"alertname": "CertExpires", "engine": ENGINE, "kvitals_code": code}, said)
    first = await settle(message(fired), AT, (), diagnosing(full_cache), Rules(3600.0))
    assert [one.title for one in first.notices] == [title.format(full_cache.causes[0].title)]
    resolved = msgspec.structs.replace(fired, status="resolved")
    last = await settle(message(resolved), AT, list(first.incidents.values()), diagnosing(full_cache), Rules(3600.0))
    assert [one.title for one in last.notices] == [title.format(full_cache.causes[0].title)]


EU, US = (
    known_engine({"engine": ENGINE, "node": "n1", "cluster": cluster}, {"serving/chat-b"}) for cluster in ("eu", "us")
)


@pytest.mark.parametrize(
    ("labels", "alike"),
    [
        ({"namespace": "serving", "pod": "chat-b"}, [EU, US]),
        ({"engine": ENGINE}, [EU, US]),
        ({"engine": ENGINE, "cluster": "us"}, []),
        ({"node": "n1"}, []),
    ],
)
def test_engines_of_one_name_in_two_clusters_are_alike(labels: dict[str, str], alike: list[KnownEngine]) -> None:
    assert list(resolve(labels, [EU, US]).alike) == alike


def test_ranks_and_programs_of_one_place_are_not_alike() -> None:
    assert not resolve({"instance": "10.0.0.2:8000"}, ALL).alike
    assert not resolve({"pod": "x"}, [known_engine({"engine": name, "node": "n"}, {"s/x"}) for name in "ab"]).alike


def test_an_alert_that_means_one_of_two_engines_gets_no_diagnosis(full_cache: Triage) -> None:
    """It got the cause of either cluster in turn, with high confidence."""
    about = diagnosis_request([alert()], {"engine": ENGINE}, AT)
    found = diagnosis._diagnosis("judged", full_cache, about, [EU, US], load(), elsewhere="")
    assert found.lead is None
    both = " · ".join((f"engine {ENGINE}", "node n1"))
    assert found.how == (
        f"not diagnosed: 2 engines match its labels ({both} · cluster eu, {both} · cluster us). "
        "Add the label `cluster` or `node` to the alert"
    )
    assert diagnosis._diagnosis("judged", full_cache, about, [EU], load(), elsewhere="").lead is not None


def test_what_is_for_information_is_no_answer_to_an_alert_of_others(full_cache: Triage) -> None:
    """ "queue of chat-b is 24: Low hit rate" stood above a message, with high confidence."""
    low = msgspec.structs.replace(full_cache.causes[0], code="PFX01", kind="symptom", severity="info", explains=[])
    document = msgspec.structs.replace(full_cache, causes=[], symptoms=[low], telemetry=[], notes=[])
    for fired, found in ((alert("QUEUE", kind=""), None), (alert("LAT01"), None), (alert("PFX01"), low)):
        assert lead(document, diagnosis_request([fired], fired.entity, AT)) == found
