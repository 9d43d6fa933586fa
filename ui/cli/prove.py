"""`kvitals prove`: try a change on a running engine, find out whether it works, and go back unless it does."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import history_file
from kvitals.app.pipeline import Setup
from kvitals.app.prove.actuator import CommandError, parse_command
from kvitals.app.prove.journal import forget_journal, journal_file, lock_trials, prove_directory, read_journal
from kvitals.app.prove.trial import BLOCKS_BEFORE, Trial, TrialRequest, encode_proof
from kvitals.app.prove_outcomes import is_kept_by_agent, leave_outcome
from kvitals.diagnoser.change_effect import SETTLE_SECONDS
from kvitals.diagnoser.change_proof import Proof, ProofEffect
from kvitals.ui.cli.common import (
    EXIT_FINDINGS,
    EXIT_HEALTHY,
    EXIT_UNKNOWN,
    add_judging_options,
    answer_console,
    parse_duration,
    parse_url,
    setup,
    status_console,
)
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit
from kvitals.ui.formats import moment

STATES = {
    "kept": "The change stays.",
    "rolled back": "The change was rolled back.",
    "rollback failed": "THE ROLLBACK FAILED.",
    "not applied": "Nothing was changed.",
}
STYLES = {"worked": "green", "worse": "red", "in part": "yellow", "no effect": "default", "undecided": "yellow"}
SHORTEST_SECONDS, LONGEST_SECONDS = 36.0, 14_400.0


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "prove",
        description="Tries a change on one engine under its own load: observes it, runs --apply, compares block by"
        " block, and runs --rollback unless the change worked. A broken guard rail ends the trial at once: an "
        "objective, errors, preemptions, a restart. If this command is killed, a second process runs the rollback.",
    )
    parser.add_argument("source", metavar="URL", help="the engine that changes")
    parser.add_argument("finding", nargs="?", default="", metavar="CODE", help="the finding whose lever is tried")
    parser.add_argument(
        "--apply",
        metavar="CMD",
        help="command that makes the change; it runs without a shell (for a shell: sh -c '...')",
    )
    parser.add_argument("--rollback", metavar="CMD", help="command that reverts the change; it must work at any time")
    parser.add_argument(
        "--peers",
        nargs="+",
        default=[],
        metavar="URL",
        help="engines of the same pool that do not change, for comparison",
    )
    parser.add_argument(
        "--before", default="2m", metavar="TIME", help="time to observe before the change (default: 2m)"
    )
    parser.add_argument(
        "--for", dest="most", default="10m", metavar="TIME", help="longest time after the change (default: 10m)"
    )
    parser.add_argument(
        "--timeout",
        default="5m",
        metavar="TIME",
        help="time limit of each command, and of the engine's start (default: 5m)",
    )
    parser.add_argument(
        "--agent",
        default="",
        metavar="URL",
        help="an agent with request records, to compare tenants and lengths as well",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the steps; change nothing")
    parser.add_argument(
        "--forget", action="store_true", help="forget an earlier change that you reverted by hand, then continue"
    )
    add_output_options(parser, "the proof with every signal's interval")
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    request, chosen = _request(args), setup(args)
    _check_code(args.finding, chosen)
    if args.dry_run:
        console = answer_console()
        for line in steps(request):
            console.print(Text(line))
        return EXIT_HEALTHY
    console = status_console()
    lock = _begin(args.forget)
    try:
        trial = Trial(request, chosen, lambda line: console.print(Text(line), style="dim"))
        proof = asyncio.run(trial.run(lock))
    except CommandError as error:
        raise UsageError(str(error)) from error
    finally:
        os.close(lock)
    _remember(proof, history_file(None, chosen.config), console)
    emit(PrintedDocument(_title(proof), lambda console: show(proof, console), lambda: encode_proof(proof)), args.output)
    return exit_code(proof)


def exit_code(proof: Proof) -> int:
    """0 worked, 3 undecided, 1 every other answer, and whatever the answer where the change could not be taken back."""
    if proof.state == "rollback failed":
        return EXIT_FINDINGS
    return {"worked": EXIT_HEALTHY, "undecided": EXIT_UNKNOWN}.get(proof.verdict, EXIT_FINDINGS)


def _check_code(finding: str, chosen: Setup) -> None:
    """Raises UsageError for a code that no rule has: nothing is to be changed for it."""
    rules = chosen.knowledge.rules
    if finding and not any(finding.upper().startswith(code) for code in rules):
        raise UsageError(f"no rule has the code {finding}; `kvitals rules` lists them")


def _request(args: argparse.Namespace) -> TrialRequest:
    """What is asked for. Raises UsageError."""
    times = {name: parse_duration(getattr(args, name), option) for name, option in _TIMES.items()}
    if not SHORTEST_SECONDS <= times["before"] <= LONGEST_SECONDS or times["most"] > LONGEST_SECONDS:
        raise UsageError(f"--before takes {SHORTEST_SECONDS:.0f}s to 4h, --for at most 4h")
    if not args.apply or not args.rollback:
        raise UsageError("name both commands: --apply CMD makes the change, --rollback CMD reverts it")
    try:
        words = parse_command(args.apply, "--apply"), parse_command(args.rollback, "--rollback")
    except CommandError as error:
        raise UsageError(str(error)) from error
    url = parse_url(args.source)
    peers = tuple(parse_url(peer, "--peers") for peer in args.peers)
    if url in peers:
        raise UsageError(f"{url} is the engine that changes; it cannot be one of its --peers")
    agent = parse_url(args.agent, "--agent") if args.agent else ""
    return TrialRequest(url, *words, peers, args.finding, times["before"], times["most"], times["timeout"], agent)


_TIMES = {"before": "--before", "most": "--for", "timeout": "--timeout"}


def _begin(forget: bool) -> int:
    """The right to change something. Raises UsageError where another trial runs, or an earlier change still stands."""
    try:
        directory = prove_directory()
        lock = lock_trials(directory)
        if lock is None:
            raise UsageError("another `kvitals prove` runs or rolls back on this machine; wait until it ends")
        file = journal_file(directory)
        if forget:
            forget_journal(file)
        earlier = read_journal(file)
    except OSError as error:
        raise UsageError(
            f"kvitals cannot keep a journal of changes ({error}); set XDG_STATE_HOME to a directory that you own"
        ) from error
    if earlier is None or not earlier.is_open:
        return lock
    os.close(lock)
    raise UsageError(
        f"an earlier change of {earlier.engine} was never rolled back ({earlier.state}, {moment(earlier.at)})."
        f"\nRoll it back: {shlex.join(earlier.rollback)}\nThen: kvitals prove --forget ..."
    )


def steps(request: TrialRequest) -> Iterator[str]:
    """What would happen, for people."""
    beside = f" beside {', '.join(request.peers)}" if request.peers else ""
    blocks = f"{BLOCKS_BEFORE} blocks of {request.block:.0f} s"
    yield f"1. Observe {request.url}{beside} for {request.before:.0f} s, {blocks}."
    yield f"2. Run, within {request.limit:.0f} s: {shlex.join(request.apply)}"
    yield f"3. Wait until the engine answers, then {SETTLE_SECONDS:.0f} s under load until caches are filled."
    yield f"4. Compare after each block, for at most {request.most:.0f} s. Stop as soon as the result is significant."
    yield "5. Run this if a guard rail breaks, if this command ends or is killed, or if the change did not work:"
    yield f"   {shlex.join(request.rollback)}"


def _remember(proof: Proof, history: Path, console: Console) -> None:
    """Leave the proof for the agent that keeps a history, if there is the history."""
    try:
        if not leave_outcome(history, proof):
            return
        if is_kept_by_agent(history):
            console.print(Text(f"the agent of this node writes the result into its history, {history}"), style="dim")
            return
        said = (
            f"no agent writes the history {history} now; the next one that does writes down the result. If your agent"
            " keeps another history, name its configuration: --config FILE"
        )
        console.print(Text(said), style="yellow")
    except OSError as error:
        console.print(Text(f"this proof cannot be stored in the node's history: {error}"), style="yellow")


def _title(proof: Proof) -> str:
    return f"{proof.verdict[:1].upper()}{proof.verdict[1:]}: {', '.join(proof.changed) or proof.entity.title}"


def show(proof: Proof, console: Console) -> None:
    """The proof as text, at any width from 60 columns on."""
    console.print(Text(f"{proof.conclusion}", style=f"bold {STYLES[proof.verdict]}"))
    console.print(Text(STATES[proof.state], style="bold red" if proof.state == "rollback failed" else "bold"))
    if proof.state == "rollback failed":
        console.print(Text(f"Run it now: {proof.rollback}"))
    console.print()
    deciding = [one for one in proof.effects if one.decides]
    for one in deciding:
        _effect(one, proof, console)
    if beside := [one for one in proof.effects if not one.decides]:
        console.print(Text("Also observed, without effect on the verdict:", style="dim"))
        for one in beside:
            _effect(one, proof, console)
    console.print()
    for name, text in _facts(proof):
        lines = textwrap.wrap(text, max(console.width - 14, 20)) or [""]
        for i, line in enumerate(lines):
            console.print(Text(f"{name if not i else '':<13} {line}"), style="dim")


def _effect(effect: ProofEffect, proof: Proof, console: Console) -> None:
    """Two lines of one signal."""
    style = {"better": "green", "worse": "red"}.get(effect.verdict, "default")
    console.print(Text.assemble((f"{effect.verdict:<7}", style), effect.title))
    console.print(Text(f"       {effect.text}{_interval(effect, proof)}"))


def _interval(effect: ProofEffect, proof: Proof) -> str:
    """Between which bounds the change is, by the blocks of time. Their middle is not printed: it is not the ratio of
    the two values before it, which are of the whole time."""
    if effect.change is None:
        return f"  ({effect.note})" if effect.note else ""
    between = (
        f"{_percent(effect.low)} or more"
        if effect.high is None
        else f"{_percent(effect.low)} to {_percent(effect.high)}"
    )
    return f"   change {between}"


def _percent(share: float | None) -> str:
    if share is None or not math.isfinite(share):
        return "?"
    percent = round(100 * share)
    return f"{percent:+d} %".replace("-", "−") if percent else "0 %"


def _facts(proof: Proof) -> Iterator[tuple[str, str]]:
    yield "engine", f"{proof.entity.title} at {proof.url}"
    if proof.peers:
        yield "peers", ", ".join(proof.peers)
    yield "changed", ", ".join(proof.changed) or "none of the settings that the engine reports"
    if proof.levers:
        yield "lever", ", ".join(proof.levers)
    if proof.load:
        yield "load", proof.load
    rails = f"broken: {proof.guard_rail}" if proof.guard_rail else f"none broke: {'; '.join(proof.guard_rails)}"
    yield "guard rails", rails
    blocks = max((one.blocks for one in proof.effects), default=(0, 0))
    yield (
        "blocks",
        (f"{blocks[0]} before, {blocks[1]} after, {proof.block_seconds:.0f} s each; neighbouring blocks may be joined"),
    )
    yield "intervals", f"{100 * proof.confidence:.0f} % confidence for all intervals together, valid after every block"
    times = {"applied": proof.applied, "compared": proof.measured, "decided": proof.decided, "ended": proof.ended}
    yield "times", ", ".join(f"{name} {moment(at)[11:19]}" for name, at in times.items() if at) + " UTC"
