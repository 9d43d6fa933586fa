"""What a page showed is of the time when it could be read: an engine that stops answering has no cause "now"."""

from __future__ import annotations

from collections.abc import Iterator

from kvitals.agent.records import ScrapeRecord, decode, encode
from kvitals.app.demo import FOLDER
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import Config
from kvitals.diagnoser.judgement import OVER_SECONDS
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.rules.loader import load
from kvitals.series.recordings import CaptureReader, Record

KNOWLEDGE = load()
READ = 90
"""Seconds of the recording after which no page is readable."""


def moments() -> Iterator[tuple[float, float, Triage]]:
    """The documents of an agent while an engine with too few slots answers, and while nobody listens on its port:
    seconds since the first page and since the first that could not be read."""
    pipeline = Pipeline(Setup(KNOWLEDGE, Config()), DocumentSource("agent", "a test"))
    records: list[Record] = []
    with CaptureReader.open(FOLDER / "few_slots.kvcap") as reader:
        pipeline.node.expect(reader.header.meta)
        for record in reader:
            known = decode(record)
            first = records[0].t if records else record.t
            if isinstance(known, ScrapeRecord) and record.t - first > READ:
                ended = record.t
                break
            records.append(record)
    target = next(known.target for record in records if isinstance(known := decode(record), ScrapeRecord))
    for i in range(12):
        refused = ScrapeRecord(t=ended + 5 * i, target=target, reason="refused", message="nobody listens")
        records.append(encode(refused))
    for at in pipeline.replay(records, step=5.0):
        pipeline.observe_span(EvaluationSpan(at, seen=at - first))
        yield at, at - ended, pipeline.triage()


def test_a_cause_on_a_page_that_cannot_be_read_is_of_the_time_when_it_could() -> None:
    after = [(at, since, document) for at, since, document in moments() if since >= 10]
    assert len(after) > 6
    for at, since, document in after:
        assert document.verdict.startswith("Engine metrics page cannot be read"), since
        earlier = [f for f in (*document.causes, *document.symptoms, *document.notes) if f.code in ("SCH01", "LAT01")]
        assert earlier
        last_true = {finding.last_true for finding in earlier}
        assert None not in last_true
        assert max(last_true) <= at - since + 10, since  # type: ignore[type-var, operator]
        if since > OVER_SECONDS + 15:
            assert [f.code for f in document.causes] == [], since
            assert document.verdict.startswith("Engine metrics page cannot be read (") and document.verdict.endswith(
                ")."
            ), since
