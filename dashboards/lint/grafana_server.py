"""The boards of a Grafana, over its HTTP API."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from kvitals.dashboards.lint.boards import is_board, read_board
from kvitals.dashboards.lint.defect import Document
from kvitals.dashboards.lint.reading import MAX_BYTES, ReadingError, UnreachableError
from kvitals.series.files import read_certificates
from kvitals.series.secret_file import SecretError, secret

MAX_BOARDS = 1000
PAGE = 500
TIMEOUT_SECONDS = 20.0
WHOLE_SECONDS = 300.0
AT_ONCE = 4
_UID = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True)
class GrafanaAccess:
    """How a Grafana is reached. token_file: of a service account that may read boards."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None


def read_grafana(access: GrafanaAccess) -> tuple[list[Document], list[str]]:
    """All boards that the token may read, or the one whose address the URL is; and what was left out, with why.

    Raises ReadingError where the server can not be asked.
    """
    return asyncio.run(_read(access))


async def _read(access: GrafanaAccess) -> tuple[list[Document], list[str]]:
    root, one = _root(access.url)
    connector = aiohttp.TCPConnector(limit=AT_ONCE, ssl=_tls(access.ca_file))
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=_login(access)) as session:
        try:
            async with asyncio.timeout(WHOLE_SECONDS):
                uids = [one] if one else await _uids(session, root)
                left_out = (
                    [f"{root}: only the first {MAX_BOARDS} boards were checked"] if len(uids) > MAX_BOARDS else []
                )
                answers = await asyncio.gather(*(_board(session, root, uid) for uid in uids[:MAX_BOARDS]))
        except TimeoutError:
            raise ReadingError(f"{root} did not answer within {WHOLE_SECONDS:.0f} s") from None
    left_out += [answer for answer in answers if isinstance(answer, str)]
    found = [answer for answer in answers if isinstance(answer, Document)]
    if one and not found:
        raise ReadingError("; ".join(left_out))
    return found, left_out


async def _uids(session: aiohttp.ClientSession, root: str) -> list[str]:
    uids: list[str] = []
    for page in range(1, MAX_BOARDS // PAGE + 2):
        found = await _get(session, f"{root}/api/search?type=dash-db&limit={PAGE}&page={page}")
        if not isinstance(found, list):
            raise ReadingError(f"{root} does not answer like Grafana; give its own address, with its path if any")
        names = [one.get("uid") for one in found if isinstance(one, dict)]
        uids += [name for name in names if isinstance(name, str) and _UID.fullmatch(name)]
        if len(found) < PAGE:
            break
    return uids


async def _board(session: aiohttp.ClientSession, root: str, uid: str) -> Document | str:
    try:
        data = await _get(session, f"{root}/api/dashboards/uid/{uid}")
    except (ReadingError, UnreachableError) as error:
        return str(error)
    return read_board(data, f"{root}/d/{uid}") if is_board(data) else f"{root}/d/{uid} is not a board with panels"


async def _get(session: aiohttp.ClientSession, url: str) -> Any:
    try:
        async with session.get(url, allow_redirects=False) as response:
            if 300 <= response.status < 400:
                raise ReadingError(
                    f"{url} redirects; give the final address, because kvitals sends the token to no other server"
                )
            if response.status in (401, 403):
                raise ReadingError(
                    f"{url} refuses ({response.status}): give the token of a service account that may read "
                    f"boards, --token-file FILE"
                )
            if response.status != 200:
                raise ReadingError(f"{url} answers {response.status}")
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_BYTES:
                    raise ReadingError(f"{url} is larger than {MAX_BYTES >> 20} MB")
            return json.loads(bytes(body))
    except TimeoutError:
        raise UnreachableError(f"{url} did not answer within {TIMEOUT_SECONDS:.0f} s") from None
    except (aiohttp.ClientError, OSError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
        raise UnreachableError(
            f"{url.partition('/api/')[0]} cannot be reached ({why}). Is Grafana running, and is the port right?"
        ) from None
    except (ValueError, RecursionError):
        raise ReadingError(f"{url} does not answer with JSON; is it Grafana's address?") from None


def _root(url: str) -> tuple[str, str]:
    """The server's address, and the uid where the URL is of one board. Raises ReadingError."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ReadingError(f"{url} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ReadingError(f"{url} is not the URL of a Grafana, such as http://127.0.0.1:3000")
    if parts.username or parts.password:
        raise ReadingError("the URL contains a user and password, which others would see; use --token-file FILE")
    path, _, board = parts.path.partition("/d/")
    uid = board.partition("/")[0]
    if uid and not _UID.fullmatch(uid):
        raise ReadingError(f"{uid[:100]!r} is not the uid of a board")
    return f"{parts.scheme}://{parts.netloc}{path.rstrip('/')}", uid


def _login(access: GrafanaAccess) -> dict[str, str]:
    if access.token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {secret(access.token_file)}"}
    except SecretError as error:
        raise ReadingError(str(error)) from None


def _tls(ca_file: Path | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cadata=read_certificates(ca_file))
    except OSError as error:
        raise ReadingError(f"{ca_file} cannot be used: {error}") from None
