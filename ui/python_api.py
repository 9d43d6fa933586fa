"""The Python API: what `import kvitals` gives. Each function is the use case behind the command of its name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvitals.agent.requests.record import RequestRecord
from kvitals.app import request_sources
from kvitals.app.agent_client import AgentClient
from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import history_file
from kvitals.app.pipeline import Setup
from kvitals.app.sources.history import judge_history
from kvitals.app.sources.live import Collector, agent_document
from kvitals.app.sources.prometheus_fleet import judge_server
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.weekly_review import gpu_prices, history_review, review_of, server_review
from kvitals.config import load as load_config
from kvitals.diagnoser.review.result import Review
from kvitals.diagnoser.sources.prometheus import PrometheusAccess
from kvitals.rules.finding import Finding, Triage
from kvitals.rules.loader import load as load_knowledge
from kvitals.ui.review.tables import tables

if TYPE_CHECKING:
    import pandas

__all__ = ["Client", "Review", "Triage", "frame", "review", "triage"]

LIVE_SECONDS = 12.0
MAX_REQUESTS = 1000
"""What an agent gives at once (docs/api.md)."""

_REQUEST_COLUMNS = [*RequestRecord.__struct_fields__, "tenant_name", "outcome"]
"""Of a table that has no row."""
_TIMES = frozenset({"start", "end", "first", "last", "since", "t"})
_EPOCH_SECONDS = 1e9
"""A number above it in a column of `_TIMES` is a time; below it, a duration."""


class Client(AgentClient):
    """A client of the agent at `url`: `Client("http://127.0.0.1:9477").findings()`.

    Blocking, and without state: it opens a connection for each question. `timeout` is in seconds and covers the whole
    answer. Every method returns a typed document and raises a subclass of `kvitals.app.agent_client.AgentError`:
    unreachable, slow, not kvitals, another version, or refused.
    """


def triage(
    source: str | Path | Sequence[str] = "",
    *,
    prometheus: str = "",
    at: float | None = None,
    start: float | None = None,
    seconds: float = LIVE_SECONDS,
    config: Path | None = None,
    rules: Sequence[Path] = (),
) -> Triage:
    """The triage document: ranked causes with evidence and levers, as `kvitals triage --json` prints it.

    source: a recording (`.kvcap`), a history (its directory or `.db` file), the URL of an agent, or URLs of engines,
    which are scraped for `seconds`. prometheus: instead, the URL of a server. at, start: the end and the start of the
    window, in seconds since the epoch; they are for recordings, history and Prometheus (`at` alone). config:
    kvitals.toml; rules: directories with your own rules.

    Raises UsageError for arguments that exclude each other, and the source's own error where nothing can be read. Not
    for use on an event loop: live engines are scraped on a loop of its own.
    """
    setup = _setup(config, rules)
    if bool(prometheus) == bool(source):
        raise UsageError("triage: give one source, or prometheus=URL")
    if prometheus:
        return judge_server(PrometheusAccess(prometheus), setup, time.time() if at is None else at).document
    urls = [source] if isinstance(source, str) and "://" in source else [] if isinstance(source, str | Path) else source
    if not urls:
        path = Path(str(source))
        if path.is_dir() or path.suffix == ".db":
            return judge_history(history_file(path, setup.config), setup, Moments(at, start)).document
        return judge_recording(path, setup, Moments(at, start)).document
    if at is not None or start is not None:
        raise UsageError(
            "triage: at= and start= work with recordings, history and Prometheus; a live triage shows only the present"
        )
    return asyncio.run(_live(list(urls), setup, seconds))


def review(
    source: str | Path = "",
    *,
    prometheus: str = "",
    days: float = 7.0,
    end: float | None = None,
    price: float | None = None,
    prices: Mapping[str, float] | None = None,
    gpus: float | None = None,
    config: Path | None = None,
    rules: Sequence[Path] = (),
) -> Review:
    """The weekly review: GPU time by use, cost, incidents and levers by money, as `kvitals review` computes it.

    source: the URL of an agent, or a history (directory or `.db` file); empty: the history of this node's agent.
    prometheus: instead, the URL of a server. The review is of the `days` before `end` (seconds since the epoch; now).
    price: US dollars an hour of one GPU; prices: the same by hardware, pool or model. gpus: GPUs of an engine that
    does not report them.

    Raises UsageError, NothingSeenError where no engine was watched, and the source's own error.
    """
    setup = _setup(config, rules)
    if source and prometheus:
        raise UsageError("review: give one source, or prometheus=URL")
    until = time.time() if end is None else end
    start = until - days * 86400.0
    given = gpu_prices(setup.config, price, prices or {}, gpus)
    url = prometheus or (source if isinstance(source, str) and "://" in source else "")
    if url:
        of = server_review(PrometheusAccess(url), setup, start, until, may_be_agent=not prometheus)
    else:
        of = history_review(history_file(Path(source) if source else None, setup.config), setup, start, until)
    with of as opened:
        return review_of(opened, setup, start, given)


def frame(source: Triage | Review | AgentClient | str | Path, table: str = "") -> pandas.DataFrame:
    """A table of a document, or the request records of a source, as a DataFrame (`pip install 'kvitals[notebook]'`).

    - a `Triage`: `findings` (the default), `evidence`
    - a `Review`: `groups` (the default), `steps`, `days`, `parts`, `factors`, `weeks`, `tenants`, `incidents`,
      `levers`, `changes`, `prices`
    - a `Client`, an agent's URL or a recording: `requests`, one row a request, with the seconds of each phase

    Times are UTC timestamps, durations are seconds, and what is unknown is missing and never 0.

    Raises UsageError for a table that the source does not have, ImportError without pandas.
    """
    known = _tables(source)
    name = table or next(iter(known))
    if name not in known:
        raise UsageError(f"no table {name!r}: the tables are {', '.join(known)}")
    import pandas

    rows = known[name]
    made = pandas.DataFrame(rows, columns=_REQUEST_COLUMNS if name == "requests" and not rows else None)
    for column in _TIMES & set(made.columns):
        if pandas.api.types.is_numeric_dtype(made[column]) and (made[column].dropna() > _EPOCH_SECONDS).all():
            made[column] = pandas.to_datetime(made[column], unit="s", utc=True)
    return made


def _setup(config: Path | None, rules: Sequence[Path]) -> Setup:
    loaded = load_config(config)
    directories = (*rules, *loaded.agent.rules)
    return Setup(load_knowledge(directories), loaded, directories=directories)


async def _live(urls: list[str], setup: Setup, seconds: float) -> Triage:
    if len(urls) == 1 and (document := await agent_document(urls[0])) is not None:
        return document
    async with Collector(setup, urls) as collector:
        async for _ in collector.collect(seconds):
            pass
        return collector.document()


def _tables(source: Triage | Review | AgentClient | str | Path) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    if isinstance(source, Triage):
        return {"findings": [_finding(one) for one in _findings(source)], "evidence": list(_evidence(source))}
    if isinstance(source, Review):
        made = tables(source)
        return {"groups": made.pop("groups"), **made}
    newest = request_sources.RequestQuery(newest=MAX_REQUESTS)
    if isinstance(source, AgentClient):
        answer = request_sources.of_client(source, newest)
    elif "://" in str(source):
        answer = request_sources.of_client(AgentClient(str(source)), newest)
    else:
        answer = request_sources.of_recording(Path(source), newest, load_config(None))
    return {"requests": [_request(one.record, one.tenant_name) for one in answer.requests]}


def _findings(document: Triage) -> list[Finding]:
    """Those that fired, the ranked causes first."""
    return [*document.causes, *document.symptoms, *document.telemetry, *document.notes]


def _finding(finding: Finding) -> dict[str, Any]:
    row = {
        name: getattr(finding, name)
        for name in ("code", "kind", "severity", "title", "since", "confidence", "confidence_words", "conclusion")
    }
    levers = [one.lever for one in finding.levers]
    return row | {
        "entity": finding.entity.title,
        "explains": finding.explains,
        "levers": levers,
        "muted": finding.muted,
    }


def _evidence(document: Triage) -> Iterator[dict[str, Any]]:
    """A row for each point of the evidence of what fired."""
    for finding in _findings(document):
        for shown in finding.evidence:
            for line in shown.lines:
                labels = ", ".join(f"{name}={value}" for name, value in line.labels.items())
                for point in line.points:
                    yield {
                        "code": finding.code,
                        "entity": finding.entity.title,
                        "title": shown.title,
                        "labels": labels,
                        "t": point.t,
                        "value": point.value,
                        "unit": shown.unit,
                    }


def _request(record: RequestRecord, tenant_name: str) -> dict[str, Any]:
    """Scalars as they are, engines by role and phases by name in columns of their own."""
    row = {
        name: value for name in record.__struct_fields__ if not isinstance(value := getattr(record, name), dict | tuple)
    }
    row |= {f"engine_{role}": engine for role, engine in record.engines.items()}
    row |= {f"{phase.name}_seconds": phase.seconds for phase in record.phases}
    return row | {"tenant_name": tenant_name, "outcome": record.outcome}
