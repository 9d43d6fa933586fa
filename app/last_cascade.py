"""What a document says of an eviction cascade that is over: it was, with its stage and its end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from kvitals.rules.finding import Finding, RuledOut, Triage

CODE = "KVC05"
"""The rule that fires while a cascade goes on."""
TOLD_SECONDS = 900.0
"""How long after its end a cascade is mentioned."""
GROUPS = ("causes", "symptoms", "telemetry", "notes")


def with_last_cascade(document: Triage, report: Mapping[str, Any]) -> Triage:
    """The document, where a cascade that is ruled out was there before. report: of the ledger (docs/cascade.md)."""
    ended: dict[str, str] = {}
    for one in report.get("cascades", []):  # the latest first
        if one["ended"] is not None and 0 <= document.window.end - one["ended"] < TOLD_SECONDS:
            end = datetime.fromtimestamp(one["ended"], UTC)
            ended.setdefault(
                one["engine"], f"the last cascade reached stage {one['stage']} and ended at {end:%H:%M:%S} UTC"
            )
    if not ended:
        return document
    groups: dict[str, Any] = {
        name: [_finding(finding, ended) for finding in getattr(document, name)] for name in GROUPS
    }
    return msgspec.structs.replace(document, ruled_out=[_said(out, ended) for out in document.ruled_out], **groups)


def _finding(finding: Finding, ended: Mapping[str, str]) -> Finding:
    if not any(out.code == CODE for out in finding.ruled_out):
        return finding
    return msgspec.structs.replace(finding, ruled_out=[_said(out, ended) for out in finding.ruled_out])


def _said(out: RuledOut, ended: Mapping[str, str]) -> RuledOut:
    text = next((text for engine, text in ended.items() if out.entity.endswith(engine)), "") if out.code == CODE else ""
    return msgspec.structs.replace(out, because=f"{out.because}; {text}") if text else out
