"""The options of commands that read a Prometheus instead of engines, and what they come to."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from diagnoser.sources.prometheus import Access, ServerError
from rules.finding import Triage
from ui.cli.common import UsageError, parse_duration, parse_moment, setup, status_console
from ui.fleet import judge_server


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--prometheus` and how the server is reached."""
    group = parser.add_argument_group("a fleet, from a Prometheus, Thanos, Mimir or VictoriaMetrics")
    group.add_argument("--prometheus", metavar="URL", help="its URL; --at, --from and --to say which moment is judged")
    group.add_argument("--prometheus-bearer", type=Path, metavar="FILE", help="a file with the bearer token")
    group.add_argument("--prometheus-basic", type=Path, metavar="FILE", help="a file with user:password")
    group.add_argument("--prometheus-headers", type=Path, metavar="FILE", help="a file with more headers, Name: value")
    group.add_argument("--prometheus-tenant", default="", metavar="NAME", help="X-Scope-OrgID, of servers with tenants")
    group.add_argument("--prometheus-ca", type=Path, metavar="FILE", help="who signed the server's certificate (PEM)")
    group.add_argument("--prometheus-cert", type=Path, metavar="FILE", help="our certificate (PEM)")
    group.add_argument("--prometheus-key", type=Path, metavar="FILE", help="its key (PEM)")
    group.add_argument("--prometheus-timeout", default="30s", metavar="TIME", help="for one question (30s)")


def access(args: argparse.Namespace) -> Access:
    """How the server is reached, as the options have it. Raises UsageError."""
    found = Access(
        url=args.prometheus,
        bearer_file=args.prometheus_bearer,
        basic_file=args.prometheus_basic,
        headers_file=args.prometheus_headers,
        tenant=args.prometheus_tenant,
        ca_file=args.prometheus_ca,
        cert_file=args.prometheus_cert,
        key_file=args.prometheus_key,
        timeout=parse_duration(args.prometheus_timeout, "--prometheus-timeout"),
    )
    try:
        found.endpoint("query"), found.credentials(), found.tls()
    except ServerError as error:
        raise UsageError(str(error)) from error
    return found


def judge(args: argparse.Namespace) -> Triage:
    """The document of `triage --prometheus`. Raises UsageError, ServerError."""
    if args.source or args.watch or args.probe:
        raise UsageError("--prometheus reads a server: no URL, FILE, --watch or --probe beside it")
    began = time.monotonic()
    start, end = _moments(args, time.time())
    judged = judge_server(access(args), setup(args), end, end - start if start is not None else 0.0)
    whole, engines = time.monotonic() - began, len(judged.document.coverage.engines)
    status_console().print(
        f"{engines} engines, sampled every {judged.survey.interval:.0f} s: {judged.questions} queries,"
        f" {judged.received / 1e6:.1f} MB, {judged.waited:.1f} s for the server and {whole - judged.waited:.1f} s here",
        style="dim",
    )
    return judged.document


def _moments(args: argparse.Namespace, now: float) -> tuple[float | None, float]:
    if args.to and args.at:
        raise UsageError("--at or --to, not both")
    for option, text in (("--at", args.at), ("--from", args.from_), ("--to", args.to)):
        if text and text.startswith("+"):
            raise UsageError(f"{option} {text}: with a server, write 2026-01-31T04:05:06Z or a unix time")
    end = parse_moment(args.to or args.at, now, "--at or --to") if args.to or args.at else now
    start = parse_moment(args.from_, now, "--from") if args.from_ else None
    if start is not None and start >= end:
        raise UsageError("--from must lie before --to")
    return start, end
