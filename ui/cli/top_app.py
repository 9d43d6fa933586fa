"""The full screen of `kvitals top`: the fleet as a table, an engine with its findings, and the keys."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Input, Static

from kvitals.app.sources.fleet_source import FleetSource, LiveFleet, RecordedFleet
from kvitals.rules.finding import EngineRow, Triage
from kvitals.ui.cli.render import moment, verdict_line
from kvitals.ui.cli.top_feed import DocumentFeed, FeedUpdate
from kvitals.ui.cli.top_finding import engine_view, findings_of, preview
from kvitals.ui.cli.top_table import SORT_TITLES, SORTS, FleetTable, beside, counts, matching, sorted_rows

STEP_SECONDS, LEAP_SECONDS = 5, 60
OLD_AGENT = "the agent reports no figures per engine: update it to the version of this command"
PREVIEW_LINES = 16
"""The height from which on the engine below the cursor is explained at the bottom."""


@dataclass(frozen=True)
class TopKey:
    """A key, what it does, and its word in the last line of the screen; an empty word is in the help only."""

    keys: str  # as the library names them, with commas between
    shown: str
    action: str
    help: str
    word: str = ""


KEYS = (
    TopKey("question_mark", "?", "help", "show or hide this page", "keys"),
    TopKey("q", "q", "leave", "quit; Ctrl-C as well", "quit"),
    TopKey("enter", "enter", "open", "open the engine: its findings with proof and levers", "open"),
    TopKey("s", "s", "sort", "sort by the next column: severity, latency, load, cache, tokens, name", "sort"),
    TopKey("S", "S", "reverse", "reverse the order"),
    TopKey(
        "slash",
        "/",
        "filter",
        "show engines whose name, cause, rule code, model or role contains these words",
        "filter",
    ),
    TopKey("space", "space", "freeze", "freeze the screen; play or stop a recording", "freeze"),
    TopKey(
        "r", "r", "record", "record live engines into a .kvcap file in this directory; again: stop recording", "record"
    ),
    TopKey("left", "←", f"move(-{STEP_SECONDS})", f"a recording: {STEP_SECONDS} s back"),
    TopKey("right", "→", f"move({STEP_SECONDS})", f"a recording: {STEP_SECONDS} s forward"),
    TopKey("shift+left", "shift ←", f"move(-{LEAP_SECONDS})", f"a recording: {LEAP_SECONDS} s back"),
    TopKey("shift+right", "shift →", f"move({LEAP_SECONDS})", f"a recording: {LEAP_SECONDS} s forward"),
)
LIST_KEYS = (("↑ ↓ page home end", "move between engines"),)
VIEW_KEYS = (
    ("esc", "in an engine, on this page or in the filter: go back"),
    ("← →", "in an engine: its other findings"),
)


class FeedMessage(Message):
    """A document, or why there is none."""

    def __init__(self, update: FeedUpdate) -> None:
        super().__init__()
        self.update = update


class FailureMessage(Message):
    """The source cannot be read any more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class EngineList(DataTable[Text]):
    """The table, whose arrow keys to the left and right move a recording."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(one.keys, f"app.{one.action}", one.help) for one in KEYS if "left" in one.keys or "right" in one.keys
    ]


class FleetApp(App[None]):
    """Shows one document after another. `failure`: why it ended by itself; `interrupted`: by a signal or Ctrl-C."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "kvitals top"
    CSS = """
    Screen { layout: vertical; }
    Static { height: auto; }
    #verdict, #beside { max-height: 2; }
    #preview { max-height: 8; }
    #trouble { color: $error; }
    EngineList { height: 1fr; background: $background; }
    EngineList > .datatable--header { text-style: bold; background: $background; }
    #filter { border: none; height: 1; padding: 0; display: none; }
    #keys { height: 1; color: $text-muted; }
    EngineScreen VerticalScroll { height: 1fr; }
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll { width: 76; max-width: 100%; height: auto; max-height: 100%; border: round $accent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(one.keys, one.action, one.help) for one in KEYS if one.action not in ("open",)),
        Binding("ctrl+c,ctrl+q", "interrupt", "quit", priority=True, show=False),
    ]

    def __init__(self, source: FleetSource) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self.is_broken = False
        """Whether it ended because of a defect, whose traceback is printed."""
        self.interrupted = False
        self.recorded: list[Path] = []
        self.document: Triage | None = None
        """What the screen shows."""
        self._newest: Triage | None = None
        self._source = source
        self._feed = DocumentFeed(source, self._hand_over, lambda error: self._post(FailureMessage(error)))
        self._frozen = False
        self._sort, self._reverse, self._words = SORTS[0], False, ""
        self._trouble, self._answered = "", time.monotonic()
        self._rows: list[EngineRow] = []
        self._selected: dict[str, str] = {}  # labels of the engine below the cursor

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="verdict")
        yield Static(id="counts")
        yield EngineList(id="engines", cursor_type="row", cell_padding=0, zebra_stripes=False)
        yield Static(id="preview")
        yield Static(id="beside")
        yield Static(id="trouble")
        yield Input(placeholder="words to filter by; enter keeps them, esc clears them", id="filter")
        yield Static(id="keys")

    def on_mount(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.action_interrupt)
        self.query_one("#engines").focus()
        self._feed.start()
        self._draw()

    def on_unmount(self) -> None:
        self._feed.stop()

    def panic(self, *renderables: RenderableType) -> None:
        """End because of a defect. Textual ends with exit code 0 then."""
        self.is_broken = True
        super().panic(*renderables)

    def _hand_over(self, update: FeedUpdate) -> None:
        self._post(FeedMessage(update))

    def _post(self, message: Message) -> None:
        """Called on the feed's thread, perhaps when the screen is already gone."""
        if self.is_running:
            self.post_message(message)

    def on_feed_message(self, message: FeedMessage) -> None:
        if message.update.notice:
            self._say(message.update.notice)
        if message.update.document is None:
            self._trouble = message.update.trouble
        else:
            self._newest, self._trouble, self._answered = message.update.document, "", time.monotonic()
            if not self._frozen:
                self.document = self._newest
        self._draw()

    def on_failure_message(self, message: FailureMessage) -> None:
        self.failure = message.error
        self.exit()

    def on_resize(self, _: Resize) -> None:
        self._draw()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.cursor_row < len(self._rows):
            self._selected = self._rows[event.cursor_row].entity.labels
            self._draw_preview()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.cursor_row < len(self._rows):
            self.push_screen(EngineScreen(self._rows[event.cursor_row].entity.labels))

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value
        self._draw()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._end_filter()

    def action_filter(self) -> None:
        words = self.query_one("#filter", Input)
        words.display = True
        words.focus()

    def key_escape(self) -> None:
        words = self.query_one("#filter", Input)
        if words.display or self._words:
            words.value = ""
            self._end_filter()

    def _end_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one("#engines").focus()

    def action_leave(self) -> None:
        self.exit()

    def action_interrupt(self) -> None:
        self.interrupted = True
        self.exit()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_sort(self) -> None:
        self._sort, self._reverse = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)], False
        self._draw()

    def action_reverse(self) -> None:
        self._reverse = not self._reverse
        self._draw()

    def action_freeze(self) -> None:
        source = self._source
        if isinstance(source, RecordedFleet):
            playing = not source.playing
            self._feed.ask(lambda: source.play(playing))
            return
        self._frozen = not self._frozen
        self.document = self.document if self._frozen else self._newest
        self._draw()

    def action_move(self, seconds: int) -> None:
        source = self._source
        if isinstance(source, RecordedFleet):
            self._feed.ask(lambda: source.move(seconds))
        else:
            self._say("Only a recording can be moved in time. The space key freezes a live screen.")

    def action_record(self) -> None:
        source = self._source
        if not isinstance(source, LiveFleet):
            self._say("r records live engines only: kvitals record http://ENGINE --out FILE.kvcap")
        elif source.recording is not None:
            self._feed.ask(source.stop_recording)
        else:
            path = Path.cwd() / time.strftime("top-%Y%m%d-%H%M%S.kvcap", time.gmtime())
            self.recorded.append(path)
            self._feed.ask(lambda: source.record(path))

    def _say(self, text: str) -> None:
        self.notify(text, markup=False)

    def _draw(self) -> None:
        """Bring every widget of the screen in line with the document; the screens above it draw themselves."""
        if not self.screen_stack:  # the app is ending
            return
        base = self.screen_stack[0]
        base.query_one("#head", Static).update(self._head())
        base.query_one("#keys", Static).update(_key_line())
        _update(base.query_one("#trouble", Static), self._trouble_line())
        if self.document is None:
            base.query_one("#verdict", Static).update(Text("Collecting: the first verdict takes a few seconds."))
            return
        rows = sorted_rows(matching(self.document, self._words), self._sort, reverse=self._reverse)
        base.query_one("#verdict", Static).update(verdict_line(self.document))
        base.query_one("#counts", Static).update(self._counts(rows))
        _update(base.query_one("#beside", Static), Text(self._beside(self.document), style="yellow"))
        self._fill(base.query_one("#engines", EngineList), rows)
        if isinstance(self.screen, EngineScreen):
            self.screen.draw()

    def _fill(self, table: EngineList, rows: list[EngineRow]) -> None:
        """Show rows in a table; the cursor stays on its engine, and the scrolled part in place."""
        selected = self._selected
        self._rows = rows
        layout = FleetTable(self.size.width, rows)
        scrolled = table.scroll_y
        table.clear(columns=True)
        for (column, width), title in zip(layout.columns, layout.titles(self._sort), strict=True):
            table.add_column(title, width=width, key=column.key)
        for row in rows:
            table.add_row(*layout.cells(row))
        place = next((i for i, row in enumerate(rows) if row.entity.labels == selected), 0)
        table.move_cursor(row=place, animate=False, scroll=False)
        table.scroll_to(y=scrolled, animate=False, force=True)
        self._selected = rows[place].entity.labels if rows else selected
        self._draw_preview()

    def _draw_preview(self) -> None:
        """Show what is wrong with the engine below the cursor, where the screen is high enough."""
        if not self.screen_stack:  # the app is ending
            return
        row = next((row for row in self._rows if row.entity.labels == self._selected), None)
        high = self.size.height >= PREVIEW_LINES and self.document is not None
        parts = preview(row, self.document, self.size.width) if high and row is not None and self.document else []
        self.screen_stack[0].query_one("#preview", Static).update(Group(*parts))

    def _head(self) -> Text:
        document, source = self.document, self._source
        if document is None:
            return Text(f"kvitals top · {source.name}", style="dim")
        said = [source.name, moment(document.window.end), f"window {document.window.seconds:.0f} s"]
        if isinstance(source, RecordedFleet):
            sign = "▶" if source.playing else "■"
            said.append(f"{sign} +{document.window.end - source.first:.0f} of {source.last - source.first:.0f} s")
        text = Text(" · ".join(said), style="dim", no_wrap=True, overflow="ellipsis")
        if self._frozen:
            text.append(" · FROZEN: space goes on", style="bold yellow not dim")
        if isinstance(source, LiveFleet) and source.recording is not None:
            text.append(f" · ● REC {source.recording.name}", style="bold red not dim")
        return text

    def _counts(self, rows: list[EngineRow]) -> Text:
        direction = ", reversed" if self._reverse else ""
        text = Text(f"{counts(rows)} · sorted by {SORT_TITLES[self._sort]}{direction}", no_wrap=True)
        if self._words:
            assert self.document is not None
            text.append(f" · filter “{self._words}”: {len(rows)} of {len(self.document.engines)}", style="bold yellow")
        return text

    def _beside(self, document: Triage) -> str:
        said = [beside(document), *document.coverage.warnings]
        if not document.engines:
            said.append("no engine was seen" if not document.coverage.engines else OLD_AGENT)
        return " · ".join(filter(None, said))

    def _trouble_line(self) -> Text:
        if not self._trouble:
            return Text()
        old = time.monotonic() - self._answered
        return Text(f"No new document for {old:.0f} s: {self._trouble}", style="bold")


