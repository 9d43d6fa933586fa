"""The options of commands that read a Prometheus instead of engines, and what they come to."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvitals.app.errors import UsageError
from kvitals.config import PrometheusTable
from kvitals.config.checks import TEXT
from kvitals.config.judging import ENTITY_LABELS
from kvitals.rules.finding import Triage
from kvitals.ui.cli.common import (
    configuration,
    json_text,
    judged_until,
    parse_duration,
    parse_past,
    setup,
    status_console,
)
from kvitals.ui.cli.narrow import print_hanging
from kvitals.ui.cli.output import PrintedDocument, emit

if TYPE_CHECKING:  # many commands have these options, and most of their calls ask no server
    from kvitals.diagnoser.sources.presence import Presence
    from kvitals.diagnoser.sources.prometheus import PrometheusAccess

CONFIGURED = "[prometheus]"
"""Stands for the URL of the configuration."""


def add_options(parser: argparse.ArgumentParser, moments: str = "") -> None:
    """`--prometheus` and how the server is reached. moments: the command's options that choose what time is judged."""
    group = parser.add_argument_group("a fleet, from Prometheus, Thanos, Mimir or VictoriaMetrics")
    group.add_argument(
        "--prometheus",
        nargs="?",
        const=CONFIGURED,
        metavar="URL",
        help="URL of the server (default: the URL in [prometheus])"
        + (f"; choose the time with {moments}" if moments else ""),
    )
    group.add_argument("--prometheus-bearer", type=Path, metavar="FILE", help="a file with the bearer token")
    group.add_argument("--prometheus-basic", type=Path, metavar="FILE", help="a file with user:password")
    group.add_argument("--prometheus-headers", type=Path, metavar="FILE", help="a file with more headers, Name: value")
    group.add_argument("--prometheus-tenant", metavar="NAME", help="X-Scope-OrgID header, for servers with tenants")
    group.add_argument("--prometheus-ca", type=Path, metavar="FILE", help="CA certificate of the server (PEM)")
    group.add_argument("--prometheus-cert", type=Path, metavar="FILE", help="our certificate (PEM)")
    group.add_argument("--prometheus-key", type=Path, metavar="FILE", help="its key (PEM)")
    group.add_argument(
        "--prometheus-only",
        action="append",
        default=[],
        metavar="LABEL=PATTERN",
        help="read only these engines, by cluster, pool, node or engine, such as pool=chat; * is any text; repeatable",
    )
    group.add_argument("--prometheus-timeout", metavar="TIME", help="timeout of one query (30s)")


def access(args: argparse.Namespace) -> PrometheusAccess:
    """How the server is reached: the configuration's [prometheus], and the options before it. Raises UsageError.

    Another server than the configured one gets nothing of it: secrets are for the address that they stand with.
    """
    from kvitals.diagnoser.sources.prometheus import PrometheusAccess, ServerError

    table = configuration(args).prometheus
    if args.prometheus == CONFIGURED and table is None:
        raise UsageError("--prometheus without a URL uses [prometheus] in kvitals.toml, which is missing")
    same = table is not None and args.prometheus.rstrip("/") in (CONFIGURED, table.url)
    found = _configured(table) if table is not None and same else PrometheusAccess(url=args.prometheus)
    own_login = args.prometheus_bearer or args.prometheus_basic
    timeout = args.prometheus_timeout
    found = replace(
        found,
        bearer_file=args.prometheus_bearer if own_login else found.bearer_file,
        basic_file=args.prometheus_basic if own_login else found.basic_file,
        headers_file=args.prometheus_headers or found.headers_file,
        tenant=args.prometheus_tenant or found.tenant,
        ca_file=args.prometheus_ca or found.ca_file,
        cert_file=args.prometheus_cert or found.cert_file,
        key_file=args.prometheus_key or found.key_file,
        timeout=parse_duration(timeout, "--prometheus-timeout") if timeout else found.timeout,
        only=_only(args.prometheus_only),
    )
    try:
        found.endpoint("query"), found.credentials(), found.tls()
    except ServerError as error:
        raise UsageError(str(error)) from error
    return found


def _only(options: Sequence[str]) -> dict[str, list[str]]:
    """Label -> patterns. Raises UsageError."""
    only: dict[str, list[str]] = {}
    for option in options:
        label, equals, pattern = option.partition("=")
        if label not in ENTITY_LABELS or not equals or not TEXT.fullmatch(pattern):
            raise UsageError(
                f"--prometheus-only {option}: write LABEL=PATTERN with {', '.join(ENTITY_LABELS)}, such as pool=chat"
            )
        only.setdefault(label, []).append(pattern)
    return only


