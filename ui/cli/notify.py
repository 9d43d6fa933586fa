"""`kvitals notify`: takes an Alertmanager's alerts for a fleet, diagnoses them from its Prometheus, hands them on."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any

from aiohttp import web

from kvitals.agent import loop_watch, stopping
from kvitals.agent.connections import GuardedRunner, GuardedSite
from kvitals.agent.exports.host_names import refuse_others
from kvitals.agent.exports.metrics_page import CONTENT_TYPE, render
from kvitals.agent.listeners import LISTENERS
from kvitals.app.errors import UsageError
from kvitals.app.notify.diagnosis import OfFleet
from kvitals.app.notify.intake import PATH, add_notify, set_up
from kvitals.app.notify.notify_families import add_families
from kvitals.app.notify.queue import DEAD
from kvitals.app.notify.service import Notifier, directory
from kvitals.config import AlertmanagerTarget, NotifyTable, WebhookTarget
from kvitals.config.hosts import is_loopback
from kvitals.rules.model import Family
from kvitals.series.window import Window
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import add_judging_options, configuration, parse_address, setup, status_console

SHUTDOWN_SECONDS = 2.0
WINDOW_SECONDS, MAX_SERIES = 300.0, 1000
"""Of what is told of it at /metrics."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "notify",
        description="Receives messages from an Alertmanager's webhook and diagnoses their alerts from a "
        "Prometheus. It forwards them with verdict, numbers and lever to the targets of [notify] in "
        "the configuration. On a node"
        " with an agent, `kvitals run` does this itself.",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="address for the Alertmanager (127.0.0.1:9479)")
    add_judging_options(parser)
    prometheus.add_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    config = configuration(args)
    if not args.prometheus:
        if config.prometheus is None:
            raise UsageError(
                "name the Prometheus that has the fleet's series: --prometheus URL, or [prometheus] in the "
                "configuration; for the engines of this node `kvitals run` receives alerts"
            )
        args.prometheus = prometheus.CONFIGURED
    if config.notify is None:
        raise UsageError("no receivers: kvitals.toml has no [notify]; see docs/notify.md")
    table = config.notify
    address = parse_address(args.listen, "--listen") if args.listen else table.address
    if not is_loopback(address[0]) and table.token_file is None:
        raise UsageError(
            f"{address[0] or 'all interfaces'} can be reached from other machines: set a token_file in "
            f"[notify], or listen on 127.0.0.1"
        )
    chosen = setup(args)
    notifier = Notifier(table, OfFleet(prometheus.access(args), chosen), mutes=lambda: chosen.config.mutes)
    loop_watch.run(_run(notifier, table, address, chosen.knowledge.families, chosen.config.agent.hosts))
    return 0


async def _run(
    notifier: Notifier,
    table: NotifyTable,
    address: tuple[str, int],
    families: Mapping[str, Family],
    hosts: Collection[str],
) -> None:
    stop = asyncio.Event()
    stopping.on_signals(stop)
    app = web.Application(middlewares=refuse_others(address[0], hosts))
    add_notify(app, notifier, table.token_file)
    window = Window(WINDOW_SECONDS, MAX_SERIES)
    add_families(app, notifier, window, {}, own_loop=True)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=render(window, families, time.time()), headers={"Content-Type": CONTENT_TYPE})

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/-/healthy", _healthy)
    runner = GuardedRunner(app, shutdown_timeout=SHUTDOWN_SECONDS)
    await set_up(runner)
    try:
        host, port = address
        try:
            await GuardedSite(runner, LISTENERS["notify"], host or None, port).start()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another with --listen"
            ) from error
        console = status_console()
        console.print(f"http://{host or '0.0.0.0'}:{port}{PATH}  for webhook_configs of Alertmanager")  # noqa: S104
        console.print(notify_summary(table), style="dim")
        loop_watch.begin()
        await stop.wait()
    finally:
        await runner.cleanup()


def notify_summary(table: NotifyTable) -> str:
    """Whom alerts are handed on to, and where those are that could not be."""
    shown = []
    for name, target in table.targets:
        where = f" ({target.url})" if isinstance(target, WebhookTarget | AlertmanagerTarget) else ""
        shown.append(f"{name}{where}: {', '.join(target.severities)}")
    return f"sends to {'; '.join(shown)}. Messages that cannot be sent are in {directory(table) / DEAD}"


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="kvitals is Healthy.\n")
