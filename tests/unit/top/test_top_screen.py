"""The full screen of `kvitals top`, key by key, without a terminal."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from textual.widgets import DataTable

from kvitals.app.sources import fleet_source
from kvitals.app.sources.fleet_source import RecordedFleet
from kvitals.app.sources.recording import verdicts
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.rules.finding import Triage
from kvitals.series.recordings import CaptureError
from kvitals.ui.cli.top_app import KEYS, LIST_KEYS, VIEW_KEYS, EngineList, EngineScreen, FleetApp, HelpScreen
from kvitals.ui.cli.top_table import SORTS, FleetTable, matching, sorted_rows
from tests.fuzz import texts
from tests.support.command import ROOT, answer
from tests.support.fleet_documents import (
    HEAVY,
    PAIR,
    StillSource,
    document_of,
    fleet_of,
    named,
    screen_text,
    shown,
    until,
)
from tests.support.loops import for_each
from tests.support.recordings import judged_once, setup

ENGINES = 40
CPU_SECONDS = 6.0
"""Of 20 redraws of 40 engines: some 0.03 s each on a quiet machine, and 3 % of a core at one in 15 s are 0.45 s."""


def _names(app: FleetApp) -> list[str]:
    return [row.entity.title for row in app._rows]


def _notices(app: FleetApp) -> str:
    return " ".join(one.message for one in app._notifications)


async def test_the_sick_engine_is_on_top_with_its_cause() -> None:
    app = FleetApp(StillSource(fleet_of(ENGINES)))
    async with shown(app):
        lines = screen_text(app).splitlines()
        assert "Requests wait for slots while the KV cache has room" in lines[1]
        assert lines[2].startswith(f"{ENGINES} engines: 1 page, {ENGINES - 1} healthy")
        assert lines[4].startswith("✗ decode")
        assert "7.43 s!" in lines[4]
        assert lines[5].startswith("✓ ")
        assert "SCH01 4.38 requests wait" in screen_text(app)


@for_each("width", range(10, 240, 7))
def test_a_row_is_never_wider_than_the_screen(width: int) -> None:
    rows = fleet_of(3).engines
    table = FleetTable(width, rows)
    for cells in (table.titles("ttft"), *map(table.cells, rows)):
        assert all(cell.cell_len == columns for cell, (_, columns) in zip(cells, table.columns, strict=True))
    assert sum(columns for _, columns in table.columns) <= max(width, 35)


async def test_a_request_that_fails_is_a_notice_and_the_screen_goes_on() -> None:
    def refuse() -> None:
        raise CaptureError("cannot create x.kvcap: Permission denied")

    source = StillSource(fleet_of(2))
    app = FleetApp(source)
    async with shown(app) as pilot:
        app._feed.ask(refuse)
        await until(lambda: "Permission denied" in _notices(app), app, pilot)
        source.hand_out(fleet_of(3))
        app._feed.ask(lambda: None)
        await until(lambda: len(_names(app)) == 3, app, pilot)


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
async def test_every_width_has_whole_cells(columns: int) -> None:
    app = FleetApp(StillSource(fleet_of(3)))
    async with shown(app, (columns, 24)):
        row = screen_text(app).splitlines()[4]
        figures = app._rows[0].figures
        assert len(row) <= columns
        assert figures["ttft_p99_seconds"].text in row
        assert figures["kv_usage_p90"].text in row


async def test_the_keys_of_sorting_go_through_every_column() -> None:
    document = fleet_of(4)
    app = FleetApp(StillSource(document))
    async with shown(app) as pilot:
        for sort in (*SORTS[1:], SORTS[0]):
            await pilot.press("s")
            assert _names(app) == [row.entity.title for row in sorted_rows(document.engines, sort)]
        await pilot.press("S")
        assert _names(app)[-1] == "decode"
        assert "reversed" in screen_text(app)


async def test_the_cursor_stays_on_its_engine() -> None:
    source = StillSource(fleet_of(5))
    app = FleetApp(source)
    async with shown(app) as pilot:
        await pilot.press("down", "down")
        engine = app._selected
        await pilot.press("s", "s", "S")
        assert app._rows[app.query_one(DataTable).cursor_row].entity.labels == engine


async def test_a_filter_is_typed_kept_and_cleared() -> None:
    app = FleetApp(StillSource(fleet_of(ENGINES)))
    async with shown(app) as pilot:
        await pilot.press("slash", *"sch01")
        assert _names(app) == ["decode"]
        await pilot.press("enter")
        assert _names(app) == ["decode"]
        assert "filter “sch01”: 1 of 40" in screen_text(app)
        await pilot.press("slash", *" no such engine")
        assert _names(app) == []
        await pilot.press("enter", "enter")  # nothing to open
        assert not isinstance(app.screen, EngineScreen)
        await pilot.press("escape")
        assert len(_names(app)) == ENGINES


async def test_enter_opens_the_finding_with_proof_and_levers() -> None:
    app = FleetApp(StillSource(document_of(HEAVY)))
    async with shown(app, (100, 50)) as pilot:
        await pilot.press("enter")
        text = screen_text(app)
        (now, later) = text.index("Now (no restart)"), text.index("Then (restart or deploy)")
        assert text.index("KVC01 KV cache full") < text.index("Proof") < now < later
        assert "Add replicas" in text[now:later]
        assert "--kv-cache-dtype fp8" in text[later:]
        await pilot.press("right")
        assert "Finding 2 of 5" in screen_text(app)
        await pilot.press("left", "left")
        assert "Finding 5 of 5" in screen_text(app)
        await pilot.press("escape")
        assert not isinstance(app.screen, EngineScreen)


async def test_a_healthy_engine_opens_too() -> None:
    app = FleetApp(StillSource(fleet_of(2)))
    async with shown(app) as pilot:
        await pilot.press("down", "enter")
        assert "No finding is open on this engine." in screen_text(app)
        await pilot.press("right", "backspace")
        assert not isinstance(app.screen, EngineScreen)


async def test_a_frozen_screen_stays_as_it_is() -> None:
    before, after = fleet_of(3), fleet_of(4)
    source = StillSource(before)
    app = FleetApp(source)
    async with shown(app) as pilot:
        await pilot.press("space")
        assert "FROZEN" in screen_text(app)
        source.hand_out(after)
        app._feed.ask(lambda: None)
        await until(lambda: app._newest is not None and len(app._newest.engines) == 4, app, pilot)
        assert len(_names(app)) == 3
        await pilot.press("space")
        assert len(_names(app)) == 4
        assert "FROZEN" not in screen_text(app)


async def test_a_recording_moves_by_keys_and_plays() -> None:
    source = RecordedFleet(HEAVY, setup())
    app = FleetApp(source)
    async with shown(app) as pilot:
        assert "+119 of 119 s" in screen_text(app)

        async def moved(key: str, to: str) -> None:
            await pilot.press(key)
            await until(lambda: f"+{to} of 119 s" in screen_text(app), app, pilot)

        await moved("left", "115")
        await moved("shift+left", "55")
        assert "No trouble found" in screen_text(app)
        await moved("right", "60")
        await moved("shift+right", "119")
        await pilot.press("space")  # from the end: from the beginning
        await until(lambda: "▶ +5 of 119 s" in screen_text(app), app, pilot)
        await until(lambda: "▶ +10 of 119 s" in screen_text(app), app, pilot)
        await pilot.press("space")
        await until(lambda: "■ +" in screen_text(app), app, pilot)


@pytest.mark.parametrize("key", ["r", "left", "shift+right"])
async def test_a_key_that_means_nothing_here_says_so(key: str) -> None:
    app = FleetApp(StillSource(fleet_of(2)))
    async with shown(app) as pilot:
        await pilot.press(key)
        await until(lambda: "recording" in _notices(app) or "kvitals record" in _notices(app), app, pilot)


async def test_the_help_has_every_key() -> None:
    app = FleetApp(StillSource(fleet_of(2)))
    async with shown(app, (100, 50)) as pilot:
        await pilot.press("question_mark")
        text = screen_text(app)
        for shown_key, said in (*((one.shown, one.help) for one in KEYS), *LIST_KEYS, *VIEW_KEYS):
            assert shown_key in text
            assert said.split(";")[0][:30] in text
        documented = {key for one in KEYS for key in one.keys.split(",")} | {"escape", "backspace", "ctrl+c", "ctrl+q"}
        bound = {
            key
            for holder in (FleetApp, EngineList, EngineScreen, HelpScreen)
            for binding in holder.BINDINGS
            for key in binding.key.split(",")  # type: ignore[union-attr]
        }
        assert bound <= documented
        await pilot.press("question_mark")
        assert not isinstance(app.screen, HelpScreen)


@pytest.mark.parametrize(("key", "interrupted"), [("q", False), ("ctrl+c", True), ("ctrl+q", True)])
async def test_it_quits_from_every_screen(key: str, interrupted: bool) -> None:
    for before in ([], ["enter"], ["question_mark"], *([["slash"]] if key != "q" else [])):
        source = StillSource(fleet_of(2))
        app = FleetApp(source)
        async with shown(app) as pilot:
            await pilot.press(*before, key)
            await pilot.pause()
        assert (app.interrupted, app.failure, app.is_running) == (interrupted, None, False)
        assert source.closed


async def test_a_source_that_stops_answering_leaves_the_last_document() -> None:
    app = FleetApp(StillSource(fleet_of(2), ServerError("connection [red]refused[/red]")))
    async with shown(app) as pilot:
        await until(lambda: "No new document for" in screen_text(app), app, pilot)
        assert "connection [red]refused[/red]" in screen_text(app)
        assert _names(app)[0] == "decode"


async def test_a_source_that_never_answers_ends_the_screen() -> None:
    app = FleetApp(StillSource(ServerError("connection refused")))
    async with app.run_test() as pilot:
        await until(lambda: app.failure is not None, app, pilot)
    assert str(app.failure) == "connection refused"


def _with_names(names: Sequence[str]) -> Triage:
    """A document in which whatever comes from outside has one of these names."""
    document = fleet_of(2)
    cause = document.causes[0]
    every = "\n".join(names)
    entity = msgspec.structs.replace(cause.entity, title=names[0])
    cause = msgspec.structs.replace(cause, title=names[0], conclusion=every, entity=entity)
    rows = [
        msgspec.structs.replace(named(document.engines[0], f"{name}{i}"), verdict=name, about={"model": name})
        for i, name in enumerate(names)
    ]
    source = msgspec.structs.replace(document.source, name=names[0])
    return msgspec.structs.replace(document, engines=rows, causes=[cause], verdict=names[0], source=source)


async def test_no_name_reaches_the_terminal_as_a_command() -> None:
    names = ["a\x1b[2Jb", "\x1b]0;t\x07", "[@click=app.bell]x[/]", *texts.HOSTILE]
    app = FleetApp(StillSource(_with_names(names)))
    async with shown(app, (200, len(names) + 30)) as pilot:
        assert "a\ufffd[2Jb" in screen_text(app)
        assert "[@click=app.bell]x[/]" in screen_text(app)
        await _safe(app)
        await pilot.press("enter")
        await until(lambda: "[@click=app.bell]x[/]" in screen_text(app), app, pilot)
        await _safe(app)


async def _safe(app: FleetApp) -> None:
    text = screen_text(app)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), repr(text)


async def test_markup_in_a_name_is_shown_as_it_is() -> None:
    app = FleetApp(StillSource(_with_names(["[red]x[/red]"])))
    async with shown(app, (120, 40)) as pilot:
        assert screen_text(app).count("[red]x[/red]") >= 4
        await pilot.press("enter")
        assert "[red]x[/red]" in screen_text(app)


async def test_forty_engines_cost_little_to_redraw() -> None:
    source = StillSource(fleet_of(ENGINES))
    app = FleetApp(source)
    async with shown(app, (160, 45)) as pilot:
        began = time.process_time()
        for number in range(20):
            source.hand_out(fleet_of(ENGINES - number % 2))
            app._feed.ask(lambda: None)
            await until(lambda n=number: source.read_count == n + 2, app, pilot)  # type: ignore[misc]
        assert time.process_time() - began < CPU_SECONDS


def test_figures_are_those_of_triage() -> None:
    """What stands in a table of a recording is what `kvitals triage --json` has, and so is what `--once` prints."""
    for path in (HEAVY, PAIR):
        triaged = answer(["triage", str(path), "--json"])
        document = msgspec.json.decode(triaged.out, type=Triage)
        with judged_once(fleet_source):
            read = asyncio.run(RecordedFleet(path, setup()).read())
            once = answer(["top", "--once", str(path)], 160)
        assert read.engines == document.engines
        assert (read.verdict, read.healthy) == (document.verdict, document.healthy)
        assert once.code == triaged.code
        for row in json.loads(triaged.out)["engines"]:
            line = next(line for line in once.out.splitlines() if line[2:].startswith(row["entity"]["title"]))
            shown_figures = dict(row["figures"])
            if not shown_figures["itl_p99_seconds"]["text"]:
                del shown_figures["slo_itl_seconds"]  # an objective stands beside its latency
            if shown_figures.pop("ttft_p99_unproven")["text"]:  # stated by a mark
                assert f"{shown_figures['slo_ttft_seconds']['text']}?" in line
            for signal, figure in shown_figures.items():
                assert figure["text"].removesuffix(" requests").removesuffix("/s") in line, (signal, line)


def test_a_recording_has_the_same_document_at_every_moment_in_any_order() -> None:
    expected = dict(verdicts(PAIR, setup()))
    source = RecordedFleet(PAIR, setup())
    for at in (*sorted(expected, reverse=True)[::3], *list(expected)[::3]):
        source.move(at - source._at)
        assert asyncio.run(source.read()) == expected[at]


def test_few_documents_of_a_recording_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_source, "KEPT_DOCUMENTS", 3)
    source = RecordedFleet(PAIR, setup())
    source.play(True)
    while source.playing:
        asyncio.run(source.read())
    assert len(source._documents) == 3


def test_words_of_a_filter_match_codes_causes_and_names() -> None:
    document = fleet_of(3)
    for words, engines in (
        ("sch01", 1),
        ("DECODE slots", 1),
        ("node-1", 1),
        ("tiny", 3),
        ("prefill", 2),
        ("absent", 0),
    ):
        assert len(matching(document, words)) == engines, words


def test_top_needs_a_terminal_or_once(tmp_path: Path) -> None:
    refused = answer(["top", str(HEAVY)])
    assert (refused.code, refused.out) == (2, "")
    assert "--once prints one screen" in refused.err
    assert answer(["top", "--once", "--at", "5s", "http://127.0.0.1:9"]).code == 2
    assert answer(["top", "--once", str(tmp_path)]).code == 2
    assert answer(["top", "--once", "http://127.0.0.1:9"]).code == 3


def test_the_library_is_imported_for_the_full_screen_alone() -> None:
    code = "import sys, kvitals.ui.cli.top, kvitals.ui.cli.triage; sys.exit('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
