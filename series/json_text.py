"""Documents as JSON, whatever their texts contain."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_HALVES = re.compile("[\ud800-\udfff]")
_MARK = "\ufffd"


def encode_json(document: Any) -> bytes:
    """A document as JSON in UTF-8. Half of a surrogate pair, which UTF-8 does not have, becomes U+FFFD.

    Such halves come from `\\ud800` in JSON or YAML, and from file names that are not UTF-8."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(document)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return _HALVES.sub(_MARK, value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value
