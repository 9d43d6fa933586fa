"""What could not be read of a source, and what that does to a verdict: the same for recordings, history and servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kvitals.diagnoser.triage import Brief
from kvitals.rules.finding import Triage

AT_END_SECONDS = 1.0
"""A loss that begins so soon after the judged window lies at its end: nobody knows what the next record was."""
UNKNOWN = "Unknown: the data that was read shows no problem, but part of the source could not be read."


@dataclass(frozen=True)
class SourceLoss:
    """Data that a source had or may have had and that was not read.

    text: one sentence for a person, without a full stop. start, end: seconds since the epoch, between which data may be
    missing. hides: whether a problem may be in it.
    """

    text: str
    start: float = -math.inf
    end: float = math.inf
    hides: bool = True


def with_losses(document: Triage, losses: Sequence[SourceLoss]) -> Triage:
    """The document with a warning for each loss. A healthy verdict is unknown where a loss that may hide a problem lies
    in the judged window or directly at its end; a problem that was found stays."""
    if not losses:
        return document
    warnings = [*document.coverage.warnings, *(loss.text for loss in losses)]
    document = msgspec.structs.replace(document, coverage=msgspec.structs.replace(document.coverage, warnings=warnings))
    if not _may_hide(losses, document.window.start, document.window.end):
        return document
    engines = [
        msgspec.structs.replace(row, healthy=None, verdict=UNKNOWN) if row.healthy else row for row in document.engines
    ]
    document = msgspec.structs.replace(document, engines=engines)
    return msgspec.structs.replace(document, healthy=None, verdict=UNKNOWN) if document.healthy else document


def brief_with_losses(brief: Brief, losses: Sequence[SourceLoss], start: float, end: float) -> Brief:
    """The same of a document's beginning, whose window is from start to end."""
    return Brief(None, UNKNOWN, brief.open) if brief.healthy and _may_hide(losses, start, end) else brief


def _may_hide(losses: Sequence[SourceLoss], start: float, end: float) -> bool:
    return any(loss.hides and loss.start <= end + AT_END_SECONDS and loss.end >= start for loss in losses)
