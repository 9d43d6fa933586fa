"""JSON and YAML in which no character is unseen: the values stay what they are, and a terminal obeys none of them."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from kvitals.app.escaping.plain import ODD

_UNSEEN = re.compile(
    ODD.pattern[:-1].replace("\x00-\x1f", "\x00-\x09\x0b-\x1f") + "\u00ad\u034f\u200c\u200d\ufe00-\ufe0f]"
)
"""What `plain` removes, but for the line breaks between values, and the joiners and variants that it keeps."""


def escape_unseen(document: str) -> str:
    """A JSON document with its unseen characters written as `\\u....`."""
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], document)


def yaml_text(value: Any, width: int) -> str:
    """A document as YAML. One with unseen characters is in ASCII, because YAML escapes in quoted texts alone."""
    seen = _UNSEEN.search(json.dumps(value, ensure_ascii=False)) is None
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=seen, width=width)
