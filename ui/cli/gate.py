"""`kvitals gate`: incidents played against a candidate engine, and an incident as a load."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.text import Text

from kvitals.app.errors import UsageError
from kvitals.app.load.extracted_load import ExtractedLoad, NoLoadError, extract_load
from kvitals.app.load.gate import (
    GateAnswer,
    GateReport,
    GateRequest,
    incident_files,
    play_incident,
    read_incidents,
    unplayable,
)
from kvitals.app.load.load_formats import FORMATS, MAX_BYTES, load_lines, mean_rate
from kvitals.app.load.play import MAX_CONCURRENCY, MAX_PLAY_SECONDS, EngineAddress, PlayLimits, last_part, served_model
from kvitals.app.load.recorded_incident import GateFigures, RecordedIncident, judge_incident
from kvitals.app.pipeline import Setup
from kvitals.series.json_text import encode_json
from kvitals.ui.cli.common import (
    EXIT_FINDINGS,
    EXIT_HEALTHY,
    EXIT_UNKNOWN,
    add_judging_options,
    answer_console,
    configuration,
    parse_duration,
    parse_url,
    setup,
    status_console,
)
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "gate",
        description="Plays the loads of recorded incidents against a candidate engine and reports which incidents"
        " return. `kvitals gate --against URL INCIDENT ...` is `kvitals gate play`.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_play(actions)
    extract = actions.add_parser("extract", help="write the load of a recording: arrivals, lengths, prefixes, tenants")
    extract.add_argument("file", type=Path, metavar="FILE.kvcap")
    extract.add_argument(
        "--out", type=Path, metavar="FILE", help="the load, as lines of JSON (default: standard output)"
    )
    extract.add_argument(
        "--format",
        choices=FORMATS,
        default="kvitals",
        help="kvitals: all of it (default); mooncake, aiperf: timestamps, lengths, hash_ids; vllm: prompts of synthetic"
        " words for `vllm bench serve --dataset-name custom`, without arrivals",
    )
    add_judging_options(extract)
    parser.default_action, parser.actions = "play", frozenset(actions.choices)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    try:
        return _play(args) if args.action == "play" else _extract(args)
    except NoLoadError as error:
        raise UsageError(str(error)) from error


def _add_play(actions: Any) -> None:
    play = actions.add_parser("play", help="play incidents against a candidate: exit code 1 if an incident returns")
    play.add_argument("incidents", nargs="+", type=Path, metavar="INCIDENT", help=".kvcap, extracted load, directory")
    play.add_argument("--against", metavar="URL", help="the candidate: an engine that serves no other requests")
    play.add_argument(
        "--model", default="", metavar="NAME", help="model to request (default: the first that the engine lists)"
    )
    play.add_argument(
        "--for",
        dest="most",
        default="10m",
        metavar="TIME",
        help="longest time to play; of a longer incident, only the last part is played (10m)",
    )
    play.add_argument(
        "--concurrency", type=int, default=256, metavar="N", help="maximum number of concurrent requests (256)"
    )
    play.add_argument("--keep", type=Path, metavar="DIR", help="directory to keep the candidate's recordings in")
    play.add_argument("--dry-run", action="store_true", help="print the requests without sending them")
    add_output_options(play, "the report of the gate")
    add_judging_options(play)


def _play(args: argparse.Namespace) -> int:
    limits = _limits(args)
    if not args.against and not args.dry_run:
        raise UsageError("name the candidate with --against URL, or print the requests with --dry-run")
    url = parse_url(args.against, "--against").removesuffix("/metrics") if args.against else ""
    chosen, console = setup(args), status_console()
    if args.keep is not None and not args.keep.is_dir():
        raise UsageError(f"--keep {args.keep}: no such directory; create it first")
    incidents = list(read_incidents(incident_files(args.incidents), chosen, args.incidents))
    stated = answer_console() if args.dry_run else console
    for incident in incidents:
        stated.print(Text(_statement(incident, limits)))
    if args.dry_run:
        played = [isinstance(one, RecordedIncident) and not unplayable(one) for one in incidents]
        return EXIT_HEALTHY if all(played) else EXIT_UNKNOWN
    report = asyncio.run(_report(incidents, url, args, limits, chosen, console))
    title = _title(report)
    emit(
        PrintedDocument(title, lambda out: _show(report, out), lambda: encode_json(report).decode()),
        args.output,
    )
    return gate_exit_code(report)


def _limits(args: argparse.Namespace) -> PlayLimits:
    seconds = parse_duration(args.most, "--for")
    if seconds > MAX_PLAY_SECONDS or not 1 <= args.concurrency <= MAX_CONCURRENCY:
        raise UsageError(f"--for takes at most {MAX_PLAY_SECONDS / 60:.0f}m, --concurrency 1 to {MAX_CONCURRENCY}")
    return PlayLimits(seconds, args.concurrency)


async def _report(
    incidents: list[RecordedIncident | GateAnswer],
    url: str,
    args: argparse.Namespace,
    limits: PlayLimits,
    chosen: Setup,
    console: Console,
) -> GateReport:
    """Play what can be played, in turn."""
    playable = any(isinstance(incident, RecordedIncident) for incident in incidents)
    model = args.model or (await served_model(url) if playable else "")
    request = GateRequest(EngineAddress(url, model), limits, args.keep)
    answers = []
    for incident in incidents:
        if isinstance(incident, RecordedIncident):
            answers.append(
                await play_incident(incident, request, chosen, lambda line: console.print(Text(line), style="dim"))
            )
        else:
            answers.append(incident)
    return GateReport(url, answers)


def gate_exit_code(report: GateReport) -> int:
    """1 an incident returns or meets another cause, 3 one is not judged, 0 none returns."""
    if report.count("returns", "other cause"):
        return EXIT_FINDINGS
    return EXIT_UNKNOWN if report.count("not judged") else EXIT_HEALTHY


def _statement(incident: RecordedIncident | GateAnswer, limits: PlayLimits) -> str:
    """What a play sends."""
    if isinstance(incident, GateAnswer):
        return f"{incident.incident}: not played: {incident.why}"
    if why := unplayable(incident):
        return f"{incident.name}: not played: {why}"
    load = last_part(incident.load, limits)
    prompts = sum(request.prompt_tokens for request in load.requests)
    answers = sum(request.output_tokens for request in load.requests)
    aborted = sum(request.abort_after is not None for request in load.requests)
    return (
        f"{incident.name}: {len(load.requests)} requests in {load.seconds:.0f} s, {aborted} aborted,"
        f" {prompts} prompt tokens, up to {answers} output tokens, at most {limits.concurrency} requests at a time"
    )


def _title(report: GateReport) -> str:
    returned, other = report.count("returns"), report.count("other cause")
    unknown, total = report.count("not judged"), len(report.incidents)
    return f"{returned} of {total} incidents return, {other} show another cause, {unknown} not judged"


def _show(report: GateReport, console: Console) -> None:
    console.print(Text(_title(report), style="bold"))
    for answer in report.incidents:
        console.print()
        console.print(Text(f"{answer.incident}: {answer.outcome}", style=_STYLES[answer.outcome]))
        if answer.why:
            console.print(Text(f"  {answer.why}"))
        for name, figures in (("recorded", answer.recorded), ("candidate", answer.candidate)):
            if figures is not None:
                console.print(Text(f"  {name:<10}{_figures_text(figures)}"))


def _figures_text(figures: GateFigures) -> str:
    cause = f"{figures.causes[0].code} {figures.causes[0].title}" if figures.causes else "no cause"
    hit = f"hit rate {figures.hit_rate:.1%}" if figures.hit_rate is not None else "hit rate not reported"
    ttft = f"TTFT p50 {figures.ttft_p50:.3f} s" if figures.ttft_p50 is not None else "TTFT not reported"
    return f"{cause}; {hit}; {ttft}"


_STYLES = {"returns": "red", "other cause": "red", "does not return": "green", "not judged": "yellow"}


def _extract(args: argparse.Namespace) -> int:
    figures = None
    if args.format == "kvitals":
        incident = judge_incident(args.file, setup(args))
        load, figures = incident.load, incident.figures
    else:
        load = extract_load(args.file, configuration(args))
    lines = load_lines(load, args.format, figures)
    if args.out is None:
        _write(sys.stdout.buffer, lines)
    else:
        _write_file(args.out, lines)
    console = status_console()
    for sentence in _summary(load, args.format):
        console.print(sentence)
    return 0


def _write_file(path: Path, lines: Iterator[bytes]) -> None:
    """Write a new file; nothing is overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError as error:
        raise UsageError(f"{path} exists; choose another --out") from error
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}; choose another --out") from error
    with os.fdopen(descriptor, "wb") as file:
        _write(file, lines)


