"""A client of Prometheus' HTTP API: PromQL in, values out. Thanos, Mimir and VictoriaMetrics speak it too.

Many questions are asked at once, a few at a time. An answer is read up to a size, a redirect is not followed (the
credentials are for the address that was given), and what the server warns of is kept, since a partial answer must not
pass for a whole one.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from kvitals.series.ascii_numbers import ascii_float
from kvitals.series.files import load_cert_chain, read_certificates
from kvitals.series.secret_file import MAX_BYTES as MAX_SECRET_BYTES
from kvitals.series.secret_file import SecretError, secret, secret_text
from kvitals.series.undecodable import UNDECODABLE

if TYPE_CHECKING:
    import aiohttp

MAX_BYTES = 256 * 2**20
"""Of one answer, unpacked. A thousand engines with fifty buckets each take 10 MB."""

MAX_SERIES, MAX_STRINGS = 500_000, 10_000_000
"""Of one answer: 10,000 engines with fifty buckets each, 20 strings each. Decoded, a short series takes 700 bytes."""
MAX_SERIES_IN_ALL = 10_000_000
MAX_BYTES_IN_ALL = 512 * 2**20
"""Of all answers to one client, which lives for one diagnosis. A thousand engines take 30 MB."""

GRACE_SECONDS = 5.0
"""Beyond the timeout, in which the server itself may report that it took too long."""

STRETCH = 100
"""Series that are decoded without a look at the clock."""

ONLY_OPTION = "--prometheus-only LABEL=PATTERN, such as pool=chat or engine='10.0.1.*'"
MAX_HEADERS_BYTES = 64 * 1024
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110's tokens
MAX_WARNINGS = 20

T = TypeVar("T")


class ServerError(Exception):
    """The server could not be asked; the message says what to do. `question` is true where it is the query's fault."""

    def __init__(self, message: str, *, question: bool = False) -> None:
        super().__init__(message)
        self.question = question


