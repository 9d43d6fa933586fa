"""What servers answer, read up to a size: whoever answers without end fills no memory."""

from __future__ import annotations

import aiohttp


class TooLargeError(Exception):
    """An answer that was not read to its end."""


async def body_of(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body of an answer, of `most` bytes at most. Raises TooLargeError, and what aiohttp raises."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > most:
            raise TooLargeError(f"answers more than {most // 1_000_000} MB")
    return bytes(body)
