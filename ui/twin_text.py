"""The forecasts of an engine's twin in words and cells, for the terminal and the page."""

from __future__ import annotations

from kvitals.diagnoser.text import render
from kvitals.diagnoser.twin.forecast import TwinDocument, TwinQuantity
from kvitals.ui.formats import moment

COLUMNS = ("", "measured", "simulated", "predicted", "90% range")
MEASURED = 3
"""Columns that remain where nothing is predicted."""
NOTE = (
    "Measured and simulated both describe today's settings: their difference shows how far you can trust the twin."
    " The range holds 90% of the simulations. Latencies have the resolution of the engine's histograms."
)


def changes_text(document: TwinDocument) -> str:
    """`one: --max-num-seqs 2 → 16`."""
    changes = ", ".join(f"--{one['flag']} {_number(one['now'])} → {_number(one['to'])}" for one in document.changes)
    return f"{document.engine.get('engine', 'engine')}: {changes}"


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
    """What the forecast assumes."""
    return [f"assumed: {assumed}." for assumed in document.assumed]


def _value(value: float | None, unit: str) -> str:
    return "" if value is None else render(value, unit)


def _number(value: float | str | None) -> str:
    return "not reported" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
