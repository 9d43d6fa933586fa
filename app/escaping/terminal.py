"""The terminal: no name moves the cursor, sets the title, makes a link or hides what follows."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kvitals.app.escaping import plain


class SafeConsole(Console):
    """A console whose texts are shown as themselves: escape sequences are its own styles alone."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not plain.ODD.search(segment.text):
                yield segment
            else:
                yield Segment(plain.lines(segment.text), segment.style)
