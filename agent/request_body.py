"""The body of a request to an aiohttp server, bounded in bytes and in time.

body = await read_body(request, max_bytes=1 << 20, seconds=10.0)
"""

from __future__ import annotations

import asyncio

from aiohttp import ClientError, web

BROKEN_BODY = (web.RequestPayloadError, ClientError, ConnectionError)
"""What reading a body raises if its framing is invalid or the connection ends."""


class BodyError(Exception):
    """Why a body is refused; `status` is the HTTP status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


async def read_body(request: web.Request, max_bytes: int, seconds: float) -> bytes:
    """The body as it was sent. A compressed body is refused: a small one can unpack to a thousand times its size.

    max_bytes: limit of the body. seconds: limit for the whole body. Raises BodyError: 400, 408, 413 or 415.
    """
    if "Content-Encoding" in request.headers:
        packing = ", ".join(request.headers.getall("Content-Encoding")).strip().lower()
        if packing not in ("", "identity"):
            raise BodyError(
                415, f"compressed body ({packing[:40]}) not accepted: send the body without Content-Encoding"
            )
    too_large = BodyError(413, f"body too large: the limit is {max_bytes} bytes; send less in one request")
    if (request.content_length or 0) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise BodyError(
            408, f"body incomplete after {seconds:g} s: {len(body)} bytes arrived; send the whole body at once"
        ) from None
    except BROKEN_BODY as error:
        raise BodyError(
            400, f"body unreadable: {str(error)[:200]}; check Content-Length, chunked framing and proxies"
        ) from None
    return bytes(body)
