"""What an engine's own metrics page adds to what is known: its names, their types, its buckets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvitals.agent.collectors.page_parser import ExpositionError, PageParser
from kvitals.dashboards.lint.metrics import Type
from kvitals.dashboards.lint.reading import MAX_BYTES, ReadingError
from kvitals.dashboards.lint.trees import base_of
from kvitals.series.files import read_regular


@dataclass(frozen=True)
class PageFacts:
    """Off a page."""

    types: dict[str, Type]
    bounds: dict[str, tuple[float, ...]]


def read_page(path: Path) -> PageFacts:
    """A page that was saved, such as with curl. Raises ReadingError."""
    try:
        page = PageParser().parse(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise ReadingError(f"{path} cannot be read: {error.strerror}") from None
    except ExpositionError as error:
        raise ReadingError(f"{path}: {error}") from None
    types: dict[str, Type] = {}
    bounds: dict[str, set[float]] = {}
    for (name, labels), kind in zip(page.layout.series, page.layout.types, strict=True):
        if kind == "histogram":
            base, part = base_of(name)
            types[base] = "histogram"
            le = dict(labels).get("le", "+Inf")
            if part == "_bucket" and le != "+Inf":
                bounds.setdefault(base, set()).add(_bound(le, path))
        elif kind in ("counter", "gauge"):
            types[name] = "counter" if kind == "counter" else "gauge"
    return PageFacts(types, {name: tuple(sorted(found)) for name, found in bounds.items()})


def _bound(le: str, path: Path) -> float:
    try:
        return float(le)
    except ValueError:
        raise ReadingError(f"{path}: le={le[:40]!r} is not a bucket bound; save the page again") from None
