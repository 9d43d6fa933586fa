"""What the tables of `kvitals.toml` check their values with, and how text in them has to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

MAX_PREFIXES = 16
MOST_LISTED = 20
"""Problems that are listed one by one; a file can have thousands."""
MOST_PLACES = 4
"""Places that are named of what is the same."""
MAX_WORD = 80
MAX_SOURCES = 32

TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
HOST = re.compile(r"[\w.:%-]+")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,100}")
NAME_OF_SOURCE = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_PREFIX = re.compile(r"[A-Za-z_:][\w:]{0,63}")


class ConfigError(Exception):
    """The configuration cannot be used. One problem a line: file, key, what is wrong and what is allowed."""


class Seconds(float):
    """A duration, written as a number of seconds or as text with a unit."""


def normal_url(text: str) -> str:
    """`text` with a scheme and without a trailing slash. Raises ValueError, which says what is wrong and has neither a
    password nor what follows `?` or `#`, where tokens stand."""
    url = text if "://" in text else f"http://{text}"
    shown = re.split(r"[?#]", text.rpartition("@")[2], maxsplit=1)[0]
    if "@" in url:
        raise ValueError(f"the URL of {shown} contains a password: use bearer_file")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{shown!r} is not a URL") from None
    host_is_good = HOST.fullmatch(parts.hostname or "")
    is_cut = parts.netloc.endswith(":") or re.search(r"\s", url)
    if parts.scheme not in ("http", "https") or not host_is_good or port == 0 or is_cut:
        raise ValueError(f"{shown!r} is not the URL of a server, such as http://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise ValueError(f"{shown!r} must end with the path, without ? or #")
    return url.rstrip("/")


def is_pattern(text: str) -> bool:
    """Whether a text stands for several, as in `engines-*.json`."""
    return any(character in text for character in "*?[")


def one_of(name: str, value: str, allowed: Collection[str]) -> None:
    """Raises ValueError for what is not allowed, with what is meant perhaps."""
    if value not in allowed:
        raise ValueError(f"{name} may have {', '.join(allowed)}, not {value!r}{nearest(value, allowed)}")


def first_of(lines: Sequence[str], what: str = "problem", most: int = MOST_LISTED) -> list[str]:
    """The first lines, and in a line of its own how many more there are."""
    more = len(lines) - most
    return [*lines[:most], *([f"and {more:,} more {what}{'' if more == 1 else 's'}"] if more > 0 else [])]


def place_list(places: Sequence[object]) -> str:
    """Two places or more, for a message: `1 and 3`; of many the first."""
    shown = [
        *map(str, places[:MOST_PLACES]),
        *([f"{len(places) - MOST_PLACES:,} more"] if len(places) > MOST_PLACES else []),
    ]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def nearest(word: str, allowed: Collection[str]) -> str:
    """A hint at the word that was meant perhaps, or nothing."""
    close = difflib.get_close_matches(word[:MAX_WORD], list(allowed), n=1)
    close = close or [one for one in allowed if word and one.startswith(f"{word}_")]
    return f"; did you mean {close[0]!r}?" if close else ""


def host_and_port(listen: str, name: str = "listen") -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535 or (":" in bare and bare == host):
        raise ValueError(f"{name} must be HOST:PORT, such as 127.0.0.1:9477, not {listen!r}")
    return bare, int(port)


def check_seconds(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least:.10g} to {most:.10g} seconds, not {value:.10g}")


class ClientCertificate(Protocol):
    """A table of a server that is called, with our certificate where it asks for one."""

    @property
    def cert_file(self) -> Path | None: ...

    @property
    def key_file(self) -> Path | None: ...


def check_own_certificate(own: ClientCertificate) -> None:
    """Raises ValueError for a key without its certificate; a certificate may have its key in the same file."""
    if own.key_file and not own.cert_file:
        raise ValueError("key_file is the key of a certificate: set cert_file as well")


def check_server_certificate(own: ClientCertificate) -> None:
    """Raises ValueError where one of the two that a server of ours needs is missing."""
    if (own.cert_file is None) != (own.key_file is None):
        raise ValueError("cert_file and key_file belong together: set both")


def check_prefixes(prefixes: Mapping[str, str]) -> None:
    if len(prefixes) > MAX_PREFIXES:
        raise ValueError(f"prefixes may have at most {MAX_PREFIXES} entries")
    for old, new in prefixes.items():
        if not _PREFIX.fullmatch(old) or not _PREFIX.fullmatch(new):
            raise ValueError(f"prefixes: {old!r} and {new!r} must be prefixes of metric names, such as 'vllm:'")
