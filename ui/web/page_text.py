"""Text on the page: strangers' text made harmless, moments as people read them.

Model names, tenant names and the texts of rules come from anywhere. Streamlit's Markdown turns text into
links, formulas, colours, icons and emoji; `literal` writes text so that it shows as itself and does nothing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from kvitals.app.escaping import plain

JOINER = "\u2060"  # invisible, no width, no break
_SPECIAL = re.compile(r"([!#$&()*+\-.:<=>@\[\\\]^_`{|}~])")
# Streamlit looks for these after backslash escapes are gone, so only a character in between stops it.
_LATE = [
    (
        re.compile(r":(?![0-9]{1,2}:)(?=[\w+/-]+:)"),
        ":" + JOINER,
    ),  # :smile: :material/icon:
    (re.compile(r"://"), f":{JOINER}//"),
    (re.compile(r"\bwww(?=\.)", re.IGNORECASE), "www" + JOINER),
    (re.compile(r"@"), JOINER + "@"),
]


def literal(text: str) -> str:
    """Any text as Markdown that shows that text, on one line."""
    text = plain.line(text)
    for pattern, replacement in _LATE:
        text = pattern.sub(replacement, text)
    return _SPECIAL.sub(r"\\\1", text)


def inline_code(text: str) -> str:
    """Any text as Markdown's inline code, on one line."""
    text = plain.line(text) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if fence != "`" else f"`{text}`"


def prose(text: str) -> str:
    """A paragraph in which `this` is code, and nothing else means anything."""
    parts = re.split(r"`([^`\n]+)`", text)
    return "".join(inline_code(part) if i % 2 else _spaced(part) for i, part in enumerate(parts))


def _spaced(part: str) -> str:
    """Literal text that keeps the spaces beside it."""
    before, after = part[:1].isspace(), part[-1:].isspace()
    return f"{' ' if before else ''}{literal(part)}{' ' if after and part.strip() else ''}"


def moment(t: float, zone: tzinfo | None = None, *, date: bool = True) -> str:
    """A time in UTC, and in the reader's zone where that differs."""
    utc = datetime.fromtimestamp(t, UTC)
    text = utc.strftime("%Y-%m-%d %H:%M:%S UTC" if date else "%H:%M:%S UTC")
    local = utc.astimezone(zone or UTC)
    return text if not local.utcoffset() else f"{text} ({local:%H:%M:%S} your time)"


def span(seconds: float) -> str:
    """A length of time in the largest fitting unit: `45 s`, `12 min`, `3.5 h`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"


def count(number: int, one: str, many: str = "") -> str:
    """`1 symptom`, `2 symptoms`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
