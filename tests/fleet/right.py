"""What a triage document says of each engine of a simulated fleet, by the engine's address."""

from __future__ import annotations

from kvitals.rules.finding import Finding, Triage


def first_causes(document: Triage) -> dict[str, str]:
    """The code of the best ranked cause of each engine that has one."""
    found: dict[str, str] = {}
    for cause in document.causes:
        found.setdefault(_address(cause), cause.code)
    return found


def noticed(document: Triage) -> set[str]:
    """The engines of which anything is said to be wrong; notes say what could be better."""
    return {_address(f) for f in (*document.causes, *document.symptoms, *document.telemetry)}


def _address(finding: Finding) -> str:
    return finding.entity.labels.get("engine", finding.entity.title).partition("/")[0]
