"""The programs of docs/python.md print what the page says that they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import kvitals
from kvitals.app.derived_metrics.operating_families import ask_source
from kvitals.diagnoser.review.assemble import ReviewRequest, review
from kvitals.rules.loader import Knowledge
from tests.unit.review.test_review_whole import fortnight, knowledge, the_second_week

__all__ = ["knowledge", "the_second_week"]  # fixtures

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
SECTION = r"## (?P<title>[^\n]+)\n(?:(?!\n## ).)*?"
PROGRAM = re.compile(SECTION + r"```python\n(?P<code>.*?)```\n\n```text\n(?P<out>.*?)```", re.DOTALL)
PROGRAMS = {m["title"]: (m["code"], m["out"]) for m in PROGRAM.finditer(PAGE)}


def printed(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/python.md", "exec"), {})
    return out.getvalue()


def test_the_page_has_both_programs() -> None:
    assert list(PROGRAMS) == ["A recorded incident", "The weekly review"]


def test_a_recorded_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code, out = PROGRAMS["A recorded incident"]
    assert printed(code) == out


def test_the_weekly_review(monkeypatch: pytest.MonkeyPatch, asked: ReviewRequest, knowledge: Knowledge) -> None:
    made = review(ask_source(fortnight()), asked, knowledge)
    monkeypatch.setattr(kvitals, "review", lambda *_, **__: made)
    code, out = PROGRAMS["The weekly review"]
    assert printed(code) == out
