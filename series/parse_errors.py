"""Texts of errors from the standard library's parsers of JSON and TOML."""

from __future__ import annotations

import re
import sys


def describe_parse_error(text: str, error: Exception) -> str:
    """What is wrong with `text`, and where.

    error: from json.loads or tomllib.loads. Its own text is right, except for an integer with more digits than Python
    converts, which names no line and suggests a change of Python's settings, and for text that is nested too deeply.
    """
    if isinstance(error, RecursionError):
        return "brackets are nested too deeply: remove some levels"
    if not str(error).startswith("Exceeds the limit"):
        return str(error)
    limit = sys.get_int_max_str_digits()
    integer = re.search(rf"[0-9](?:_?[0-9]){{{limit}}}", text)
    where = f" (at line {text.count(chr(10), 0, integer.start()) + 1})" if integer else ""
    return f"integer of more than {limit:,} digits: write a smaller number{where}"
