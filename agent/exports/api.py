"""Prometheus' HTTP API over a `SeriesSource`, so that Grafana takes the agent for one, and the findings.

The source belongs to the event loop, where the collectors write to it. A query is parsed, evaluated and encoded in one
of a few threads; for each of its selections the loop takes a view of the series, which costs it little, and the thread
matches labels and copies samples. So nothing is locked, a window is never read while it changes, and a heavy query
delays a scrape by no more than the interpreter's lock does.

Read-only, without CORS. Requests for a host name that is not in `hosts` are refused: otherwise a web page
could point its own name at 127.0.0.1 and read the agent (DNS rebinding). Requests that a browser sends for a page of
another site are refused (`agent/exports/browsers.py`).
"""

from __future__ import annotations

import asyncio
import math
import re
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from aiohttp import web

from kvitals.agent.exports import metrics_page, wire
from kvitals.agent.exports.answers import ApiError, encode_answer, json_answer, packed_answer, refusal
from kvitals.agent.exports.browsers import refuse_cross_site
from kvitals.agent.exports.document_routes import (
    Handler,
    RuleGroups,
    alerts_of,
    build_info,
    data_route,
    findings_route,
    health_route,
    index_route,
    rules_route,
    slow_document_route,
    state_route,
)
from kvitals.agent.exports.host_names import check_caller
from kvitals.agent.exports.ledger_api import LedgerApi, add_ledger_routes
from kvitals.agent.exports.notes import InThread, Notes, add_notes_routes
from kvitals.agent.exports.query_turns import NoTurnError, QueryTurns
from kvitals.agent.exports.requests_api import Requests, add_routes, exemplars
from kvitals.agent.exports.series_reader import TOO_MANY, HistoryElsewhere, ReadsHistoryError, SeriesReader
from kvitals.agent.logger import Logger
from kvitals.agent.request_body import BodyError, read_body
from kvitals.rules.model import Family
from kvitals.series.history.federated import StoredPast
from kvitals.series.history.schema import HistoryError
from kvitals.series.promql import (
    Expr,
    PromQLError,
    QueryLimitError,
    QueryLimits,
    Range,
    Selector,
    String,
    Subquery,
    Vector,
    evaluate,
    evaluate_range,
    parse,
)
from kvitals.series.promql.grid import QueryBudget
from kvitals.series.promql.nodes import rebuild
from kvitals.series.promql.rewrite import map_children
from kvitals.series.types import Labels, Matcher, SeriesSource

MAX_POINTS = 11_000
MAX_BODY_BYTES = 1 << 20
MAX_SELECTORS = 50
"""`match[]` of one request."""

MAX_WAITING = 32
MAX_WAITING_EACH = 24
"""Requests that wait, in all and from one address: a Grafana asks for all panels of a board from one."""
LIMITS = QueryLimits(samples=2_500_000, series=20_000, seconds=10.0)
"""Of one query: 60 MB at its peak."""
QUICK = QueryLimits(samples=200_000, series=5_000, seconds=0.25)
"""Of a query over history that may begin while a long one runs: 5 MB at its peak."""
_THREADS = 2
"""Of queries over what is in memory. Those that read history have two threads more: one for those within `QUICK`, which
each begins in, and one for all others. In each of the two they wait for each other."""
_BODY_SECONDS = 10.0
_LARGE_FORM = 16 * 1024
"""Bytes beyond which a form is parsed in a thread: 1 MB of escapes takes 0.6 s."""
_MAX_FIELDS = 1000
TARGET_UP = "kvitals_target_up"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_EVERYTHING: tuple[Matcher, ...] = ()
_STATUS = {"bad_data": 400, "execution": 422, "internal": 500, "timeout": 503, "unavailable": 503}
_log = Logger()

