"""Journeys: what each thing that users come for needs of an engine's telemetry, as data in `rules/journeys.yaml`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct

from kvitals.rules.engine_map import Program
from kvitals.rules.model import Slug, Text
from kvitals.rules.shipped import load_shipped

FILE = Path(__file__).parent / "journeys.yaml"


class Need(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that a journey needs. It is there for engines for which `expr` (PromQL over families) is above 0."""

    what: Text
    expr: Text
    remedy: Text


class Journey(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Slug
    title: Text
    rules: bool = False  # it needs what the rules need, beside `needs`
    needs: tuple[Need, ...] = ()
    kinds: tuple[Program, ...] = ("engine", "scheduler")  # of program that it asks; empty: any


@lru_cache
def journeys() -> tuple[Journey, ...]:
    """All journeys, in the order in which they are shown."""
    return msgspec.convert(load_shipped(FILE), tuple[Journey, ...])
