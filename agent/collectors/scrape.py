"""The scrape sense: reads engines' metrics pages over HTTP and turns them into families.

    async with ScrapeSense(window) as sense:
        key = sense.add(Target(url="http://127.0.0.1:8000"))
        for record in await sense.read(key):   # I/O; never raises
            sense.feed(record)                 # pure; a replay feeds recorded ones

What `read` meets ends as a record whose reason is a key of `MESSAGES`; it never raises, and it is done within
the target's timeout however slowly the bytes trickle in.
"""

from __future__ import annotations

import asyncio
import errno
import math
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
from yarl import URL

from kvitals.agent.collectors.page_parser import DEFAULT_LIMITS, ExpositionError, PageLimits, PageParser, PageSamples
from kvitals.agent.collectors.status import Identity, ScrapeOutcome
from kvitals.agent.families import MODELS, SERVER_INFO, VERSION, Translator
from kvitals.agent.logger import Logger
from kvitals.agent.memory_limit import LARGE_PAGE_BYTES, trim
from kvitals.agent.records import FactsRecord, ScrapeRecord, ScrapeSenseRecord
from kvitals.config.hosts import is_loopback
from kvitals.rules.engine_map import MAX_FACT, Endpoint, EngineMap, load_map, systems
from kvitals.series.fair_shares import FairShares
from kvitals.series.files import load_cert_chain, read_certificates
from kvitals.series.slices import Steps, complete
from kvitals.series.undecodable import UNDECODABLE
from kvitals.series.window import Window

if TYPE_CHECKING:
    import aiohttp

log = Logger()

MESSAGES = {
    "refused": "Nothing listens there. Is the engine running, and is the port right?",
    "unresolved": "The host name cannot be resolved. Check the host name, or use an address.",
    "unreachable": "The host cannot be reached ({detail}). Check the address and firewalls in between.",
    "timeout": "No complete answer within {detail} s. The engine hangs, is overloaded or needs more time.",
    "disconnected": "The connection was closed before an answer came. See the engine's log.",
    "tls": "The TLS connection failed ({detail}). Check the scheme (https or http), the CA file and the host name.",
    "http_error": "The answer was HTTP {detail}.",
    "not_http": "The server at this address does not speak HTTP. Check the port.",
    "bad_url": "The URL cannot be used: {detail}.",
    "too_large": "The page is larger than {detail} bytes, more than an engine's page has. Check the URL.",
    "too_many_lines": "The page has more than {detail} lines, more than an engine's page has. Check the URL.",
    "too_long": (
        "The headers of the response, or its page with chunk framing, exceed {detail}. Check what answers there."
    ),
    "truncated": "The answer broke off. If it persists, scrape the engine directly, without a proxy.",
    "bad_compression": "The response has a broken compression, or one that kvitals did not request ({detail}).",
    "memory_limit": "The page is larger than {detail} bytes and was not read: the agent is near its memory limit. Raise"
    " the limit ([agent] memory_limit, and the limit of its service or pod), or configure fewer targets.",
    "memory_share": "The page was not read: it is larger than this target's share of the memory ({detail}). Check what"
    " the target exposes, raise [agent] memory_limit, or configure fewer targets.",
    "failed": "The scrape failed for an unexpected reason ({detail}). Please report this.",
    "internal": "The page was not ingested because of a fault of kvitals ({detail}). Please report this.",
}
"""Why there is no page, for people. A page itself can fail for the reasons of `PageParser.parse` too."""

UNREACHABLE = frozenset({"refused", "unresolved", "unreachable"})
"""Reasons for which nobody answers."""

NO_ENGINE = UNREACHABLE | {"not_metrics", "not_http", "bad_url", "redirect"}
"""Reasons for which a URL leads to no engine: no diagnosis follows from them, and no advice to restart one."""

_HINTS = {
    401: " The engine requires authentication: give the target a token.",
    403: " Access is forbidden: check the target's token.",
    404: " There is no such page: check the path; engines serve /metrics.",
    503: " The engine is not ready or overloaded.",
}
_REDIRECTED = " The server redirects, and kvitals does not follow redirects: configure the final URL."

_ACCEPT = "text/plain;version=0.0.4,text/plain;q=0.5,*/*;q=0.1"
_FACTS_BYTES = 256 * 1024
_FACTS_RETRY_SECONDS = 30.0
_RESTART_SECONDS = 5.0
"""After which a process that is new since facts were asked for is asked: a page may be of two processes in turn."""
_CHUNK = 64 * 1024
_LARGE_PAGE = 256 * 1024
"""Bytes beyond which a page is parsed in a thread: about 2 ms where it is like the last one, 50 ms where it is
new."""

