"""Findings are written into history when they open, when they close, and once a minute in between."""

from __future__ import annotations

import msgspec

from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.history_recorder import Episodes
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import Config
from kvitals.rules.finding import DocumentSource, Finding
from kvitals.rules.loader import load
from kvitals.series.history.event_log import REWRITTEN_SECONDS, Episode, HistoryEvent
from kvitals.series.recordings import CaptureReader


def test_findings_are_written_when_they_open_close_and_once_a_minute() -> None:
    pipeline = Pipeline(Setup(load(), Config()), DocumentSource("capture", "test"))
    episodes = Episodes(pipeline)
    written: dict[str, float] = {}  # key -> when it was last written as open
    anew: list[float] = []  # when all that is open was written
    with CaptureReader.open(HEAVY_TENANT.with_name("few_slots.kvcap")) as reader:
        pipeline.node.expect(reader.header.meta)
        for at in pipeline.replay(reader):
            pipeline.observe(at)
            notes = episodes.changed(at)
            whole = pipeline.true_findings()
            due = bool(whole) and (not anew or at - anew[-1] >= REWRITTEN_SECONDS)
            if due:
                anew.append(at)
                assert {note.key for note in notes if isinstance(note, Episode) and note.open} == whole.keys()
            for note in notes:
                if isinstance(note, HistoryEvent):
                    assert written[note.key] == at
                elif isinstance(note, Episode) and note.open:
                    assert msgspec.json.decode(note.document, type=Finding) == whole[note.key]
                    assert due or note.key not in written
                    written[note.key] = at
                elif isinstance(note, Episode):
                    assert pipeline.span is not None and note.end == pipeline.span.at
                    assert note.key not in whole
                    del written[note.key]
            assert written.keys() == whole.keys()
    assert written and len(anew) > 1
    at = anew[-1]
    assert episodes.changed(at) == []
    assert {note.key for note in episodes.changed(at + REWRITTEN_SECONDS)} == written.keys()
    assert {note.key for note in episodes.end(at) if isinstance(note, Episode)} == written.keys()
