"""The client of an agent's HTTP API: every question to a running agent goes through it.

It tells apart why there is no answer: nothing listens there, the agent is slow, something else than kvitals answers, or
an agent of another version. Blocking; an event loop calls it in a thread. It follows no redirect, uses no proxy of the
environment, and reads an answer up to a size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version as own_version
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from kvitals.agent.ledger.packed import MAX_BYTES as MAX_ACCESSES_BYTES
from kvitals.agent.ledger.packed import PackedError, unpack
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.slow_tail import TailReport
from kvitals.diagnoser.sources.prometheus import PrometheusAccess
from kvitals.kvcache.accesses import Accesses
from kvitals.rules.finding import VERSION, Triage
from kvitals.series.history.event_log import Episode, HistoryEvent
from kvitals.series.undecodable import UNDECODABLE

TIMEOUT_SECONDS = 6.0
"""For a whole answer. A busy agent takes its time; an engine says at once that it has no such path."""
PAGE_BYTES = 1 << 16
"""Of a metrics page, to tell whose it is."""
WORK_SECONDS = 25.0
"""For an answer that an agent computes when asked: longer than its own limit, so that it can say why there is none."""
MAX_BYTES = 16 << 20
DAY_SECONDS, MILLISECOND = 86400.0, 0.001
_PIECE_BYTES = 1 << 16
_NAME = "kvitals"
"""The first word of the revision in an agent's build information; its version follows."""

T = TypeVar("T")


class AgentError(Exception):
    """There is no answer from an agent; the message says why and what to do."""


class AgentAddressError(AgentError):
    """The address is not a URL."""


class AgentUnreachableError(AgentError):
    """Nothing listens at the address, or the connection broke."""


class AgentSlowError(AgentError):
    """The answer did not arrive in time."""


class NotKvitalsError(AgentError):
    """Something answers that is not a kvitals agent."""


class OtherVersionError(AgentError):
    """An agent of a version whose answers have another form."""


class UnreadableAnswerError(AgentError):
    """An agent of this version sends an answer that cannot be decoded."""


class AgentRefusedError(AgentError):
    """The agent answers that it cannot answer. `reason` is its own sentence, `status` the HTTP status."""

    def __init__(self, url: str, reason: str, status: int) -> None:
        super().__init__(f"the agent at {url} answers: {reason}")
        self.reason = reason
        self.status = status


class HistorySpan(msgspec.Struct, frozen=True):
    """The times of the first and of the last sample that an agent keeps, seconds since the epoch."""

    first: float
    last: float


class SeriesAnswer(msgspec.Struct, frozen=True):
    """One series of a range query: labels, and times in seconds with values as text."""

    metric: dict[str, str]
    values: list[tuple[float, str]]


class TailAnswer(msgspec.Struct, frozen=True):
    """What explains slow requests; tenant_names: pseudonym -> name, on the agent's own machine only."""

    reports: list[TailReport] = []
    tenant_names: dict[str, str] = {}


class _Envelope(msgspec.Struct, frozen=True):
    status: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


class _Build(msgspec.Struct, frozen=True):
    revision: str = ""


class _Matrix(msgspec.Struct, frozen=True):
    result: list[SeriesAnswer]


class _RequestList(msgspec.Struct, frozen=True):
    requests: list[dict[str, Any]]


class _Episode(msgspec.Struct, frozen=True):
    key: str
    code: str
    entity: dict[str, str]
    start: float
    end: float
    open: bool
    finding: msgspec.Raw


