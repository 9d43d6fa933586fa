"""The terminal: no name moves the cursor, sets the title, makes a link, begins a line or hides what follows."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from kvitals.app.escaping import plain


class Lines:
    """Something whose line breaks are shown: a page, a query. Everything else is printed as one text without breaks
    but those of the layout, since names of models, engines and tenants may contain any character."""

    def __init__(self, content: RenderableType) -> None:
        self.content = content

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> Iterable[RenderableType]:
        yield self.content


class SafeConsole(Console):
    """A console whose texts are shown as themselves: escape sequences are its own styles alone."""

    _breaks_shown = False

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Lines):
            self._breaks_shown = True
            try:
                yield from self.render(renderable.content, options)
            finally:
                self._breaks_shown = False
            return
        if isinstance(renderable, str):
            renderable = self.render_str(renderable)
        if isinstance(renderable, Text) and not self._breaks_shown:
            renderable = one_line(renderable)
        for segment in super().render(renderable, options):
            if segment.control or not plain.ODD.search(segment.text):
                yield segment
            else:
                yield Segment(plain.lines(segment.text), segment.style)


def one_line(text: Text) -> Text:
    """A text without line breaks, with its styles where they were."""
    shown = plain.unbroken(text.plain)
    if shown == text.plain:
        return text
    made = text.copy()
    made.plain = shown
    return made