_UNPACKED_AT_ONCE = 1024 * 1024
"""Bytes between which others have their turn."""

_JOINED_AT_ONCE = 1 << 20
"""Bytes of a body that are put together on the loop. Memory for larger ones comes from the kernel page by page: 40 ms
of CPU time for 8 MB on a busy virtual machine."""

MAX_RATIO = 100
"""Bytes unpacked for one byte, beyond the first megabyte. A page of 64 engines has 10."""


class ScrapeTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine's server to scrape."""

    url: str  # http://host:port, with the path of the metrics page unless that is /metrics
    name: str = ""  # the `engine` label; else host:port/rank
    labels: dict[str, str] = {}  # cluster, pool, node, role
    timeout: float = 5.0  # seconds, for the whole answer
    token: str = ""  # sent as a bearer token
    ca_file: str = ""  # CA certificates to trust instead of the system's
    cert_file: str = ""  # our certificate, where the server asks for one
    key_file: str = ""  # its key, where it is not in the same file
    insecure: bool = False  # do not check the server's certificate
    prefixes: dict[str, str] = {}  # how names on its page begin -> how the engine maps have them


def check(target: ScrapeTarget) -> None:
    """Raises as `ScrapeSense.add` would for a target."""
    key_of(target.url)
    _tls(target)


def key_of(url: str) -> str:
    """The key that a URL's target has: two ways to write one page have the same. Raises ValueError."""
    return str(_metrics_url(url).with_user(None))


