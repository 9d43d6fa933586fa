"""Loggers whose library is imported with the first line: that takes 30 ms, and most commands write none."""

from __future__ import annotations

from typing import Any


class Logger:
    """Writes lines by structlog: an event, and fields as keywords."""

    def info(self, event: str, **fields: object) -> None:
        _log().info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        _log().warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        _log().error(event, **fields)

    def exception(self, event: str, **fields: object) -> None:
        """An error, with the exception that is handled now."""
        _log().exception(event, **fields)


def _log() -> Any:
    import structlog

    return structlog.get_logger()
