"""`kvitals mcp`: verdicts for assistants and incident bots, by the Model Context Protocol."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import signal
from pathlib import Path
from typing import Any, NoReturn

from kvitals.agent import stopping
from kvitals.app.errors import UsageError
from kvitals.app.offered_sources import OfferedSources
from kvitals.config.hosts import is_loopback
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import add_judging_options, agent_of, file_problem, parse_address, setup, status_console
from kvitals.ui.cli.failures import failure_text

ADDRESS = "127.0.0.1:9480"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "mcp",
        description="Serves verdicts as read-only tools of the Model Context Protocol: triage, explain, evidence,"
        " compare, whatif, since_change, review, check. Without --http it reads requests from standard input and writes"
        " answers to standard output. Tools read only the sources that are named here.",
    )
    parser.add_argument(
        "source",
        nargs="*",
        metavar="URL|FILE|DIR",
        help="agents and engines by URL, recordings, directories of recordings, histories (default: this node's agent)",
    )
    parser.add_argument(
        "--http",
        nargs="?",
        const=ADDRESS,
        metavar="HOST:PORT",
        help=f"serve streamable HTTP at /mcp on this address of this machine (default: {ADDRESS})",
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="HTTP: callers must send the token in FILE")
    add_judging_options(parser)
    prometheus.add_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> NoReturn:
    if importlib.util.find_spec("mcp") is None:
        raise UsageError("the Model Context Protocol SDK is not installed: pip install 'kvitals[mcp]'")
    address = _address(args)
    chosen = setup(args)
    access = prometheus.access(args) if args.prometheus else None
    places = args.source or ([] if access is not None else [agent_of(chosen.config)])
    offered = OfferedSources(places, chosen, access)
    asyncio.run(_serve(offered, address, args.token_file))
    stopping.leave()


def _address(args: argparse.Namespace) -> tuple[str, int] | None:
    """Where HTTP is served; None: standard input and output. Raises UsageError for an address of other machines."""
    if args.http is None:
        if args.token_file is not None:
            raise UsageError(
                "--token-file works with --http only; over standard input the caller is the parent process"
            )
        return None
    address = parse_address(args.http, "--http")
    if not is_loopback(address[0]):
        raise UsageError(
            f"--http {args.http}: give an address of this machine, such as {ADDRESS}; put a proxy with TLS in"
            " front for other machines"
        )
    if args.token_file is not None and (problem := file_problem(args.token_file)):
        raise UsageError(f"--token-file {args.token_file}: {problem}")
    return address


async def _serve(offered: OfferedSources, address: tuple[str, int] | None, token_file: Path | None) -> None:
    from mcp.server.stdio import stdio_server

    from kvitals.ui.mcp.mcp_http import PATH, serve_http
    from kvitals.ui.mcp.mcp_server import mcp_server

    server = mcp_server(offered, failure_text)
    if address is None:
        # Nothing is written, so a signal may end it anywhere. Python's own handler would wait for standard input.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
        return
    async with serve_http(server, address, offered.setup.config.agent.hosts, token_file):
        host, port = address
        status_console().print(f"http://{host}:{port}{PATH}, {len(offered.by_name)} sources. Ctrl-C stops.")
        stop = asyncio.Event()
        stopping.on_signals(stop)
        await stop.wait()
