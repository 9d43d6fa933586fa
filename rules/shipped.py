"""Data files that ship with the packages: YAML that nobody else wrote, so that no limits are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast, where there is one


def load_shipped(path: Path) -> Any:
    """The content of a file. Raises OSError or yaml.YAMLError."""
    with path.open(encoding="utf-8") as file:
        return yaml.load(file, YAML_LOADER)  # noqa: S506 (either is a safe one)