Answer = Callable[["_Parameters"], Awaitable[Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class ApiParts:
    """What the application serves. What is None is not served."""

    source: SeriesSource
    families: Mapping[str, Family]
    _: KW_ONLY
    findings: Callable[[], bytes | Awaitable[bytes | None] | None]
    """The triage document as JSON, None while there is none. Called on the loop: quick, or awaited."""
    ready: Callable[[], bool]
    """Whether there is a window to ask."""
    problem: Callable[[], str] = str
    """Why the agent does not do its work; empty where it does."""
    rules: Callable[[], RuleGroups | Awaitable[RuleGroups]] = list
    """The rule groups as Prometheus lists them."""
    runtime: Callable[[], dict[str, Any]] = dict
    """What Prometheus reports of itself as it runs."""
    requests: Requests | None = None
    ledger: LedgerApi | None = None
    notes: Notes | None = None
    """What is kept beside the series."""
    since_change: Callable[[], bytes] | None = None
    """The triage document with the effect of the latest change. Called in a thread, one call at a time, may take
    seconds. Raises ValueError where there is none."""
    past: StoredPast | None = None
    """What is on disk; read in the threads of the queries."""
    whole_since: Callable[[Sequence[Matcher]], float] = lambda _: -math.inf
    """The time since which `source` is whole for some matchers; called on the loop."""
    version: str = ""
    clock: Callable[[], float] = time.time
    """Seconds since the epoch: what a query without a time means by now."""
    hosts: Collection[str] | None = ()
    """Names, besides localhost, under which it is served; None is all (see `allowed_hosts`)."""
    token_file: Path | None = None
    """What callers over TLS must send."""
    limits: QueryLimits = LIMITS


def build_app(parts: ApiParts) -> web.Application:
    """The application; it serves `parts.source` on the loop on which it runs."""
    api = _Api(parts)
    app = web.Application(
        middlewares=[check_caller(parts.hosts, parts.token_file), refuse_cross_site, _errors],
    )
    app.cleanup_ctx.append(api.running)
    for path, answer, also_post in (
        ("query", api.query, True),
        ("query_range", api.query_range, True),
        ("query_exemplars", api.query_exemplars, True),
        ("labels", api.labels, True),
        ("series", api.series, True),
        ("label/{name}/values", api.label_values, False),
        ("metadata", api.metadata, False),
    ):
        app.router.add_get(f"/api/v1/{path}", _answered(answer, api.in_thread))
        if also_post:
            app.router.add_post(f"/api/v1/{path}", _answered(answer, api.in_thread))
    for path, data in (
        ("status/buildinfo", lambda: build_info(parts.version)),
        ("status/runtimeinfo", parts.runtime),
    ):
        app.router.add_get(f"/api/v1/{path}", data_route(data))
    app.router.add_get("/api/v1/rules", rules_route(parts.rules, lambda groups: {"groups": groups}))
    app.router.add_get("/api/v1/alerts", rules_route(parts.rules, alerts_of))
    app.router.add_get("/api/v1/findings", findings_route(parts.findings))
    if parts.requests is not None:
        add_routes(app.router, parts.requests)
    if parts.ledger is not None:
        add_ledger_routes(app.router, parts.ledger)
    if parts.notes is not None:
        add_notes_routes(app.router, parts.notes, api.in_thread)
    app.router.add_get("/api/v1/since-change", slow_document_route(parts.since_change))
    app.router.add_get("/metrics", api.metrics)
    app.router.add_get("/-/healthy", health_route(parts.problem))
    app.router.add_get("/-/ready", state_route(parts.ready, "Ready"))
    app.router.add_get("/", index_route(app.router, parts.version))
    return app


class _Parameters:
    """What a request asks for: its form first, then its query string, then its path.

    is_gone: whether the client has closed its connection; any thread may ask. address: the client's.
    """

    def __init__(
        self, pairs: Sequence[tuple[str, str]], path: Mapping[str, str], is_gone: Callable[[], bool], address: str
    ) -> None:
        self._pairs = pairs
        self.address = address
        self.path = path
        self.is_gone = is_gone

    def text(self, name: str) -> str:
        return next((value for key, value in self._pairs if key == name), "")

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def time(self, name: str, default: float | None = None) -> float:
        return self._read(name, wire.read_time, default)

    def duration(self, name: str, default: float | None = None) -> float:
        return self._read(name, wire.read_duration, default)

    def _read(self, name: str, read: Callable[[str], float], default: float | None) -> float:
        text = self.text(name)
        if not text and default is not None:
            return default
        try:
            return read(text)
        except ValueError as error:
            raise _invalid(name, error) from None

    def limit(self) -> int:
        """How many entries are wanted; 0 is all."""
        text = self.text("limit")
        if text and not re.fullmatch(r"[0-9]{1,9}", text):
            raise ApiError("bad_data", "limit must be a number")
        return int(text or 0)


class _NotQuickError(Exception):
    """A query over history is not within `QUICK`, or fails: the thread of the others works out which."""


class _HistoryThread:
    """One thread that reads history, so that what its queries hold is that of one."""

    threads: ThreadPoolExecutor

    def __init__(self, name: str) -> None:
        self._name = name
        self._turns = QueryTurns(1, MAX_WAITING, MAX_WAITING_EACH)

    def open(self) -> None:
        """Begin to take queries."""
        self.threads = ThreadPoolExecutor(1, thread_name_prefix=self._name)

    async def run(self, address: str, work: Callable[[], bytes], deadline: float) -> bytes:
        """Do something in the thread. Raises ApiError where it does not begin before the deadline (monotonic), or too
        many wait."""
        begun = False
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)) as waiting:
                async with _turn(self._turns, address):
                    begun = True
                    waiting.reschedule(None)
                    return await asyncio.get_running_loop().run_in_executor(self.threads, work)
        except TimeoutError:
            if begun:
                raise
            raise ApiError(
                "timeout",
                "the query did not start: one query over history runs at a time, and earlier queries used up its time."
                " Try again, or select a shorter range",
            ) from None


