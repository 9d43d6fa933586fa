"""A running agent, over its HTTP API; the past from its history, where this process may read that."""

from __future__ import annotations

import asyncio
import http.client
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from rules.finding import VERSION, Finding, Triage
from series.history import notes
from series.history.codec import DamagedError
from series.history.reader import HistoryReader
from series.history.schema import HistoryError
from series.promql import PromQLError
from ui.cache import CacheError
from ui.cache import Known as Blocks
from ui.cache import of_agent as blocks_of
from ui.historic import judge_history
from ui.ledger import Known as Lookups
from ui.ledger import LedgerError
from ui.ledger import of_agent as lookups_of
from ui.pipeline import Setup
from ui.recorded import Moments, RecordingError
from ui.requests import Asked, Found, RequestsError
from ui.requests import of_agent as requests_of
from ui.web.failure import Failure, UnansweredError
from ui.web.settings import API_VARIABLE, DEFAULT_API
from ui.web.sources.base import MAX_LINES, Extent, Happening, Line, Look, Past, step_of
from ui.web.sources.marks import marks
from ui.web.sources.recording import NO_LOOKUPS, happening_of, no_answer

PATH = "/api/v1/findings"
TIMEOUT_SECONDS = 4.0
MAX_BYTES = 16 << 20
START = "kvitals run http://HOST:8000"
MEMORY_SECONDS = 1800.0
"""Of the past that is offered where there is no history: what agents keep in memory unless told otherwise."""

HISTORY_SECONDS = 24 * 3600.0
MAX_EPISODES = 500

T = TypeVar("T")


