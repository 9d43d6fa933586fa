"""Which panels must draw on which source, as checked in: `manifest.yaml`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("manifest.yaml")
_HEAD = """\
# Which panels draw on which source, and what those that draw nowhere lack. Kept by tests/boards/test_drawn.py and
# test_live.py; `drawn`, `raw` and `live` are written by KVITALS_BOARDS_MANIFEST=write, what is lacking by hand;
# `live` is without what the machine's own kernel tells.
"""


def read() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text()) if FILE.exists() else {}
    return found


def kept(part: str, found: Any) -> Any:
    """A part as checked in; it is `found` where the manifest is to be written."""
    manifest = read()
    if os.environ.get("KVITALS_BOARDS_MANIFEST") == "write":
        manifest[part] = found
        FILE.write_text(_HEAD + yaml.safe_dump(manifest, width=118, allow_unicode=True))
    return manifest.get(part)
