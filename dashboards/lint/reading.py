"""Boards and rules from files and folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kvitals.dashboards.lint.boards import is_board, read_board
from kvitals.dashboards.lint.defect import Document
from kvitals.dashboards.lint.rule_files import is_rule_file, read_rules
from kvitals.rules.yaml_scalars import check_scalars
from kvitals.series.files import read_regular
from kvitals.series.parse_errors import describe_parse_error

MAX_BYTES = 16 << 20
MAX_YAML_BYTES = 4 << 20
MAX_FILES = 2000
MAX_ALIASES = 200
_ENDINGS = (".json", ".yaml", ".yml")


@check_scalars
class _Loader(yaml.CSafeLoader):
    """The safe loader for files that anybody wrote."""


class UnreachableError(Exception):
    """A server cannot be reached, so it is unknown what it has."""


class ReadingError(Exception):
    """A file is none that can be checked; the message says why and what can."""


class OtherKindError(ReadingError):
    """A file is neither a board nor rules."""


def read_path(path: Path) -> tuple[list[Document], list[str]]:
    """The documents of a file, or of all files of a folder; and what of a folder could not be read, with why.

    Raises ReadingError where a file that was named can not be read, or is neither a board nor rules.
    """
    if not path.is_dir():
        return list(_documents(path, str(path))), []
    found: list[Document] = []
    left_out: list[str] = []
    files = (one for one in sorted(path.rglob("*")) if one.suffix in _ENDINGS and one.is_file())
    for number, file in enumerate(files):
        if number >= MAX_FILES:
            left_out.append(f"{path}: only the first {MAX_FILES} files were checked")
            break
        try:
            found += _documents(file, str(file.relative_to(path)))
        except OtherKindError:
            continue  # a folder may hold other things, such as the configuration of an Alertmanager
        except ReadingError as error:
            left_out.append(str(error))
    return found, left_out


def documents_in(data: Any, name: str) -> Iterator[Document]:
    """The documents in something that was parsed: a board, rules, or a ConfigMap with boards in it."""
    if is_rule_file(data):
        yield read_rules(data, name)
    elif is_board(data):
        yield read_board(data, name)
    elif isinstance(data, dict) and data.get("kind") == "ConfigMap" and isinstance(data.get("data"), dict):
        for key, text in data["data"].items():
            if isinstance(text, str) and str(key).endswith(".json"):
                yield from documents_in(_json(text, f"{name} {key}"), f"{name} {key}")


def _documents(path: Path, name: str) -> Iterator[Document]:
    try:
        content = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise ReadingError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ReadingError(f"{path} is no text") from None
    several = [_json(text, str(path))] if text.lstrip().startswith(("{", "[")) else _yaml(text, str(path))
    found = [document for data in several for document in documents_in(data, name)]
    if not found:
        raise OtherKindError(
            f"{path} is neither a Grafana board (JSON with panels) nor a Prometheus rules file (YAML with groups)"
        )
    yield from found


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReadingError(f"{name} is no JSON: {describe_parse_error(text, error)}") from None


def _yaml(text: str, name: str) -> list[Any]:
    if len(text) > MAX_YAML_BYTES:
        raise ReadingError(f"{name} is larger than {MAX_YAML_BYTES >> 20} MB of YAML")
    try:
        if sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=_Loader)) > MAX_ALIASES:
            raise ReadingError(f"{name} has more than {MAX_ALIASES} aliases")
        return list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = " ".join(str(error).split())[:300]
        raise ReadingError(f"{name} is not YAML: {where}; render a Helm chart first: helm template") from None
