"""Metrics pages, read as little as is needed here."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Page:
    """A page in Prometheus' text format."""

    text: str

    def samples(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """The samples of a name that have these labels."""
        found = []
        for line in self.text.splitlines():
            if line.startswith(name) and (match := _LINE.match(line)) and match[1] == name:
                own = dict(_LABEL.findall(match[2] or ""))
                if all(own.get(key) == value for key, value in labels.items()):
                    found.append((own, float(match[3])))
        return found

    def total(self, name: str, **labels: str) -> float:
        """Their sum; 0 where there is none."""
        return sum(value for _, value in self.samples(name, **labels))

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Their sums by a label."""
        sums: dict[str, float] = {}
        for own, value in self.samples(name, **labels):
            sums[own.get(label, "")] = sums.get(own.get(label, ""), 0.0) + value
        return sums

    @property
    def complaints(self) -> list[str]:
        """What senses say of themselves that is not ok: `sense reason`."""
        states = [own for own, value in self.samples("kvitals_sense_state") if value]
        return sorted(
            {f"{own['sense']} {own['reason']}" for own in states if own["state"] not in ("ok", "not_applicable")}
        )