@dataclass(frozen=True)
class PrometheusAccess:
    """How a server is reached. Secrets are in files, one each, so that they show in no list of processes."""

    url: str
    bearer_file: Path | None = None
    basic_file: Path | None = None  # holds user:password
    headers_file: Path | None = None  # lines of Name: value
    tenant: str = ""  # X-Scope-OrgID: which tenant's series, of Mimir and its like
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    timeout: float = 30.0  # seconds for one question, until its answer is decoded
    concurrency: int = 4
    interval: float = 0.0  # seconds between two samples; 0: measured
    only: Mapping[str, Collection[str]] = field(default_factory=dict)  # label -> patterns of the engines that are read

    def endpoint(self, path: str) -> str:
        """The URL of a path of the API. Raises ServerError for what is not a URL."""
        shown = re.split(r"[?#]", self.url.rpartition("@")[2], maxsplit=1)[0]  # tokens stand after these
        try:
            parts = urlsplit(self.url)
        except ValueError:
            raise ServerError(f"{shown} is not a URL") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"{shown} is not the URL of a server; write http://HOST:9090, with its path if any")
        if parts.query or parts.fragment:
            raise ServerError(
                f"the URL {shown} must end with its path, without ? or #; give a token with --prometheus-bearer FILE"
            )
        if parts.username or parts.password:
            raise ServerError(
                "the URL contains a user and password, which others would see; use --prometheus-basic FILE"
            )
        root = parts.path.rstrip("/").removesuffix("/api/v1")
        return urlunsplit((parts.scheme, parts.netloc, f"{root}/api/v1/{path}", "", ""))

    def credentials(self) -> dict[str, str]:
        """Headers to send along. Raises ServerError for a file that can not be used."""
        headers: dict[str, str] = {}
        try:
            if self.headers_file is not None:
                headers |= _headers(self.headers_file)
            if self.bearer_file is not None:
                headers["Authorization"] = f"Bearer {secret(self.bearer_file)}"
            if self.basic_file is not None:
                headers["Authorization"] = f"Basic {_login(self.basic_file)}"
        except SecretError as error:
            raise ServerError(str(error)) from None
        if self.tenant:
            headers["X-Scope-OrgID"] = self.tenant
        return headers

    def tls(self) -> ssl.SSLContext | bool:
        """How the server's certificate is checked and ours is shown. Raises ServerError."""
        if self.key_file is not None and self.cert_file is None:
            raise ServerError(
                f"{self.key_file} is the key of a certificate: name the certificate with --prometheus-cert"
            )
        if self.ca_file is None and self.cert_file is None:
            return True
        try:
            trusted = None if self.ca_file is None else read_certificates(self.ca_file)
            context = ssl.create_default_context(cadata=trusted)
            if self.cert_file is not None:
                load_cert_chain(context, self.cert_file, self.key_file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            file = getattr(error, "filename", None) or self.ca_file or self.cert_file
            raise ServerError(f"{file}: this TLS file cannot be used: {reason}") from error
        return context


class PrometheusSeries(msgspec.Struct, frozen=True, gc=False):
    """A series of an answer. `value` is of an instant query, `values` of one over a range; times in seconds."""

    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    resultType: str  # noqa: N815 (the API's name)
    result: msgspec.Raw


_DATA = msgspec.json.Decoder(_Data)
_NAMES = msgspec.json.Decoder(list[str])


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: msgspec.Raw = msgspec.Raw()
    error: str = ""
    errorType: str = ""  # noqa: N815
    warnings: list[str] = []
    isPartial: bool = False  # noqa: N815 (VictoriaMetrics' name)


_ANSWER = msgspec.json.Decoder(_Answer)
_EACH = msgspec.json.Decoder(list[msgspec.Raw])
_SERIES = msgspec.json.Decoder(PrometheusSeries)
_SCALAR = msgspec.json.Decoder(tuple[float, str])


@dataclass(frozen=True)
class PrometheusQuery:
    """One query: at `end`, or with a step from `start` to `end`. Seconds."""

    text: str
    end: float
    start: float | None = None
    step: float = 0.0

    def form(self, timeout: float) -> tuple[str, dict[str, str]]:
        """The path of the API and the form that is sent to it."""
        form = {"query": self.text, "timeout": f"{timeout:.0f}s"}
        if self.start is None:
            return "query", {**form, "time": f"{self.end:.3f}"}
        return "query_range", {
            **form, "start": f"{self.start:.3f}", "end": f"{self.end:.3f}", "step": f"{self.step:.3f}",
        }  # fmt: skip


@dataclass
class Prometheus:
    """A server that is asked. To be used as a context; asking is blocking, and one thread's."""

    access: PrometheusAccess
    warnings: dict[str, None] = field(default_factory=dict)  # what the server warned of, each once
    asked: int = 0
    waited: float = 0.0  # seconds from the first question of each batch to its last answer
    received: int = 0  # bytes
    series: int = 0  # in the answers so far
    left_out: str = ""  # what is not read of the server, and how to read it; empty: everything is read
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    _session: aiohttp.ClientSession | None = None

    def __enter__(self) -> Prometheus:
        self.access.endpoint("query")
        headers, tls = self.access.credentials(), self.access.tls()
        self._session = self._runner.run(self._open(headers, tls))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()

    async def _open(self, headers: Mapping[str, str], tls: ssl.SSLContext | bool) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=self.access.concurrency, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=self.access.timeout + GRACE_SECONDS),
        )

    def ask(self, questions: Sequence[PrometheusQuery]) -> list[list[PrometheusSeries] | ServerError]:
        """The answers, in order. A question that the server refuses has its error; what makes all fail is raised."""
        answers = self._runner.run(self._each([lambda q=q: self._ask(q) for q in questions]))  # type: ignore[misc]
        return [_raised_unless_the_questions(answer) for answer in answers]

    def one(self, question: PrometheusQuery) -> list[PrometheusSeries]:
        """The answer of one question. Raises ServerError."""
        (answer,) = self.ask([question])
        if isinstance(answer, ServerError):
            raise answer
        return answer

    def names(self, start: float, end: float) -> list[str]:
        """The names of the metrics that there are between two times. Raises ServerError."""
        (answer,) = self._runner.run(self._each([lambda: self._names(start, end)]))
        if isinstance(answer, ServerError):
            raise answer
        return answer

    async def _names(self, start: float, end: float) -> list[str]:
        form = {"start": f"{start:.3f}", "end": f"{end:.3f}"}
        status, body = await self._send("GET", "label/__name__/values", form)
        return self._read(status, body, _NAMES.decode)

    async def _each(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | ServerError]:
        """All calls, a few at a time. One that fails for a reason that the next would too ends the others."""
        gate, loop = asyncio.Semaphore(self.access.concurrency), asyncio.get_running_loop()
        fatal: list[ServerError] = []

        async def guarded(call: Callable[[], Awaitable[T]]) -> T | ServerError:
            async with gate:
                if fatal:
                    return fatal[0]
                try:
                    return await call()
                except ServerError as error:
                    if not error.question:
                        fatal.append(error)
                    return error

        began = loop.time()
        found = await asyncio.gather(*(guarded(call) for call in calls))
        self.waited += loop.time() - began
        return list(found)

    async def _ask(self, question: PrometheusQuery) -> list[PrometheusSeries]:
        path, form = question.form(self.access.timeout)
        deadline = time.monotonic() + self.access.timeout + GRACE_SECONDS
        status, body = await self._send("POST", path, form)

        def in_time() -> None:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"decoding an answer of {len(body) >> 20} MB took more than {self.access.timeout:.0f} s; "
                    f"allow more with --prometheus-timeout, or use a server or tenant with fewer series",
                    question=True,
                )

        return self._read(status, body, lambda data: _decode(data, question, in_time))

    async def _send(self, method: str, path: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        import aiohttp

        assert self._session is not None, "to be used as a context"
        self.asked += 1
        url = self.access.endpoint(path)
        try:
            posted, asked = (form, None) if method == "POST" else (None, form)
            async with self._session.request(method, url, data=posted, params=asked, allow_redirects=False) as answer:
                if 300 <= answer.status < 400:
                    where = answer.headers.get("Location", "another address")[:200]
                    raise ServerError(
                        f"{self.access.url} redirects to {where}; if that is the server, give that address"
                    )
                pieces, size = [], 0
                async for piece in answer.content.iter_chunked(1 << 18):
                    size += len(piece)
                    if size > MAX_BYTES:
                        raise ServerError(f"an answer of more than {MAX_BYTES >> 20} MB was not read", question=True)
                    pieces.append(piece)
                self.received += size
                if self.received > MAX_BYTES_IN_ALL:
                    raise ServerError(
                        f"{self.access.url} sent more than {MAX_BYTES_IN_ALL >> 20} MB for one diagnosis; "
                        f"read a part of its engines with {ONLY_OPTION}"
                    )
                return answer.status, b"".join(pieces)
        except TimeoutError:
            raise ServerError(
                f"no answer within {self.access.timeout:.0f} s; allow more with --prometheus-timeout", question=True
            ) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise ServerError(
                f"{self.access.url}: its certificate is not trusted: {error.certificate_error}"
            ) from error
        except aiohttp.ClientConnectorError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.os_error
            raise ServerError(
                f"{self.access.url} cannot be reached ({why}): is it running, and is the port right?"
            ) from error
        except aiohttp.ClientError as error:
            raise ServerError(f"{self.access.url} cannot be reached: {error}") from error

    def _read(self, status: int, body: bytes, decode: Callable[[msgspec.Raw], T]) -> T:
        if status in (401, 403):
            raise ServerError(
                f"{self.access.url} refuses the credentials ({status}); see --prometheus-bearer and -basic"
            )
        self._bound(body)
        try:
            answer = _ANSWER.decode(body)
        except UNDECODABLE:
            raise ServerError(_no_api(self.access.url, status, body)) from None
        for warning in answer.warnings[:MAX_WARNINGS]:
            self._warn(warning)
        if answer.isPartial:
            self._warn("the answer is partial: not every storage node answered")
        if answer.status != "success" or not answer.data:
            reason = f"{answer.errorType}: {answer.error}".strip(": ")[:500] or f"status {status}"
            raise ServerError(reason, question=True)
        try:
            return decode(answer.data)
        except (*UNDECODABLE, ValueError) as error:
            raise ServerError(
                f"the answer does not have the form of a Prometheus answer: {error}", question=True
            ) from None

    def _bound(self, body: bytes) -> None:
        """Count what an answer holds before it is decoded. Raises ServerError where that is too much.

        A series is two JSON objects. Braces and quotes inside of strings count too; no spelling hides a series.
        """
        series, strings = body.count(b"{") // 2, body.count(b'"') // 2
        self.series += series
        if series > MAX_SERIES or strings > MAX_STRINGS:
            raise ServerError(
                f"an answer of about {series:,} series and {strings:,} strings was not decoded: the limits are "
                f"{MAX_SERIES:,} and {MAX_STRINGS:,}; use a server or tenant with fewer series",
                question=True,
            )
        if self.series > MAX_SERIES_IN_ALL:
            raise ServerError(
                f"{self.access.url} sent {self.series:,} series for one diagnosis, more than "
                f"{MAX_SERIES_IN_ALL:,}; use a server or tenant with fewer series"
            )

    def _warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings[" ".join(text.split())[:300]] = None


def _decode(raw: msgspec.Raw, question: PrometheusQuery, in_time: Callable[[], None]) -> list[PrometheusSeries]:
    """The series of an answer. in_time: called before each stretch of them; what it raises ends decoding."""
    data = _DATA.decode(raw)
    if data.resultType == "scalar":
        return [PrometheusSeries({}, value=_SCALAR.decode(data.result))]
    if data.resultType != ("vector" if question.start is None else "matrix"):
        raise ValueError(f"a {data.resultType[:20]}")
    found: list[PrometheusSeries] = []
    for number, one in enumerate(_EACH.decode(data.result)):
        if number % STRETCH == 0:
            in_time()
        series = _SERIES.decode(one)
        for _, text in (*series.values, series.value) if series.value is not None else series.values:
            ascii_float(text)  # raises ValueError here, so that callers may convert it without care
        found.append(series)
    return found


def _raised_unless_the_questions(answer: list[PrometheusSeries] | ServerError) -> list[PrometheusSeries] | ServerError:
    if isinstance(answer, ServerError) and not answer.question:
        raise answer
    return answer


def _headers(path: Path) -> dict[str, str]:
    """Lines of `Name: value`. Raises SecretError."""
    found = {}
    for line in secret_text(path, MAX_HEADERS_BYTES).splitlines():
        name, colon, value = line.partition(":")
        if not colon or not _HEADER.fullmatch(name.strip()) or not value.strip().isprintable():
            raise SecretError(f"{path}: each line must be `Name: value`")
        found[name.strip()] = value.strip()
    return found


def _login(path: Path) -> str:
    """`user:password` as it is sent. Raises SecretError."""
    both = secret_text(path, MAX_SECRET_BYTES)
    if ":" not in both or not both.isprintable():
        raise SecretError(f"{path} must contain user:password on one line")
    return b64encode(both.encode()).decode()


def _no_api(url: str, status: int, body: bytes) -> str:
    begin = " ".join(body[:120].decode("utf-8", "replace").split())
    return (
        f"{url} is neither a kvitals agent nor a Prometheus (status {status}, the answer begins with {begin!r})."
        " Check the address; Mimir and VictoriaMetrics need a path, such as /prometheus or /select/0/prometheus."
    )