class _Api:
    """The endpoints that read the source."""

    def __init__(self, parts: ApiParts) -> None:
        self._source = parts.source
        self._past = parts.past
        self._elsewhere = HistoryElsewhere() if parts.past is not None else None
        self._whole_since = parts.whole_since
        self._requests = parts.requests
        self._families = parts.families
        self._clock = parts.clock
        self._limits = parts.limits
        self._quick = QueryLimits(
            min(QUICK.samples, parts.limits.samples), min(QUICK.series, parts.limits.series), QUICK.seconds
        )
        self._turns = QueryTurns(_THREADS, MAX_WAITING, MAX_WAITING_EACH)
        self._history = _HistoryThread("history")
        self._quick_history = _HistoryThread("quick-history")

    async def running(self, _: web.Application) -> Any:
        """While the application runs there are threads to evaluate in."""
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="query")
        self._history.open()
        self._quick_history.open()
        yield
        for threads in (self._threads, self._history.threads, self._quick_history.threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def query(self, asked: _Parameters) -> bytes:
        at = asked.time("time", self._clock())

        def answer(read: SeriesReader, limits: QueryLimits) -> object:
            return self._instant(_parsed(asked), read.joined(), at, limits)

        return await self._evaluated(asked, answer)

    async def query_range(self, asked: _Parameters) -> bytes:
        start, end, step = asked.time("start"), asked.time("end"), asked.duration("step")
        if end < start:
            raise _invalid("end", "end timestamp must not be before start time")
        if step < 0.001:
            raise _invalid(
                "step",
                "zero or negative query resolution step widths are not accepted. Try a positive integer",
            )
        if (end - start) / step >= MAX_POINTS:
            raise ApiError(
                "bad_data",
                "exceeded maximum resolution of 11,000 points per timeseries. "
                "Try decreasing the query resolution (?step=XX)",
            )

        def answer(read: SeriesReader, limits: QueryLimits) -> object:
            expr = _parsed(asked)
            if isinstance(expr, Range | Subquery | String):
                kind = "string" if isinstance(expr, String) else "range vector"
                raise ApiError(
                    "bad_data",
                    f'invalid expression type "{kind}" for range query, must be Scalar or instant Vector',
                )
            return wire.matrix(evaluate_range(expr, read.joined(), start, end, step, limits=limits))

        return await self._evaluated(asked, answer)

    async def query_exemplars(self, asked: _Parameters) -> bytes:
        """The last request in each bucket of the request side's histograms."""
        start, end = asked.time("start", -math.inf), asked.time("end", math.inf)
        if end < start:
            raise ApiError("bad_data", "end timestamp must not be before start timestamp")
        found = list(self._requests.exemplars()) if self._requests is not None else []
        return await self._evaluated(asked, lambda *_: exemplars(found, _parsed(asked), start, end))

    async def labels(self, asked: _Parameters) -> bytes:
        limit = asked.limit()

        def answer(read: SeriesReader, _: QueryLimits) -> object:
            return _first(wire.sort_in_steps({name for labels in self._series(asked, read) for name in labels}), limit)

        return await self._evaluated(asked, answer)

    async def label_values(self, asked: _Parameters) -> bytes:
        name, limit = asked.path["name"], asked.limit()
        if not _LABEL.fullmatch(name):
            raise ApiError("bad_data", f'invalid label name: "{name}"')

        def answer(read: SeriesReader, _: QueryLimits) -> object:
            found = {one[name] for one in self._series(asked, read) if name in one}
            return wire.encode_list(_first(wire.sort_in_steps(found), limit))

        return await self._evaluated(asked, answer)

    async def series(self, asked: _Parameters) -> bytes:
        if not asked.all("match[]"):
            raise ApiError("bad_data", "no match[] parameter provided")
        limit = asked.limit()

        def answer(read: SeriesReader, _: QueryLimits) -> object:
            found = wire.sort_in_steps(self._series(asked, read), key=lambda one: tuple(one.items()))
            return wire.encode_list(dict(labels) for labels in _first(found, limit))

        return await self._evaluated(asked, answer)

    async def metadata(self, asked: _Parameters) -> Any:
        wanted = asked.text("metric")
        known = [name for name in sorted(self._families) if wanted in ("", name)]
        return {
            name: [
                {
                    "type": {"info": "gauge"}.get(self._families[name].type, self._families[name].type),
                    "help": " ".join(self._families[name].meaning.split()),
                    "unit": "",
                }
            ]
            for name in _first(known, asked.limit())
        }

    async def metrics(self, request: web.Request) -> web.Response:
        """The page in the format that is asked for; exemplars are in OpenMetrics alone."""
        now, read = self._clock(), SeriesReader(self._source, self._whole_since, self._loop)
        if metrics_page.prefers_openmetrics(request.headers.get("Accept", "")):
            found = list(self._requests.exemplars()) if self._requests is not None else []
            kind = metrics_page.OPENMETRICS_TYPE
            page = await self.in_thread(
                _address(request), lambda: metrics_page.render_openmetrics(read, self._families, now, found)
            )
        else:
            kind = metrics_page.CONTENT_TYPE
            page = await self.in_thread(_address(request), lambda: metrics_page.render(read, self._families, now))
        answer = web.Response(body=page, headers={"Content-Type": kind, "Vary": "Accept"})
        answer.enable_compression()
        return answer

    def _instant(self, expr: Expr, source: SeriesSource, at: float, limits: QueryLimits) -> dict[str, Any]:
        if isinstance(expr, String):
            return wire.string(expr.value, at)
        if isinstance(expr, Range):
            end = at - expr.selector.offset
            frames = source.select(expr.selector.all_matchers(), end - expr.range, end)
            if sum(frame.values.size for frame in frames) > limits.samples:
                raise QueryLimitError(TOO_MANY)
            return wire.matrix(wire.raw_samples(frames))
        if isinstance(expr, Subquery):
            raise PromQLError("a subquery is answered inside of a function only, as in max_over_time(...)")
        found = evaluate(expr, source, at, limits=limits)
        return wire.vector(found, at) if isinstance(found, Vector) else wire.scalar(found, at)

    def _series(self, asked: _Parameters, read: SeriesReader) -> set[Labels]:
        """The label sets in the time that was asked for, in memory and on disk."""
        start, end, texts = asked.time("start", -math.inf), asked.time("end", math.inf), asked.all("match[]")
        if len(texts) > MAX_SELECTORS:
            raise _invalid("match[]", f"{len(texts)} selectors, {MAX_SELECTORS} are allowed: send several requests")
        selectors = [_selector(text) for text in texts] or [_EVERYTHING]
        found: set[Labels] = set()
        since = -math.inf
        for one in selectors:
            labels, whole_since = read.label_sets(one, start, end)
            found |= labels
            since = max(since, whole_since)
        if read.past is not None and start < since:
            with suppress(HistoryError):  # whoever writes it says why
                found.update(labels for one in selectors for labels in read.past.labels(one, start, end))
        return found

    async def _evaluated(self, asked: _Parameters, answer: Callable[[SeriesReader, QueryLimits], object]) -> bytes:
        """The body of an answer, all of which is worked out in a thread. The time that is spent waiting for a thread
        counts, and work stops soon after the client has gone. A query that reads history begins again in the thread for
        quick ones of those, and where it is not quick once more."""
        seconds = min(asked.duration("timeout", self._limits.seconds), self._limits.seconds)
        if seconds <= 0:
            raise _invalid("timeout", "must be positive, such as timeout=5s")
        deadline = time.monotonic() + seconds

        def timed(past: StoredPast | None, most: QueryLimits = self._limits) -> bytes:
            left = min(deadline - time.monotonic(), most.seconds)
            limits = replace(most, seconds=left, stopped=asked.is_gone)
            budget = QueryBudget(limits.samples, limits.series, time.monotonic() + left, asked.is_gone)
            try:
                budget.take(0)
                return encode_answer(
                    answer(SeriesReader(self._source, self._whole_since, self._loop, budget, past), limits)
                )
            except PromQLError as error:
                if most is self._quick:
                    raise _NotQuickError from None
                raise ApiError("timeout" if time.monotonic() >= deadline else "execution", str(error)) from None

        with suppress(ReadsHistoryError):  # its traceback goes with this block: those frames hold what was read so far
            return await self.in_thread(asked.address, lambda: timed(self._elsewhere))
        with suppress(_NotQuickError):
            return await self._quick_history.run(asked.address, lambda: timed(self._past, self._quick), deadline)
        return await self._history.run(asked.address, lambda: timed(self._past), deadline)

    async def in_thread(self, address: str, work: Callable[[], T]) -> T:
        """Do something for a client in a thread of the queries. Raises ApiError where too many wait."""
        async with _turn(self._turns, address):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


@asynccontextmanager
async def _turn(turns: QueryTurns, address: str) -> AsyncIterator[None]:
    try:
        async with turns.turn(address):
            yield
    except NoTurnError as error:
        raise ApiError("unavailable", f"{error}: try again in a few seconds") from None


def _parsed(asked: _Parameters) -> Expr:
    try:
        return _with_up(parse(asked.text("query")))
    except PromQLError as error:
        raise _invalid("query", error) from None


def _with_up(expr: Expr) -> Expr:
    """The expression with `kvitals_target_up` in place of `up`: a Prometheus has `up` for each target, and people and
    programs ask for it first. The agent scrapes its targets itself, so its own series says the same."""
    if isinstance(expr, Selector):
        return rebuild(expr, name=TARGET_UP) if expr.name == "up" else expr
    if isinstance(expr, Range):
        return rebuild(expr, selector=_with_up(expr.selector))
    return map_children(expr, _with_up)


def _selector(text: str) -> tuple[Matcher, ...]:
    try:
        expr = _with_up(parse(text))
    except PromQLError as error:
        raise _invalid("match[]", error) from None
    if not isinstance(expr, Selector) or expr.offset:
        raise _invalid("match[]", f"{text[:100]!r} is no series selector")
    return expr.all_matchers()


def _invalid(name: str, problem: object) -> ApiError:
    return ApiError("bad_data", f'invalid parameter "{name}": {problem}')


def _first(items: Iterable[T], limit: int) -> list[T]:
    return list(islice(items, limit or None))


def _address(request: web.Request) -> str:
    return request.remote or ""


def _answered(answer: Answer, in_thread: InThread) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        pairs = [*await _form(request, in_thread), *request.query.items()]
        found = await answer(
            _Parameters(pairs, request.match_info, lambda: request.transport is None, _address(request))
        )
        return packed_answer(found) if isinstance(found, bytes) else json_answer(found)

    return handle


async def _form(request: web.Request, in_thread: InThread) -> list[tuple[str, str]]:
    """The fields of a form, as UTF-8 whatever the request says: Python has codecs that take quadratic time."""
    if request.content_type != "application/x-www-form-urlencoded":
        return []
    body = await read_body(request, MAX_BODY_BYTES, _BODY_SECONDS)
    try:
        return await in_thread(_address(request), lambda: _fields(body)) if len(body) > _LARGE_FORM else _fields(body)
    except ValueError as error:
        raise ApiError("bad_data", f"error parsing form values: {error}") from None


def _fields(body: bytes) -> list[tuple[str, str]]:
    """Raises ValueError."""
    return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as Prometheus writes them; what nobody expected is logged and not shown."""
    try:
        return await handler(request)
    except ApiError as error:
        kind, message = error.kind, str(error)
    except BodyError as error:
        return refusal(error.status, str(error), "timeout" if error.status == 408 else "bad_data")
    except PromQLError as error:  # of judging, which is done when findings are asked for
        kind = "timeout" if isinstance(error, QueryLimitError) else "execution"
        message = f"not judged this time: {error}"
    except TimeoutError:
        kind, message = "timeout", "the agent was too busy to read its series; try again"
    except web.HTTPNotFound:
        return refusal(404, f"{request.path[:200]!r} is not a path of this API; GET / lists its paths", "not_found")
    except web.HTTPMethodNotAllowed as error:
        message = (
            f"{request.path[:200]!r} does not accept {error.method}; it accepts "
            f"{', '.join(sorted(error.allowed_methods))}"
        )
        return refusal(405, message, "not_found", {"Allow": error.headers.get("Allow", "")})
    except (web.HTTPException, asyncio.CancelledError):
        raise
    except Exception:
        # As text: the default rendering of exceptions shows local variables, and takes seconds on the loop.
        _log.error("a request failed", path=request.path, trace=traceback.format_exc(limit=-5))
        kind, message = "internal", "the agent failed to answer; see its log for the reason"
    return refusal(_STATUS[kind], message, kind)
