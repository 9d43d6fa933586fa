"""An installation's own label names and selectors, in rules, alerts and boards that use ours.

Rules and boards are written with the labels `cluster`, `namespace` and `job`, and read every series of a name. A
`LabelNames` renames the labels and adds matchers to what is scraped. It works on texts, so what it does not touch stays
as it was written. The mixin uses the same code, with marks in place of names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvitals.dashboards.parsed import parse_once
from kvitals.dashboards.recording_raw import FAMILIES, HISTOGRAMS
from kvitals.rules.loader import family_of
from kvitals.rules.model import Family
from kvitals.series.promql import Selector

_LAST, _ALONE = "\ue000selectorLast\ue001", "\ue000selectorAlone\ue001"
LABELS = ("cluster", "namespace", "job")
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|`[^`]*`|\$\{?\w+|(?P<name>[A-Za-z_:\ue000][\w:\ue000\ue001]*)(?P<brace>\{)?', re.DOTALL
)
_QUERY = re.compile(r'(?<=printf )("(?:[^"\\]|\\.)*"|`[^`]*`)')
_OF_ALERT = re.compile(r"(?<=\$labels\.)(cluster|namespace|job)\b")
_LEGEND = re.compile(r"(?<=\{\{)(cluster|namespace|job)(?=\}\})")


@dataclass(frozen=True)
class AddedSelector:
    """Matchers that every selector of scraped series gets: `first` before others, `last` after others, `alone` where
    a selector has none, braces included. All are empty where there are none."""

    first: str = ""
    last: str = ""
    alone: str = ""

    @classmethod
    def of_matchers(cls, matchers: str) -> AddedSelector:
        """From text such as `job="kvitals", env="prod"`. Raises PromQLError where it is no list of matchers."""
        text = matchers.strip().removeprefix("{").removesuffix("}").strip().rstrip(",")
        if not text:
            return cls()
        parse_once(f"up{{{text}}}")
        return cls(f"{text}, ", f", {text}", f"{{{text}}}")


@dataclass(frozen=True)
class LabelNames:
    """Names of labels, and what is added to selectors of scraped series."""

    families: Mapping[str, Family]
    labels: Mapping[str, str]  # ours -> the installation's
    added: AddedSelector = AddedSelector()
    agents: bool = True  # whether `kvitals_*` metrics are scraped; else rules record them of engines' pages

    def expression(self, text: str, *, select: bool = True) -> str:
        """A PromQL expression, or a query of a board's variable. select: whether the selector is added."""

        def replaced(match: re.Match[str]) -> str:
            token, name = match[0], match["name"]
            if name is None:
                return f'"{self.labels[token[1:-1]]}"' if token[1:-1] in self.labels else token
            if match["brace"] is None and name in self.labels:
                return self.labels[name]
            if select and self.agents and name.startswith("kvitals_") and family_of(name, self.families):
                return f"{name}{{{self.added.first}" if match["brace"] else f"{name}{self.added.alone}"
            return token

        return _TOKEN.sub(replaced, text)

    def recording(self, groups: Mapping[str, Any]) -> dict[str, Any]:
        """Groups of recording rules."""
        return {"groups": [self._recording_group(group) for group in groups["groups"]]}

    def _recording_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        pages = not self.agents and group["name"] in (FAMILIES, HISTOGRAMS)
        rules = []
        for rule in group["rules"]:
            text = self.expression(_marked(rule["expr"]) if pages and self.added.alone else rule["expr"])
            rules.append({**rule, "expr": text.replace(_LAST, self.added.last).replace(_ALONE, self.added.alone)})
        return {**group, "rules": rules}

    def alerts(self, groups: Mapping[str, Any]) -> dict[str, Any]:
        """Groups of alerting rules."""
        made = []
        for group in groups["groups"]:
            rules = [
                {
                    **rule,
                    "expr": self.expression(rule["expr"]),
                    "annotations": {key: self._annotation(text) for key, text in rule["annotations"].items()},
                }
                for rule in group["rules"]
            ]
            made.append({**group, "rules": rules})
        return {"groups": made}

    def _annotation(self, text: str) -> str:
        renamed = _OF_ALERT.sub(lambda match: self.labels[match[0]], text)
        return _QUERY.sub(
            lambda match: match[0][0] + self.expression(match[0][1:-1], select=False) + match[0][0], renamed
        )

    def routing(self, value: Any) -> Any:
        """Alertmanager's configuration."""
        if isinstance(value, dict):
            return {key: self.routing(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.labels.get(one, one) if isinstance(one, str) else self.routing(one) for one in value]
        return value

    def board(self, value: Any, path: Sequence[str] = ()) -> Any:
        """A board, or a part of it at a path of keys."""
        if isinstance(value, dict):
            tables = "transformations" in path
            return {
                (self.labels.get(key, key) if tables else key): self.board(inner, [*path, key])
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self.board(one, path) for one in value]
        if not isinstance(value, str) or not path:
            return value
        if path[-1] == "expr" or list(path[-2:]) == ["query", "query"]:
            return self.expression(value)
        return _LEGEND.sub(lambda match: self.labels[match[0]], value) if path[-1] == "legendFormat" else value


def _marked(text: str) -> str:
    """A query of engines' pages with a mark where the selector goes, in each selector of what no rule of ours records.
    Its labels can then be renamed and the selector's own stay."""
    selectors = {one.base() for one in parse_once(text).walk() if isinstance(one, Selector) and not _is_ours(one)}
    if not selectors:
        return text
    longest_first = "|".join(re.escape(one) for one in sorted(selectors, key=len, reverse=True))
    return re.sub(rf"(?<![\w:\"|])({longest_first})(?![\w:{{])", _mark_one, text)


def _mark_one(selector: re.Match[str]) -> str:
    base = selector[0]
    return f"{base[:-1]}{_LAST}}}" if base.endswith("}") else f"{base}{_ALONE}"


def _is_ours(selector: Selector) -> bool:
    return selector.name.startswith(("kvitals_", "kvitals:"))


@dataclass(frozen=True)
class Installation:
    """What differs between installations besides `Options`: what is scraped, by which labels, and which alerts."""

    metrics: Literal["agents", "engines"] = "agents"
    selector: str = ""  # matchers for every series that is scraped
    labels: Mapping[str, str] = field(default_factory=lambda: dict(zip(LABELS, LABELS, strict=True)))
    groups: tuple[str, ...] = ()  # of alerts, such as `kv`; empty: all

    def names(self, families: Mapping[str, Family]) -> LabelNames:
        """Raises PromQLError where the selector is no list of matchers."""
        return LabelNames(families, self.labels, AddedSelector.of_matchers(self.selector), self.metrics == "agents")
