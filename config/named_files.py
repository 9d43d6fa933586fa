"""Secrets and certificates that a configuration names: whether each file can be used, and which addresses clash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from kvitals.config.checks import normal_url, place_list
from kvitals.config.toml_reader import LISTS
from kvitals.config.toml_tables import Config
from kvitals.series.files import MAX_CERTIFICATES_BYTES
from kvitals.series.secret_file import SecretError, secret, secret_text

CERTIFICATES = ("ca_file", "cert_file", "client_ca_file", "server_ca_file")
MANY_LINES = ("headers_file",)
"""Files that hold more than one line of text; all others hold one secret."""


def unusable_files(config: Config) -> Iterator[str]:
    """A line for each secret and certificate that is missing, empty, unreadable or no regular file."""
    for where, path in _named(config):
        name = where.rpartition(".")[2]
        try:
            if name in (*CERTIFICATES, *MANY_LINES) or _is_private_key(where):
                secret_text(path, MAX_CERTIFICATES_BYTES)
            else:
                secret(path)
        except SecretError as error:
            yield f"{where}: {error}"


def same_addresses(config: Config) -> Iterator[str]:
    """A line for each address that two tables have: of two targets the second is not watched, of two listeners it
    cannot start."""
    pages: dict[str, list[int]] = {}
    for number, target in enumerate(config.targets, 1):
        pages.setdefault(_page(target.url), []).append(number)
    for page, numbers in pages.items():
        if len(numbers) > 1:
            yield f"[[target]] {place_list(numbers)} have the same address {page}: remove all but one"
    listeners = [*_listeners(config)]
    for at, (where, address) in enumerate(listeners):
        for other, taken in listeners[:at]:
            if _clash(address, taken):
                yield f"{other} and {where} listen at the same address, port {address[1]}: give each its own port"


def _listeners(config: Config) -> Iterator[tuple[str, tuple[str, int]]]:
    yield "[agent].listen", config.agent.address
    if config.remote is not None:
        yield "[remote].listen", config.remote.address
    if config.otlp is not None:
        for name, address in (("grpc", config.otlp.grpc_address), ("http", config.otlp.http_address)):
            if address is not None:
                yield f"[otlp].{name}", address


def _clash(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether two listeners want one port of one interface; port 0 is any that is free."""
    every = ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound to)
    return one[1] == other[1] != 0 and (one[0] == other[0] or one[0] in every or other[0] in every)


def _page(url: str) -> str:
    """A target's page: without a path, /metrics is meant."""
    url = normal_url(url)
    return url if "/" in url.partition("://")[2] else f"{url}/metrics"


def _is_private_key(where: str) -> bool:
    return where.endswith(".key_file") and not where.startswith("[notify].pagerduty")


def _named(config: Config) -> Iterator[tuple[str, Path]]:
    """Each file that the user named, with its place. Defaults are files of a cluster, which may be elsewhere."""
    lists = {plural: name for name, (plural, _, _) in LISTS.items()}
    for item in fields(Config):
        value = getattr(config, item.name)
        if item.name in lists:
            for number, entry in enumerate(value, 1):
                yield from _in_table(f"[[{lists[item.name]}]] {number}", entry)
        elif isinstance(value, Struct):
            yield from _in_table(f"[{item.name}]", value)


def _in_table(where: str, table: Struct) -> Iterator[tuple[str, Path]]:
    for item in fields(type(table)):
        value: Any = getattr(table, item.name)
        if isinstance(value, Path) and item.name.endswith("_file") and value != item.default:
            yield f"{where}.{item.name}", value
        elif isinstance(value, tuple):
            for number, entry in enumerate(value, 1):
                if isinstance(entry, Struct):
                    yield from _in_table(f"{where}.{item.name} {number}", entry)
