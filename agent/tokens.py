"""Tokens in files, which are read when they are needed: they may be replaced while we run."""

from __future__ import annotations

from pathlib import Path

MAX_TOKEN_BYTES = 64 * 1024


def read_token(file: Path) -> str:
    """The token in a file. Raises OSError, and ValueError where there is none, which says so and not what there is."""
    with file.open("rb") as opened:
        token = opened.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError("it must hold one line, the token")
    return token
