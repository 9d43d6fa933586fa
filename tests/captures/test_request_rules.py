"""What rules on requests say of recordings in which the clients' own ledger tells the truth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvitals.diagnoser.judgement import Judgement
from tests.support.recordings import CAPTURES, judged

FOLDER = CAPTURES / "requests"
NAMES = sorted(path.stem for path in FOLDER.glob("*.kvcap"))


def clients(name: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.truth.json").read_text())["clients"]
    return told


def outcome(name: str, code: str) -> str:
    found: list[Judgement] = [j for j in judged(name).pipeline.judgements if j.rule.code == code]
    return ", ".join(sorted({j.outcome for j in found}))


def signal(name: str, of: str) -> float:
    (value,) = judged(name).pipeline.judge.signals.known[of].values.values()
    return value


def test_the_tenant_behind_which_others_wait_is_found() -> None:
    assert outcome("requests/tenants", "TEN04") == "fired"
    (finding,) = (c for c in judged("requests/tenants").document.causes if c.code == "TEN04")
    lines = {line.labels.get("tenant") for evidence in finding.evidence for line in evidence.lines}
    heavy = next(c for c in clients("tenants") if c["tenant"] == "northwind-batch")
    records = json.loads((FOLDER / "tenants.truth.json").read_text())["records"]
    assert next(r["tenant"] for r in records if r["tenant_name"] == heavy["tenant"]) in lines


def test_who_left_is_counted_as_the_clients_did() -> None:
    ledger = clients("tenants")
    left = sum(one["status"] != "finished" for one in ledger) / len(ledger)
    assert signal("requests/tenants", "aborted_per_request") == pytest.approx(left, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_seen_and_what_the_engine_counts_agree(name: str) -> None:
    assert outcome(f"requests/{name}", "TEL06") in (
        "clear",
        "unknown",
        "n/a, unknown",
    )  # with few requests nothing is said


@pytest.mark.parametrize("name", NAMES)
def test_no_tenant_is_blamed_where_none_is_known(name: str) -> None:
    if not any(one.get("tenant") for one in clients(name)):
        assert not [
            c for c in ("TEN03", "TEN04", "TEN05", "TEN07", "TEN08") if "fired" in outcome(f"requests/{name}", c)
        ]


def test_requests_that_are_too_long_are_told_of_the_engine_that_refused_them() -> None:
    """A real vLLM behind the tap, with prompts beyond its context. Its own page tells nothing of them."""
    name = "incidents/too_long-1"
    assert outcome(name, "ENG07") == "fired"
    incident = json.loads((CAPTURES / f"{name}.truth.json").read_text())["phases"][-1]
    refused = incident["status"]["400"] / incident["requests"]
    # The window has quiet time before the incident in it, and no requests of the last seconds, which may still change.
    assert 0.5 * refused < signal(name, "too_long_per_request") < refused
    (finding,) = (note for note in judged(name).document.notes if note.code == "ENG07")
    tenants = next(evidence for evidence in finding.evidence if evidence.title.startswith("Rate by tenant"))
    assert len(tenants.lines) == 1  # of two


def test_requests_that_fit_are_not_said_to_be_too_long() -> None:
    assert outcome("incidents/hang_ups_tap-1", "ENG07") == "clear"
