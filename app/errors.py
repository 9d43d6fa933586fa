"""Errors that end a command with an explanation and no traceback."""

from __future__ import annotations


class UsageError(Exception):
    """The user asked for something that can not be done; the message says what can."""


class NoEngineError(Exception):
    """No target answers; the message says why each does not and what to do."""
