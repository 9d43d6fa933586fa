"""`kvitals web`: the web page alone, on an agent, a recording or a Prometheus."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from kvitals.app import page_process
from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import existing_history
from kvitals.app.page_settings import PageSettings
from kvitals.app.sources.recording_reader import open_recording
from kvitals.ui.cli.common import (
    add_judging_options,
    agent_of,
    configuration,
    file_problem,
    parse_slo,
    parse_url,
    port_number,
)

PORT = 8501
MAX_UPLOAD_MEGABYTES = 1024


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "web",
        description="Serves the web page. Only this machine can reach the page, unless --address opens it to others.",
    )
    parser.add_argument(
        "source", nargs="?", default="", metavar="URL|FILE", help="an agent (this node's) or a recording"
    )
    parser.add_argument("--prometheus", default="", metavar="URL", help="a Prometheus instead")
    parser.add_argument("--history", type=Path, metavar="DIR", help="the agent's history, for past windows")
    parser.add_argument("--port", type=port_number, default=PORT, metavar="PORT", help=f"({PORT})")
    parser.add_argument("--address", default=page_process.ADDRESS, metavar="IP", help=f"({page_process.ADDRESS})")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="password that viewers must enter")
    parser.add_argument(
        "--identity-header",
        default="",
        metavar="NAME",
        help="header with the viewer's name; a proxy on this machine sets it",
    )
    parser.add_argument(
        "--max-upload", type=int, default=64, metavar="MB", help="largest size of an uploaded recording (64)"
    )
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if missing := page_process.missing():
        raise UsageError(missing)
    settings = settings_of(args)
    with socket.socket(socket.AF_INET6 if ":" in args.address else socket.AF_INET) as probe:
        if probe.connect_ex((args.address, args.port)) == 0:
            raise UsageError(f"port {args.port} is in use; choose another with --port")
    print(f"web page  http://{args.address}:{args.port}\nCtrl-C stops.", flush=True)
    command = page_process.command(args.port, settings, args.address)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the page can end without a traceback
    os.execve(sys.executable, command, page_process.environment(settings))  # noqa: S606 (our own command)


def settings_of(args: argparse.Namespace) -> PageSettings:
    """What the page is told. Raises UsageError for what would let strangers in."""
    try:
        loopback = ipaddress.ip_address(args.address).is_loopback
    except ValueError:
        raise UsageError(f"--address {args.address}: write an IP address of this machine, as in 127.0.0.1") from None
    if not loopback and args.password_file is None:
        raise UsageError(f"--address {args.address} is reachable from elsewhere: also give --password-file FILE")
    if not loopback and args.identity_header:
        raise UsageError(
            "--identity-header is trusted, so only a proxy on this machine may reach the page: remove --address"
        )
    if args.password_file is not None and (problem := file_problem(args.password_file)):
        raise UsageError(f"--password-file {args.password_file}: {problem}")
    if not 1 <= args.max_upload <= MAX_UPLOAD_MEGABYTES:
        raise UsageError(f"--max-upload {args.max_upload}: write 1 to {MAX_UPLOAD_MEGABYTES}")
    recording = args.source if "://" not in args.source else ""
    if recording and (problem := file_problem(Path(recording))):
        raise UsageError(f"{recording}: {problem}; give a recording, or the URL of an agent")
    if recording:
        with open_recording(Path(recording)):  # what is no recording is refused before the page is started
            pass
    if args.source and args.prometheus:
        raise UsageError("only one source: remove --prometheus or the other source")
    if lost := next((one for one in args.rules if not one.is_dir()), None):
        raise UsageError(f"--rules {lost}: {'not a' if lost.exists() else 'no such'} directory")
    config = configuration(args)
    if args.history is not None:
        existing_history(args.history, config, "--history takes its directory")
    return PageSettings(
        api=parse_url(args.source) if args.source and not recording else agent_of(config),
        recording=str(Path(recording).absolute()) if recording else "",
        prometheus=parse_url(args.prometheus, "--prometheus:") if args.prometheus else "",
        history=str(args.history.absolute()) if args.history else "",
        config=str(args.config.absolute()) if args.config else "",
        rules=tuple(str(one.absolute()) for one in args.rules),
        slo=parse_slo(args.slo),
        password_file=str(args.password_file.absolute()) if args.password_file else "",
        identity_header=args.identity_header,
        hosts=config.agent.hosts if loopback else None,
        may_type=loopback and not args.identity_header and args.password_file is None,
        upload_megabytes=args.max_upload,
    )
