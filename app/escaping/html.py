"""HTML: text between tags and in attributes with double quotes."""

from __future__ import annotations

import html

from kvitals.app.escaping import plain


def text(value: str) -> str:
    """Any text, shown as itself."""
    return html.escape(plain.lines(value), quote=True)
