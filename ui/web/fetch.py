"""Getting the triage document from the agent, and saying what to do when that fails."""

from __future__ import annotations

import http.client
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from rules.finding import VERSION, Triage
from ui.web.serve import API_VARIABLE

DEFAULT_API = "http://127.0.0.1:9477"
PATH = "/api/v1/findings"
TIMEOUT_SECONDS = 4.0
MAX_BYTES = 16 << 20
START = "kvitals run http://HOST:8000"


@dataclass(frozen=True)
class Failure:
    """Why there is no document, and what a person can do about it. `commands` are for copying."""

    title: str
    detail: str
    todo: str
    commands: tuple[str, ...] = ()


class _UnreadableError(Exception):
    """The agent answered something that is no document."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.title)
        self.failure = failure


def api_url() -> str:
    """Where the agent's API is, from the environment."""
    return os.environ.get(API_VARIABLE, "").strip().rstrip("/") or DEFAULT_API


def fetch(api: str) -> Triage | Failure:
    """The agent's current document. Bounded in time and size; follows no redirect."""
    parts = urlsplit(api)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return Failure(
            "The agent's address is not a URL",
            f"{API_VARIABLE} is “{api}”.",
            "Set it to the address that the agent printed when it started, and start this page again.",
            (f"export {API_VARIABLE}={DEFAULT_API}",),
        )
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname, port, timeout=TIMEOUT_SECONDS)
    try:
        return _ask(connection, parts.path.rstrip("/") + PATH, api)
    except _UnreadableError as error:
        return error.failure
    except (OSError, http.client.HTTPException) as error:
        return _unreachable(api, error)
    finally:
        connection.close()


def _ask(connection: http.client.HTTPConnection, path: str, api: str) -> Triage:
    connection.request("GET", path, headers={"Accept": "application/json"})
    response = connection.getresponse()
    body = response.read(MAX_BYTES + 1)
    if response.status == http.client.SERVICE_UNAVAILABLE:
        raise _UnreadableError(
            Failure(
                "The agent is still looking",
                f"{api} answers, but has no verdict yet.",
                "Wait for its first window: this page goes on asking. Else look at what the agent prints.",
            )
        )
    if response.status != http.client.OK:
        raise _UnreadableError(_stranger(api, f"It said {response.status} {response.reason} to {path}."))
    if len(body) > MAX_BYTES:
        raise _UnreadableError(_stranger(api, f"Its answer is larger than {MAX_BYTES >> 20} MB."))
    try:
        return msgspec.json.decode(body, type=Triage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _UnreadableError(_not_a_document(api, body, error)) from error


def _not_a_document(api: str, body: bytes, error: Exception) -> Failure:
    try:
        version = str(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["version"], "utf-8").strip('"')
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return _stranger(api, f"Its answer is no triage document ({error}).")
    return Failure(
        "The agent and this page do not fit together",
        f"{api} speaks version {version} of the document, this page {VERSION} ({error}).",
        "Install the same kvitals for both, and start both again.",
        ("kvitals version",),
    )


def _stranger(api: str, said: str) -> Failure:
    return Failure(
        "Something answers, but not as a kvitals agent does",
        f"{said} The address is {api}.",
        f"Perhaps another program has that port. Start an agent and set {API_VARIABLE} to its address.",
        (START, f"export {API_VARIABLE}={DEFAULT_API}"),
    )


def _unreachable(api: str, error: Exception) -> Failure:
    reason = {
        ConnectionRefusedError: "nothing listens there",
        TimeoutError: f"no answer within {TIMEOUT_SECONDS:.0f} s",
        http.client.RemoteDisconnected: "it hung up",
    }.get(type(error), str(error) or type(error).__name__)
    return Failure(
        "No agent answers",
        f"Asked {api}{PATH}: {reason}.",
        f"Start the agent, or set {API_VARIABLE} to where it runs and start this page again. This page goes on asking.",
        (START, f"export {API_VARIABLE}={DEFAULT_API}"),
    )
