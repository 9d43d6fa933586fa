"""Answers of the API, in the form that Prometheus' have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web


def json_answer(data: object) -> web.Response:
    """What was asked for."""
    return packed_answer(encode_answer(data))


async def document_answer(make: Callable[[], object]) -> web.Response:
    """The same for a document that grows with what is watched: `make` and encoding run in a thread."""
    return packed_answer(await asyncio.to_thread(lambda: encode_answer(make())))


def encode_answer(data: object) -> bytes:
    """The body of `json_answer`, for an answer that is large: it is to be made in a thread."""
    return msgspec.json.encode({"status": "success", "data": data})


def refusal(
    status: int, message: str, kind: str = "bad_data", headers: Mapping[str, str] | None = None
) -> web.Response:
    """Why there is nothing, with an HTTP status. `kind` is one of Prometheus' types of errors."""
    answer = web.Response(
        body=encode_error(kind, message), status=status, content_type="application/json", headers=headers
    )
    return _compressed(answer)


def encode_error(kind: str, message: str) -> bytes:
    """The body of an error. Parameters as of `refusal`."""
    return msgspec.json.encode({"status": "error", "errorType": kind, "error": message})


def packed_answer(body: bytes, content_type: str = "application/json") -> web.Response:
    """A document that is encoded already."""
    return _compressed(web.Response(body=body, content_type=content_type))


def _compressed(answer: web.Response) -> web.Response:
    answer.enable_compression()
    return answer


class ApiError(Exception):
    """An answer with `status: error`. `kind` is one of Prometheus' error types."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
