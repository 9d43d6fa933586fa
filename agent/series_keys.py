"""Keys of series beside the node's and the engines' labels, and the label sets that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvitals.series.types import METRIC_NAME, Labels

LabelSet = tuple[tuple[str, str], ...]

Key = tuple[str, LabelSet]
"""A series' name and the labels that it has beside the node's or the engine's."""

LabelsOf = Callable[[str], Mapping[str, str] | None]
"""The labels of an engine's series, by its label `engine`; None for one that is not watched."""


def node_series(node: Mapping[str, str]) -> Callable[[Key], Labels]:
    """Labels of series about a node, whose labels are given."""
    node = dict(node)

    def named(key: Key) -> Labels:
        name, labels = key
        return Labels({**node, **dict(labels), METRIC_NAME: name})

    return named


def entity_series(node: Mapping[str, str], labels_of: LabelsOf) -> Callable[[Key], Labels]:
    """The same, where the series of an engine have the engine's labels in place of the node's."""
    node = dict(node)

    def named(key: Key) -> Labels:
        name, labels = key
        engine = dict(labels).get("engine", "")
        around = (labels_of(engine) if engine else None) or node
        return Labels({**around, **dict(labels), METRIC_NAME: name})

    return named
