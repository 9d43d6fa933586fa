"""The API of a pipeline: on this machine, and where it is configured for other machines, too."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

from aiohttp import web

from kvitals.agent.connections import GuardedRunner, GuardedSite
from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.host_names import allowed_hosts
from kvitals.agent.exports.ledger_api import LedgerApi
from kvitals.agent.exports.requests_api import Requests
from kvitals.agent.health import Health
from kvitals.agent.inbound import server_tls
from kvitals.agent.listeners import LISTENERS
from kvitals.app.alerting import groups
from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import Keeping
from kvitals.app.notify.diagnosis import OfAgent
from kvitals.app.notify.intake import add_notify, set_up
from kvitals.app.notify.notify_families import add_families
from kvitals.app.notify.service import Notifier
from kvitals.app.pipeline import Pipeline
from kvitals.config import Remote
from kvitals.rules.finding import encode

SHUTDOWN_SECONDS = 1.0
"""For requests that are being answered, when the agent stops."""


@contextlib.asynccontextmanager
async def serve(
    pipeline: Pipeline,
    address: tuple[str, int],
    clock: Callable[[], float],
    runtime: Callable[[], dict[str, Any]] = dict,
    keeping: Keeping | None = None,
    health: Health | None = None,
    since_change: Callable[[], bytes] | None = None,
) -> AsyncIterator[None]:
    """Serve the API until this context ends. health: of a running agent; None for a recorded incident, which takes
    nothing in and is served on this machine alone. since_change: as `ApiParts` has it, where no history is kept. Raises
    UsageError where it cannot listen."""
    host, port = address
    remote = pipeline.setup.config.remote
    runner = GuardedRunner(
        _application(pipeline, host, clock, runtime, keeping, health, since_change), shutdown_timeout=SHUTDOWN_SECONDS
    )
    await set_up(runner)
    try:
        await GuardedSite(runner, LISTENERS["api"], host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); choose another with --listen") from error
    if health is not None and remote is not None:
        await _open_door(runner, remote)
    try:
        yield
    finally:
        await runner.cleanup()


def _application(
    pipeline: Pipeline,
    host: str,
    clock: Callable[[], float],
    runtime: Callable[[], dict[str, Any]],
    keeping: Keeping | None,
    health: Health | None,
    since_change: Callable[[], bytes] | None,
) -> web.Application:
    remote = pipeline.setup.config.remote
    parts = ApiParts(
        pipeline,
        pipeline.setup.knowledge.families,
        findings=lambda: pipeline.settled(lambda: encode(pipeline.triage()) if pipeline.span else None),
        ready=lambda: pipeline.span is not None,
        problem=lambda: health.problem if health is not None else "",
        rules=lambda: pipeline.settled(lambda: groups(pipeline)),
        runtime=runtime,
        requests=_requests(pipeline, takes_parts=health is not None),
        ledger=LedgerApi(lambda: pipeline.node.ledger, pipeline.node.parts.tenant_name),
        version=version("kvitals"),
        clock=clock,
        hosts=allowed_hosts(host, pipeline.setup.config.agent.hosts),
        token_file=remote.token_file if remote is not None else None,
        past=keeping.past if keeping is not None else None,
        whole_since=pipeline.whole_since,
        notes=keeping.past if keeping is not None else None,
        since_change=keeping.since_change if keeping is not None else since_change,
    )
    app = build_app(parts)
    if (table := pipeline.setup.config.notify) is not None:
        of_agent = OfAgent(pipeline, clock, keeping is not None)
        notifier = Notifier(table, of_agent, mutes=lambda: pipeline.setup.config.mutes)
        own = pipeline.setup.config.labels
        add_notify(app, notifier, table.token_file, guarded=True)
        labels = {"cluster": own.cluster, "node": own.node}
        add_families(app, notifier, pipeline.node.window, labels, clock, lock=pipeline.judging)
    return app


async def _open_door(runner: GuardedRunner, remote: Remote) -> None:
    """The same API for other machines, over TLS. Raises UsageError."""
    host, port = remote.address
    try:
        tls = server_tls(remote.cert_file, remote.key_file, remote.client_ca_file)
        await GuardedSite(runner, LISTENERS["remote"], host or None, port, tls=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise UsageError(f"[remote] cannot listen on {remote.listen}: {error}") from error


def _requests(pipeline: Pipeline, *, takes_parts: bool) -> Requests:
    """The request side for the API."""
    node = pipeline.node
    return Requests(
        store=lambda: node.requests.store,
        exemplars=lambda: node.requests.exemplars(),
        tails=lambda: node.requests.tails.reports,
        resolve=node.parts.tenant_name,
        take=node.parts.offer if takes_parts else None,
        token_file=pipeline.setup.config.agent.parts_token_file,
    )
