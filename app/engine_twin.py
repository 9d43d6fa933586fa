"""The twin of an engine, from any source of time series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvitals.app.cache import replay_ledger
from kvitals.app.errors import UsageError
from kvitals.app.lookups import ledger_lookups
from kvitals.app.timeseries_sources import TimeseriesSource
from kvitals.diagnoser.change_effect import latest_changes
from kvitals.diagnoser.entities import entity_titles
from kvitals.diagnoser.steps import Ask
from kvitals.diagnoser.twin.forecast import TwinDocument, TwinSubject, forecast, load_period, no_forecast
from kvitals.diagnoser.twin.intervals import read_histograms, read_intervals
from kvitals.diagnoser.twin.settings import FLAGS, SettingError
from kvitals.kvcache.accesses import Accesses
from kvitals.rules.expressions import expression
from kvitals.rules.finding import Entity, Triage
from kvitals.rules.model import SCOPES
from kvitals.series.types import Labels

SETTLED_SECONDS = 0.5
"""By which the start of the first interval after a change may lie before the row that shows the change."""
MAX_FIT_SECONDS = 900.0
"""Of the counters that a step time is fitted to: the latest."""
_BY = ", ".join(SCOPES["engine"])


def twin_subjects(of: TimeseriesSource, accesses: Accesses | None = None) -> list[TwinSubject]:
    """What is known of each engine of a source, since its last change of configuration."""
    start = max(of.start, of.end - MAX_FIT_SECONDS)
    changed = latest_changes(of.ask, start, of.end, of.gap)
    facts, systems = _facts(of.ask, of.end), _systems(of.ask, of.end)
    subjects = []
    measured = read_intervals(of.ask, start, of.end, of.gap)
    titles = entity_titles("engine", measured)
    for engine, intervals in measured.items():
        since = changed[engine].first if engine in changed else start
        kept = intervals.select(
            slice(int(np.searchsorted(intervals.ends - intervals.seconds, since - SETTLED_SECONDS)), None)
        )
        period = load_period(kept)
        histograms = {}
        if len(period):
            first, last = float(period.ends[0] - period.seconds[0]), float(period.ends[-1])
            histograms = read_histograms(of.ask, engine, first, last)
        mine = accesses.select(engine=engine.get("engine", "")) if accesses is not None else None
        mine = mine if mine is not None and len(mine) else None
        subjects.append(
            TwinSubject(
                engine, titles[engine], systems.get(engine, ""), kept, period, histograms, facts.get(engine, {}), mine
            )
        )
    return subjects


def forecasts(
    of: TimeseriesSource, texts: Sequence[str], accesses: Accesses | None = None, *, seed: int = 0
) -> list[TwinDocument]:
    """What settings do to each engine of a source; those that do not have the settings last. Raises UsageError, also
    where no engine has them."""
    subjects = twin_subjects(of, accesses)
    if not subjects:
        raise UsageError(
            f"{of.name} has no engine that reports generated tokens and inter-token times; `kvitals check` names what"
            " is missing"
        )
    documents: list[TwinDocument] = []
    without: list[tuple[TwinSubject, str]] = []
    for one in subjects:
        try:
            documents.append(forecast(one, texts, seed=seed))
        except SettingError as error:
            without.append((one, str(error)))
    if not documents:
        raise UsageError(without[0][1])
    return [*documents, *(no_forecast(one, why, seed=seed) for one, why in without)]


@dataclass(frozen=True)
class AdvisedSetting:
    """A setting that a lever advises for an engine, as `flag=value`."""

    lever: str
    code: str
    engine: Entity
    text: str


def advised_settings(document: Triage) -> list[AdvisedSetting]:
    """The settings of a triage's levers that a twin can simulate, each once, in the triage's order."""
    known = {flag.name for flags in FLAGS.values() for flag in flags}
    settings: dict[tuple[Labels, str], AdvisedSetting] = {}
    for finding in (*document.causes, *document.symptoms):
        engine = finding.entity
        for advice in finding.levers if engine.kind == "engine" else ():
            setting = advice.setting
            name = setting.flag.removeprefix("--") if setting is not None else ""
            if setting is not None and name in known and setting.to.isdecimal():
                key = Labels(engine.labels), f"{name}={setting.to}"
                settings.setdefault(key, AdvisedSetting(advice.lever, finding.code, engine, key[1]))
    return list(settings.values())


def engine_lookups(path: Path) -> Accesses | None:
    """The block lookups of a recording; None where it has no KV events or is none. Raises CaptureError."""
    if path.suffix == ".db":
        return None
    ledger, _ = replay_ledger(path)
    lookups = ledger_lookups(ledger, str(path)) if ledger is not None else None
    return None if lookups is None else lookups.accesses


def _facts(ask: Ask, at: float) -> dict[Labels, dict[str, float]]:
    read: dict[Labels, dict[str, float]] = {}
    for series in ask(expression(f"max by ({_BY}, fact) (kvitals_engine_fact)"), at, at, 1.0):
        read.setdefault(series.labels.keep(SCOPES["engine"]), {})[series.labels["fact"]] = float(series.values[-1])
    return read


def _systems(ask: Ask, at: float) -> dict[Labels, str]:
    series_of = ask(expression(f"max by ({_BY}, system) (kvitals_engine_info)"), at, at, 1.0)
    return {series.labels.keep(SCOPES["engine"]): series.labels.get("system", "") for series in series_of}
