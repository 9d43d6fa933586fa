"""OTLP over gRPC."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from kvitals.agent.collectors import otlp_wire
from kvitals.agent.collectors.grpc_front import MAX_CALLS, MAX_CALLS_OF_PEER, Front
from kvitals.agent.collectors.otlp_intake import BusyError, SpanIntake
from kvitals.agent.collectors.otlp_wire import OtlpFormatError
from kvitals.agent.connections import effective
from kvitals.agent.inbound import server_tls
from kvitals.agent.listeners import LISTENERS
from kvitals.config import Otlp

MAX_ENDING_CALLS = 4 * MAX_CALLS
"""Calls of the library at one time, with those that gave way a moment ago."""

ROW = LISTENERS["otlp_grpc"]

MAX_CONNECTION_SECONDS = 300
"""After which a client must connect anew, so that calls that never end do end."""

END_SECONDS = 10
LOOK_SECONDS = 1.0
"""How often it is looked whether the server listens."""

BODY_SECONDS = 10.0
"""How long a call's request may take."""

TRACES = "opentelemetry.proto.collector.trace.v1.TraceService"
OTHERS = (
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "opentelemetry.proto.collector.logs.v1.LogsService",
)
FRONT = "grpc"
"""What all calls are from for the intake: their front has shared them among the addresses already."""

_RETRY = "google.rpc.retryinfo-bin"
_DETAILS = "grpc-status-details-bin"


class GrpcDoor:
    """The server on its address."""

    def __init__(self, settings: Otlp, intake: SpanIntake) -> None:
        self._settings = settings
        self._intake = intake
        self._server: Any = None
        self._front: Front | None = None
        self._folder: Path | None = None  # of the socket between the front and the server; only we may enter it
        self._port = 0

    @property
    def port(self) -> int:
        """The port that was taken, where 0 was asked for."""
        return self._port

    async def open(self) -> None:
        """Listen. Raises OSError where the address or the certificate is no good."""
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", self._intake.max_bytes),  # also of what is unpacked
                ("grpc.max_metadata_size", ROW.max_head),
                # Until HTTP/2 is set up: what does not complete it is closed.
                ("grpc.server_handshake_timeout_ms", int(ROW.first_byte * 1000)),
                ("grpc.max_concurrent_streams", MAX_CALLS_OF_PEER),
                ("grpc.max_connection_age_ms", MAX_CONNECTION_SECONDS * 1000),
                ("grpc.max_connection_age_grace_ms", END_SECONDS * 1000),
            ),
            maximum_concurrent_rpcs=MAX_ENDING_CALLS,
        )
        # Without a deserializer: the bytes are read as those of HTTP are.
        handlers = [_handler(TRACES, self._export), *(_handler(service, self._decline) for service in OTHERS)]
        server.add_generic_rpc_handlers(handlers)
        assert self._settings.grpc_address is not None
        host, port = self._settings.grpc_address
        tls = self._tls()
        self._folder = Path(tempfile.mkdtemp(prefix="kvitals-otlp-"))
        path = self._folder / "grpc"
        try:
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._server = server
            self._front = Front(effective(ROW), path, tls, lambda: self._intake.drop("busy"))
            self._port = await self._front.open(host or None, port)
        except RuntimeError as error:
            await self.close()
            raise OSError(f"the socket {path} cannot be opened") from error
        except OSError:
            await self.close()
            raise

    async def ended(self) -> str:
        """Wait until the library's server ends although nobody closed it. Returns why."""
        assert self._front is not None
        try:
            while await self._server.wait_for_termination(LOOK_SECONDS):  # it has not ended within the time
                if not self._front.is_listening:
                    return "the server no longer listens"
        except Exception as error:  # whatever ended it
            return f"{type(error).__name__}: {error}"
        return "the server stopped"

    async def close(self) -> None:
        """Listen no more, and let calls end for a moment."""
        if self._front is not None:
            self._front.accept_no_more()
        if self._server is not None:
            await self._server.stop(1)
        if self._front is not None:
            self._front.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _tls(self) -> ssl.SSLContext | None:
        """The server's side of TLS, where it has a certificate. Raises OSError."""
        cert, key = self._settings.cert_file, self._settings.key_file
        if cert is None or key is None:
            return None
        context = server_tls(cert, key)
        context.set_alpn_protocols(["h2"])
        return context

    async def _export(self, payloads: AsyncIterator[bytes], context: Any) -> bytes:
        payload = await self._whole(payloads, context)
        metadata = {key: value for key, value in context.invocation_metadata() if key == "authorization"}
        if not self._intake.admits(str(metadata.get("authorization", ""))):
            self._intake.drop("unauthorized")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "send the token from [otlp] token_file as Bearer")
        refusal: tuple[Any, str, Any]
        try:
            rejected, why = await self._intake.take(payload, otlp_wire.groups, FRONT)
            return otlp_wire.pack_answer(otlp_wire.answer(rejected, why))
        except OtlpFormatError as error:
            refusal = grpc.StatusCode.INVALID_ARGUMENT, str(error)[:500], ()
        except BusyError:
            why = "too many requests arrive; try again"
            details = otlp_wire.status(otlp_wire.RESOURCE_EXHAUSTED, why, retry=True)
            refusal = grpc.StatusCode.RESOURCE_EXHAUSTED, why, ((_DETAILS, details), (_RETRY, otlp_wire.RETRY_INFO))
        # Not while the error is handled: `abort` raises, and what was unpacked would live on with the chain of errors.
        del payload
        await context.abort(*refusal)
        raise AssertionError  # it has raised

    async def _decline(self, payloads: AsyncIterator[bytes], context: Any) -> bytes:
        """Metrics and logs are answered so that exporters go on, and not read."""
        await self._whole(payloads, context)
        self._intake.drop("signal")
        return otlp_wire.pack_answer(otlp_wire.answer(0, "kvitals accepts traces only, and stored nothing"))

    async def _whole(self, payloads: AsyncIterator[bytes], context: Any) -> bytes:
        """The request, once it is all there. Calls whose requests never end would keep all others out."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await anext(payloads)
        except TimeoutError:
            self._intake.drop("timeout")
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"the request did not arrive within {BODY_SECONDS:.0f} s"
            )
        except StopAsyncIteration:  # also where it was too large, which the library has answered
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        raise AssertionError  # `abort` raises


def _handler(service: str, answer: Any) -> Any:
    # On the wire one request is as a stream of one, which alone can be waited for with an end.
    method = grpc.stream_unary_rpc_method_handler(answer)
    return grpc.method_handlers_generic_handler(service, {"Export": method})
