"""`import kvitals`: cheap, documented, and the figures of the commands."""

import subprocess
import sys
from pathlib import Path

import pytest

import kvitals
from kvitals.app.errors import UsageError
from kvitals.rules.finding import encode
from tests.support.command import answer

DEMO = Path(__file__).parents[2] / "app" / "demo"
RECORDING = DEMO / "few_slots.kvcap"
REQUESTS = Path(__file__).parents[1] / "captures" / "requests" / "tenants.kvcap"
HEAVY = ("pandas", "numpy", "requests", "aiohttp", "msgspec", "yaml", "kvitals.app", "kvitals.agent", "kvitals.rules")


@pytest.fixture(scope="module")
def document() -> kvitals.Triage:
    return kvitals.triage(RECORDING)


def test_to_import_it_loads_nothing_else() -> None:
    code = f"import sys, kvitals; print([name for name in {HEAVY!r} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_each_public_name_is_documented_and_listed() -> None:
    assert [name for name in kvitals.__all__ if not getattr(kvitals, name).__doc__] == []
    assert set(kvitals.__all__) <= set(dir(kvitals))
    with pytest.raises(AttributeError, match="the public API is Client"):
        _ = kvitals.treat  # type: ignore[attr-defined]


def test_a_recording_has_the_verdict_of_the_command(document: kvitals.Triage) -> None:
    printed = answer(["triage", "--json", str(RECORDING)]).out
    assert printed.strip().encode() == encode(document)


def test_findings_and_evidence_are_tables(document: kvitals.Triage) -> None:
    findings = kvitals.frame(document)
    assert findings["code"].iloc[0] == document.causes[0].code
    assert findings["confidence"].between(0, 1).all()
    evidence = kvitals.frame(document, "evidence")
    assert set(evidence["code"]) <= set(findings["code"])
    assert str(evidence["t"].dt.tz) == "UTC"


def test_requests_of_a_recording_are_a_table() -> None:
    requests = kvitals.frame(REQUESTS)
    assert len(requests) > 10
    assert (requests["end"] >= requests["start"]).all()
    assert {"id", "tenant", "ttft", "queue_seconds", "outcome"} <= set(requests.columns)


def test_a_recording_without_requests_has_an_empty_table() -> None:
    requests = kvitals.frame(DEMO / "few_slots.kvcap")
    assert requests.empty and "ttft" in requests.columns


def test_a_table_that_is_not_there_is_named_with_those_that_are(document: kvitals.Triage) -> None:
    with pytest.raises(UsageError, match="no table 'levers': the tables are findings, evidence"):
        kvitals.frame(document, "levers")


def test_arguments_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="give one source, or prometheus=URL"):
        kvitals.triage()
    with pytest.raises(UsageError, match="a live triage shows only the present"):
        kvitals.triage("http://127.0.0.1:9", at=1.0)
    with pytest.raises(UsageError, match="give one source, or prometheus=URL"):
        kvitals.review("history", prometheus="http://127.0.0.1:9")


def test_a_client_names_what_did_not_answer() -> None:
    with pytest.raises(Exception, match=r"no agent answers at http://127\.0\.0\.1:9"):
        kvitals.Client("http://127.0.0.1:9", timeout=2.0).findings()
