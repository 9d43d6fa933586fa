"""The table of docs/size.md that holds bounds and estimates against published figures."""

from __future__ import annotations

import re

from kvitals.diagnoser.sizing.published_caches import table

FILE = "size.md"

_PLACE = re.compile(r"<!-- published caches -->\n(?:[^<]|<(?!!--))*<!-- end of published caches -->")


def fill_published(document: str) -> str:
    """The document with its table as the formulas are now. Raises ValueError where it has no place for it."""
    if len(_PLACE.findall(document)) != 1:
        raise ValueError(f"docs/{FILE}: expected one place `<!-- published caches -->` with its end")
    rows = "\n".join(table())
    return _PLACE.sub(lambda _: f"<!-- published caches -->\n{rows}\n<!-- end of published caches -->", document)
