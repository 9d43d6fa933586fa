"""`kvitals triage`: what is wrong, the proof, the lever; on live engines, on a running agent, on a recording."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from kvitals.app.errors import NoEngineError, UsageError
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import Triage, encode
from kvitals.series.promql import PromQLError
from kvitals.ui.cli import prometheus, render, screen
from kvitals.ui.cli.common import (
    add_judging_options,
    exit_code,
    judged_until,
    parse_duration,
    parse_moment,
    parse_past,
    parse_url,
    recordings,
    say_beyond,
    setup,
    status_console,
)
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit

if TYPE_CHECKING:  # a recording needs neither: what one source needs is imported where it is read
    from kvitals.app.since_change import ChangeSource
    from kvitals.app.sources.live import Collector, Contact
LIVE = "12s"
"""For how long a live engine is observed."""


def add(commands: Any) -> None:
    parser = commands.add_parser("triage")
    parser.add_argument(
        "source",
        nargs="*",
        metavar="URL|FILE",
        help="engines or a kvitals agent by URL, or one recording, or the directory of a history; default: "
        "discover the engines on this node, with --at or --from: the history of its agent",
    )
    parser.add_argument(
        "--at",
        metavar="T",
        help="time to diagnose: RFC 3339; in a recording 75s after its start or -5s before its end; in history -2h ago",
    )
    parser.add_argument("--from", dest="from_", metavar="T", help="diagnose the window from T ...")
    parser.add_argument("--to", metavar="T", help="... to T")
    parser.add_argument(
        "--since-change",
        action="store_true",
        help="also report whether the latest change of an engine's configuration worked: in a recording, in "
        "history, or at an agent's URL",
    )
    parser.add_argument(
        "--for", dest="look", metavar="TIME", help=f"time to observe engines ({LIVE}); for a recording, its last TIME"
    )
    add_output_options(parser, "the triage document")
    parser.add_argument("--watch", action="store_true", help="live: keep running, and print each change of the verdict")
    parser.add_argument("--probe", action="store_true", help="live: also send a one-token request to each engine")
    parser.add_argument(
        "--verbose",
        "-v",
        action="count",
        default=0,
        help="more than one screen: every finding, what was ruled out, what was not checked; -vv: also queries "
        "and every reason",
    )
    add_judging_options(parser)
    prometheus.add_options(parser, "--at, --from and --to")
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if args.look:
        parse_duration(args.look, "--for")  # wrong ones are refused whatever the source is
    if args.look and (args.prometheus or args.from_):
        raise UsageError("--for is for engines and recordings; --from and --to choose the window here")
    option = "--watch" if args.watch else "--probe" if args.probe else ""
    if option and (args.prometheus or args.since_change or any(Path(s).exists() for s in args.source)):
        raise UsageError(f"{option} works only with engines that are observed now; leave it out here")
    if args.prometheus:
        return _answer(prometheus.judge(args), args)
    histories = [Path(s) for s in args.source if "://" not in s and (Path(s).is_dir() or s.endswith(".db"))]
    if histories or (not args.source and (args.at or args.from_ or args.to or args.since_change)):
        if args.look:
            raise UsageError("--for is for engines and recordings; --from and --to choose the window here")
        if len(args.source) > 1:
            raise UsageError("give one history, without other sources")
        return _answer(_history(next(iter(histories), None), args), args)
    if files := recordings(args.source):
        return _answer(_recording(files[0], args), args)
    if args.since_change:
        return _answer(_since_change_there(args), args)
    if args.at or args.from_ or args.to:
        raise UsageError(
            "--at, --from and --to work with recordings, and without a URL with the history of this node's "
            "agent; a live triage shows only the present"
        )
    return asyncio.run(_live(args))


def _recording(path: Path, args: argparse.Namespace) -> Triage:
    first, last = span_of(path)
    start = parse_moment(args.from_, first, "--from", last) if args.from_ else None
    until, option = judged_until(args)
    end = parse_moment(until, first, option, last) if until else None
    if start is not None and end is not None and start >= end:
        raise UsageError("--from must lie before --to")
    if args.look:
        start = (last if end is None else min(end, last)) - parse_duration(args.look, "--for")
    say_beyond(path.name, first, last, end)
    if args.since_change:
        from kvitals.app.since_change import of_recording

        return _since_change(of_recording(path, setup(args)), args)
    return judge_recording(path, setup(args), Moments(end, start)).document


def _history(path: Path | None, args: argparse.Namespace) -> Triage:
    from kvitals.app.history_recorder import history_file
    from kvitals.app.since_change import of_history
    from kvitals.app.sources.history import judge_history

    chosen = setup(args)
    start = parse_past(args.from_, "--from") if args.from_ else None
    until, option = judged_until(args)
    end = parse_past(until, option) if until else None
    if start is not None and start >= (end or time.time()):
        raise UsageError("--from must lie before --to")
    file = history_file(path, chosen.config)
    if args.since_change:
        return _since_change(of_history(file, chosen, start, end), args)
    return judge_history(file, chosen, Moments(end, start)).document


def _since_change(source: ChangeSource, args: argparse.Namespace) -> Triage:
    from kvitals.app.since_change import since_change

    if args.at or (args.from_ and not args.to and args.source and not Path(args.source[0]).is_dir()):
        raise UsageError("--since-change reads the end of a recording, or of a history up to --to")
    return since_change(source).document


def _since_change_there(args: argparse.Namespace) -> Triage:
    """What an agent tells of its latest change, asked by its URL."""
    from kvitals.app.agent_client import AgentClient, AgentRefusedError, NotKvitalsError

    if len(args.source) > 1:
        raise UsageError("--since-change: give one agent, recording or history")
    url = parse_url(args.source[0])
    if args.at or args.from_ or args.to:
        raise UsageError(
            f"{url} reports only the effect of its latest change; for an earlier change read its history on its "
            f"own node: kvitals triage --since-change --to T"
        )
    access = prometheus.access(argparse.Namespace(**{**vars(args), "prometheus": url}))
    try:
        return AgentClient.with_access(access).since_change()
    except AgentRefusedError as error:
        if error.status == 422:  # it keeps a history, and there is no change in it
            raise UsageError(f"{url}: {error.reason}") from None
        if error.status == 404:
            raise UsageError(
                f"the agent at {url} keeps no history. Give --since-change the URL of an agent that keeps one, "
                f"a recording, or the directory of a history."
            ) from None
        raise
    except NotKvitalsError as error:
        raise UsageError(
            f"{error} Give --since-change the URL of an agent, a recording, or the directory of a history."
        ) from None


AGENT_SECONDS = 2.0
"""What answers later whether it is an agent is read as an engine meanwhile: one that hangs is not to be waited for."""


async def _live(args: argparse.Namespace) -> int:
    from kvitals.app.sources.live import Contact, agent_document

    alone = parse_url(args.source[0]).removesuffix("/metrics") if len(args.source) == 1 else ""
    contacted = Contact.now()
    asked = asyncio.ensure_future(agent_document(alone)) if alone else None
    if asked is not None:
        await asyncio.wait({asked}, timeout=AGENT_SECONDS)
    if asked is not None and asked.done() and (document := asked.result()) is not None:
        return _answer_of_agent(document, args)
    try:
        return await _observed(args, asked, contacted)
    except NoEngineError:
        if asked is not None and (document := await asked) is not None:
            return _answer_of_agent(document, args)
        raise
    finally:
        if asked is not None:
            asked.cancel()  # where it hangs, its answer is not needed any more


def _answer_of_agent(document: Triage, args: argparse.Namespace) -> int:
    if args.slo or args.rules:
        status_console().print(f"{args.source[0]} is an agent: it uses its own objectives and rules", style="yellow")
    return _answer(document, args)


async def _observed(args: argparse.Namespace, asked: asyncio.Future[Triage | None] | None, contacted: Contact) -> int:
    """Read the targets' pages and judge them. asked: the answer of the only URL, where it is an agent's after all;
    contacted: when it was first asked. Raises NoEngineError."""
    from kvitals.app.sources.live import Collector

    chosen = setup(args)
    seconds = parse_duration(args.look or LIVE, "--for")
    if seconds > chosen.config.agent.window:
        raise UsageError(
            f"--for {args.look}: at most {chosen.config.agent.window:.0f}s, the length of the window that is kept"
        )
    console = status_console()
    async with Collector(chosen, args.source, contacted) as collector:
        said = iter(collector.said)
        progress = f"observing {', '.join(collector.targets)}"
        with console.status(Text(progress)) as status:
            async for done in collector.collect(seconds, probe=args.probe):
                if asked is not None and asked.done() and (document := asked.result()) is not None:
                    return _answer_of_agent(document, args)
                for line in said:  # once, and only where a target answers
                    console.print(line, style="dim")
                status.update(Text(f"{progress}: {done:.0f} of {seconds:.0f} s"))
        document = collector.document()
        for line in collector.complaints():
            console.print(line, style="yellow")
        code = _answer(document, args)
        while args.watch:
            document = await _watch(collector, document, args)
        return code


async def _watch(collector: Collector, before: Triage, args: argparse.Namespace) -> Triage:
    """Look on for one interval; print the document when its verdict differs from the last one's. Returns the newest."""
    async for _ in collector.collect(5.0):
        pass
    try:
        document = collector.document()
    except PromQLError as error:
        print(f"{time.strftime('%H:%M:%S')} no diagnosis this time: {error}", file=sys.stderr)
        return before
    if _gist(document) != _gist(before):
        _answer(document, args)
    elif sys.stderr.isatty():
        print(f"{time.strftime('%H:%M:%S')} unchanged: {document.verdict}", file=sys.stderr)
    return document


def _gist(document: Triage) -> tuple[object, ...]:
    fired = [*document.causes, *document.symptoms, *document.telemetry]
    return (document.healthy, *((f.code, f.entity.title) for f in fired))


def _answer(document: Triage, args: argparse.Namespace) -> int:
    emit(_printed(document, args.verbose), args.output)
    return exit_code(document)


def _printed(document: Triage, verbose: int) -> PrintedDocument:
    def show(console: Console) -> None:
        if verbose:
            render.show(document, console, verbose=verbose > 1)
        else:
            screen.show(document, console)

    blocks = None if verbose else partial(screen.blocks, document)
    title = render.verdict_line(document).plain
    return PrintedDocument(title, show, lambda: encode(document).decode(), blocks)
