"""YAML whose scalars are wrong: PyYAML's own constructors raise ValueError, KeyError and others without a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import yaml

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
"""Integers of 64 bits, signed or not. Longer ones cannot always be converted to text for a message."""
_KINDS = ("bool", "int", "float", "timestamp", "binary")
_TAG = "tag:yaml.org,2002:"
_SHOWN = 40

Loader = TypeVar("Loader", bound=type[Any])


def check_scalars(loader: Loader) -> Loader:
    """A class decorator: the safe loader reports a scalar that it cannot construct as a MarkedYAMLError with its line,
    and an integer beyond 64 bits, too."""
    for kind in _KINDS:
        loader.add_constructor(_TAG + kind, _checked(loader.yaml_constructors[_TAG + kind], kind))
    return loader


def _checked(construct: Callable[[Any, yaml.Node], Any], kind: str) -> Callable[[Any, yaml.Node], Any]:
    def checked(loader: Any, node: yaml.Node) -> Any:
        try:
            value = construct(loader, node)
        except (ValueError, LookupError, AttributeError, OverflowError):
            valid = False
        else:
            valid = not isinstance(value, int) or MIN_INTEGER <= value <= MAX_INTEGER
        if not valid:
            raise yaml.constructor.ConstructorError(None, None, _problem(kind, str(node.value)), node.start_mark)
        return value

    return checked


def _problem(kind: str, text: str) -> str:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    expected = "an integer of at most 64 bits" if kind == "int" else f"a valid {kind}"
    return f"invalid {kind} {shown!r}: expected {expected}, or quotes around text"
