"""YAML as people read it: texts of several lines as blocks, keys in the order in which they were given."""

from __future__ import annotations

from typing import Any

import yaml

WRITER = "python -m kvitals.dashboards.generate"
_WIDTH = 10_000
"""Expressions are not broken: a broken one can not be copied."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dump(*documents: Any, note: str = "", by: str = WRITER) -> str:
    """Documents as one file. `note`: comment lines at its top, without their sign; `by`: the command that writes it."""
    header = f"# Written by `{by}` from rules/. Changes here are lost with the next one.\n"
    said = "".join(f"# {line}".rstrip() + "\n" for line in note.splitlines())
    options = {"sort_keys": False, "width": _WIDTH, "allow_unicode": True, "default_flow_style": False}
    text = yaml.dump_all(documents, Dumper=_Dumper, **options)  # type: ignore[call-overload]
    return f"{header}{said}{text}"
