"""Data files that ship with the packages: YAML that nobody else wrote, so that no limits are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast, where there is one


_TEXT = "tag:yaml.org,2002:str"


def load_shipped(path: Path) -> Any:
    """The content of a file. Raises OSError or yaml.YAMLError."""
    loader = YAML_LOADER(path.read_text(encoding="utf-8"))
    return value_of(loader, loader.get_single_node())


def value_of(loader: Any, node: yaml.Node | None) -> Any:
    """What a node of a file that ships stands for: PyYAML's own way, for aliases and merged keys, takes twice as long.

    Raises yaml.YAMLError.
    """
    if isinstance(node, yaml.MappingNode):
        return {value_of(loader, key): value_of(loader, value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [value_of(loader, one) for one in node.value]
    if node is None or node.tag == _TEXT:
        return None if node is None else node.value
    return loader.construct_object(node)
