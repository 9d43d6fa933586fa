"""Terminal, page and export print the same findings whole, and the same ones below them."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from kvitals.rules.finding import Triage
from kvitals.ui.cli import render, screen
from kvitals.ui.web import export
from tests.unit.web import documents


def chain() -> Triage:
    """KVC01 explains SCH12, which explains LAT01; KVC09 is explained by a cause that the document does not have."""
    first = documents.finding("KVC01", "a", "First", "a.", explains=["SCH12"])
    second = documents.finding("SCH12", "b", "Second", "b.", explains=["LAT01"], explained_by=["KVC01"])
    third = documents.finding("KVC09", "c", "Third", "c.", explained_by=["SPC01"])
    symptom = replace(documents.ttft_breach(), id="lat010a1b2c3d", explained_by=["SCH12"])
    return documents.document(healthy=False, causes=[first, second, third], symptoms=[symptom])


def circle() -> Triage:
    one = documents.finding("KVC01", "a", "First", "a.", explains=["KVC09"], explained_by=["KVC09"])
    two = documents.finding("KVC09", "b", "Second", "b.", explains=["KVC01"], explained_by=["KVC01"])
    return documents.document(healthy=False, causes=[one, two])


def test_a_cause_leads_whatever_it_explains_on_the_way() -> None:
    document = chain()
    assert [one.code for one in document.leading_causes] == ["KVC01", "KVC09"]
    assert [one.code for one in document.explained(document.causes[0])] == ["LAT01", "SCH12"]
    assert document.unexplained_symptoms == []


def test_causes_that_explain_each_other_all_lead() -> None:
    document = circle()
    assert [one.code for one in document.leading] == ["KVC01", "KVC09"]
    assert [one.code for one in document.explained(document.causes[0])] == ["KVC09"]


@pytest.mark.parametrize("document", [chain(), circle()], ids=["chain", "circle"])
def test_short_and_long_terminal_and_export_print_the_same_findings(document: Triage) -> None:
    leading = [one.code for one in document.leading]
    short, long = io.StringIO(), io.StringIO()
    screen.show(document, Console(file=short, width=200))
    render.show(document, Console(file=long, width=200))
    for text in (short.getvalue(), long.getvalue(), export.document(document)):
        assert [code for code in leading if code not in text] == []
    heads = [line.split()[0] for line in long.getvalue().splitlines() if " · confidence " in line]
    assert heads == leading
