"""`kvitals tap`: an observing proxy before one engine or router, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
from pathlib import Path
from typing import Any

import msgspec

from kvitals.agent import garbage, loop_watch
from kvitals.agent.inbound import server_tls
from kvitals.agent.requests.observation import MAX_ID
from kvitals.agent.requests.tenant_names import open_tenants
from kvitals.agent.tap.context import ContextFields
from kvitals.agent.tap.exchange import TapPlace
from kvitals.agent.tap.server import Tap, TapSettings, upstream_of
from kvitals.app.errors import UsageError
from kvitals.config import MAX_CONNECTIONS, ROLES, Config, TapTable
from kvitals.ui.cli.common import (
    add_config_option,
    agent_of,
    configuration,
    parse_address,
    parse_duration,
    parse_url,
    status_console,
)

_DEFAULT = TapTable()


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "tap",
        description="Forwards all requests unchanged, measures generation requests, and reports each to the agent."
        " Options that you omit come from [tap] in the configuration.",
    )
    parser.add_argument("--upstream", metavar="URL", help="the engine or router behind the tap")
    parser.add_argument("--listen", metavar="HOST:PORT", help=f"address for clients ({_DEFAULT.listen})")
    parser.add_argument("--admin", metavar="HOST:PORT", help=f"address of the tap's own /metrics ({_DEFAULT.admin})")
    parser.add_argument("--agent", metavar="URL", help="agent that receives the records (default: as configured)")
    parser.add_argument("--no-agent", action="store_true", help="report to no agent; serve only /metrics")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="a bearer token for the agent")
    parser.add_argument(
        "--cert-file", type=Path, metavar="FILE", help="TLS for clients: the certificate, with its chain"
    )
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="private key of --cert-file")
    parser.add_argument(
        "--router", action="store_true", default=None, help="the upstream is a router, so the serving engine is unknown"
    )
    parser.add_argument("--engine", metavar="NAME", help="name of the engine at the agent (host:port of the upstream)")
    parser.add_argument("--role", choices=ROLES[:3], help="the engine's part in a deployment")
    parser.add_argument(
        "--session-header",
        action="append",
        dest="session_headers",
        metavar="NAME",
        help="header with the session id; the first one in a request is used (x-session-id)",
    )
    parser.add_argument(
        "--session-id",
        action="store_true",
        default=None,
        help="set X-Session-ID to the pseudonyms of tenant and session, so that KV events carry them",
    )
    parser.add_argument(
        "--keep-traceparent",
        action="store_true",
        default=None,
        help="forward an incoming traceparent unchanged, without the tap's span as the engine's parent",
    )
    parser.add_argument(
        "--max-connections", type=int, metavar="N", help=f"client connections ({_DEFAULT.max_connections})"
    )
    parser.add_argument(
        "--drain",
        metavar="TIME",
        help=f"time that running requests may take to end after a stop ({_DEFAULT.drain:.0f}s)",
    )
    add_config_option(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    config = configuration(args)
    loop_watch.run(_run(_settings(args, config), config))
    return 0


async def _run(settings: TapSettings, config: Config) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    console = status_console()
    tenants, said = open_tenants(config.tenants)
    for line in said:
        console.print(line, style="yellow")
    tap = Tap(settings, tenants)
    garbage.keep_short()
    try:
        await tap.open()
    except OSError as error:
        raise UsageError(f"cannot listen ({error.strerror}); choose others with --listen and --admin") from error
    listen, admin = (":".join(map(str, address)) for address in (settings.listen, settings.admin or ("", 0)))
    scheme = "https" if settings.tls else "http"
    console.print(f"tap      {scheme}://{listen} -> {settings.upstream}")
    console.print(f"agent    {settings.agent or 'none: requests are only counted'}")
    console.print(f"metrics  http://{admin}/metrics")
    loop_watch.begin()
    await stop.wait()
    stop.clear()
    console.print(f"stopping; {len(tap.books.under_way)} requests still run. Press Ctrl-C again to stop at once.")
    closing = asyncio.ensure_future(tap.close())
    again = asyncio.ensure_future(stop.wait())
    await asyncio.wait((closing, again), return_when=asyncio.FIRST_COMPLETED)
    for task in (closing, again):
        task.cancel()
    await asyncio.gather(closing, again, return_exceptions=True)


def _settings(args: argparse.Namespace, config: Config) -> TapSettings:
    given = {name: value for name, value in vars(args).items() if value is not None}
    args = argparse.Namespace(**msgspec.structs.asdict(config.tap) | given)
    if not args.upstream:
        raise UsageError("name the engine or router behind the tap: --upstream URL, or upstream under [tap]")
    upstream = parse_url(args.upstream, "--upstream:")
    try:
        there = upstream_of(upstream)
    except ValueError as error:
        raise UsageError(f"--upstream {error}") from None
    if args.router and (args.engine or args.role):
        raise UsageError("--router means that the engine is unknown: remove either --router, or --engine and --role")
    if not 1 <= args.max_connections <= MAX_CONNECTIONS:
        raise UsageError(f"--max-connections must be from 1 to {MAX_CONNECTIONS}")
    if len(args.engine) > MAX_ID or not args.engine.isprintable():
        raise UsageError(f"--engine must be one line of at most {MAX_ID} characters")
    engine = "" if args.router else args.engine or f"{there.host}:{there.port}"
    headers = tuple(name.lower() for name in args.session_headers)
    return TapSettings(
        upstream=upstream,
        listen=parse_address(args.listen, "--listen"),
        admin=parse_address(args.admin, "--admin"),
        agent="" if args.no_agent else parse_url(args.agent or agent_of(config), "--agent:"),
        token_file=args.token_file,
        tls=_tls(args.cert_file, args.key_file),
        place=TapPlace(engine, args.role),
        wanted=ContextFields(headers, args.session_id, args.keep_traceparent),
        max_connections=args.max_connections,
        drain=parse_duration(args.drain, "--drain") if "drain" in given else config.tap.drain,
    )


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("--cert-file and --key-file belong together: give both")
    try:
        return server_tls(cert, key)
    except OSError as error:  # ssl.SSLError too
        raise UsageError(f"{cert}, {key}: cannot load this certificate and key ({error.strerror or error})") from None
