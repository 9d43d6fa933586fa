"""What the commands share: exit codes, options, and how a failure is told."""

from __future__ import annotations

import argparse
import json
import math
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from kvitals.app.errors import UsageError
from kvitals.app.escaping.terminal import SafeConsole
from kvitals.app.moments import parse_duration as parse_duration
from kvitals.app.moments import parse_moment as parse_moment
from kvitals.app.moments import parse_past as parse_past
from kvitals.app.pipeline import Setup
from kvitals.config import Config, ConfigError, check_codes, normal_url
from kvitals.config import load as load_config
from kvitals.config.checks import first_of, host_and_port
from kvitals.rules.finding import Triage
from kvitals.rules.loader import Knowledge
from kvitals.rules.loader import load as load_knowledge
from kvitals.series.files import replace_file
from kvitals.ui.cli import piped

EXIT_HEALTHY, EXIT_FINDINGS, EXIT_BAD_USE, EXIT_UNKNOWN = 0, 1, 2, 3
SLO_NAMES = {"ttft": "ttft_p99", "ttft_p99": "ttft_p99", "itl": "itl_p99", "itl_p99": "itl_p99"}


def file_problem(path: Path) -> str:
    """Why a path names no file that can be read; empty where it names one."""
    if path.is_file():
        return ""
    if not path.exists():
        return "no such file"
    return "a directory, not a file" if path.is_dir() else "not a regular file"


def exit_code(document: Triage) -> int:
    """0 healthy, 1 findings, 3 could not tell."""
    return {True: EXIT_HEALTHY, False: EXIT_FINDINGS, None: EXIT_UNKNOWN}[document.healthy]


def is_recording(source: str) -> bool:
    """Whether a file is meant, and no URL."""
    return "://" not in source and (Path(source).exists() or source.endswith(".kvcap"))


def recordings(sources: Sequence[str]) -> list[Path]:
    """The recording that is asked about, or none. Raises UsageError where something stands beside it."""
    files = [Path(source) for source in sources if is_recording(source)]
    if files and len(sources) > 1:
        raise UsageError("give one recording, without URLs")
    if lost := next((source for source in sources if not files and _is_nothing(source)), None):
        raise UsageError(f"{lost}: no file and no host has that name; write a URL such as http://127.0.0.1:8000")
    return files


def _is_nothing(source: str) -> bool:
    """Whether a word without scheme and port, which may be a file's or a host's name, is neither."""
    if ":" in source:
        return False
    try:
        socket.getaddrinfo(source.partition("/")[0], None)
    except (OSError, UnicodeError):
        return True
    return False


def add_rules_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rules",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a directory with your own rules",
    )


def add_config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="kvitals.toml (default: the usual places)")


def add_judging_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that comes to a verdict."""
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="NAME=TIME",
        help="an objective: ttft=1.5s or itl=80ms (p99); the defaults are 2 s and 200 ms",
    )
    add_config_option(parser)
    add_rules_option(parser)


BARE_SECONDS = {"ttft_p99": 10.0, "itl_p99": 1.0}
"""Objectives above this are written with their unit: a bare 1500 is milliseconds that were forgotten."""


def parse_slo(options: list[str]) -> dict[str, float]:
    """`ttft=1.5s` and `itl=80ms` as objective name -> seconds."""
    slo = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in SLO_NAMES:
            raise UsageError(f"--slo {option}: write ttft=TIME or itl=TIME, as in --slo ttft=1.5s")
        seconds = parse_duration(value, f"--slo {option}")
        if value[-1:].isdecimal() and seconds > BARE_SECONDS[SLO_NAMES[name]]:
            raise UsageError(
                f"--slo {option}: {seconds:g} s without a unit is too long for an objective; write its unit, such as"
                f" {name}={value}ms or {name}={value}s"
            )
        slo[SLO_NAMES[name]] = seconds
    return slo


def parse_address(text: str, where: str) -> tuple[str, int]:
    """`127.0.0.1:9477` as host and port to listen on; the empty host is all interfaces."""
    try:
        return host_and_port(text, where)
    except ValueError as error:
        raise UsageError(str(error)) from None


def parse_url(text: str, where: str = "") -> str:
    """The URL of an agent or a server, without a trailing slash."""
    try:
        return normal_url(text)
    except ValueError as error:
        raise UsageError(f"{where} {error}".strip()) from None


def port_number(text: str) -> int:
    """A port, for argparse."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text}: write a port from 1 to 65535")
    return int(text)


