"""Engines as observers of requests call them, and what the window knows of them at a request's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kvitals.series.ascii_numbers import is_digits
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

AROUND_SECONDS = 7.5
"""How far from a request's wait a sample may be to tell of it: pages are read every few seconds."""

MAX_ASKED = 4_096
"""Names of which it is remembered what they are; an observer may call an engine what it likes."""

LOCAL = ("localhost", "::1")
SIDES = ("prefill", "decode")


@dataclass
class _Known:
    """The engines of one target."""

    names: frozenset[str]
    whole: str  # the label of what serves all its ranks
    engines: dict[str, tuple[Mapping[str, str], str]] = field(default_factory=dict)  # label -> labels, role


class SeenEngines:
    """Names to labels and roles. Fed from pages, asked by the request side."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._known: dict[str, _Known] = {}  # by the target's key
        self._names: dict[str, str] = {}
        self._engines: dict[str, tuple[Mapping[str, str], str]] = {}
        self._processes: dict[int, str] = {}
        self._labels: dict[str, str] = {}  # what was found for names that were asked
        self._roles: dict[str, str] = {}

    def named(self, key: str, url: str, whole: str, engines: Mapping[str, tuple[Mapping[str, str], str]]) -> None:
        """A target's engines: label -> labels of their series and role. `whole` is the page's own label."""
        known = _Known(frozenset(_addresses(url)), whole, dict(engines))
        if self._known.get(key) != known:
            self._known[key] = known
            self._lay_out()

    def gone(self, key: str) -> None:
        """A target is watched no more."""
        if self._known.pop(key, None) is not None:
            self._lay_out()

    def found(self, processes: Mapping[int, str]) -> None:
        """Processes and the engines that they are of."""
        self._processes = {pid: engine for pid, engine in processes.items() if engine}
        self._forget()

    def label(self, name: str) -> str:
        """The `engine` label of what observers call so; empty where no watched engine is meant."""
        found = self._labels.get(name)
        if found is None:
            if len(self._labels) >= MAX_ASKED:
                self._forget()
            found = self._labels[name] = self._label(name)
        return found

    def _label(self, name: str) -> str:
        found = self._names.get(name)
        if found is not None:
            return found
        kind, _, pid = name.partition(":")
        if kind == "pid" and is_digits(pid):
            return self._processes.get(int(pid[:9]), "")
        return next((self._names[one] for one in _addresses(name) if one in self._names), "")

    def role(self, name: str) -> str:
        """Prefill or decode; empty where that is not known."""
        found = self._roles.get(name)
        if found is None:
            known = self._engines.get(self.label(name)) if name else None
            found = self._roles[name] = known[1] if known is not None else ""
        return found

    def labels(self, engine: str) -> Mapping[str, str] | None:
        """The labels of an engine's series, by its label `engine`; None for one that is not watched."""
        known = self._engines.get(engine)
        return known[0] if known else None

    def waited(self, name: str, start: float, end: float) -> bool | None:
        """Whether requests waited for capacity at an engine between two times; None: nobody knows."""
        engine = self.label(name)
        if not engine:
            return None
        newest = self._most("kvitals_requests_waiting_by_reason", engine, start, end, "capacity")
        if newest is not None:
            return newest > 0
        waiting = self._most("kvitals_requests_waiting", engine, start, end)
        return False if waiting == 0 else None  # of those that wait some may wait for KV

    def prompt_tokens(self, key: str, t: float) -> float:
        """The prompt tokens of all engines of a target so far, as far as its page tells them."""
        known = self._known.get(key)
        engines = known.engines if known is not None else {}
        return sum(self._most("kvitals_prompt_tokens_total", engine, t, t) or 0.0 for engine in engines)

    def _most(self, family: str, engine: str, start: float, end: float, reason: str = "") -> float | None:
        """The largest sample near a time."""
        matchers = [Matcher(METRIC_NAME, MatchOp.EQ, family), Matcher("engine", MatchOp.EQ, engine)]
        if reason:
            matchers.append(Matcher("reason", MatchOp.EQ, reason))
        values = [
            float(value)
            for frame in self._window.select(matchers, start - AROUND_SECONDS, end + AROUND_SECONDS)
            for value in frame.values[~is_stale(frame.values)]
        ]
        return max(values, default=None)

    def _forget(self) -> None:
        self._labels, self._roles = {}, {}

    def _lay_out(self) -> None:
        self._forget()
        self._names, self._engines = {}, {}
        for known in self._known.values():
            for engine, (labels, role) in known.engines.items():
                self._engines[engine] = labels, role if role in SIDES else ""
                self._names[engine] = engine
            for name in known.names:
                self._names.setdefault(name, known.whole)


def _addresses(url: str) -> list[str]:
    """HOST:PORT of a URL or address, with each name of this machine."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return []
    if not host or port is None:
        return []
    hosts = ("127.0.0.1", *LOCAL) if host in (*LOCAL, "127.0.0.1") else (host,)
    return [f"{one}:{port}" for one in hosts]