class ScrapeSense:
    """Scrapes targets into a window. One HTTP session with kept-alive connections for all of them."""

    def __init__(
        self,
        window: Window,
        maps: Sequence[EngineMap] | None = None,
        limits: PageLimits = DEFAULT_LIMITS,
        clock: Callable[[], float] = time.time,
        refuses: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`refuses`: whether there is no room for a kind of data now."""
        self._refuses = refuses
        self._window = window
        self._maps = maps if maps is not None else [load_map(system) for system in systems()]
        self._limits = limits
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._states: dict[str, _State] = {}
        self.body_shares = FairShares()
        """Bytes of the pages of each target that were read and are not ingested yet."""
        self.page_shares = FairShares()
        """Bytes of what is kept of each target's last page."""

    async def __aenter__(self) -> ScrapeSense:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; a later read opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def add(self, target: ScrapeTarget) -> str:
        """Watch a target and return its key, which is its URL without credentials.

        Raises ValueError for a URL that is none, and OSError for a CA file that cannot be used.
        """
        url = _metrics_url(target.url)
        key = str(url.with_user(None))
        if key not in self._states:
            identity = Identity(_address(url), target.name, target.labels)
            translator = Translator(self._window, key, identity, self._maps, target.prefixes)
            self._states[key] = _State(target, url, PageParser(self._limits), translator, _tls(target))
        return key

    def renew(self, key: str, target: ScrapeTarget) -> None:
        """Read a target with another timeout, token or TLS from now on; its series go on.

        Raises OSError for a CA file that cannot be used.
        """
        self._states[key] = replace(self._states[key], target=target, tls=_tls(target))

    def remove(self, key: str) -> None:
        """Stop watching a target; its series are forgotten."""
        self._states.pop(key, None)
        self.body_shares.give(key)
        self.page_shares.give(key)
        self._window.drop_group(key)
        self._window.drop_group(f"{key} status")

    @property
    def keys(self) -> list[str]:
        """The keys of the targets."""
        return list(self._states)

    def translator(self, key: str) -> Translator:
        """How a target's pages are understood: version, facts, unknown names, last outcome."""
        return self._states[key].translator

    def engine_of(self, key: str, rank: str) -> str:
        """The `engine` label of a target's rank, "" being the page as a whole; empty for a target that is not
        watched."""
        state = self._states.get(key)
        if state is None:
            return ""
        reading, identity = state.translator.reading, state.translator.identity
        if reading is None:
            return state.translator.status.engines[0]
        return reading.engine(rank or (reading.ranks[0] if len(reading.ranks) == 1 else None), identity)

    def engine_labels(self, key: str, rank: str) -> dict[str, str]:
        """The labels of series about one rank of a target."""
        return {**self.translator(key).identity.labels, "engine": self.engine_of(key, rank)}

    async def read(self, key: str) -> list[ScrapeSenseRecord]:
        """Scrape a target once; after the first good page and after a restart, ask for its version too."""
        state = self._states[key]
        record = await self._scrape(key, state)
        records: list[ScrapeSenseRecord] = [record]
        now = self._clock()
        if state.translator.wants_facts and state.asks_facts(now):
            records += await self._facts(key, state)
        return records

    async def ask(self, key: str, path: str) -> tuple[int, bytes]:
        """HTTP status, 0 where there is no answer, and body of a path beside a target's metrics page."""
        state = self._states.get(key)
        if state is None:
            return 0, b""
        answer = await self._get(state, state.beside(path), _FACTS_BYTES)
        return answer.status, answer.body

    def feed(self, record: ScrapeSenseRecord) -> ScrapeOutcome | None:
        """Take a record over into the window; None for facts and for targets that are not watched."""
        return complete(self.feed_steps(record))

    def feed_steps(self, record: ScrapeSenseRecord) -> Steps[ScrapeOutcome | None]:
        """The same in steps. One record of a target at a time."""
        state = self._states.get(record.target)
        if state is None:
            return None
        if isinstance(record, FactsRecord):
            state.translator.learn(record.source, record.facts, record.info)
            state.translator.wants_facts &= record.source not in (VERSION, SERVER_INFO)
            return None
        if not record.ok:
            return state.translator.bad(record.t, record.reason, record.message, record.duration)
        try:
            return (yield from self._page_steps(state, record))
        finally:
            self.body_shares.give(record.target)

    def _page_steps(self, state: _State, record: ScrapeRecord) -> Steps[ScrapeOutcome]:
        """Parse a page and take it over."""
        try:
            self.page_shares.give(record.target)
            state.parser.room = self.page_shares.room(record.target)
            is_large = len(record.body) > _LARGE_PAGE
            parse = partial(_parsed, state.parser, record, is_large)
            page: PageSamples = (yield parse) if is_large else parse()
        except ExpositionError as error:
            if error.reason == "memory_share":  # nothing is kept, so the next page begins with all of its share
                self.page_shares.refused += 1
                state.parser = PageParser(self._limits)
                state.translator.forget()
            else:
                self.page_shares.take(record.target, state.parser.held_bytes)
            return state.translator.bad(record.t, error.reason, str(error), record.duration)
        self.page_shares.take(record.target, page.layout.held_bytes)
        try:
            return (yield from state.translator.good_steps(record.t, page, record.duration, len(record.body)))
        except Exception as error:  # one target's page must not take the others down
            log.exception("page not taken over", target=record.target)
            state.parser = PageParser(self._limits)
            state.translator.forget()
            message = MESSAGES["internal"].format(detail=repr(error)[:200])
            return state.translator.bad(record.t, "internal", message, record.duration)

    async def _scrape(self, key: str, state: _State) -> ScrapeRecord:
        t, started = self._clock(), time.perf_counter()
        self.body_shares.give(key)  # of a scrape whose record was not ingested
        answer = await self._get(
            state, state.url, self._limits.page_bytes, lambda size: self.body_shares.take(key, size)
        )
        if not answer.body:
            self.body_shares.give(key)
        if len(answer.body) > LARGE_PAGE_BYTES and self._refuses("pages"):
            answer = _Answer("memory_limit", _message("memory_limit", LARGE_PAGE_BYTES), answer.status)
        return ScrapeRecord(
            t=t,
            target=key,
            reason=answer.reason,
            message=answer.message,
            status=answer.status,
            content_type=answer.content_type,
            body=answer.body,
            duration=time.perf_counter() - started,
        )

    async def _facts(self, key: str, state: _State) -> list[ScrapeSenseRecord]:
        """Ask what the page does not tell. An endpoint that answers, if by 404, is not asked again."""
        reading = state.translator.reading
        if reading is None:
            return []
        records: list[ScrapeSenseRecord] = []
        paths = reading.system.recognise
        # What ends the asking comes last.
        asked = ((MODELS, paths.models_path), (SERVER_INFO, paths.info_path), (VERSION, paths.version_path))
        for source, path in asked:
            if not path:
                continue
            answer = await self._get(state, state.beside(path), _FACTS_BYTES)
            if source == SERVER_INFO and answer.status == 404 and paths.old_info_path:
                answer = await self._get(state, state.beside(paths.old_info_path), _FACTS_BYTES)
            if answer.status:
                facts, info = _told(source, answer.body, reading.system.endpoint)
                now = self._clock()
                records.append(FactsRecord(t=now, target=key, source=source, facts=facts, info=info))
        return records

    async def _get(self, state: _State, url: URL, cap: int, take: Callable[[int], bool] = lambda size: True) -> _Answer:
        """The answer to a GET, or why there is none. Never raises but for cancellation. take: whether so many bytes
        more may be read."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=state.target.timeout)
        try:
            async with self._connect().get(
                url, headers=state.headers, timeout=timeout, ssl=state.tls, allow_redirects=False
            ) as response:
                if response.status != 200:
                    response.close()
                    return _http_error(response)
                try:
                    body = await _body(response, cap, take)
                except _UnusableError as error:
                    response.close()
                    return _Answer(error.reason, _message(error.reason, error.detail), response.status)
                return _Answer("ok", "", 200, response.headers.get("Content-Type", ""), body)
        except Exception as error:
            return _failed(error, state.target.timeout)

    def _connect(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            from kvitals.agent.bounded_client import BoundedConnector
            from kvitals.agent.threaded_resolver import ThreadedResolver

            self._session = aiohttp.ClientSession(
                connector=BoundedConnector(
                    self._limits.page_bytes, limit=0, limit_per_host=4, resolver=ThreadedResolver()
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept": _ACCEPT, "User-Agent": "kvitals"},
                read_bufsize=2**18,
            )
        return self._session


@dataclass
class _State:
    """What is kept for one target."""

    target: ScrapeTarget
    url: URL
    parser: PageParser
    translator: Translator
    tls: ssl.SSLContext | bool
    asked: float = -math.inf  # when facts were asked for
    asked_restarts: int = 0  # that had been seen then
    headers: dict[str, str] = field(init=False)

    def asks_facts(self, now: float) -> bool:
        """Whether it is time to ask for facts, which is then done: again after a while, or soon of a new process."""
        restarts = self.translator.restarts
        wait = _FACTS_RETRY_SECONDS if restarts == self.asked_restarts else _RESTART_SECONDS
        if now - self.asked < wait:
            return False
        self.asked, self.asked_restarts = now, restarts
        return True

    def __post_init__(self) -> None:
        # On this machine compression only costs: the engine's time first of all.
        self.headers = {"Accept-Encoding": "identity" if is_loopback(self.url.host or "localhost") else "gzip"}
        if self.target.token:
            self.headers["Authorization"] = f"Bearer {self.target.token}"

    def beside(self, path: str) -> URL:
        """The URL of a path beside the metrics page."""
        return self.url.with_path(self.url.path.removesuffix("metrics").rstrip("/") + path)


@dataclass(frozen=True)
class _Answer:
    reason: str
    message: str = ""
    status: int = 0
    content_type: str = ""
    body: bytes = b""


class _UnusableError(Exception):
    def __init__(self, reason: str, detail: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


async def _body(response: aiohttp.ClientResponse, cap: int, take: Callable[[int], bool]) -> bytes:
    """The body, decompressed, read no further than to the cap and to where `take` refuses more. Raises
    _UnusableError."""
    known = response.content_length or 0
    if known > cap:
        raise _UnusableError("too_large", cap)
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity" and response.content_length is not None and known <= _JOINED_AT_ONCE:
        if not take(known):
            raise _UnusableError("memory_share", f"{known} bytes")
        return await response.read()
    if encoding not in ("identity", "gzip", "deflate"):
        raise _UnusableError("bad_compression", encoding[:40])
    unpack = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)
    parts: list[bytes] = []
    size = lines = 0
    packed = yielded = 0
    async for chunk in response.content.iter_any():
        packed += len(chunk)
        for part in (chunk,) if unpack is None else _inflated(unpack, chunk):
            size += len(part)
            if size > cap:
                raise _UnusableError("too_large", cap)
            lines += part.count(b"\n")
            if lines > DEFAULT_LIMITS.lines:  # so nothing more of it is kept than those
                raise _UnusableError("too_many_lines", DEFAULT_LIMITS.lines)
            if size > max(MAX_RATIO * packed, _UNPACKED_AT_ONCE):
                raise _UnusableError("bad_compression", f"more than {MAX_RATIO} bytes for one")
            if not take(len(part)):  # after the checks of the page itself: they say more than that there is no room
                raise _UnusableError("memory_share", f"{size} bytes and more")
            parts.append(part)
            if size - yielded > _UNPACKED_AT_ONCE:
                yielded = size
                await asyncio.sleep(0)
    if unpack is not None and not unpack.eof:
        raise _UnusableError("truncated", "")
    return b"".join(parts) if size <= _JOINED_AT_ONCE else await asyncio.to_thread(b"".join, parts)


def _inflated(unpack: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    """A chunk, decompressed, in pieces of at most `_CHUNK` bytes. Raises _UnusableError."""
    piece = b""
    while chunk or len(piece) == _CHUNK:  # after a full piece there may be more within
        try:
            piece = unpack.decompress(chunk, _CHUNK)
        except zlib.error as error:
            raise _UnusableError("bad_compression", error) from None
        chunk = unpack.unconsumed_tail
        yield piece


def _parsed(parser: PageParser, record: ScrapeRecord, is_large: bool) -> PageSamples:
    """A record's page. After a large one that was parsed as a whole, what that took for a moment goes back to the
    system at once: the next one may need it in other places. Raises ExpositionError."""
    try:
        return parser.parse(record.body, record.content_type)
    finally:
        if is_large and parser.is_rebuilt:
            trim()


def _http_error(response: aiohttp.ClientResponse) -> _Answer:
    status = response.status
    hint = _HINTS.get(status, _REDIRECTED if 300 <= status < 400 else "")
    reason = f"{status} {response.reason or ''}"[:80].strip()
    return _Answer("http_error", _message("http_error", reason) + hint, status)


def _failed(error: Exception, timeout: float) -> _Answer:
    """What an exception of the HTTP client means."""
    import aiohttp

    from kvitals.agent.bounded_client import AnswerTooLongError

    detail = str(error)[:200] or type(error).__name__
    match error:
        case TimeoutError():
            reason, detail = "timeout", f"{timeout:g}"
        case aiohttp.ClientConnectorDNSError():
            reason = "unresolved"
        case aiohttp.ClientSSLError() | aiohttp.ServerFingerprintMismatch() | ssl.SSLError():
            reason = "tls"
        case aiohttp.ClientConnectorError():
            reason = "refused" if error.os_error.errno == errno.ECONNREFUSED else "unreachable"
        case AnswerTooLongError():
            reason = "too_long"
        case aiohttp.ClientPayloadError():
            reason = "truncated"
        case aiohttp.ClientResponseError():
            reason = "not_http"
        case aiohttp.InvalidURL():
            reason = "bad_url"
        case aiohttp.ServerConnectionError() | aiohttp.ClientOSError():
            reason = "disconnected"
        case _:
            reason, detail = "failed", f"{type(error).__name__}: {detail}"
    return _Answer(reason, _message(reason, detail))


def _message(reason: str, detail: object) -> str:
    return MESSAGES[reason].format(detail=detail)


def _told(source: str, body: bytes, endpoint: Endpoint | None) -> tuple[dict[str, float], dict[str, str]]:
    """Facts and strings in the answer of an endpoint; nothing where it is of another shape."""
    try:
        if source == SERVER_INFO:
            return endpoint.learn(msgspec.json.decode(body)) if endpoint else ({}, {})
        if source == VERSION:
            return {}, {"version": msgspec.json.decode(body, type=_Version).version[:80]}
        models = msgspec.json.decode(body, type=_Models).data
    except UNDECODABLE:
        return {}, {}
    lengths = [model.max_model_len or 0 for model in models if model.parent is None]
    lengths = [length for length in lengths if 0 < length < MAX_FACT]
    return ({"max_context_tokens": float(max(lengths))} if lengths else {}), {}


class _Version(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    max_model_len: int | None = None
    parent: str | None = None  # of a LoRA adapter


class _Models(msgspec.Struct):
    data: list[_Model]


def _metrics_url(text: str) -> URL:
    """The URL of the metrics page. Raises ValueError."""
    url = URL(text if "://" in text else f"http://{text}")
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{text!r} is not an http or https URL")
    return url.with_path("/metrics") if url.path in ("", "/") else url


def _address(url: URL) -> str:
    host = url.host or ""
    return f"[{host}]:{url.port}" if ":" in host else f"{host}:{url.port}"


def _tls(target: ScrapeTarget) -> ssl.SSLContext | bool:
    if not target.cert_file:
        if target.insecure:
            return False
        return ssl.create_default_context(cadata=_trusted(target)) if target.ca_file else True
    context = ssl.create_default_context(cadata=_trusted(target))
    if target.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    load_cert_chain(context, Path(target.cert_file), Path(target.key_file) if target.key_file else None)
    return context


def _trusted(target: ScrapeTarget) -> str | None:
    """The certificates of the authority that signs the target's; None: those of the system."""
    return read_certificates(Path(target.ca_file)) if target.ca_file else None
