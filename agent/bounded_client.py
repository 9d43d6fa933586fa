"""Bounds on the bytes of an answer that the HTTP client parses, framing and interim answers included.

    aiohttp.ClientSession(connector=BoundedConnector(max_body=16 << 20))

A limit on a page's content does not end endless chunk extensions, nor 100,000 interim answers before the page: they are
no content. aiohttp parses them on the event loop as they arrive.
"""

from __future__ import annotations

import functools
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

MAX_HEADS = 64 * 1024
"""Bytes of an answer's head and of the interim answers before it."""
FRAMING_SHARE = 4
"""Of the bytes of a body, a quarter more may be framing of its chunks."""


class AnswerTooLongError(aiohttp.ClientPayloadError):
    """An answer has more bytes than its head, its body and the framing of its body may have."""


class _BoundedResponse(ResponseHandler):
    """A connection to a server, which ends where an answer has too many bytes."""

    def __init__(self, most: int, **of_connector: Any) -> None:
        super().__init__(**of_connector)
        self._most = most
        self._received = 0  # bytes of the current answer
        self._has_head = False

    def set_response_params(self, **params: Any) -> None:
        """A request is about to be sent: its answer begins."""
        self._received, self._has_head = 0, False
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """A head was parsed; `data` is a message and its payload."""
        code = data[0].code
        self._has_head = self._has_head or code == 101 or not 100 <= code < 200
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        if not self._has_head and data:
            part, data = data[: MAX_HEADS - self._received], data[MAX_HEADS - self._received :]
            self._received += len(part)
            super().data_received(part)
            if not data:
                return
            if not self._has_head:
                self._refuse()
                return
        self._received += len(data)
        if self._received > self._most:
            self._refuse()
        else:
            super().data_received(data)

    def _refuse(self) -> None:
        payload, parsed = self._payload, self.exception() is not None
        if self.transport is not None:
            self.transport.close()
        if parsed:  # what was parsed is no HTTP, and its exception says so
            return
        error = AnswerTooLongError(f"more than {self._most if self._has_head else MAX_HEADS} bytes")
        if payload is not None:
            payload.set_exception(error)
        self.set_exception(error)


class BoundedConnector(aiohttp.TCPConnector):
    """A connector whose answers have at most `max_body` bytes of content, as it is sent, and a quarter of framing."""

    def __init__(self, max_body: int, **options: Any) -> None:
        super().__init__(**options)
        most = MAX_HEADS + max_body + max_body // FRAMING_SHARE
        self._factory = functools.partial(_BoundedResponse, most, loop=self._loop)  # type: ignore[assignment]
