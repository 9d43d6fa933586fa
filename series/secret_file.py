"""Secrets in files, one each, so that they show in no list of processes and in no configuration."""

from __future__ import annotations

from pathlib import Path

from kvitals.series.files import read_regular

MAX_BYTES = 16 * 1024
"""Of a secret. Tokens of clusters, which hold claims, have a few thousand."""


class SecretError(Exception):
    """The file of a secret can not be used; the message says why and names no content."""


def secret(path: Path) -> str:
    """The secret in a file, without white space around it: one line that a header can carry. Raises SecretError."""
    text = secret_text(path, MAX_BYTES)
    if not text.isascii() or not text.isprintable():
        raise SecretError(f"{path} must contain one secret on one line")
    return text


def secret_text(path: Path, most: int) -> str:
    """The text of a file of at most so many bytes, without white space around it. Raises SecretError."""
    try:
        content = read_regular(path, most)
        text = content.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"{path} cannot be read: {getattr(error, 'strerror', '') or 'not plain text'}") from None
    if not text:
        raise SecretError(f"{path} is empty")
    return text