def _configured(table: PrometheusTable) -> PrometheusAccess:
    from kvitals.diagnoser.sources.prometheus import PrometheusAccess

    return PrometheusAccess(
        url=table.url,
        bearer_file=table.bearer_file,
        basic_file=table.basic_file,
        headers_file=table.headers_file,
        tenant=table.tenant,
        ca_file=table.ca_file,
        cert_file=table.cert_file,
        key_file=table.key_file,
        timeout=table.timeout,
        interval=table.step or 0.0,
    )


def judge(args: argparse.Namespace) -> Triage:
    """The document of `triage --prometheus`. Raises UsageError, ServerError."""
    from kvitals.app.sources.prometheus_fleet import judge_server

    if args.source or args.watch or args.probe:
        raise UsageError("--prometheus reads a server: remove URL, FILE, --watch and --probe")
    began = time.monotonic()
    start, end = _moments(args, time.time())
    judged = judge_server(access(args), setup(args), end, end - start if start is not None else 0.0)
    whole, engines = time.monotonic() - began, len(judged.document.coverage.engines)
    status_console().print(
        f"{engines} engines, sampled every {judged.survey.interval:.0f} s: {judged.questions} queries,"
        f" {judged.received / 1e6:.1f} MB, {judged.waited:.1f} s for the server and {whole - judged.waited:.1f} "
        f"s here",
        style="dim",
    )
    return judged.document


def check(args: argparse.Namespace) -> int:
    """`check --prometheus`: which families the server has, of how many engines of each pool, and which nobody has.

    Returns 0 where every pool shows its load and its latency and no engine is left out, else 1. Raises UsageError,
    ServerError.
    """
    from kvitals.app.sources.prometheus_fleet import look_at_server

    if args.source:
        raise UsageError("--prometheus reads a server: remove the engine's URL")
    found, there = look_at_server(access(args), setup(args), time.time())
    kind = "families of agents" if found.agents else "the engines' own metrics, no agents"
    title = f"{args.prometheus}: {kind}, sampled every {found.interval:.0f} s"

    def show(console: Console) -> None:
        console.print(title)
        if found.left_out:
            print_hanging(Text(found.left_out, style="yellow"), console, 2)
        _show(there, console, verbose=args.verbose)

    def encode() -> str:
        about = {
            "prometheus": args.prometheus,
            "agents": found.agents,
            "interval": found.interval,
            "left_out": found.left_out,
        }
        return json_text({**about, "pools": _pools(there), "absent": there.absent})

    emit(PrintedDocument(title, show, encode), args.output)
    whole = there.engines and all(
        there.families.get(family, {}).get(pool) for pool in there.engines for family in _LEAST
    )
    return 0 if whole and not found.left_out else 1


def _pools(there: Presence) -> list[dict[str, Any]]:
    """Each pool with its engines, and how many of them have each family."""
    return [
        {
            "labels": dict(pool),
            "engines": engines,
            "families": {family: by_pool.get(pool, 0) for family, by_pool in there.families.items()},
        }
        for pool, engines in there.engines.items()
    ]


_LEAST = ("kvitals_requests_running", "kvitals_requests_waiting", "kvitals_ttft_seconds")
"""Without these of each pool no symptom of it can be told."""


def _show(there: Presence, console: Console, *, verbose: bool) -> None:
    table = Table("pool", "engines", "families of all", "of some", "missing here, present in another pool", box=None)
    for pool, engines in there.engines.items():
        counts = {family: by_pool.get(pool, 0) for family, by_pool in there.families.items()}
        some = sorted(family for family, n in counts.items() if 0 < n < engines)
        none = sorted(family for family, n in counts.items() if not n)
        name = "/".join(filter(None, pool.values())) or "(no label)"
        table.add_row(name, str(engines), str(len(counts) - len(some) - len(none)), str(len(some)), _few(none, verbose))
    console.print(table)
    codes = sorted({code for codes in there.absent.values() for code in codes})
    if codes:
        console.print()
        console.print(
            f"{len(there.absent)} families are missing everywhere; {len(codes)} rules read them:", style="bold"
        )
        for family, of in list(there.absent.items())[: None if verbose else _MOST]:
            print_hanging(Text(f"  {family}  ").append(_few(of, verbose), "dim"), console, 4)
        if not verbose and len(there.absent) > _MOST:
            console.print(f"  and {len(there.absent) - _MOST} more: -v lists all", style="dim")


_MOST = 12


def _few(names: list[str], verbose: bool) -> str:
    shown = names if verbose else names[:4]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _moments(args: argparse.Namespace, now: float) -> tuple[float | None, float]:
    until, said = judged_until(args)
    for option, text in (("--at", args.at), ("--from", args.from_), ("--to", args.to)):
        if text and text.startswith("+"):
            raise UsageError(f"{option} {text}: with a server, write 2026-01-31T04:05:06Z or a unix time")
    end = parse_past(until, said) if until else now
    start = parse_past(args.from_, "--from") if args.from_ else None
    if start is not None and start >= end:
        raise UsageError("--from must lie before --to")
    return start, end
