"""What thinning has to know of a name: whether it counts."""

from __future__ import annotations

from collections.abc import Mapping

from kvitals.rules.loader import family_of
from kvitals.rules.model import Family
from kvitals.series.history.downsample import Kind, KindOf

_KINDS: dict[str, Kind] = {"counter": "counter", "histogram": "counter", "gauge": "gauge"}


def kind_of(families: Mapping[str, Family]) -> KindOf:
    """By the families that are known. Signals and what nobody knows is neither: it is kept as it was at the moment."""

    def of(name: str) -> Kind:
        family = family_of(name, families)
        return _KINDS.get(families[family].type, "other") if family is not None else "other"

    return of
