"""Verdicts that take long: shared by all viewers, made in the background, the last one at hand."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from kvitals.rules.finding import Triage
from kvitals.ui.web.failure import Failure, NotYetError, UnansweredError
from kvitals.ui.web.sources import background
from kvitals.ui.web.sources.background import BackgroundJudge
from kvitals.ui.web.sources.base import PageWindow
from tests.unit.web import documents

PAST = PageWindow(100.0, 160.0)


@dataclass
class SlowServer:
    """Judgements that end when the test lets them."""

    asked: list[PageWindow | None] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    fails: bool = False
    now: float = 1000.0
    document: Triage = field(default_factory=documents.document)

    def judge(self, window: PageWindow | None) -> Triage:
        self.asked.append(window)
        assert self.go.wait(30)
        if self.fails:
            raise UnansweredError(Failure("down", "", ""))
        return self.document


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> SlowServer:
    monkeypatch.setattr(background, "PATIENCE_SECONDS", 0.01)
    return SlowServer()


def settled(judge: BackgroundJudge) -> None:
    """Wait until no judgement is under way."""
    for thread in threading.enumerate():
        if thread.name == "judge":
            thread.join(30)
    assert judge.waited(None) == 0.0


def test_the_first_verdict_is_under_way_and_later_ones_do_not_wait(server: SlowServer) -> None:
    judge = BackgroundJudge(server.judge, lambda: server.now)
    with pytest.raises(NotYetError):
        judge.verdict(None)
    server.now += 7.0
    with pytest.raises(NotYetError) as waiting:
        judge.verdict(None)
    assert waiting.value.waited == 7.0
    assert server.asked == [None], "a second viewer started a second judgement"
    server.go.set()
    settled(judge)
    first = judge.verdict(None)
    server.go.clear()
    server.now += 8.0  # less than twice the 7 s that it took
    assert judge.verdict(None) is first
    assert server.asked == [None]
    server.now += 8.0
    assert judge.verdict(None) is first, "a page waited for the next verdict"
    assert judge.verdict(None) is first
    server.document = documents.unhealthy()
    server.go.set()
    settled(judge)
    assert server.asked == [None, None]
    assert judge.verdict(None) is server.document


def test_an_old_verdict_is_not_shown_as_the_present_one(server: SlowServer) -> None:
    judge = BackgroundJudge(server.judge, lambda: server.now)
    server.go.set()
    with pytest.raises(NotYetError):
        server.go.clear()
        judge.verdict(None)
    server.go.set()
    settled(judge)
    assert judge.verdict(None) is server.document
    server.now += background.OLD_SECONDS + 1
    server.go.clear()
    with pytest.raises(NotYetError):
        judge.verdict(None)
    server.go.set()
    settled(judge)


def test_the_past_is_judged_once(server: SlowServer) -> None:
    server.go.set()
    judge = BackgroundJudge(server.judge, lambda: server.now)
    while True:
        try:
            judge.verdict(PAST)
            break
        except NotYetError:
            settled(judge)
    server.now += 10_000.0
    assert judge.verdict(PAST) is server.document
    assert server.asked == [PAST]


def test_a_failure_is_said_and_tried_again(server: SlowServer) -> None:
    server.go.set()
    server.fails = True
    judge = BackgroundJudge(server.judge, lambda: server.now)
    with pytest.raises((NotYetError, UnansweredError)):
        judge.verdict(None)
    settled(judge)
    with pytest.raises(UnansweredError):
        judge.verdict(None)
    server.fails = False
    server.now += 6.0
    with pytest.raises(UnansweredError):
        judge.verdict(None)
    settled(judge)
    assert judge.verdict(None) is server.document


def test_few_judgements_run_at_the_same_time(server: SlowServer) -> None:
    judge = BackgroundJudge(server.judge, lambda: server.now)
    for start in range(5):
        with pytest.raises(NotYetError):
            judge.verdict(PageWindow(start, start + 60.0))
    assert len(server.asked) == background.MAX_AT_ONCE
    server.go.set()
    settled(judge)
