"""The block ledger of a recording."""

from __future__ import annotations

from pathlib import Path

from agent.config import Config
from agent.ledger.side import LedgerSide
from agent.service import Node
from series.capture import CaptureReader


class LedgerError(Exception):
    """There is no ledger; the message says what to do."""


def of_recording(path: Path) -> LedgerSide:
    """Keep the ledger of a recording anew, to its end. Raises CaptureError, ConfigError, LedgerError."""
    node, last = Node(Config()), 0.0
    with CaptureReader.open(path) as reader:
        node.expect(reader.header.meta)
        for record in reader:
            node.feed(record)
            last = max(last, record.t)
    node.requests.flush()
    if node.ledger is None:
        raise LedgerError(
            f"{path} has no KV events. Engines publish them with --kv-events-config (see `kvitals check`);"
            " then record it anew."
        )
    node.ledger.flush(last)
    return node.ledger
