"""Where families come from, and what brings each, as data in `rules/origins.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from kvitals.rules.model import Text
from kvitals.rules.shipped import load_shipped

FILE = Path(__file__).parent / "origins.yaml"
PAGE, TRAFFIC, HISTORY, FACTS, SERVER, AGENT = "page", "traffic", "history", "facts", "server", "agent"
VALUES = "values"
"""Those that the code names; the others are named by files of families."""


class Origin(Struct, frozen=True, forbid_unknown_fields=True):
    """In words: what it is called, and what brings it where it is not there."""

    title: Text
    brings: Text


@cache
def origins() -> Mapping[str, Origin]:
    """All origins by name."""
    return msgspec.convert(load_shipped(FILE), dict[str, Origin])
