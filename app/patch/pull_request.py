"""The description of a pull request: the finding, its proof, the expected effect, the risk, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvitals.app.escaping import markdown, plain
from kvitals.rules.finding import Finding, LeverAdvice, Triage

MAX_LINE = 600
MAX_MEASURES = 6


def description(document: Triage, finding: Finding, lever: LeverAdvice, setting: str, notes: Sequence[str]) -> str:
    """Markdown. setting: what is set, as on a command line. notes: what a reviewer must look at in the files."""
    return "\n".join(_lines(document, finding, lever, setting, notes)) + "\n"


def _lines(document: Triage, finding: Finding, lever: LeverAdvice, setting: str, notes: Sequence[str]) -> Iterator[str]:
    yield f"# {_text(lever.title)}: {_code(setting)}"
    yield ""
    about = f"{finding.code} {_text(finding.title)}, {_text(finding.entity.title)}"
    yield f"**Finding.** {about}, confidence {finding.confidence_words}. {_text(finding.conclusion)}"
    yield ""
    yield f"**Proof.** {_text(document.source.name)}, {document.window.seconds:.0f} s:"
    yield ""
    yield from (f"- {_text(one.title)}: {_text(one.text)}" for one in finding.evidence[:MAX_MEASURES])
    if explained := [f"{one.code} {one.title}" for one in document.explained(finding)][:MAX_MEASURES]:
        yield f"- explains {_text(', '.join(explained))}"
    yield ""
    yield "**Expected effect.** " + (
        "; ".join(f"{_text(one.title)}: {_text(one.text)}" for one in lever.predicted)
        or "not predicted: measure it after the change."
    )
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
    if notes:
        yield ""
        yield "**Look at.** " + " ".join(f"{_text(note)}." for note in notes)
    yield ""
    yield "**Check.** `kvitals triage --since-change` reports after some minutes of load whether it worked."
    yield ""
    yield "**Go back.** Revert this change and restart the engine" + (
        f"; today's value is {_code(lever.setting.now)}." if lever.setting is not None and lever.setting.now else "."
    )


def _text(text: str) -> str:
    return markdown.text(plain.clip(text, MAX_LINE))


def _code(text: str) -> str:
    return markdown.code(plain.clip(text, MAX_LINE))
