"""`kvitals export`: boards, alerts, recording rules, Alertmanager's configuration, runbooks and the mixin, as files."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from kvitals.app.errors import UsageError
from kvitals.dashboards.alerts_options import Options, receiver_url
from kvitals.dashboards.label_names import LABELS, Installation
from kvitals.dashboards.monitoring_files import KINDS, ExportError, ExportRequest, export
from kvitals.series.promql import PromQLError
from kvitals.ui.cli.common import (
    add_rules_option,
    answer_console,
    knowledge,
    parse_duration,
    parse_slo,
    parse_url,
    status_console,
    write_whole,
)
from kvitals.ui.cli.narrow import print_hanging, print_to_copy

DESCRIPTION = """\
Writes files for Prometheus, Alertmanager and Grafana, with your names and addresses. The files need no further edits.

boards        boards/*.json for a folder that Grafana provisions, boards-import/*.json for import by hand (Grafana asks
              for the data source), and provisioning/ for Grafana
alerts        alerts.yaml, alerting rules for Prometheus; they read recording.yaml
recording     recording.yaml, recording rules for Prometheus
alertmanager  alertmanager.yaml: routes, groups, inhibition
runbooks      runbooks/*.md, a page per rule
mixin         mixin/mixin.libsonnet: rules, alerts and boards as jsonnet, with all options in _config
"""
_LABEL = re.compile(r"[a-zA-Z_]\w*", re.ASCII)


def add(commands: Any) -> None:
    usual = Options()
    parser = commands.add_parser("export", description=DESCRIPTION)
    parser.add_argument("what", nargs="+", choices=tuple(KINDS), metavar="WHAT", help=", ".join(KINDS))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write to")
    parser.add_argument(
        "--metrics", choices=("agents", "engines"), default="agents",
        help="what Prometheus scrapes: kvitals agents, or engines without agents (agents)",
    )  # fmt: skip
    parser.add_argument(
        "--selector", default="", metavar="MATCHERS",
        help="matchers for every scraped series of agents or, with --metrics engines, of engines: 'job=\"kvitals\"'",
    )  # fmt: skip
    for label in LABELS:
        parser.add_argument(
            f"--{label}-label",
            default=label,
            metavar="NAME",
            help=f"name of the label {label} in your Prometheus ({label})",
        )
    parser.add_argument(
        "--alerts", choices=("core", "extended"), default=usual.alerts,
        help="core: about 25 alerts on symptoms and lost capacity; extended: the alerts of every rule (core)",
    )  # fmt: skip
    parser.add_argument("--groups", default="", metavar="LIST", help="groups of alerts, such as latency,kv,slo (all)")
    for name, default in (("page", usual.page), ("ticket", usual.ticket)):
        parser.add_argument(
            f"--severity-{name}", default=default, metavar="TEXT", help=f"`severity` label of {name} alerts ({default})"
        )
    parser.add_argument("--runbooks", default=usual.runbooks, metavar="URL", help="address that serves the runbooks")
    parser.add_argument(
        "--grafana", default=usual.boards, metavar="URL", help="address of Grafana, for links of alerts"
    )
    parser.add_argument(
        "--prometheus", default="http://127.0.0.1:9090", metavar="URL", help="data source in Grafana's provisioning"
    )
    parser.add_argument(
        "--receiver", default=usual.receiver, metavar="URL", help="address of `kvitals notify`, for Alertmanager"
    )
    parser.add_argument(
        "--scrape-interval",
        default="5s",
        metavar="TIME",
        help="interval of your Prometheus; a window is at least eight intervals (5s)",
    )
    parser.add_argument(
        "--slo", action="append", default=[], metavar="NAME=TIME",
        help="objective where no agent exports one: ttft=1.5s or itl=80ms (2 s and 200 ms)",
    )  # fmt: skip
    add_rules_option(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    request = ExportRequest(knowledge(args.rules), _options(args), _installation(args), parse_url(args.prometheus))
    files: dict[str, str] = {}
    try:
        for kind in dict.fromkeys(args.what):
            files |= export(kind, request)
    except ExportError as error:
        raise UsageError(f"--groups: {error}") from None
    except PromQLError as error:
        raise UsageError(f'--selector {args.selector}: {error}; write matchers such as job="kvitals"') from None
    _write(files, args.out)
    console = answer_console()
    for kind in dict.fromkeys(args.what):
        written, check = (text.format(out=args.out) for text in _SUMMARY[kind])
        print_hanging(f"{kind:<13}{written}", console, 13)
        if check:
            print_to_copy(f"  {check}", console)
    if "example.com" in f"{request.options.runbooks}{request.options.boards}":
        status_console().print(
            "Links lead to example.com: set --runbooks and --grafana to your addresses.", style="yellow"
        )
    if args.rules and {"boards", "mixin"} & set(args.what):
        status_console().print(
            "The boards show only the rules that ship with kvitals; `python -m kvitals.dashboards.generate "
            "--rules` adds your own.",
            style="yellow",
        )
    return 0


_SUMMARY = {
    "boards": ("{out}/boards, {out}/boards-import, {out}/provisioning", ""),
    "alerts": ("{out}/alerts.yaml; check it:", "promtool check rules {out}/alerts.yaml"),
    "recording": ("{out}/recording.yaml; check it:", "promtool check rules {out}/recording.yaml"),
    "alertmanager": ("{out}/alertmanager.yaml; check it:", "amtool check-config {out}/alertmanager.yaml"),
    "runbooks": ("{out}/runbooks", ""),
    "mixin": (
        "{out}/mixin; evaluate it:",
        "jsonnet -e \"(import '{out}/mixin/mixin.libsonnet').prometheusAlerts\"",
    ),
}
"""What was written of each kind, and the command that checks it."""


def _write(files: dict[str, str], out: Path) -> None:
    for name, text in files.items():
        write_whole(out / name, text, "--out", parents=True)


def _options(args: argparse.Namespace) -> Options:
    slo = parse_slo(args.slo)
    usual = Options()
    return Options(
        scrape_seconds=parse_duration(args.scrape_interval, "--scrape-interval"),
        runbooks=parse_url(args.runbooks, "--runbooks:"),
        boards=parse_url(args.grafana, "--grafana:"),
        receiver=receiver_url(parse_url(args.receiver, "--receiver:")),
        slo_ttft_seconds=slo.get("ttft_p99", usual.slo_ttft_seconds),
        slo_itl_seconds=slo.get("itl_p99", usual.slo_itl_seconds),
        alerts=args.alerts,
        page=args.severity_page,
        ticket=args.severity_ticket,
    )


def _installation(args: argparse.Namespace) -> Installation:
    labels = {label: getattr(args, f"{label}_label") for label in LABELS}
    for label, name in labels.items():
        if not _LABEL.fullmatch(name):
            raise UsageError(
                f"--{label}-label {name}: a label has letters, digits and underscores, such as k8s_cluster"
            )
    groups = tuple(name.strip() for name in args.groups.split(",") if name.strip())
    return Installation(args.metrics, args.selector.strip(), labels, groups)
