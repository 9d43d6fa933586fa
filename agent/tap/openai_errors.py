"""Errors that the tap answers itself, in the format of OpenAI's API."""

from __future__ import annotations

import json

_REASONS = {
    400: b"Bad Request",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}


def error_answer(status: int, kind: str, message: str) -> bytes:
    """A whole response that closes its connection. kind: the error's type, one word."""
    error = {"error": {"message": f"kvitals tap: {message}", "type": kind, "param": None, "code": status}}
    body = json.dumps(error).encode() + b"\n"
    head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, _REASONS.get(status, b"Error"), len(body)) + body
