"""Grafana's variables in a query: taken out, so that it can be parsed, and put back into what is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvitals.series.promql import Expr, PromQLError, parse
from kvitals.series.promql.nodes import duration

MAX_QUERY = 64 * 1024
"""Characters: queries over the engines' own names, which have a variant for each version, take 25,000."""

_VARIABLE = re.compile(r"\$\{(\w+)(?::[^}]*)?\}|\[\[(\w+)(?::[^\]]*)?\]\]|\$(\w+)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`')
_DURATIONS = ("__rate_interval", "__interval", "__range")
_FIRST = 7919.0
"""Seconds that stand for a variable that is a duration: no one writes these."""


class OpenedQuery:
    """A query with something in place of its variables."""

    def __init__(self, text: str) -> None:
        """Raises PromQLError where it can not be parsed, or has more than the subset has."""
        if len(text) > MAX_QUERY:
            raise PromQLError(f"it has {len(text)} characters")
        self._back: dict[str, str] = {}
        last: PromQLError | None = None
        for numbers in (False, True):
            try:
                self.expr: Expr = parse(self._without(text, numbers), MAX_QUERY)
                return
            except PromQLError as error:
                last = error
        assert last is not None
        raise last

    def written(self, expr: Expr) -> str:
        """An expression with the variables in it again."""
        text = str(expr)
        for stand_in, variable in self._back.items():
            text = text.replace(stand_in, variable)
        return text

    def window(self) -> float:
        """Seconds that are written as Grafana's own window."""
        seconds = _FIRST + 1000.0
        self._back.setdefault(duration(seconds), "$__rate_interval")
        return seconds

    def is_variable(self, name: str) -> bool:
        """Whether a metric's name is one, as a whole or in part."""
        return any(stand_in in name for stand_in in self._back)

    def _without(self, text: str, numbers: bool) -> str:
        """`numbers`: what is neither a string nor a duration is taken for a number rather than a name."""
        self._back = {}
        strings = [(found.start(), found.end()) for found in _STRING.finditer(text)]

        def stand_in(found: re.Match[str]) -> str:
            if any(start <= found.start() < end for start, end in strings):
                return found[0]
            name = found[1] or found[2] or found[3]
            known = {variable: key for key, variable in self._back.items()}
            if found[0] in known:
                return known[found[0]]
            number = len(self._back)
            before = text[: found.start()].rstrip()
            if name in _DURATIONS or before.endswith(("[", ":", "offset")):
                made = duration(_FIRST + number)
            else:
                made = repr(_FIRST + number + 0.25) if numbers or name.endswith("_s") else f"kvitals_variable_{number}_"
            self._back[made] = found[0]
            return made

        return _VARIABLE.sub(stand_in, text)


def variables_in(text: str) -> frozenset[str]:
    """The names of Grafana's variables in a query."""
    return frozenset(found[1] or found[2] or found[3] for found in _VARIABLE.finditer(text))


def names_in(text: str) -> list[str]:
    """What looks like a metric's name in a query that can not be parsed; of one that is too long nothing."""
    if len(text) > MAX_QUERY:
        return []
    bare = _STRING.sub('""', text)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    found = re.findall(r"(?<![\w:$.])([a-zA-Z_:][\w:]*)(?!\s*\()(?![\w:])", bare)
    return list(dict.fromkeys(found))


def rename_metrics(text: str, names: Mapping[str, str]) -> str:
    """A query's own text with other names of metrics."""
    for old, new in names.items():
        text = re.sub(rf"(?<![\w:]){re.escape(old)}(?![\w:])", lambda _, new=new: new, text)  # type: ignore[misc]
    return text
