"""Reading of YAML nodes, which keep where each text stands in the file."""

from __future__ import annotations

import yaml

from kvitals.app.patch.lever_change import PatchError


def entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """The values of a mapping by key; empty for any other node."""
    return {key_of(key): value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def key_of(node: yaml.Node) -> str:
    """A key as text; empty where it is no scalar."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def text_of(node: yaml.Node | None) -> str:
    """A scalar as text; empty for any other node."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def scalar_items(node: yaml.SequenceNode) -> list[yaml.ScalarNode]:
    """The items of a list of texts. Raises PatchError for a list of anything else."""
    if not all(isinstance(item, yaml.ScalarNode) for item in node.value):
        raise PatchError(f"line {node.start_mark.line + 1}: expected a list of strings")
    return list(node.value)
