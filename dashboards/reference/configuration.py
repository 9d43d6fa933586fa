"""The tables of docs/configuration.md: keys, types and defaults off the configuration's types, words off keys.yaml."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from kvitals.config import LISTS, Seconds, SomeSlo
from kvitals.config import TABLES as SINGLE
from kvitals.dashboards.reference.text import table
from kvitals.rules.shipped import load_shipped

FILE = "configuration.md"


def _inside(name: str, kind: type[Struct]) -> Iterator[tuple[str, type[Struct]]]:
    """A table, and those that it has several of."""
    yield name, kind
    for field in msgspec.structs.fields(kind):
        for one in typing.get_args(field.type) if typing.get_origin(field.type) is tuple else ():
            if isinstance(one, type) and issubclass(one, Struct):
                yield f"{name}.{field.encode_name}", one


TABLES: dict[str, type[Struct]] = dict(
    table
    for name, kind in (SINGLE | {name: kind for name, (_, kind, _) in LISTS.items()}).items()
    for table in _inside(name, kind)
)
"""Every table of `kvitals.toml` that has keys of its own, by its name in the file."""

MAX_DEFAULT = 60  # characters of a default that are shown
_PLACE = re.compile(r"<!-- keys of ([a-z_.]+) -->\n(?:[^<]|<(?!!--))*<!-- end of keys -->")
_WORDS = Path(__file__).with_name("keys.yaml")
_TYPES = {
    str: "text", int: "number", float: "number", bool: "yes or no", Path: "path", Seconds: "duration",
    SomeSlo: "table", datetime: "time",
}  # fmt: skip


class Words(Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of a key."""

    is_: str = msgspec.field(name="is")
    unset: str = ""  # what holds where it is left out


def fill_tables(document: str) -> str:
    """The document with its tables as they are now. Raises ValueError where a table has no place, or a key no words."""
    words = _words()
    wanted = TABLES.keys() - {found[1] for found in _PLACE.finditer(document)}
    if wanted:
        raise ValueError(f"docs/{FILE}: no place `<!-- keys of ... -->` with its end for {', '.join(sorted(wanted))}")

    def made(found: re.Match[str]) -> str:
        rows = "\n".join(_rows(found[1], words))
        return f"<!-- keys of {found[1]} -->\n{rows}\n<!-- end of keys -->"

    return _PLACE.sub(made, document)


def _rows(name: str, words: dict[str, dict[str, Words]]) -> Iterator[str]:
    if name not in TABLES:
        raise ValueError(f"docs/{FILE}: there is no table [{name}]")
    said = words.get(name, {})
    fields = [field for field in msgspec.structs.fields(TABLES[name]) if TABLES.get(f"{name}.{field.name}") is None]
    known = {field.encode_name for field in fields}
    if known != said.keys():
        wrong = ", ".join(sorted(known ^ said.keys()))
        raise ValueError(f"{_WORDS}: [{name}] must say what each key is, and no other; look at {wrong}")
    rows = ((_key(field), _type(field.type), _default(field, said), said[field.encode_name].is_) for field in fields)
    yield from table(("key", "type", "default", "meaning"), rows)


def _words() -> dict[str, dict[str, Words]]:
    data = load_shipped(_WORDS)
    texts = {
        name: {key: {"is": value} if isinstance(value, str) else value for key, value in keys.items()}
        for name, keys in data.items()
    }
    return msgspec.convert(texts, dict[str, dict[str, Words]])


def _key(field: msgspec.structs.FieldInfo) -> str:
    return f"`{field.encode_name}`"


def _type(kind: Any) -> str:
    """A type in words."""
    origin, inside = typing.get_origin(kind), [one for one in typing.get_args(kind) if one is not types.NoneType]
    if origin is Literal:
        return ", ".join(f'`"{one}"`' for one in inside if one)
    if origin is tuple:
        return f"list of {_plural(inside[0])}"
    if origin is dict:
        return "table"
    if inside:  # one of several, or nothing
        return " or ".join(dict.fromkeys(_type(one) for one in inside))
    return _TYPES[kind]


def _plural(kind: Any) -> str:
    return " or ".join(word if word.endswith("`") else f"{word}s" for word in _type(kind).split(" or "))


def _default(field: msgspec.structs.FieldInfo, said: dict[str, Words]) -> str:
    if said[field.encode_name].unset:
        return said[field.encode_name].unset
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT or value in (None, "", (), {}):
        return ""
    shown = _duration(value) if isinstance(value, Seconds) else json.dumps(value, default=str)
    return f"`{shown}`" if len(shown) <= MAX_DEFAULT else "several"


def _duration(value: Seconds) -> str:
    """As one would write it in the file."""
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if value % seconds == 0 and value >= (seconds if unit == "h" else 2 * seconds):
            return f'"{value / seconds:g}{unit}"'
    return f'"{value:g}s"'
