"""The one error of this package."""

from __future__ import annotations


class PromQLError(ValueError):
    """A query that cannot be parsed, is outside the subset, or cannot be evaluated.

    The message says what is wrong, where, and what would be right. `offset` is the position in the text
    in characters, where it is known.
    """

    def __init__(self, message: str, *, offset: int | None = None) -> None:
        super().__init__(message if offset is None else f"{message} (at character {offset})")
        self.offset = offset


class InvalidPromQLError(PromQLError):
    """A query that is no PromQL: Prometheus refuses it as well."""


class QueryLimitError(PromQLError):
    """A query that met a limit of time, series or samples. Any other PromQLError of a query that was parsed and checked
    is about the series, or is a defect."""


def shorten(text: object, limit: int = 120) -> str:
    """`text` on one line and cut, so that an error message stays readable."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
