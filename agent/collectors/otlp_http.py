"""OTLP over HTTP: protobuf and JSON, plain or gzip."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Callable, Collection, Iterator

import msgspec
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kvitals.agent.collectors import otlp_json, otlp_wire
from kvitals.agent.collectors.otlp_intake import BusyError, SpanIntake
from kvitals.agent.collectors.otlp_wire import OtlpFormatError, SpanGroup
from kvitals.agent.connections import GuardedRunner, GuardedSite
from kvitals.agent.exports.host_names import refuse_others
from kvitals.agent.inbound import server_tls
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.request_body import BROKEN_BODY
from kvitals.config import Otlp
from kvitals.series.slices import Steps

BODY_SECONDS = 10.0
"""How long a request's body may take."""

LOOK_SECONDS = 1.0
"""How often it is looked whether the server listens."""

CHUNK = 64 * 1024

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_DECODE: dict[str, Callable[[bytes], Steps[list[SpanGroup]]]] = {PROTOBUF: otlp_wire.groups, JSON: otlp_json.groups}


SHUTDOWN_SECONDS = 1.0
"""For requests that are being answered, when the agent stops."""


class HttpDoor:
    """The server on its address."""

    def __init__(self, settings: Otlp, intake: SpanIntake, hosts: Collection[str] = ()) -> None:
        """hosts: names by which the server may be called, beside localhost and addresses."""
        assert settings.http_address is not None
        self._address = settings.http_address
        self._settings = settings
        self._intake = intake
        self._hosts = hosts
        self._runner: GuardedRunner | None = None
        self._site: GuardedSite | None = None

    async def open(self) -> None:
        """Listen. Raises OSError where the address or the certificate is no good."""
        app = web.Application(middlewares=refuse_others(self._address[0], self._hosts))
        app.router.add_post("/v1/traces", self._traces)
        for signal in ("metrics", "logs"):
            app.router.add_post(f"/v1/{signal}", self._others)
        runner = GuardedRunner(app, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        host, port = self._address
        try:
            self._site = GuardedSite(
                runner,
                LISTENERS["otlp_http"],
                host or None,
                port,
                tls=tls(self._settings),
                refused=lambda: self._intake.drop("busy"),
            )
            await self._site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner

    async def ended(self) -> str:
        """Wait until the server listens no more although nobody closed it. Returns why."""
        while self._site is not None and self._site.is_listening:  # noqa: ASYNC110 - asyncio announces no end
            await asyncio.sleep(LOOK_SECONDS)
        return "the server listens no more"

    async def close(self) -> None:
        """Listen no more, and let requests end for a moment."""
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def port(self) -> int:
        """The port that was taken, where 0 was asked for."""
        assert self._site is not None
        return self._site.port

    async def _traces(self, request: web.Request) -> web.StreamResponse:
        kind = request.content_type
        decode = _DECODE.get(kind)
        if decode is None:
            return _error(415, JSON, f"send {PROTOBUF} or {JSON}, not {kind}")
        if not self._intake.admits(request.headers.get("Authorization", "")):
            self._intake.drop("unauthorized")
            return _error(401, kind, "send the token from [otlp] token_file: OTEL_EXPORTER_OTLP_HEADERS")
        held: list[int] = []
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._body(request, held)
            while held:
                self._intake.let_go(held.pop())  # from here on it is accounted for as a whole
            rejected, why = await self._intake.take(body, decode, request.remote or "")
        except _RefusedError as refused:
            return _error(refused.status, kind, refused.why)
        except TimeoutError:
            self._intake.drop("timeout")
            return _error(408, kind, f"the body did not arrive within {BODY_SECONDS:.0f} s")
        except OtlpFormatError as error:
            return _error(400, kind, str(error)[:500])
        except BusyError:
            return _error(429, kind, "too many requests arrive; try again")
        except BROKEN_BODY as error:
            self._intake.drop("timeout")
            return _error(400, kind, f"the body did not arrive: {error}"[:500])
        finally:
            self._intake.let_go(sum(held))
        return _answer(kind, otlp_wire.answer(rejected, why))

    async def _others(self, request: web.Request) -> web.StreamResponse:
        """Metrics and logs are answered so that exporters go on, and not even read."""
        self._intake.drop("signal")
        why = (
            "kvitals accepts traces only, and stored nothing: set OTEL_METRICS_EXPORTER and OTEL_LOGS_EXPORTER to none"
        )
        return _answer(request.content_type, otlp_wire.answer(0, why))

    async def _body(self, request: web.Request, held: list[int]) -> bytes:
        """The body, unpacked. Adds to `held` what was accounted for. Raises BusyError, _RefusedError."""
        packing = request.headers.get("Content-Encoding", "identity").lower()
        if packing not in ("identity", "gzip"):
            raise _RefusedError(415, f"send it uncompressed or as gzip, not as {packing}")
        limit = self._intake.max_bytes
        if (request.content_length or 0) > limit:
            raise self._too_large()
        unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if packing == "gzip" else None
        body = bytearray()
        async for chunk in request.content.iter_chunked(CHUNK):
            for piece in self._pieces(chunk, unpack):
                if len(body) + len(piece) > limit:
                    raise self._too_large()
                self._intake.hold(len(piece))
                held.append(len(piece))
                body += piece
                if unpack is not None:
                    await asyncio.sleep(0)  # 64 KB unpack to 4 MB
        if unpack is not None and not unpack.eof:
            self._intake.drop("malformed")
            raise _RefusedError(400, "the gzip ends too early")
        return bytes(body)

    def _pieces(self, chunk: bytes, unpack: zlib._Decompress | None) -> Iterator[bytes]:
        """A chunk, unpacked, in pieces of bounded size. Raises _RefusedError."""
        if unpack is None:
            yield chunk
            return
        piece = b""
        while chunk or len(piece) == CHUNK:  # with a full piece there may be more within
            try:
                piece = unpack.decompress(chunk, CHUNK)
            except zlib.error as error:
                self._intake.drop("malformed")
                raise _RefusedError(400, f"not gzip: {error}") from error
            chunk = unpack.unconsumed_tail
            yield piece

    def _too_large(self) -> _RefusedError:
        self._intake.drop("too_large")
        return _RefusedError(
            413, f"larger than {self._intake.max_bytes} bytes: lower OTEL_BSP_MAX_EXPORT_BATCH_SIZE, or raise max_bytes"
        )


class _RefusedError(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


def tls(settings: Otlp) -> ssl.SSLContext | None:
    """The server's side of TLS, where it has a certificate. Raises OSError."""
    if settings.cert_file is None or settings.key_file is None:
        return None
    return server_tls(settings.cert_file, settings.key_file)


def _answer(kind: str, said: ExportTraceServiceResponse) -> web.Response:
    if kind != JSON:
        return web.Response(body=otlp_wire.pack_answer(said), content_type=PROTOBUF)
    partial = said.partial_success
    told = {"rejectedSpans": str(partial.rejected_spans), "errorMessage": partial.error_message}
    return web.Response(
        body=msgspec.json.encode({"partialSuccess": told} if said.HasField("partial_success") else {}),
        content_type=JSON,
    )


def _error(status: int, kind: str, why: str) -> web.Response:
    headers = {"Retry-After": str(otlp_wire.RETRY_SECONDS)} if status == 429 else {}
    code = {401: otlp_wire.UNAUTHENTICATED, 429: otlp_wire.RESOURCE_EXHAUSTED}.get(status, otlp_wire.INVALID_ARGUMENT)
    if kind == PROTOBUF:
        return web.Response(status=status, body=otlp_wire.status(code, why), content_type=PROTOBUF, headers=headers)
    body = msgspec.json.encode({"code": code, "message": why})
    return web.Response(status=status, body=body, content_type=JSON, headers=headers)
