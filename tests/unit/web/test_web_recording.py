"""A recording on the page: judged as in the terminal, and what is shown until it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kvitals.app.sources.recording import judge_recording
from kvitals.rules.finding import encode
from kvitals.ui.web import source_registry
from kvitals.ui.web.sources import recording
from kvitals.ui.web.sources.recording import Recording
from tests.unit.web.looking import run, sound, words

NEEDS_ITS_PAST = "demo:unique_prompts"
"""That prompts stopped to share their beginning is seen only by who knows how it was before."""


def test_the_page_has_the_document_of_the_terminal() -> None:
    path = source_registry.demos()[NEEDS_ITS_PAST]
    shown = source_registry.open_source(NEEDS_ITS_PAST).findings(None)
    told = judge_recording(path, source_registry.setup()).document
    assert encode(msgspec.structs.replace(shown, source=told.source)) == encode(told)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Replays stand still at the first moment until this is set."""
    go_on, judged_before = threading.Event(), recording.judged_before

    def waiting(*arguments: Any) -> Iterator[float]:
        for at in judged_before(*arguments):
            yield at
            assert go_on.wait(60)

    monkeypatch.setattr(recording, "judged_before", waiting)
    monkeypatch.setattr(recording, "PATIENCE_SECONDS", 0.0)
    source_registry.forget()
    yield go_on
    go_on.set()
    source_registry.forget()


@pytest.mark.parametrize("page", ["", "timeline", "cache", "rules", "what-if"])
def test_until_a_recording_is_judged_a_page_says_how_far_it_is(held: threading.Event, page: str) -> None:
    app = run(page, source=NEEDS_ITS_PAST)
    assert "The verdict uses the whole recording" in words(app)
    assert not app.error


def test_meanwhile_another_source_can_be_chosen(held: threading.Event) -> None:
    said = words(run("sources", source=NEEDS_ITS_PAST))
    assert "The verdict uses the whole recording" in said
    assert "Evictions cause more evictions" in said


def test_the_verdict_comes_when_it_is_judged(held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    app = run(source=NEEDS_ITS_PAST)
    assert not source_registry.progress(NEEDS_ITS_PAST, None).done
    monkeypatch.setattr(recording, "PATIENCE_SECONDS", 60.0)
    held.set()
    assert "No trouble found: 242 of 242 first tokens in time" in words(sound(app.run()))
    assert source_registry.progress(NEEDS_ITS_PAST, None).done


def test_what_breaks_a_replay_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> Iterator[float]:
        raise ZeroDivisionError("a defect")
        yield 0.0

    monkeypatch.setattr(recording, "judged_before", breaks)
    source_registry.forget()
    source = source_registry.open_source(NEEDS_ITS_PAST)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a defect"):
            source.findings(None)
    source_registry.forget()


def test_nobody_wants_it_any_more(held: threading.Event) -> None:
    source = source_registry.open_source(NEEDS_ITS_PAST)
    assert isinstance(source, Recording)
    source_registry.forget()
    held.set()
    assert source._done.wait(60)
    assert source.replayed() == 1