class Agent:
    """Answers from the agent at `url`."""

    kind: Literal["agent"] = "agent"
    live = True

    def __init__(self, url: str, setup: Callable[[], Setup], history: Path | None = None) -> None:
        """`history`: the file, where there is one that this process may read; `setup` is how the past is judged."""
        self.name = self._url = url.rstrip("/")
        self._setup = setup
        self._history = history

    def findings(self, look: Look | None) -> Triage:
        if look is not None:
            return self._past_findings(look)
        body = self._get(PATH, {})
        try:
            return msgspec.json.decode(body, type=Triage)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnansweredError(_not_a_document(self._url, body, error)) from error

    def _past_findings(self, look: Look) -> Triage:
        if self._history is None:
            raise UnansweredError(
                Failure(
                    "The past can not be judged from here",
                    "It takes the agent's history, which only a page on the agent's machine can read.",
                    "Go back to now, or ask on that machine.",
                    (f"kvitals triage --from={_written(look.start)} --to={_written(look.end)}",),
                )
            )
        try:
            moments = Moments(at=look.end, start=look.start)
            return judge_history(self._history, self._setup(), moments).document
        except (HistoryError, RecordingError, PromQLError) as error:
            raise UnansweredError(
                Failure("Nothing can be judged in this window", str(error), "Choose another window, or go back to now.")
            ) from error

    def extent(self) -> Extent:
        now = time.time()
        start = now - MEMORY_SECONDS
        if self._history is not None:
            try:
                span = HistoryReader(self._history).span()
            except (HistoryError, DamagedError):
                span = None
            start = max(span[0], now - HISTORY_SECONDS) if span is not None else start
        return Extent(min(start, now - 60.0), now)

    def series(self, query: str, start: float, end: float) -> list[Line]:
        least = 5.0 if end - start > 300 else 1.0
        asked = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        body = self._get("/api/v1/query_range", asked | {"step": f"{step_of(start, end, least):.3f}"}, query)
        try:
            found = msgspec.json.decode(body, type=_Answer).data.result
            return [line for one in found[:MAX_LINES] if (line := _line(one)) is not None]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise UnansweredError(no_answer(query, f"the agent's answer is none ({error})")) from error

    def past(self, start: float, end: float) -> Past:
        happened = marks(lambda query: self.series(query, start, end))
        if self._history is None:
            now = self.findings(None)
            fired = [*now.causes, *now.symptoms, *now.telemetry, *now.notes]
            happened += [happening_of(f, now.window.end, now.window.end) for f in fired]
            why = "Findings that are over are in the agent's history, which this page can not read."
            return Past([one for one in happened if one.start <= end and (one.end or one.start) >= start], why)
        try:
            with HistoryReader(self._history).reading() as connection:
                told = list(notes.events(connection, start, end))
                found = list(notes.episodes(connection, start, end))[-MAX_EPISODES:]
        except (HistoryError, DamagedError) as error:
            return Past(happened, f"The agent's history can not be read: {error}")
        happened += [Happening("event", e.kind, e.t, entity=_place(e.entity), text=e.text) for e in told]
        return Past([*happened, *(_episode(one) for one in found)])

    def blocks(self) -> Blocks:
        try:
            found = self._run(blocks_of(self._url))
        except CacheError as error:
            raise UnansweredError(stranger(self._url, str(error))) from error
        if found is None:
            raise UnansweredError(_unreachable(self._url, OSError("its report of caches was not to be had")))
        return found

    def requests(self, asked: Asked) -> Found:
        try:
            return self._run(requests_of(self._url, asked))
        except RequestsError as error:
            raise UnansweredError(
                Failure("No requests are to be had", str(error), "Look at Sources: which agent is asked?", (START,))
            ) from error

    def lookups(self) -> Lookups:
        try:
            return self._run(lookups_of(self._url))
        except LedgerError as error:
            told = Failure(NO_LOOKUPS.title, str(error), NO_LOOKUPS.todo, NO_LOOKUPS.commands)
            raise UnansweredError(told) from error

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)

    def _get(self, path: str, parameters: Mapping[str, str], query: str = "") -> bytes:
        """An answer's body. Bounded in time and size; follows no redirect."""
        parts = urlsplit(self._url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise UnansweredError(_no_url(self._url))
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = connect(parts.hostname, port, timeout=TIMEOUT_SECONDS)
        try:
            whole = f"{parts.path.rstrip('/')}{path}" + (f"?{urlencode(parameters)}" if parameters else "")
            connection.request("GET", whole, headers={"Accept": "application/json"})
            response = connection.getresponse()
            body = response.read(MAX_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise UnansweredError(_unreachable(self._url, error)) from error
        finally:
            connection.close()
        return _checked(self._url, path, query, response, body)


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    data: _Data


class _Refusal(msgspec.Struct):
    error: str = ""


def _checked(url: str, path: str, query: str, response: http.client.HTTPResponse, body: bytes) -> bytes:
    if response.status == http.client.SERVICE_UNAVAILABLE:
        raise UnansweredError(
            Failure(
                "The agent is still looking",
                f"{url} answers, but has no verdict yet.",
                "Wait for its first window: this page goes on asking. Else look at what the agent prints.",
            )
        )
    if response.status in (400, 422) and query:
        raise UnansweredError(no_answer(query, _refusal(body)))
    if response.status != http.client.OK:
        raise UnansweredError(stranger(url, f"It said {response.status} {response.reason} to {path}."))
    if len(body) > MAX_BYTES:
        raise UnansweredError(stranger(url, f"Its answer is larger than {MAX_BYTES >> 20} MB."))
    return body


def _refusal(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "refused"


def _line(found: _Series) -> Line | None:
    points = [(t, v) for t, text in found.values if math.isfinite(v := float(text))]
    return Line(found.metric, points) if points else None


def _episode(one: notes.Episode) -> Happening:
    try:
        finding = msgspec.json.decode(one.document, type=Finding)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Happening("finding", one.code, one.start, one.end, "info", _place(one.entity), one.code)
    return happening_of(finding, one.start, one.end)


def _place(entity: Mapping[str, str]) -> str:
    return next((entity[name] for name in ("engine", "pool", "node", "cluster") if entity.get(name)), "")


def _written(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _not_a_document(url: str, body: bytes, error: Exception) -> Failure:
    try:
        version = str(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["version"], "utf-8").strip('"')
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return stranger(url, f"Its answer is no triage document ({error}).")
    return Failure(
        "The agent and this page do not fit together",
        f"{url} speaks version {version} of the document, this page {VERSION} ({error}).",
        "Install the same kvitals for both, and start both again.",
        ("kvitals version",),
    )


def _no_url(url: str) -> Failure:
    return Failure(
        "The agent's address is not a URL",
        f"{API_VARIABLE} is “{url}”.",
        "Set it to the address that the agent printed when it started, and start this page again.",
        (f"export {API_VARIABLE}={DEFAULT_API}",),
    )


def stranger(url: str, said: str) -> Failure:
    """Something else than an agent."""
    return Failure(
        "Something answers, but not as a kvitals agent does",
        f"{said} The address is {url}.",
        f"Perhaps another program has that port. Start an agent and set {API_VARIABLE} to its address.",
        (START, f"export {API_VARIABLE}={DEFAULT_API}"),
    )


def _unreachable(url: str, error: Exception) -> Failure:
    reason = {
        ConnectionRefusedError: "nothing listens there",
        TimeoutError: f"no answer within {TIMEOUT_SECONDS:.0f} s",
        http.client.RemoteDisconnected: "it hung up",
    }.get(type(error), str(error) or type(error).__name__)
    return Failure(
        "No agent answers",
        f"Asked {url}{PATH}: {reason}.",
        f"Start the agent, or set {API_VARIABLE} to where it runs and start this page again. This page goes on asking."
        " Or look at a recording: Sources has some.",
        (START, f"export {API_VARIABLE}={DEFAULT_API}"),
    )
