"""The command `kvitals`: which command is meant, and how it ends.

Only the module of the command that was asked for is imported, so that `--help` and `--version` answer at once.
"""

from __future__ import annotations

import argparse
import atexit
import difflib
import gc
import importlib
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

from kvitals.app.escaping import plain
from kvitals.ui.cli import standard_streams
from kvitals.ui.cli.help_layout import HelpLayout, lay_out
from kvitals.ui.cli.launch import STOPPED, interrupted_code, stop
from kvitals.ui.cli.standard_streams import OutputError

GROUPS = {
    "diagnose": {
        "triage": "what is wrong, the proof and the lever",
        "top": "every engine live on one screen, those with problems first",
        "cache": "cache contents, losses, and which tenant caused them",
        "trace": "where a request spent its time",
        "compare": "two engines or two windows, side by side",
        "check": "which metrics exist, which are wrong, which flags add more",
        "explain": "the page of a rule, metric, signal, lever or word",
        "lint": "defects of boards and alerts, with the corrected query",
    },
    "plan": {
        "whatif": "the hit rate with other memory, routing or eviction, and by cache size",
        "knee": "how much load engines can serve, what binds, which signals warn early",
        "size": "how many GPUs a workload needs, and their cost",
        "review": "a weekly review: tokens per GPU-hour, cost, waste, incidents, levers",
        "upgrade": "which flags, metrics, boards and alerts change with a version",
    },
    "change": {
        "patch": "write a finding's lever as a diff of the files that start the engine",
        "prove": "apply a change under load, keep it if it works, else roll it back",
        "gate": "play recorded incidents against a candidate engine and report which return",
    },
    "operate": {
        "run": "the agent, its API and the web page",
        "web": "the web page alone",
        "tap": "an observing proxy before one engine or router",
        "notify": "diagnose the alerts of a fleet and forward them",
        "config": "write a first kvitals.toml for this machine, or check one against what runs",
        "history": "the agent's data on disk: list, export, prune",
        "mcp": "verdicts for assistants, by the Model Context Protocol",
    },
    "record": {
        "record": "record engines into a .kvcap file; --replay: replay one",
    },
    "extend": {
        "export": "boards, alerts, rules, Alertmanager's configuration, runbooks, mixin",
        "rules": "list and publish rules; write, test and lint your own",
    },
}
"""Every command with one line of help, in the order of `kvitals --help`. The module `kvitals.ui.cli.NAME` has it."""
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}

ALIASES = {"curve": ("whatif", "--curve"), "audit": ("knee", "--audit"), "replay": ("record", "--replay")}
"""Old commands and what they are now. They go after 0.1."""

SERVERS = frozenset({"run", "web", "tap", "notify", "mcp"})
"""Commands that serve until they are stopped: what they print are notes, and they do not end if nobody reads them."""

EXIT_BAD_USE = 2
SHORT = {"init": ("config", "init")}
"""Commands that are part of another one and have a name of their own."""

PAST = re.compile(r"-[0-9][0-9.]*(ms|s|m|h|d)?")
"""So long ago: a value that begins as an option does."""

MOMENTS = {"--at", "--from", "--to", "--before"}
"""Options that take it."""
ABOUT = "What is wrong with an LLM serving system, the proof and the lever that fixes it."
EXAMPLES = """\
exit codes  0 healthy or done, 1 findings, 2 bad use, 3 unknown or unreachable, 130 stopped

  kvitals triage                        the engines on this node
  kvitals triage http://127.0.0.1:8000  a live engine, or a running agent
  kvitals triage incident.kvcap         a recorded incident
  kvitals triage --prometheus URL       a fleet, from a Prometheus
  kvitals triage --at=-2h               two hours ago, from the agent's history
  kvitals top                           the engines on this node, live
"""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the command, and the nearest option where one is not known.

    default_action: the action of a command whose first word is none of `actions`; empty: the action must be written.

    takes_flags: words of the command may be options of others, such as --max-num-seqs."""

    default_action = ""
    takes_flags = False
    actions: frozenset[str] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpLayout} | kwargs)

    def error(self, message: str) -> NoReturn:
        line = f"{self.prog}: {message}. {self.prog} --help lists the options."
        print(plain.lines(line), file=sys.stderr)  # the message quotes words of the command line
        sys.exit(EXIT_BAD_USE)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As the base class does, but what is not known ends here, where the command's own options are known."""
        if self.default_action and not {*args[:1]} & {*self.actions, "-h", "--help"}:
            args = [self.default_action, *args]
        if self.takes_flags:
            flags = [word for word in args if word.startswith("--") and not self._is_own(word)]
            args = [*(word for word in args if word not in flags), *(["--", *flags] if flags else [])]
        known, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            self.error(self._unknown(word))
        return known, unknown

    def _is_own(self, word: str) -> bool:
        return any(option.startswith(word.partition("=")[0]) for option in self._option_string_actions)

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"argument {word!r} is not expected"
        option = word.partition("=")[0]
        near = difflib.get_close_matches(option, self._option_string_actions, n=1)
        return f"there is no option {option}" + (f" (did you mean {near[0]}?)" if near else "")


