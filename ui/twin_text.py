"""The forecasts of an engine's twin in words and cells, for the terminal and the page."""

from __future__ import annotations

from kvitals.diagnoser.text import render
from kvitals.diagnoser.twin.forecast import TwinDocument, TwinQuantity
from kvitals.diagnoser.twin.settings import FLAGS
from kvitals.ui.formats import moment

COLUMNS = ("", "measured", "simulated", "predicted", "90% range")
MEASURED = 3
"""Columns that remain where nothing is predicted."""
NOTE = (
    "Measured and simulated both describe today's settings: their difference shows how far you can trust the twin."
    " The range holds 90% of the simulations. Latencies have the resolution of the engine's histograms."
)

_SWITCHES = frozenset(flag.name for flags in FLAGS.values() for flag in flags if flag.switch)


def changes_text(document: TwinDocument) -> str:
    """`one: --max-num-seqs 2 → 16`."""
    changes = ", ".join(
        f"--{one['flag']} {_setting(one['flag'], one['now'])} → {_setting(one['flag'], one['to'])}"
        for one in document.changes
    )
    return f"{document.title}: {changes}" if changes else document.title


def load_text(document: TwinDocument) -> str:
    """The load that was simulated and when it ended; empty where the engine had none."""
    if not document.end:
        return ""
    seconds = render(document.end - document.start, "seconds")
    load = f"; load: {document.load}" if document.load else ""
    return f"load of {seconds} until {moment(document.end)}{load}"


def refusal_text(document: TwinDocument) -> str:
    """Why nothing is predicted; empty where something is."""
    return f"no prediction: {document.no_prediction}." if document.no_prediction else ""


def columns(document: TwinDocument) -> tuple[str, ...]:
    """The titles of a forecast's table."""
    return COLUMNS[:MEASURED] if document.no_prediction else COLUMNS


def cells(document: TwinDocument, row: TwinQuantity) -> list[str]:
    """One quantity under `columns`."""
    span = "" if row.low is None else f"{_value(row.low, row.unit)} to {_value(row.high, row.unit)}"
    shown = [row.title, *(_value(one, row.unit) for one in (row.measured, row.simulated, row.predicted)), span]
    return shown[: len(columns(document))]


def notes(document: TwinDocument) -> list[str]:
    """What the forecast assumes, and what bounds it."""
    return [*(f"assumed: {assumed}." for assumed in document.assumed), *(f"{note}." for note in document.notes)]


def _value(value: float | None, unit: str) -> str:
    return "" if value is None else render(value, unit)


def _setting(flag: float | str | None, value: float | str | None) -> str:
    """A value as the flag takes it: `2048`, `true`."""
    if not isinstance(value, float):
        return "not reported" if value is None else str(value)
    if flag in _SWITCHES:
        return "true" if value else "false"
    return f"{value:.0f}"