def say_beyond(name: str, first: float, last: float, moment: float | None) -> None:
    """Say that a moment is after a recording's end, where the end is judged instead."""
    if moment is not None and moment > last:
        status_console().print(f"{name} ends at +{last - first:.0f}s: kvitals evaluates its end", style="yellow")


def say_notes(notes: Iterable[str]) -> None:
    """Say beside an answer without a place for it what could not be read of its source."""
    for note in notes:
        status_console().print(note, style="yellow")


def judged_until(args: argparse.Namespace) -> tuple[str, str]:
    """The text of the moment at whose end is judged, and the option it was said with; empty texts where none was."""
    if args.to and args.at:
        raise UsageError("--at or --to, not both")
    return (args.to, "--to") if args.to else (args.at or "", "--at" if args.at else "")


def configuration(args: argparse.Namespace) -> Config:
    """The configuration with what the command line overrides. Raises UsageError."""
    try:
        config = load_config(args.config)
        options = parse_slo(getattr(args, "slo", []))
        slo = msgspec.structs.replace(config.slo, **{f"{name}_seconds": value for name, value in options.items()})
    except (ConfigError, ValueError) as error:
        raise UsageError(str(error)) from error
    return msgspec.structs.replace(config, slo=slo)


def agent_of(config: Config) -> str:
    """The URL of the agent on this node, as its configuration has it."""
    return url_of(config.agent.address)


def url_of(address: tuple[str, int]) -> str:
    """Where a server of this machine that listens there is reached from this machine."""
    host, port = address
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 (looked for, not bound to)
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def knowledge(directories: Sequence[Path]) -> Knowledge:
    """The knowledge, the user's own rules included; broken files are named and left out."""
    found = load_knowledge(directories)
    console = status_console()
    for line in first_of([f"left out: {problem}" for problem in found.problems]):
        console.print(line, style="yellow")
    return found


def setup(args: argparse.Namespace) -> Setup:
    """What the commands that come to a verdict work with. What is wrong with it but usable is told."""
    config = configuration(args)
    directories = (*args.rules, *config.agent.rules)
    known = knowledge(directories)
    for line in check_codes(config, known.parameters_by_rule()):
        status_console().print(line, style="yellow")
    return Setup(known, config, dict.fromkeys(parse_slo(args.slo), "command line"), directories)


def answer_console(width: int | None = None) -> Console:
    """The answer goes to standard output, and every text as it is: names come from outside, and are neither markup
    nor emoji. width: columns, where a terminal's are too few."""
    console = SafeConsole(highlight=False, markup=False, emoji=False, width=width)
    if console.is_terminal:
        return console
    return SafeConsole(highlight=False, markup=False, emoji=False, width=width or piped.columns(), file=piped.output())


def status_console() -> Console:
    """Progress and warnings go to standard error, so that standard output holds the answer alone. A log has each of
    them in one line."""
    console = SafeConsole(stderr=True, highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def json_text(value: Any) -> str:
    """A document as JSON knows it: six digits, and what is no number is null."""
    return json.dumps(_plain(value), indent=2)


def print_json(value: Any) -> None:
    """Print a document as `json_text` has it."""
    sys.stdout.write(json_text(value) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.6g}") if abs(value) < 1e8 else value  # a time keeps its digits
    return value


def write_whole(path: Path, text: str, option: str, *, parents: bool = False) -> None:
    """Write a file whole or not at all; what is there and no regular file is written to.

    parents: make the directories that lack. Raises UsageError, which names the option that chooses another place.
    """
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            replace_file(path, text.encode())
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}; choose another {option}") from error