class EngineScreen(Screen[None]):
    """One engine with one of its findings; it follows the documents that come."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,backspace", "back", "back"),
        Binding("left", "turn(-1)", "the finding before"),
        Binding("right", "turn(1)", "the finding after"),
    ]

    def __init__(self, labels: dict[str, str]) -> None:
        super().__init__()
        self._labels, self._place = labels, 0

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="engine")
        yield Static(Text("esc back  ← → findings  ↑ ↓ scroll  ? keys  q quit", style="dim"), id="back")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.draw()

    def on_resize(self, _: Resize) -> None:
        self.draw()

    def draw(self) -> None:
        """Show the engine as the app's document has it now."""
        row, document = self._row()
        view = self.query_one("#engine", Static)
        if row is None or document is None:
            view.update(Text("This engine is no longer in the document."))
        else:
            view.update(engine_view(row, document, self._place, max(self.size.width - 2, 20), self.size.height))

    def action_turn(self, by: int) -> None:
        row, document = self._row()
        if row is not None and document is not None:
            self._place = (self._place + by) % max(len(findings_of(row, document)), 1)
            self.query_one(VerticalScroll).scroll_home(animate=False)
            self.draw()

    def action_back(self) -> None:
        self.app.pop_screen()

    def _row(self) -> tuple[EngineRow | None, Triage | None]:
        assert isinstance(self.app, FleetApp)
        document = self.app.document
        rows = document.engines if document is not None else []
        return next((row for row in rows if row.entity.labels == self._labels), None), document


class HelpScreen(ModalScreen[None]):
    """Every key. The app's own keys do not reach a modal screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,question_mark", "back", "back"),
        Binding("q", "app.leave", "quit"),
    ]

    def compose(self) -> ComposeResult:
        table = Table.grid(padding=(0, 2))
        for keys, said in (*((one.shown, one.help) for one in KEYS), *LIST_KEYS, *VIEW_KEYS):
            table.add_row(Text(keys, style="bold", no_wrap=True), Text(said))
        with VerticalScroll():
            yield Static(Text("Keys", style="bold"))
            yield Static(table, id="help")
            yield Static(Text("\n✗ page ! ticket · info ? unknown ✓ healthy; ! after a latency: above objective"))

    def action_back(self) -> None:
        self.app.pop_screen()


def _update(line: Static, text: Text) -> None:
    """Show a line; one without text takes no room."""
    line.display = bool(text.plain)
    line.update(text)


def _key_line() -> Text:
    said = "  ".join(f"{one.shown} {one.word}" for one in KEYS if one.word)
    return Text(said, style="dim", no_wrap=True, overflow="ellipsis")
