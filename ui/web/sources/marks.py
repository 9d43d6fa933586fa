"""What happened to targets, read off families that the agent writes: restarts, changes of configuration, silences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from kvitals.ui.web.sources.base import ChartLine, Happening

INFO = "kvitals_engine_info"
FACT = "max without (source) (kvitals_engine_fact)"
UP = "kvitals_target_up"
RESTARTS = "kvitals_engine_restarts_total"
LOADED = "kvitals_config_loaded_timestamp_seconds"
MAX_MARKS = 200
_PLACE = ("engine", "pool", "node", "cluster")
_IDENTITY = frozenset({"__name__", "cluster", "pool", "node", "engine", "rank", "role", "instance", "job"})

Ask = Callable[[str], list[ChartLine]]


def marks(ask: Ask) -> list[Happening]:
    """All of them in order of time, the latest where they are many. `ask` answers a query over the stretch."""
    found = [
        *_restarts(ask(RESTARTS)),
        *_silences(ask(UP)),
        *_infos(ask(INFO)),
        *_facts(ask(FACT)),
        *_loaded(ask(LOADED)),
    ]
    return sorted(found, key=lambda one: one.start)[-MAX_MARKS:]


def place(line: ChartLine) -> str:
    """The most specific label that says where."""
    return next((line.labels[name] for name in _PLACE if line.labels.get(name)), "")


def _restarts(lines: list[ChartLine]) -> Iterator[Happening]:
    for line in lines:
        for (_, before), (t, now) in _steps(line):
            if now > before:
                yield Happening("event", "restarted", t, entity=place(line))


def _silences(lines: list[ChartLine]) -> Iterator[Happening]:
    for line in lines:
        for (_, before), (t, now) in _steps(line):
            if now < before:
                yield Happening("event", "no longer answers", t, entity=place(line))
            elif now > before:
                yield Happening("event", "answers again", t, entity=place(line))


def _infos(lines: list[ChartLine]) -> Iterator[Happening]:
    """A series of other strings after one that ended: what changed."""
    of: dict[str, list[ChartLine]] = {}
    for line in lines:
        if line.points:
            of.setdefault(place(line), []).append(line)
    for where, several in of.items():
        several.sort(key=lambda line: line.points[0][0])
        for before, now in pairwise(several):
            text = _changes(before, now)
            if before.points[-1][0] < now.points[0][0] and text:
                yield Happening("event", "runs otherwise", now.points[0][0], entity=where, text=text)


def _changes(before: ChartLine, now: ChartLine) -> str:
    """What was known before and is otherwise now. To learn something better is no change of the engine."""
    sources = [n for n in now.labels if n.endswith("_source") and before.labels.get(n) != now.labels[n]]
    learned = {*sources, *(n.removesuffix("_source") for n in sources)}
    names = [n for n in sorted((before.labels.keys() & now.labels.keys()) - _IDENTITY - learned) if before.labels[n]]
    return ", ".join(
        f"{n}: {before.labels[n]} → {now.labels[n]}" for n in names if now.labels[n] not in ("", before.labels[n])
    )


def _facts(lines: list[ChartLine]) -> Iterator[Happening]:
    for line in lines:
        for (_, before), (t, now) in _steps(line):
            if now != before:
                text = f"{line.labels.get('fact', '')}: {before:g} → {now:g}"
                yield Happening("event", "configured otherwise", t, entity=place(line), text=text)


def _loaded(lines: list[ChartLine]) -> Iterator[Happening]:
    for line in lines:
        for (_, before), (t, now) in _steps(line):
            if now != before:
                yield Happening("event", "kvitals.toml applied", t, entity=place(line))


def _steps(line: ChartLine) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    return pairwise(line.points)