def _write(file: BinaryIO, lines: Iterator[bytes]) -> None:
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_BYTES:
            raise UsageError(f"the load is larger than {MAX_BYTES >> 30} GiB; record a shorter time")
        file.write(line + b"\n")
    file.flush()


def _summary(load: ExtractedLoad, form: str) -> Iterator[str]:
    tenants = {one.tenant for one in load.requests if one.tenant}
    aborted = sum(one.abort_after is not None for one in load.requests)
    yield (
        f"{load.source}: {len(load.requests)} requests in {load.seconds:.0f} s ({mean_rate(load):.2f}/s),"
        f" {len(tenants)} tenants, {aborted} aborted"
    )
    share = f"of {load.with_prefix:.0%} of the requests"
    yield f"prefixes from {load.prefixes}, {share}; blocks of {load.block_tokens} tokens"
    if estimated := sum(one.estimated for one in load.requests):
        yield f"{estimated} requests have estimated token counts: the medians of their tenant"
    if load.left_out:
        yield f"{load.left_out} requests are left out: the engine refused them, and their token counts are unknown"
    if load.truncated:
        yield "the recording had more requests than kvitals keeps; the earliest are missing"
    if form == "vllm":
        yield (
            f"this format contains no arrival times: play it with --request-rate {mean_rate(load):.2f} "
            f"--disable-shuffle"
        )
