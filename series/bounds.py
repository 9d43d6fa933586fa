"""Ranges of the numbers that come from outside: each range has its unit, and all are checked and reported alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_MAGNITUDE = 1e15
"""Beyond it a number in a file is a mistake, whatever its meaning: floats no longer hold every whole number."""


@dataclass(frozen=True)
class Bound:
    """A range with both ends, in `unit` (empty: a plain number). whole: only numbers without a fraction or exponent."""

    least: float
    most: float
    unit: str = ""
    whole: bool = False

    def holds(self, value: object) -> bool:
        """Whether a value is a finite number in the range; true and false are no numbers."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.least <= value <= self.most and not (self.whole and isinstance(value, float))

    def check(self, name: str, value: object) -> None:
        """Raises ValueError with the name, the value, and what is allowed."""
        if not self.holds(value):
            kind = "a whole number from" if self.whole else "from"
            unit = f" {self.unit}" if self.unit else ""
            raise ValueError(
                f"{name} must be {kind} {_digits(self.least)} to {_digits(self.most)}{unit}, not {short_value(value)}"
            )


ANY = Bound(-MAX_MAGNITUDE, MAX_MAGNITUDE)
"""Of numbers without a narrower range."""


def short_value(value: object) -> str:
    """A value of a file for a message: short, and in one line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_MAGNITUDE:
        return f"a number of more than {len(str(int(MAX_MAGNITUDE))) - 1} digits"
    if isinstance(value, float):
        return f"{value:.15g}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unbounded_numbers(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Numbers of a parsed file that are infinite, no number, or beyond MAX_MAGNITUDE: the path of keys, and the
    problem."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from unbounded_numbers(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, inner in enumerate(value):
            yield from unbounded_numbers(inner, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool) and not ANY.holds(value):
        what = short_value(value) if not isinstance(value, float) or math.isfinite(value) else f"{value} is not finite"
        yield path, f"{what}: a number must be from {_digits(ANY.least)} to {_digits(ANY.most)}"


def _digits(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e6 else f"{value:g}"
