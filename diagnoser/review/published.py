"""What others published of the same hardware: for orientation, since models, lengths and limits differ."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from functools import cache

import kvitals.rules.catalogue
from kvitals.diagnoser.review.result import PublishedRate

FILE = "published.csv"
MOST = 6


def published_rates(hardware: Iterable[str]) -> list[PublishedRate]:
    """Output tokens per GPU-hour, of the GPUs that are named."""
    words = {word for name in hardware for word in re.findall(r"[a-z]+\d+[a-z]*", name.lower())}
    return [one for one in _all() if one.hardware.split()[0].lower() in words][:MOST]


@cache
def _all() -> tuple[PublishedRate, ...]:
    with (kvitals.rules.catalogue.FOLDER / FILE).open(newline="", encoding="utf-8") as lines:
        return tuple(
            PublishedRate(
                hardware=row["gpu"],
                model=row["model"],
                scenario=row["scenario"],
                tokens_per_gpu_hour=(float(row["least"]), float(row["middle"]), float(row["most"])),
                results=int(row["results"]),
                conditions=row["conditions"],
                source=row["source"],
            )
            for row in csv.DictReader(lines)
        )
