"""`kvitals record` notices a restart of an engine: what its page does not tell is asked again, and written down."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitals.agent.collectors import scrape
from kvitals.agent.families import VERSION
from kvitals.agent.records import FactsRecord, decode
from kvitals.series.recordings import CaptureReader
from tests.support.answering import answering
from tests.support.command import answer as command

PAGE = (Path(__file__).parents[2] / "fixtures" / "exposition" / "vllm-0.32-loaded.prom").read_bytes()
RESTARTED = re.sub(rb"(?m)^process_start_time_seconds .*$", b"process_start_time_seconds 1.8e9", PAGE)
OLD_PAGES = 3


@pytest.fixture
def url() -> Iterator[str]:
    """An engine that after some pages is another process of another version."""
    pages = 0

    def answer(path: str) -> bytes:
        nonlocal pages
        pages += path == "/metrics"
        restarted = pages > OLD_PAGES
        version = b"0.32.1" if restarted else b"0.32.0"
        answers = {"/metrics": RESTARTED if restarted else PAGE, "/version": b'{"version": "%s"}' % version}
        return answers.get(path, b"")

    assert RESTARTED != PAGE
    with answering(answer) as url:
        yield url


def test_the_version_of_each_process_is_in_the_recording(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: none was, and the flags of the first process alone."""
    monkeypatch.setattr(scrape, "_RESTART_SECONDS", 0.5)
    out = tmp_path / "x.kvcap"
    assert command(["record", url, f"--out={out}", "--for=3s", "--every=200ms"]).code == 0
    with CaptureReader.open(out) as reader:
        facts = [one for one in map(decode, reader) if isinstance(one, FactsRecord)]
    assert [one.info["version"] for one in facts if one.source == VERSION] == ["0.32.0", "0.32.1"]