class AgentClient:
    """Questions to the agent at `url`. Every method raises AgentError's subclasses."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        headers: Mapping[str, str] | None = None,
        ca_file: str | None = None,
        certificate: tuple[str, str] | str | None = None,
    ) -> None:
        """timeout: seconds for a whole answer. headers: credentials to send. ca_file: the authority that signed the
        agent's certificate. certificate: this client's, as a file, or as the files of certificate and key."""
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._headers = dict(headers or {})
        self._verify: bool | str = ca_file or True
        self._certificate = certificate

    @classmethod
    def with_access(cls, access: PrometheusAccess) -> AgentClient:
        """A client with the credentials that a Prometheus would get. Raises ServerError for unusable files."""
        access.endpoint("query")
        access.tls()
        key, cert = access.key_file, access.cert_file
        certificate = None if cert is None else str(cert) if key is None else (str(cert), str(key))
        ca_file = str(access.ca_file) if access.ca_file else None
        url = access.url.rstrip("/").removesuffix("/api/v1")
        return cls(url, timeout=access.timeout, headers=access.credentials(), ca_file=ca_file, certificate=certificate)

    def version(self) -> str:
        """The version of kvitals that the agent runs."""
        status, body = self._get("status/buildinfo", {}, MAX_BYTES, self._timeout)
        try:
            revision = msgspec.convert(msgspec.json.decode(_data_of(body)), _Build).revision
        except UNDECODABLE:
            revision = ""
        name, _, version = revision.partition(" ")
        if status != 200 or name != _NAME:
            raise NotKvitalsError(
                f"{self.url} answers, but it is not a kvitals agent (status {status}). Check the address."
            )
        return version

    def findings(self) -> Triage:
        """The triage document of now."""
        status, body = self._get("findings", {}, MAX_BYTES, self._timeout)
        if status != 200:
            self._refuse("findings", status, body)
        try:
            return msgspec.json.decode(body, type=Triage)
        except UNDECODABLE as error:
            if (version := _document_version(body)) and version != VERSION:
                raise OtherVersionError(
                    f"the agent at {self.url} sends version {version} of the triage document, but this kvitals "
                    f"reads version {VERSION} ({error}). Use the same kvitals version on both sides."
                ) from error
            self._unreadable("findings", error)

    def since_change(self) -> Triage:
        """The triage document of now, with the effect of the latest change. Computed when asked; takes seconds."""
        return self._ask("since-change", Triage, seconds=WORK_SECONDS)

    def cache(self) -> dict[str, Any] | None:
        """The ledger's report (docs/ledger.md); None while no engine has published KV events."""
        return self._unless_missing(lambda: self._ask("cache", dict[str, Any]))

    def cascades(self) -> dict[str, Any]:
        """The report on eviction cascades (docs/cascade.md)."""
        return self._ask("cascades", dict[str, Any])

    def accesses(self) -> Accesses | None:
        """The latest lookups; None while no engine has published KV events."""
        status, body = self._get("accesses", {}, MAX_ACCESSES_BYTES, max(self._timeout, WORK_SECONDS))
        try:
            if status != 200:
                self._refuse("accesses", status, body)
            return unpack(body)
        except AgentRefusedError as error:
            if error.status == 404:
                return None
            raise
        except PackedError as error:
            self._unreadable("accesses", error)

    def requests(self, parameters: Mapping[str, str]) -> list[tuple[RequestRecord, str]]:
        """Request records, each with its tenant's name where that may be shown. parameters: as docs/api.md lists."""
        listed = self._ask("requests", _RequestList, parameters).requests
        try:
            return [(msgspec.convert(one, RequestRecord), str(one.get("tenant_name", ""))) for one in listed]
        except msgspec.ValidationError as error:
            self._unreadable("requests", error)

    def tails(self, parameters: Mapping[str, str]) -> TailAnswer:
        """What explains the slow requests."""
        return self._ask("tail", TailAnswer, parameters)

    def query_range(self, query: str, start: float, end: float, step: float) -> list[SeriesAnswer]:
        """The series of a PromQL query between two times, in seconds."""
        asked = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._ask("query_range", _Matrix, asked).result

    def history(self) -> HistorySpan | None:
        """What the agent keeps; None where it keeps no history."""
        kind = cast("type[HistorySpan | None]", HistorySpan | None)
        return self._unless_missing(lambda: self._ask("history", kind))

    def episodes(self, start: float, end: float) -> list[Episode]:
        """Findings that were open at some time between two times, by start; their documents have no evidence."""
        found: dict[str, Episode] = {}  # a finding that lasts over midnight is in the answers of both days
        for form in _days(start, end):
            for one in self._ask("history/findings", list[_Episode], form):
                finding = bytes(one.finding)
                found[one.key] = Episode(one.key, one.code, one.entity, one.start, one.end, one.open, finding)
        return sorted(found.values(), key=lambda one: (one.start, one.key))

    def events(self, start: float, end: float, kind: str = "") -> list[HistoryEvent]:
        """Events between two times, of one kind or of all, by time."""
        more = {"kind": kind} if kind else {}
        return [
            one for form in _days(start, end) for one in self._ask("history/events", list[HistoryEvent], form | more)
        ]

    def _ask(self, path: str, type_: type[T], parameters: Mapping[str, str] | None = None, seconds: float = 0.0) -> T:
        """The decoded answer. seconds: to wait for it at least."""
        status, body = self._get(path, parameters or {}, MAX_BYTES, max(self._timeout, seconds))
        if status != 200:
            self._refuse(path, status, body)
        try:
            return msgspec.json.decode(_data_of(body), type=type_)
        except UNDECODABLE as error:
            self._unreadable(path, error)

    def _unless_missing(self, ask: Callable[[], T]) -> T | None:
        """None where an agent has the path but nothing to show, or keeps nothing of the kind."""
        try:
            return ask()
        except AgentRefusedError as error:
            if error.status == 404:
                return None
            raise

    def shows_other_metrics(self) -> bool:
        """Whether the URL has a metrics page that is no agent's. Engines count a question to an API that they do not
        have as an error of their clients, so their page is looked at first."""
        status, begin = self._read("metrics", {}, PAGE_BYTES, self._timeout, whole=False)
        return status == 200 and b"# TYPE " in begin and b"kvitals_" not in begin

    def _get(self, path: str, parameters: Mapping[str, str], limit: int, timeout: float) -> tuple[int, bytes]:
        """The status and body of an answer of the API."""
        return self._read(f"api/v1/{path}", parameters, limit, timeout)

    def _read(
        self, path: str, parameters: Mapping[str, str], limit: int, timeout: float, *, whole: bool = True
    ) -> tuple[int, bytes]:
        """The status and body of an answer. whole: False: of a longer one, what comes first."""
        if not _is_url(self.url):
            raise AgentAddressError(f"{self.url!r} is not the URL of an agent: write http://HOST:PORT")
        import requests  # only where an agent is asked: the agent's own process imports this module, too
        from urllib3.exceptions import HTTPError

        deadline = time.monotonic() + timeout
        try:
            with requests.Session() as session:
                session.trust_env = False
                session.verify, session.cert = self._verify, self._certificate
                with session.get(
                    f"{self.url}/{path}",
                    params=dict(parameters),
                    headers={"Accept": "application/json" if whole else "text/plain", **self._headers},
                    timeout=timeout,
                    stream=True,
                    allow_redirects=False,
                ) as response:
                    body = bytearray()
                    # What has arrived, not a full piece: an answer that drips must not outlive the deadline.
                    while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
                        body += piece
                        if len(body) > limit and not whole:
                            break
                        if len(body) > limit:
                            raise AgentError(
                                f"the answer of {self.url} is larger than {limit >> 20} MB: request less at a time"
                            )
                        if time.monotonic() > deadline:
                            raise requests.Timeout
                    return response.status_code, bytes(body)
        except requests.Timeout as error:
            raise AgentSlowError(
                f"the agent at {self.url} did not answer within {timeout:g} s. The agent or its machine is "
                f"busy: try again."
            ) from error
        except (requests.RequestException, HTTPError, ValueError, OSError) as error:
            if "timed out" in str(error):  # while the body is read, the library reports it as a broken connection
                raise AgentSlowError(
                    f"the agent at {self.url} stopped answering within {timeout:g} s. The agent or its machine "
                    f"is busy: try again."
                ) from error
            raise AgentUnreachableError(
                f"no agent answers at {self.url}: {_why(error)}. Start one with `kvitals run`, or check the address."
            ) from error

    def _refuse(self, path: str, status: int, body: bytes) -> NoReturn:
        """Raise what an answer that is not 200 means."""
        try:
            said = msgspec.json.decode(body, type=_Envelope)
        except UNDECODABLE:
            said = _Envelope()
        if said.status == "error" and said.error:
            raise AgentRefusedError(self.url, said.error, status)
        if status in (401, 403):
            raise NotKvitalsError(
                f"{self.url} refuses this caller with HTTP {status}, and not as a kvitals agent does. If it is a proxy"
                " in front of an agent, send the token of [remote]; an engine is no agent"
            )
        version = self.version()  # raises NotKvitalsError
        raise AgentRefusedError(
            self.url, f"no {path} here: it is switched off, or this kvitals {version} does not support it", status
        )

    def _unreadable(self, path: str, error: Exception) -> NoReturn:
        """Raise what an answer that cannot be decoded means."""
        version = self.version()  # raises NotKvitalsError
        if version == own_version("kvitals"):
            raise UnreadableAnswerError(
                f"the agent at {self.url} runs this version of kvitals ({version}), but its answer to {path} cannot be "
                f"read ({error}). Check that no proxy changes the answer; if none does, report it."
            ) from error
        raise OtherVersionError(
            f"the agent at {self.url} runs kvitals {version}, and its answer to {path} has an unknown form "
            f"({error}). Use the same kvitals version on both sides."
        ) from error


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _data_of(body: bytes) -> bytes:
    """The data of an answer in Prometheus' envelope. Raises DecodeError."""
    return bytes(msgspec.json.decode(body, type=_Envelope).data)


def _document_version(body: bytes) -> str:
    """The version that a triage document of another form names; empty where it is none."""
    try:
        return str(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["version"], "utf-8").strip('"')
    except (*UNDECODABLE, KeyError):
        return ""


def _days(start: float, end: float) -> Iterator[dict[str, str]]:
    """A time range in pieces of a day, so that no answer is too large."""
    while start <= end:
        until = min(start + DAY_SECONDS, end)
        yield {"start": f"{start:.3f}", "end": f"{until:.3f}"}
        start = until + MILLISECOND


def _why(error: Exception) -> str:
    """A library's error in a few words."""
    text = str(error)
    for part, reason in (
        ("Connection refused", "connection refused"),
        ("Name or service not known", "the host name is unknown"),
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
        ("Connection aborted", "the connection broke"),
        ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    ):
        if part in text:
            return reason
    return type(error).__name__
