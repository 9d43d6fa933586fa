"""Pages whose numbers no engine should report: the verdict stands, and a good engine beside it is judged as ever."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import msgspec
import pytest

from kvitals.agent.records import ScrapeRecord, encode
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import Config
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.rules.loader import load

PAGE = (Path(__file__).parents[2] / "fixtures" / "exposition" / "vllm-0.32-loaded.prom").read_text()
GOOD, BAD = "http://good:8000/metrics", "http://bad:8000/metrics"
SECONDS = 30
VALUE = re.compile(r"(?m)^([^#\s]\S*(?:\{[^}]*\})?) \S+$")
NUMBERS = ("NaN", "+Inf", "-Inf", "1e308", "-1e308", "4e-320", "0", "-1", "9007199254740993")


def judged(number: str, growth: bool) -> Triage:
    """Thirty seconds of a good engine, and of one of whose values all, or all in turn, are `number`."""
    pipeline = Pipeline(Setup(load(), Config()), DocumentSource("capture", "hostile"))
    pipeline.node.expect({"targets": [{"url": GOOD}, {"url": BAD}]})
    for second in range(SECONDS):
        bad = PAGE if growth and second % 2 else VALUE.sub(rf"\1 {number}", PAGE)
        for url, page in ((GOOD, PAGE), (BAD, bad)):
            record = ScrapeRecord(t=1000.0 + second, target=url, status=200, body=page.encode(), duration=0.01)
            pipeline.ingest_recorded([encode(record)])
    pipeline.observe(1000.0 + SECONDS - 1, fast=float(SECONDS))
    return pipeline.triage()


@pytest.mark.parametrize("growth", [False, True], ids=["always", "every other second"])
@pytest.mark.parametrize("number", NUMBERS)
def test_no_number_stops_the_verdict(number: str, growth: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = judged(number, growth)
    assert msgspec.json.decode(msgspec.json.encode(document))  # JSON knows no NaN
    assert not document.coverage.crashed
    assert len(document.coverage.engines) == 2
    assert not [c.code for c in document.causes if c.entity.labels.get("engine", "").startswith("good")]