def parser(command: str) -> argparse.ArgumentParser:
    """The command line of one command, with the name of the command as its first argument."""
    top = CommandParser(prog="kvitals", description=ABOUT)
    commands = top.add_subparsers(dest="command", required=True)
    _imported(command).add(commands)
    chosen = commands.choices[command]
    chosen.description = chosen.description or f"{COMMANDS[command][:1].upper()}{COMMANDS[command][1:]}."
    return top


CONTAINERS_BETWEEN_COLLECTIONS = 200_000
"""Instead of CPython's 700: most commands end within seconds, and a fifth of their time went into looking for cycles
among modules and rules that stay. 200,000 containers are about 40 MB. The agent sets its own (`agent.garbage`)."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command; its exit code is the process's."""
    gc.set_threshold(CONTAINERS_BETWEEN_COLLECTIONS, 10, 10)
    atexit.register(gc.freeze)  # else a process ends with a search of everything for cycles: 0.2 s after a recording
    words = list(sys.argv[1:] if arguments is None else arguments)
    standard_streams.prepare(notes_only=bool(SERVERS.intersection(words[:1])))
    try:
        code = _whole(words)
    except OutputError as error:
        code = 0 if error.closed_by_reader else EXIT_BAD_USE
        if code:
            print(f"kvitals: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        code = interrupted_code(words)
    sys.exit(code)


def _whole(words: list[str]) -> int | str | None:
    """Run one command until its answer is written. Raises OutputError where it cannot be."""
    try:
        code: int | str | None = _run(words)
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    return code


def _run(words: list[str]) -> int:
    first = words[0] if words else ""
    if first in ("", "-h", "--help"):
        print(_help(), file=sys.stdout if first else sys.stderr)
        return 0 if first else EXIT_BAD_USE
    if first in ("-V", "--version", "version"):
        from importlib.metadata import version

        print(f"kvitals {version('kvitals')}")
        return 0
    if first == "help":
        return _run([*words[1:], "--help"])
    if first == "completion":
        return _completion(words[1:])
    if first in SHORT:
        return _run([*SHORT[first], *words[1:]])
    if first in ALIASES:
        now = ALIASES[first]
        print(
            f"kvitals: `{first}` is now `{' '.join(now)}`; versions after 0.1 do not accept the old name",
            file=sys.stderr,
        )
        return _run([*now, *words[1:]])
    if first not in COMMANDS:
        print(_unknown(first), file=sys.stderr)
        return EXIT_BAD_USE
    args = parser(first).parse_args(list(_joined(words)))
    do: Callable[[argparse.Namespace], int] = args.do
    try:
        return do(args)
    except OutputError:
        raise
    except Exception as error:
        from kvitals.ui.cli.failures import report_failure  # it imports whatever may fail

        return report_failure(error)


def _completion(words: list[str]) -> int:
    """Print the completion script of a shell."""
    from kvitals.ui.cli.completion import SHELLS, script  # it imports every command

    if len(words) == 1 and words[0] in SHELLS:
        sys.stdout.write(script(words[0]))
        return 0
    usage = lay_out(
        f"usage: kvitals completion {'|'.join(SHELLS)}\n\nbash: add `source <(kvitals completion bash)` to ~/.bashrc.",
        shutil.get_terminal_size().columns,
    )
    asked = words[:1] in (["-h"], ["--help"])
    print(usage, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else EXIT_BAD_USE


def _joined(words: Sequence[str]) -> Iterator[str]:
    """`--at -5s` as `--at=-5s`: argparse takes `-5s` for an option."""
    rest = iter(words)
    for word in rest:
        value = next(rest, None) if word in MOMENTS else None
        if value is None:
            yield word
        elif PAST.fullmatch(value):
            yield f"{word}={value}"
        else:
            yield from (word, value)


BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""numpy's library starts a thread for each core when it is imported, which takes 0.05 CPU s on two cores. No matrix
here is large enough to need them."""


def _imported(command: str) -> ModuleType:
    """The module of a command, imported without threads of numpy's. The programs that it starts are not told so."""
    given = os.environ.get(BLAS_THREADS)
    os.environ.setdefault(BLAS_THREADS, "1")
    try:
        return _import(f"kvitals.ui.cli.{command}")
    finally:
        if given is None:
            del os.environ[BLAS_THREADS]


def _import(name: str) -> ModuleType:
    """A module. Ctrl-C meanwhile ends the process: an exception would appear inside of whatever is imported, with its
    traceback."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        return importlib.import_module(name)
    before = signal.signal(signal.SIGINT, stop)
    try:
        return importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, before)


def _help() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = ["usage: kvitals COMMAND ...", "", ABOUT]
    for group, commands in GROUPS.items():
        lines += ["", group, *(f"  {name:<{width}}{line}" for name, line in commands.items())]
    more = (
        "kvitals COMMAND --help            the options of a command",
        "kvitals completion bash|zsh|fish  completion for your shell",
        "kvitals --version                 the version",
    )
    return lay_out("\n".join([*lines, "", *more, "", EXAMPLES]), shutil.get_terminal_size().columns)


def _unknown(word: str) -> str:
    if word.startswith("-"):
        return (
            f"kvitals: option {word} must follow a command: kvitals COMMAND {word}. kvitals --help lists the commands."
        )
    near = difflib.get_close_matches(word, [*COMMANDS, *SHORT, "completion", "help"], n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"kvitals: {word!r} is not a command.{meant} kvitals --help lists the commands."


if __name__ == "__main__":
    main()
