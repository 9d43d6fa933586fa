"""`kvitals triage` answers on one screen: the cause, the proof, what needs no restart, then what does."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kvitals.app.demo import HEAVY_TENANT
from kvitals.diagnoser.triage import rank
from kvitals.rules.finding import Finding, LeverSetting, Triage
from kvitals.rules.model import Severity
from kvitals.ui.cli import render, screen
from tests.captures.looks import setup_of
from tests.support.loops import for_each
from tests.support.recordings import CAPTURES, judge, setup

MISSED = CAPTURES / "ended" / "missed.kvcap"
INCIDENTS = sorted(HEAVY_TENANT.parent.glob("*.kvcap"))
VERDICT_WITHIN = 3


def _screen(document: Triage, columns: int = 80) -> list[str]:
    out = io.StringIO()
    screen.show(document, Console(file=out, width=columns))
    return out.getvalue().splitlines()


@pytest.fixture(scope="module")
def documents() -> dict[Path, Triage]:
    return {path: judge(path, setup()).document for path in INCIDENTS}


@for_each("path", INCIDENTS, ids=lambda path: path.stem)
def test_a_shipped_incident_fits_with_its_cause_in_the_first_lines(path: Path, documents: dict[Path, Triage]) -> None:
    document = documents[path]
    lines = _screen(document)
    assert len(lines) <= screen.LINES
    assert document.verdict[:60] in "\n".join(lines[:VERDICT_WITHIN])
    assert max(map(len, lines)) <= 80


@for_each("path", INCIDENTS, ids=lambda path: path.stem)
def test_every_view_counts_the_same_findings_in_the_same_words(path: Path, documents: dict[Path, Triage]) -> None:
    """`-v` counted a covered rule as fired, and the first screen did not count what fired at all."""
    document = documents[path]
    coverage = document.coverage
    listed = len(document.causes) + len(document.symptoms) + len(document.telemetry)
    assert (coverage.fired, coverage.noted, coverage.muted) == (listed, len(document.notes), len(document.muted))
    assert sum(number for number, _ in coverage.counts) == coverage.rules  # one engine: one judgement of each rule
    covered = {(one.code, one.entity) for one in document.ruled_out if one.because.startswith("covered by")}
    assert coverage.covered >= len(covered)  # of those listed: symptoms and notes are covered, too
    verbose = io.StringIO()
    render.show(document, Console(file=verbose, width=400))
    first, all_counts = " ".join(_screen(document)[-2:]), verbose.getvalue()
    for number, words in coverage.counts:
        assert f"{number} {words}" in all_counts
        assert f"{number} {words}" in first or words in ("covered by another rule", "not applicable")


@for_each("path", INCIDENTS, ids=lambda path: path.stem)
def test_levers_without_a_restart_come_first_in_the_document(path: Path, documents: dict[Path, Triage]) -> None:
    for finding in documents[path].leading:
        restarts = [lever.restart for lever in finding.levers]
        assert restarts == sorted(restarts), finding.code


def test_a_lever_without_restart_stands_before_one_with_it(documents: dict[Path, Triage]) -> None:
    document = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"]
    lines = _screen(document)
    now, later = lines.index("Now (no restart)"), lines.index("Then (restart or deploy)")
    assert now < later
    levers = document.causes[0].levers
    assert [one.restart for one in levers] == sorted(one.restart for one in levers)
    assert any(one.title in line for one in levers if not one.restart for line in lines[now:later])


def test_however_much_a_document_says_it_fits(documents: dict[Path, Triage]) -> None:
    document = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"]
    cause = document.causes[0]
    setting = LeverSetting(flag="--" + "long-flag" * 9, now="1" * 30, to="2" * 30, restart=True, note="")
    levers = [
        msgspec.structs.replace(lever, title="word " * 40, why="word " * 40, restart=bool(number % 2), setting=setting)
        for number, lever in enumerate([*cause.levers, *cause.levers])
    ]
    long = msgspec.structs.replace(cause, conclusion="word " * 200, levers=levers)
    notes = [msgspec.structs.replace(document.notes[0], code="ENG04", conclusion="word " * 99)] * 30
    many = msgspec.structs.replace(document, causes=[long] * 30, notes=notes, verdict="word " * 30)
    assert len(_screen(many)) <= screen.LINES


@pytest.mark.parametrize(("name", "said"), [("too_long-1", "4xx"), ("restart_fine-1", "has run for 25.9 s")])
def test_what_befell_an_engine_or_its_clients_is_seen_without_asking_for_more(name: str, said: str) -> None:
    document = judge(CAPTURES / "incidents" / f"{name}.kvcap", setup()).document
    assert document.healthy is True
    assert said in " ".join(line for line in _screen(document, 160) if line.startswith("Noted: "))


@for_each("width", [60, 80, 100, 120])
def test_a_note_is_never_cut_within_a_sentence(width: int, documents: dict[Path, Triage]) -> None:
    note = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"].notes[0]
    long = (
        "The process has run for 25.9 s (restarts seen: 1). It started with an empty prefix cache and counters at zero."
    )
    for conclusion in (long, "word " * 99):
        noted = msgspec.structs.replace(note, code="ENG04", title="Engine restarted", conclusion=conclusion)
        quiet = msgspec.structs.replace(documents[HEAVY_TENANT.parent / "healthy.kvcap"], notes=[noted])
        printed = " ".join(" ".join(_screen(quiet, width)).split())
        assert "Noted: ENG04" in printed
        said = "The process has run for 25.9 s" if conclusion == long and width >= 100 else "Engine restarted"
        assert said in printed
        assert "…" not in printed.partition("Noted: ")[2].partition(" fired")[0]


def test_a_healthy_engine_needs_a_few_lines_only(documents: dict[Path, Triage]) -> None:
    lines = _screen(documents[HEAVY_TENANT.parent / "healthy.kvcap"])
    assert len(lines) <= 6
    assert lines[2].startswith("✓ No trouble found")


def test_a_lever_tells_whether_it_restarts_an_engine(documents: dict[Path, Triage]) -> None:
    levers = [lever for one in documents.values() for cause in one.causes for lever in cause.levers]
    assert {lever.restart for lever in levers} == {True, False}
    assert [one for one in levers if one.setting is not None and one.restart != one.setting.restart] == []


def test_a_narrow_terminal_keeps_a_lever_of_each_kind_and_counts_the_others(documents: dict[Path, Triage]) -> None:
    """At 60 columns the levers with a restart, the only ones that enlarge the cache, were left out without a word."""
    document = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"]
    lines = _screen(document, 60)
    assert len(lines) <= screen.LINES
    assert "Now (no restart)" in lines and "Then (restart or deploy)" in lines
    assert re.search(r"\d more levers?: -v", " ".join(lines[-2:]))


def test_every_format_states_the_change_of_regime(documents: dict[Path, Triage]) -> None:
    document = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"]
    assert document.regime is not None
    assert document.regime.sentence in [block.text for block in screen.blocks(document)]


def test_what_has_ended_is_told_in_the_past() -> None:
    """Its sentence in the present tense was the headline of healthy traffic."""
    document = judge(MISSED, setup_of(MISSED)).document
    assert document.healthy
    lines = " ".join(line.strip() for line in _screen(document))
    assert "Earlier: LAT01 TTFT p99 above objective (127.0.0.1:8330/0), last true at 03:30:15 UTC" in lines


def test_a_page_of_a_fleet_does_not_stand_behind_a_row_of_tickets(documents: dict[Path, Triage]) -> None:
    """Five engines that could not be read filled both lines, and the pages behind them were not printed."""
    document = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"]
    cause = document.causes[0]

    def on(engine: str, code: str, severity: Severity) -> Finding:
        return msgspec.structs.replace(cause, code=code, id=engine, severity=severity, explained=[])

    lost = [on(f"10.0.0.{number}:8000/0", "TEL12", "ticket") for number in range(40)]
    wedged = [on(f"10.0.1.{number}:8000/0", "ENG01", "page") for number in range(3)]
    fleet = msgspec.structs.replace(document, causes=[cause, *lost, *wedged], symptoms=[])
    said = [title for title, _ in screen.by_severity(fleet.leading[1:])]
    assert said == ["Also 3 pages", "Also 40 tickets"]
    lines = _screen(fleet, 120)
    assert any(line.startswith("Also 3 pages: ENG01 ") and " and 2 more)" in line for line in lines)
    assert any(line.startswith("Also 40 tickets: TEL12 ") for line in lines)
    assert [block.text for block in screen.blocks(fleet)].count("Also 40 tickets") == 1


def test_what_has_ended_lasted_until_then(documents: dict[Path, Triage]) -> None:
    """A process that had been stopped for 32 s was "for 56 s"."""
    document = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"]
    end = document.window.end
    over = msgspec.structs.replace(document.causes[0], since=end - 56, last_true=end - 24, ended=True)
    lines = _screen(msgspec.structs.replace(document, causes=[over]), 120)
    assert any(" · for 32 s · " in line for line in lines)


def test_a_page_is_not_hidden_behind_a_ticket_that_explains_it(documents: dict[Path, Triage]) -> None:
    """The verdict was "Other processes take the CPU time", a ticket, and a full KV cache, a page, was not printed."""
    document = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"]
    full = msgspec.structs.replace(document.causes[0], explained_by=["ENG11"])
    (late,) = [one for one in document.symptoms if one.code == "LAT01"]
    starved = msgspec.structs.replace(
        full, id="starved", code="ENG11", severity="ticket", explained=[full.id, late.id], explained_by=[]
    )
    both = msgspec.structs.replace(document, causes=[starved, full])
    assert any(line.startswith(f"Also 1 page: KVC01 {full.title}") for line in _screen(both, 120))
    as_grave = msgspec.structs.replace(both, causes=[msgspec.structs.replace(starved, severity="page"), full])
    assert not any(line.startswith("Also 1 page") for line in _screen(as_grave, 120))


def test_a_page_does_not_stand_behind_what_explains_one_note_more(documents: dict[Path, Triage]) -> None:
    """A hit rate of 0 explained "low hit rate" as well, and so led before the full cache that made tokens late."""
    document = documents[HEAVY_TENANT.parent / "heavy_tenant.kvcap"]
    page = document.causes[0]
    (late,) = [one for one in document.symptoms if one.code == "LAT01"]
    noted = msgspec.structs.replace(late, id="noted", code="PFX01", severity="info")
    full = msgspec.structs.replace(page, explained=[late.id], explained_by=[])
    heads = msgspec.structs.replace(
        page, id="heads", code="PFX10", severity="ticket", explained=[late.id, "noted"], explained_by=[]
    )
    assert [one.code for one in rank([heads, full], [heads, full, late, noted])] == ["KVC01", "PFX10"]


def test_each_reason_for_what_is_not_checked_stands_once() -> None:
    """Of three engines without a metric: three times the same two lines."""
    document = judge(HEAVY_TENANT, setup()).document
    one = document.unknown[0]
    coverage = msgspec.structs.replace(document.coverage, core_unknown=3)
    again = msgspec.structs.replace(document, healthy=None, unknown=[one, one, one], coverage=coverage)
    lines = screen._not_checked(again)
    assert lines == [f"{one.code} {one.title}: {one.reason} (the same on 2 more)"]
