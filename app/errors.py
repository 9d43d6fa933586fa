"""Errors that end a command with an explanation and no traceback."""

from __future__ import annotations


class UsageError(Exception):
    """The user asked for something that can not be done; the message says what can."""
