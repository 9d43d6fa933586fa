"""A recorded incident goes through the agent's own cycle onto the disk; who asks afterwards gets the answer of then: a
triage of a past moment, the API over window and history, and `kvitals history`."""

from __future__ import annotations

import asyncio
import io
import json
import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.history import history_families
from kvitals.agent.history.new_requests import MOST, NewRequests, summaries
from kvitals.agent.requests.record import RequestPhase, RequestRecord
from kvitals.agent.requests.store import Store
from kvitals.app import history_work, node_changes
from kvitals.app.agent_client import AgentClient, AgentError
from kvitals.app.bounded_process import WorkLimits
from kvitals.app.demo import FOLDER
from kvitals.app.history_recorder import Keeping
from kvitals.app.notify import diagnosis
from kvitals.app.notify.finding_match import DiagnosisRequest
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.history import EngineLimit, judge_history
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.sources.recording_reader import RecordingError
from kvitals.config import Config, HistoryTable, Seconds
from kvitals.diagnoser.review.incidents import TOLD
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import load
from kvitals.series.history import event_log
from kvitals.series.history.new_rows import Tick
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.writer import HistoryStatus
from kvitals.series.promql import Vector, evaluate, evaluate_range, parse
from kvitals.series.recordings import CaptureReader
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window
from kvitals.ui.cli.main import main
from tests.goldens.terminal import WIDTHS, printed, too_wide
from tests.support.command import answer
from tests.unit.cli.test_commands import run
from tests.unit.history.history_stage import flip_in, until

INCIDENT = FOLDER / "heavy_tenant.kvcap"
KNOWLEDGE = load()


@dataclass
class Kept:
    directory: Path
    pipeline: Pipeline
    whole: Window  # all that there ever was of families
    keeping: Keeping
    times: list[float]
    verdicts: list[str]
    open: list[dict[str, float | None]]  # codes of trouble -> since when


