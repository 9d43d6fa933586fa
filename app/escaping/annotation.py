"""Annotations of alerts. An Alertmanager hands them on to receivers of all kinds, and many take them for markup."""

from __future__ import annotations

import re

from kvitals.app.escaping import plain

_OPENS = re.compile(r"<(?=[^\s0-9=])")  # a comparison stays as it is


def text(value: str, most: int) -> str:
    """Any text on one line that opens no tag, link or mention: neither Slack's `<!channel>` nor HTML's."""
    return plain.clip(_OPENS.sub("‹", plain.line(value)), most)
