"""A step of a sizing, for people: values, each with how it was come by."""

from __future__ import annotations

from dataclasses import dataclass

from kvitals.diagnoser.sizing.quantity import format_quantity


@dataclass(frozen=True)
class SizingLine:
    """One value of a step. how: the formula with its numbers, or where it is from. None: not known, `how` says why."""

    name: str
    value: float | None
    unit: str
    how: str
    text: str = ""

    @property
    def told(self) -> str:
        return self.text or format_quantity(self.value, self.unit)


@dataclass(frozen=True)
class SizingStep:
    """answer: the step in one sentence."""

    title: str
    lines: tuple[SizingLine, ...]
    answer: str
    number: int = 0