def setup_in(directory: Path, window: float = 1800.0) -> Setup:
    config = Config(history=HistoryTable(directory=directory, min_free_bytes=0))
    agent = msgspec.structs.replace(config.agent, window=Seconds(window))
    return Setup(KNOWLEDGE, msgspec.structs.replace(config, agent=agent))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    directory = tmp_path_factory.mktemp("kept")
    pipeline = Pipeline(setup_in(directory), DocumentSource("agent", "test"))
    pipeline.node.window.retention = 60.0  # shorter than any that may be configured: the incident has two minutes
    whole = Pipeline(setup_in(directory), DocumentSource("capture", "whole"))
    keeping = Keeping(pipeline, lambda _: None)
    keeping.start("test")
    made = Kept(directory, pipeline, whole.node.window, keeping, [], [], [])
    with CaptureReader.open(INCIDENT) as reader:
        for one in (pipeline, whole):
            one.node.expect(reader.header.meta)
        records = list(reader)
    for due in pipeline.replay(records):
        pipeline.observe(due)
        made.times.append(due)
        made.verdicts.append(pipeline.verdict())
        told = (*pipeline.triage().causes, *pipeline.triage().symptoms)
        made.open.append({f.code: f.since for f in told if f.severity != "info"})
        keeping.cycle(due, {"reloadConfigSuccess": True, "lastConfigTime": str(len(made.times) // 10)})
        until(lambda: keeping._history.status.committed == made.times[-1], "not written")
    for record in records:
        whole.node.ingest_recorded(record)
    yield made
    keeping.close()


def test_the_agents_window_is_shorter_than_the_incident(kept: Kept) -> None:
    assert kept.pipeline.node.window.whole_since > kept.times[0] + 10


def test_a_past_moment_has_the_verdict_of_then(kept: Kept) -> None:
    at = kept.times[-1]
    then = judge_recording(INCIDENT, setup_in(kept.directory), Moments(at)).document
    now = judge_history(kept.directory / "history.db", setup_in(kept.directory), Moments(at)).document
    assert now.causes[0].code == then.causes[0].code == "KVC01"
    assert {f.code for f in now.symptoms} == {f.code for f in then.symptoms}
    assert now.verdict == then.verdict


def test_each_moment_has_the_findings_of_then(kept: Kept) -> None:
    """Since when a finding was so, was when the replay of the rows began to see it; a young history was judged as one
    window without history."""
    for at, then in zip(kept.times, kept.open, strict=True):
        if at - kept.times[0] < 15:
            continue
        document = judge_history(kept.directory / "history.db", setup_in(kept.directory), Moments(at)).document
        now = {f.code: f.since for f in (*document.causes, *document.symptoms) if f.severity != "info"}
        assert now == {code: pytest.approx(since, abs=0.01) for code, since in then.items()}
        assert document.coverage.warnings == []


def test_a_window_that_is_asked_for(kept: Kept) -> None:
    first, last = kept.times[0], kept.times[-1]
    judged = judge_history(kept.directory / "history.db", setup_in(kept.directory), Moments(last, first + 10))
    assert judged.document.window.seconds == pytest.approx(last - first - 10, abs=0.01)


def test_a_moment_after_the_last_row_is_not_healthy(kept: Kept) -> None:
    """It was judged by the rows before it, without a word: a dead agent's history said "No trouble found"."""
    path, last = kept.directory / "history.db", kept.times[-1]
    document = judge_history(path, setup_in(kept.directory), Moments(last + 60)).document
    (warning,) = document.coverage.warnings
    assert warning.startswith("history has no rows between 2026-11-21 05:2") and warning.endswith("no agent wrote any")
    assert judge_history(path, setup_in(kept.directory), Moments(last + 10)).document.coverage.warnings == []
    with pytest.raises(RecordingError, match=r"history has no data at .*: its newest rows are of"):
        judge_history(path, setup_in(kept.directory), Moments(last + 400))
    with pytest.raises(RecordingError, match=r"history has no data between .*: no agent wrote any"):
        judge_history(path, setup_in(kept.directory), Moments(last + 60, last + 20))
    assert document.window.end == pytest.approx(last, abs=0.01)  # "Last true" was a moment without rows


def test_a_moment_before_there_was_any(kept: Kept) -> None:
    with pytest.raises(RecordingError, match="begins at"):
        judge_history(kept.directory / "history.db", setup_in(kept.directory), Moments(kept.times[0] - 3600))


def test_a_triage_states_what_of_its_time_is_damaged(kept: Kept, tmp_path: Path) -> None:
    """It said that no agent ran."""
    path, setup = tmp_path / "history.db", setup_in(tmp_path)
    with kept.keeping.past.reading() as connection, sqlite3.connect(path) as copy:
        connection.backup(copy)
    copy.close()
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 1 << 10 | 6}")
    (warning,) = judge_history(path, setup, Moments()).document.coverage.warnings
    assert "6 rows between 20" in warning
    for block in (1, 2):
        flip_in(path, "ticks", "data", f"seq = {1 << 20 | block << 10}")
    with pytest.raises(RecordingError, match=r"no readable data at that time: .*damaged"):
        judge_history(path, setup, Moments())


def test_a_triage_states_that_the_newest_rows_are_lost(kept: Kept, tmp_path: Path) -> None:
    """What is judged ends where SQLite's log is gone: an incident after it was “No trouble found”."""
    for name in ("history.db", "history.newest"):
        shutil.copy(kept.directory / name, tmp_path / name)
    (warning,) = judge_history(tmp_path / "history.db", setup_in(tmp_path), Moments()).document.coverage.warnings
    assert "history: 1 part is damaged" in warning


@pytest.mark.parametrize("words", [("knee", "{}"), ("review", "{}", "--out", "{}/out")])
def test_what_reads_a_history_states_its_damage(kept: Kept, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "history.db"
    with kept.keeping.past.reading() as connection, sqlite3.connect(path) as copy:
        connection.backup(copy)
    copy.close()
    flip_in(path, "ticks", "data", f"seq = {1 << 20 | 1 << 10 | 6}")
    start, end = (datetime.fromtimestamp(t, UTC).isoformat() for t in (kept.times[0] - 1, kept.times[-1]))
    told = answer([word.format(tmp_path) for word in words] + [f"--from={start}", f"--to={end}"])
    assert "history: 1 part is damaged, 6 rows between" in " ".join(told.err.split())


@pytest.mark.parametrize("words", [("knee", "{}"), ("review", "{}", "--out", "{}/out")])
@pytest.mark.parametrize("asked", [(), ("--from={start}",), ("--from={start}", "--to={end}"), ("--from={end}",)])
def test_what_reads_a_history_states_that_the_newest_rows_are_lost(
    kept: Kept, tmp_path: Path, words: tuple[str, ...], asked: tuple[str, ...]
) -> None:
    """Also where none of the rows are of the time that is asked for, as of the last week before now."""
    for name in ("history.db", "history.newest"):
        shutil.copy(kept.directory / name, tmp_path / name)
    start, end = (datetime.fromtimestamp(t, UTC).isoformat() for t in (kept.times[0] - 1, kept.times[-1]))
    told = answer([word.format(tmp_path, start=start, end=end) for word in (*words, *asked)])
    assert "history: 1 part is damaged" in " ".join(told.err.split())


async def test_the_api_answers_without_a_seam(kept: Kept) -> None:
    app = build_app(
        ApiParts(
            kept.pipeline,
            KNOWLEDGE.families,
            findings=lambda: None,
            ready=lambda: True,
            past=kept.keeping.past,
            whole_since=kept.pipeline.whole_since,
            clock=lambda: kept.times[-1],
        )
    )
    start, end = kept.times[0], kept.times[-1]
    async with TestClient(TestServer(app)) as client:
        # Not of rates: the recording has a row a second, and history one in five.
        for query in ("kvitals_requests_running", "kvitals_ttft_seconds_count", "count(kvitals_target_up)"):
            asked = {"query": query, "start": start, "end": end, "step": 5}
            async with client.get("/api/v1/query_range", params=asked) as answer:
                told = (await answer.json())["data"]["result"]
            expected = evaluate_range(query, kept.whole, start, end, 5.0)
            assert [one["metric"] for one in told] == [dict(one.labels) for one in expected]
            for one, series in zip(told, expected, strict=True):
                assert [float(value) for _, value in one["values"]] == pytest.approx(series.values.tolist())
            assert len(told[0]["values"]) > 20
        async with client.get("/api/v1/query", params={"query": "kvitals:traffic", "time": start + 40}) as answer:
            assert (await answer.json())["data"]["result"]
        async with client.get("/api/v1/label/__name__/values", params={"start": start, "end": start + 20}) as answer:
            assert "kvitals_requests_running" in (await answer.json())["data"]


def served(kept: Kept) -> TestServer:
    """The API of an agent that has nothing but its history yet: what is in memory has more rows than are kept."""
    app = build_app(
        ApiParts(
            Window(60, 10),
            KNOWLEDGE.families,
            findings=lambda: None,
            ready=lambda: True,
            past=kept.keeping.past,
            whole_since=lambda _: math.inf,
            clock=lambda: kept.times[-1],
            notes=kept.keeping.past,
        )
    )
    return TestServer(app)


def reviewed(out: Path, source: str, end: float, start: float | None = None) -> tuple[dict[str, Any], str]:
    """The document of a review, and what it was printed to be. start: an hour before, where it is not given."""
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as stop:
        main(["review", source, f"--from={end - 3600 if start is None else start}", f"--to={end}", "--out", str(out)])
    assert stop.value.code == 0
    return json.loads((out / "review.json").read_bytes()), printed.getvalue()


async def test_a_review_by_url_says_what_one_of_the_directory_says(kept: Kept, tmp_path: Path) -> None:
    end = kept.times[-1]
    async with served(kept) as server:
        of_url, said = await asyncio.to_thread(reviewed, tmp_path / "url", str(server.make_url("/")), end)
    of_directory, told = reviewed(tmp_path / "directory", str(kept.directory), end)
    assert [row["code"] for row in of_url["incidents"]["rows"]][:1] == ["KVC01"]
    assert of_url["happened"]
    assert said == told
    for one in (of_url, of_directory):
        del one["made"], one["source"]
    assert of_url == of_directory


def test_a_review_of_a_longer_time_has_no_fewer_tokens(kept: Kept, tmp_path: Path) -> None:
    """Steps began at a multiple of their length: of 50 s, 24 were looked at; a chart without a full minute raised."""
    begin, end = kept.times[0] - 1, kept.times[-1]
    source, tokens, shares = str(kept.directory), [], []
    for start in (end - 33, end - 47, end - 64, end - 90, begin):
        document, _ = reviewed(tmp_path, source, end, start)
        tokens.append(document["total"]["output_tokens"])
        shares.append(document["coverage"]["seen_share"])
        assert {row["confidence"] for row in document["levers"]} <= {"low"}  # a minute is no sample of a week
    assert tokens[0] > 0 and all(longer > 0.9 * shorter for shorter, longer in pairwise(tokens))
    assert min(shares) >= 0.79


async def test_the_api_without_a_history_has_the_window(kept: Kept, tmp_path: Path) -> None:
    past = HistoryReader(tmp_path / "history.db")
    app = build_app(
        ApiParts(
            kept.pipeline,
            {},
            findings=lambda: None,
            ready=lambda: True,
            past=past,
            whole_since=kept.pipeline.whole_since,
        )
    )
    async with TestClient(TestServer(app)) as client:
        asked = {"query": "kvitals_target_up", "time": kept.times[-1]}
        async with client.get("/api/v1/query", params=asked) as answer:
            assert (await answer.json())["data"]["result"]
        async with client.get("/api/v1/series", params={"match[]": "kvitals_target_up"}) as answer:
            assert (await answer.json())["data"]


def test_how_it_fares_is_told(kept: Kept) -> None:
    found = evaluate("kvitals_history_state", kept.pipeline.node.window, kept.times[-1])
    assert isinstance(found, Vector)
    assert [(labels["state"], value) for labels, value in found] == [("ok", 1.0)]
    known = KNOWLEDGE.families
    full = HistoryStatus("failed", "disk_full", "", 1.0, 1.0, 2, 3, 0.1, {"disk_full": 4})
    assert {labels.name for labels in history_families.series(full, {})} == {
        n for n in known if n.startswith("kvitals_history_")
    }
    committed = evaluate("kvitals_history_committed_timestamp_seconds", kept.pipeline.node.window, kept.times[-1])
    assert isinstance(committed, Vector)
    assert committed.values[0] == kept.times[-2]  # what was on the disk when this cycle began


def test_findings_and_changes_are_noted(kept: Kept) -> None:
    with kept.keeping.past.reading() as connection:
        episodes = list(event_log.episodes(connection, kept.times[0], kept.times[-1]))
        events = list(event_log.events(connection, 0, 4e9))
    assert "KVC01" in {episode.code for episode in episodes}
    opened = next(episode for episode in episodes if episode.code == "KVC01")
    assert kept.times[0] < opened.start <= opened.end <= kept.times[-1]
    document = json.loads(opened.document)
    assert document["code"] == "KVC01"
    assert document["evidence"]
    assert {event.kind for event in events} == {"agent", "config", "target", TOLD}
    (told,) = [event for event in events if event.kind == TOLD and event.key == opened.key]
    assert opened.start < told.t <= opened.end  # the rule waits before it says so


@pytest.mark.parametrize("columns", WIDTHS)
def test_what_is_printed_of_a_history_fits(kept: Kept, tmp_path: Path, columns: int) -> None:
    place, end = str(kept.directory), kept.times[-1]
    match = ("--match", "kvitals_target_up", "--out", str(tmp_path / "up.csv"))
    commands = (
        ("history", "list", "--dir", place),
        ("history", "list", "--events", "--dir", place),
        ("history", "check", "--dir", place),
        ("history", "export", "--dir", place, *match),
        ("review", place, f"--from={end - 3600}", f"--to={end}", "--out", str(tmp_path / "review")),
    )
    for words in commands:
        assert too_wide(printed(words, columns), columns) == [], words


def test_the_command_lists_exports_and_judges(kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(kept.directory)
    code, out = run(capsys, "history", "list", "--json", "--dir", place)
    assert code == 0
    listed = json.loads(out)
    assert "kvitals_requests_running" in {family["name"] for family in listed["families"]}
    assert listed["findings"] >= 1
    code, out = run(capsys, "history", "list", "--events", "--dir", place)
    assert "KVC01" in out
    code, out = run(capsys, "history", "list", "--dir", place)
    assert "families: --json lists them" in out
    target = tmp_path / "up.csv"
    arguments = ("history", "export", "--dir", place, "--match", "kvitals_target_up", "--out", str(target))
    assert run(capsys, *arguments)[0] == 0
    assert len(target.read_text().splitlines()) > 20
    assert run(capsys, *arguments)[0] == 2  # it does not overwrite
    at = str(kept.times[-1])
    code, out = run(capsys, "triage", place, "--at", at)
    assert code == 1
    assert "KVC01" in out
    assert run(capsys, "history", "export", "--dir", place, "--match", "rate(a[1m])")[0] == 2
    assert run(capsys, "history", "export", "--dir", place, "--match", "nosuch")[0] == 1
    assert run(capsys, "history", "prune", "--dir", place)[0] == 2
    assert run(capsys, "history", "list", "--dir", str(tmp_path))[0] == 2
    assert run(capsys, "triage", "--at", "+5s", str(kept.directory))[0] == 2


def test_prune_while_the_agent_runs(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    before = kept.keeping.past.span()
    assert run(capsys, "history", "prune", "--dir", str(kept.directory), "--before", "2020-01-01T00:00:00Z")[0] == 0
    assert kept.keeping.past.span() == before


def record(number: int, **more: object) -> RequestRecord:
    fields = {
        "id": str(number), "trace": f"t{number}", "start": number, "end": number + 1.0, "complete": True,
        "session": "secret-session", "e2e": float(number % 50), "phases": (RequestPhase("prefill", 0.5, "measured"),),
    }  # fmt: skip
    return RequestRecord(**{**fields, **more})  # type: ignore[arg-type]


def test_of_requests_the_failed_the_slow_and_a_share(kept: Kept) -> None:
    store, new = Store(), NewRequests()
    assert new.take(store) is None
    for number in range(1000):
        store.add(record(number, status=500 if number % 100 == 7 else 200))
    batch = new.take(store)
    assert batch is not None
    assert (batch.count, batch.seen) == (MOST, 1000)
    found = summaries(batch)
    why = [one.why for one in found]
    assert why.count("failed") == 10
    assert {one.e2e for one in found if one.why == "slow"} == {49.0}
    assert "secret-session" not in batch.data.decode(errors="replace")
    assert new.take(store) is None
    store.add(record(5000))
    again = new.take(store)
    assert again is not None
    assert [one.id for one in summaries(again)] == ["5000"]


def test_labels_of_the_status() -> None:
    found = history_families.series(HistoryStatus("paused", "disk_low"), {"node": "n"})
    assert found == {
        Labels({"__name__": "kvitals_history_state", "node": "n", "state": "paused", "reason": "disk_low"}): 1.0
    }


def test_a_limit_of_engines_is_part_of_the_documents_source(kept: Kept) -> None:
    path, at = kept.directory / "history.db", kept.times[-1]
    (engine,) = {one["engine"] for one in kept.pipeline.label_sets([], 0.0, at) if one.get("engine")}
    other = EngineLimit(1, Labels({"engine": "another"}))
    limited = judge_history(path, setup_in(kept.directory), Moments(at), other).document
    assert limited.source.name == f"history, {path}: 1 of 2 engines"
    assert not limited.causes
    whole = judge_history(path, setup_in(kept.directory), Moments(at)).document
    same = judge_history(path, setup_in(kept.directory), Moments(at), EngineLimit(1, Labels({"engine": engine})))
    assert same.document == whole


def test_what_came_of_a_change_is_judged_in_another_process(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """250 engines of one history took 27 s of CPU time and 300 MB in the agent."""
    monkeypatch.setattr(node_changes, "since_change", lambda _: pytest.fail("judged in the agent"))
    changes = node_changes.NodeChanges(kept.pipeline, kept.directory / "history.db")
    with pytest.raises(ValueError, match="no engine's configuration changed"):
        changes.document()


def test_a_change_that_takes_too_long_to_judge_is_an_answer(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_changes, "ASKED", WorkLimits(0.1))
    changes = node_changes.NodeChanges(kept.pipeline, kept.directory / "history.db")
    with pytest.raises(ValueError, match=r"more than 0.1 s. Run on the agent's node: kvitals triage --since-change /"):
        changes.document()
    monkeypatch.setattr(node_changes, "run_bounded", lambda *_, **__: pytest.fail("asked again within the minute"))
    with pytest.raises(ValueError, match="not judged"):
        changes.document()


def test_who_asks_waits_longer_than_the_agent_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients gave up after 6 s where the agent had 10 to say why there is no answer."""
    waited = []
    monkeypatch.setattr(AgentClient, "_get", lambda *asked: waited.append(asked[-1]) or (500, b""))
    with pytest.raises(AgentError):
        AgentClient("http://127.0.0.1:1").since_change()
    assert waited[0] > node_changes.ASKED.seconds


def test_a_message_about_the_past_is_judged_in_another_process(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "judge_history", lambda *_: pytest.fail("judged in the agent"))
    about = DiagnosisRequest({}, frozenset(), True, kept.times[-1], kept.times[-1])
    found = asyncio.run(diagnosis.OfAgent(kept.pipeline)(about))
    assert found.how.startswith("diagnosed from the agent's history at ")
    assert found.document is not None


def test_a_day_of_history_is_read_in_another_process(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restart of an agent whose history had 500 engines took 317 MB."""
    monkeypatch.setattr(history_work, "past_steps", lambda *_: pytest.fail("read in the agent"))
    monkeypatch.setattr(history_work, "audited_day", lambda *_: pytest.fail("read in the agent"))
    work = history_work.HistoryWork(kept.directory / "history.db", 5.0)
    past = work.past_steps(kept.times[-1])
    assert past is not None
    assert [one.entity["engine"] for one in past.steps]
    found = work.audited_day(kept.times[-1], 0.5)
    assert found is not None
    assert {labels[METRIC_NAME] for labels in found} == {"kvitals_ready_seconds"}
    assert history_work.HistoryWork(kept.directory / "none.db", 5.0).past_steps(kept.times[-1]) is None


def test_an_agent_that_begins_anew_goes_on_from_its_history(kept: Kept) -> None:
    """For 15 minutes after a restart its longer windows held too little, and its verdict was another one than that of
    its history."""
    last = kept.times[-1]
    again = Pipeline(setup_in(kept.directory), DocumentSource("agent", "again"))
    with CaptureReader.open(INCIDENT) as reader:
        again.node.expect(reader.header.meta)
    keeping = Keeping(again, lambda _: None)
    assert keeping.resume(last + 10) == ""
    query = parse("sum(increase(kvitals_generation_tokens_total[60s]))")
    ((_, then),) = cast(Vector, evaluate(query, kept.whole, last))
    ((_, now),) = cast(Vector, evaluate(query, again.node.window, last))
    assert now == pytest.approx(then, rel=0.1)  # rows are five seconds apart
    assert again.node.window.oldest < kept.times[2]
    assert keeping._intake.take(last + 10) == Tick(last + 10, []), "what is written is not written again"
    keeping.past.close()


def test_what_has_written_nothing_yet_is_gone_on_from_too(kept: Kept) -> None:
    """Groups that begin with their first row were left out: of request records the shares fell to a third."""
    again = Pipeline(setup_in(kept.directory), DocumentSource("agent", "again"))
    assert "agent" not in again.node.window.groups
    keeping = Keeping(again, lambda _: None)
    assert keeping.resume(kept.times[-1] + 10) == ""
    groups = set(again.node.window.groups)
    assert again.node.window.group("history").rows > 3
    written = set(kept.pipeline.node.window.groups)
    targets = {name for name in written if f"{name} status" in written}
    assert targets
    assert not targets & groups, "a target that is not watched any more"
    keeping.past.close()


def test_the_first_start_has_no_history_to_go_on_from(tmp_path: Path) -> None:
    """Each first start said that there is no history yet."""
    keeping = Keeping(Pipeline(setup_in(tmp_path), DocumentSource("agent", "first")), lambda _: None)
    assert keeping.resume(1.0) == ""
    keeping.past.close()


def test_a_history_that_ended_long_ago_is_not_gone_on_from(kept: Kept) -> None:
    again = Pipeline(setup_in(kept.directory), DocumentSource("agent", "again"))
    keeping = Keeping(again, lambda _: None)
    assert keeping.resume(kept.times[-1] + 3600) == ""
    assert again.node.window.oldest == math.inf
    keeping.past.close()


def test_a_target_answers_after_its_past_was_read_back(kept: Kept) -> None:
    """The first answer renames the series of a target's status. With rows of the past under the new name that failed,
    and every target of an agent that began anew was unreadable."""
    middle = kept.times[len(kept.times) // 2]
    again = Pipeline(setup_in(kept.directory), DocumentSource("agent", "again"))
    with CaptureReader.open(INCIDENT) as reader:
        again.node.expect(reader.header.meta)
        records = [record for record in reader if record.t > middle]
    keeping = Keeping(again, lambda _: None)
    assert keeping.resume(middle) == ""
    for record in records:
        again.node.ingest_recorded(record)
    found = cast(Vector, evaluate(parse("kvitals_target_up"), again.node.window, kept.times[-1]))
    assert found and all(value == 1.0 for _, value in found)
    keeping.past.close()
