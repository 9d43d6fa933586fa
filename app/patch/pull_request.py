"""The description of a pull request: the finding, its proof, the expected effect, the risk, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvitals.app.escaping import markdown, plain
from kvitals.rules.finding import Finding, LeverAdvice, Triage

MAX_LINE = 600
MAX_MEASURES = 6


@dataclass(frozen=True)
class ReviewNotes:
    """notes: what a reviewer checks in the files. warnings: where a file and the running engine disagree. before: what
    going back restores, as Markdown; empty where it is not known."""

    notes: Sequence[str]
    warnings: Sequence[str]
    before: str


def description(document: Triage, finding: Finding, lever: LeverAdvice, setting: str, review: ReviewNotes) -> str:
    """Markdown. setting: what is set, as on a command line."""
    return "\n".join(_lines(document, finding, lever, setting, review)) + "\n"


def _lines(document: Triage, finding: Finding, lever: LeverAdvice, setting: str, review: ReviewNotes) -> Iterator[str]:
    yield f"# {_text(lever.title)}: {_code(setting)}"
    yield ""
    for warning in review.warnings:
        yield f"**Warning.** {_text(warning)}."
        yield ""
    about = f"{finding.code} {_text(finding.title)}, {_text(finding.entity.title)}"
    yield f"**Finding.** {about}, confidence {finding.confidence_words}. {_text(finding.conclusion)}"
    yield ""
    yield f"**Proof.** {_text(document.source.name)}, {document.window.seconds:.0f} s:"
    yield ""
    yield from (f"- {_text(one.title)}: {_text(one.text)}" for one in finding.evidence[:MAX_MEASURES])
    if explained := [f"{one.code_and_severity} {one.title}" for one in document.explained(finding)][:MAX_MEASURES]:
        yield f"- explains {_text(', '.join(explained))}"
    yield ""
    predicted = "; ".join(f"{_text(one.title)}: {_text(one.text)}" for one in lever.predicted)
    yield f"**Expected effect.** {predicted or 'not predicted: measure it after the change'}."
    if lever.why:
        yield _text(lever.why)
    yield ""
    yield f"**Risk.** {_text(lever.risk)}"
    if lever.restart:
        yield "The engine restarts, and its prefix cache starts empty."
    yield ""
    yield f"**What it does not fix.** {_text(lever.does_not_fix)}"
    if lever.setting is not None and lever.setting.note:
        yield ""
        yield f"**Note.** {_text(lever.setting.note)}"
    if review.notes:
        yield ""
        yield "**Look at.** " + " ".join(f"{_text(note)}." for note in review.notes)
    yield ""
    yield "**Check.** After some minutes of load, `kvitals triage --since-change` reports whether the change worked."
    yield ""
    yield "**Roll back.** Revert this change and restart the engine" + (f"; {review.before}." if review.before else ".")


def _text(text: str) -> str:
    return markdown.text(plain.clip(text, MAX_LINE))


def _code(text: str) -> str:
    return markdown.code(plain.clip(text, MAX_LINE))
