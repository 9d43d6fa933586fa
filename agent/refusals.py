"""What a listener answers to a request that it refuses by itself, before any application sees it."""

from __future__ import annotations

from aiohttp import HttpVersion10, HttpVersion11, web

from kvitals.agent.exports.answers import encode_error
from kvitals.agent.listeners import Listener

RETRY_SECONDS = 5
VERSIONS = (HttpVersion10, HttpVersion11)
"""What every HTTP listener reads. aiohttp itself also answers HTTP/0.9, which has no version, and HTTP/2.0."""

OTHER_VERSION = "this server reads HTTP/1.0 and HTTP/1.1: set one of these versions in the client"


def answer_bytes(row: Listener, status: str, text: str) -> bytes:
    """The answer to a request that ends with its connection, in the form of the listener's other errors.

    status: code and phrase."""
    body, content_type = _error(row, int(status[:3]), text)
    retry = f"Retry-After: {RETRY_SECONDS}\r\n" if status.startswith("503") else ""
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}; charset=utf-8\r\nContent-Length: {len(body)}\r\n{retry}"
        "Connection: close\r\n\r\n"
    ).encode() + body


def other_version(row: Listener, request: web.BaseRequest) -> web.StreamResponse | None:
    """The answer to a request of another version than `VERSIONS`, which ends its connection; None for these."""
    if request._version in VERSIONS:  # `request.version` would be remembered
        return None
    request._version = HttpVersion11  # of the answer, which aiohttp writes in the request's version
    body, content_type = _error(row, 505, OTHER_VERSION)
    answer = web.Response(status=505, body=body, content_type=content_type, charset="utf-8")
    answer.force_close()
    return answer


def _error(row: Listener, code: int, text: str) -> tuple[bytes, str]:
    """The body and its type."""
    if row.json_errors:
        kind = {408: "timeout", 503: "unavailable"}.get(code, "bad_data")
        return encode_error(kind, text), "application/json"
    return f"{text}\n".encode(), "text/plain"
