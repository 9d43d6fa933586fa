"""Numbers in texts from outside, of ASCII digits alone. Python also takes digits of other scripts and underscores, and
what two programs read differently gets past the one that checks."""

from __future__ import annotations


def is_digits(text: str) -> bool:
    """Whether a text is digits from 0 to 9, one at least."""
    return text.isascii() and text.isdigit()


def ascii_float(text: str) -> float:
    """The number that a text is. Raises ValueError."""
    if not text.isascii() or "_" in text:
        raise ValueError(f"not a number: {text[:40]!r}")
    return float(text)


def ascii_int(text: str) -> int:
    """The whole number that a text is. Raises ValueError."""
    if not text.isascii() or "_" in text:
        raise ValueError(f"not a whole number: {text[:40]!r}")
    return int(text)
