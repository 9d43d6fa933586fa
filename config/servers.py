"""Servers in `kvitals.toml` that are called, and the door of our own for other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from kvitals.config.checks import TEXT, Seconds, check_own_certificate, check_seconds, host_and_port, normal_url


class Remote(Struct, frozen=True, kw_only=True):
    """The API for other machines, over TLS. The table being there switches it on."""

    listen: str
    cert_file: Path  # of the server, with its chain
    key_file: Path
    client_ca_file: Path | None = None  # callers must show a certificate that it signed
    token_file: Path | None = None  # callers must send it as a bearer token

    def __post_init__(self) -> None:
        host_and_port(self.listen)
        if self.client_ca_file is None and self.token_file is None:
            raise ValueError("restrict the callers: set token_file, client_ca_file or both")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind to; the empty host is all interfaces."""
        return host_and_port(self.listen)


class OtlpOutTable(Struct, frozen=True, kw_only=True):
    """Where traces of requests are sent. The table being there switches it on."""

    endpoint: str  # URL of a collector; over HTTP without a path, /v1/traces is meant
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    headers_file: Path | None = None  # NAME: VALUE a line, such as a token
    sample: float = 0.1  # share of the requests that are neither slow nor failed

    def __post_init__(self) -> None:
        url = normal_url(self.endpoint)
        path = urlsplit(url).path
        if self.protocol == "grpc" and path:
            raise ValueError(f"endpoint {self.endpoint!r} must have no path with grpc, such as http://collector:4317")
        if self.protocol == "http/protobuf" and not path:
            url = f"{url}/v1/traces"
        msgspec.structs.force_setattr(self, "endpoint", url)
        if not 0.0 <= self.sample <= 1.0:
            raise ValueError(f"sample must be from 0 to 1, not {self.sample:g}")


class PrometheusTable(Struct, frozen=True, kw_only=True):
    """The server that holds a fleet's series, for `--prometheus` without a URL. Options come before it."""

    url: str
    bearer_file: Path | None = None  # a file with a token
    basic_file: Path | None = None  # a file with user:password
    headers_file: Path | None = None  # more headers, a line `Name: value` each
    tenant: str = ""  # X-Scope-OrgID, of servers with tenants
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    timeout: Seconds = Seconds(30)  # for one question
    step: Seconds | None = None  # between two samples; measured where it is not said

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))
        if self.bearer_file and self.basic_file:
            raise ValueError("set bearer_file or basic_file, not both: a server accepts one of them")
        check_own_certificate(self)
        if self.tenant and not TEXT.fullmatch(self.tenant):
            raise ValueError("tenant must be one line of at most 200 characters")
        check_seconds("timeout", self.timeout, 0.1, 600)
        if self.step is not None:
            check_seconds("step", self.step, 1, 300)
