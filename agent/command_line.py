"""What an engine's command line says about it: which engine it is, and the flags that were asked for.

A command line may hold secrets (`--api-key`). `Flags` does not show its values, and `Flags.only` leaves out
what nobody asks for by name.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import yaml

from kvitals.rules.engine_flags import spellings, switches
from kvitals.rules.yaml_scalars import check_scalars

MAX_CONFIG_BYTES = 64 * 1024

Value = str | float | bool | dict[str, Any] | list[Any] | None


@dataclass(frozen=True)
class Launcher:
    """How one engine's server is started from a shell."""

    system: str
    modules: tuple[str, ...]  # python -m MODULE, or the path of its file
    commands: Mapping[str, str]  # name of the console script -> its sub-command
    port: int  # unless told otherwise; 0: it serves no metrics page then
    short: Mapping[str, str] = field(default_factory=dict)  # usual abbreviations that are no alias, without dashes
    port_flag: str = "port"
    host_flag: str = "host"
    port_variable: str = ""  # environment variable that sets the port


_SGLANG_SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "ep": "expert-parallel-size",
    "dcp": "decode-context-parallel-size",
}

LAUNCHERS = (
    Launcher(
        "vllm",
        modules=(
            "vllm.entrypoints.openai.api_server",
            "vllm.entrypoints.launchers.api_server.entry",
            "vllm.entrypoints.api_server",
        ),
        commands={"vllm": "serve"},
        port=8000,
    ),
    Launcher(
        "sglang",
        modules=("sglang.launch_server",),
        commands={"sglang": "serve"},
        port=30000,
        short=_SGLANG_SHORT,
    ),
    Launcher(
        "dynamo",
        modules=("dynamo.frontend",),
        commands={},
        port=8000,
        port_flag="http-port",
        host_flag="http-host",
        port_variable="DYN_HTTP_PORT",
    ),
    # Dynamo's workers take the flags of the engine within and show its metrics on a port of their own.
    Launcher("vllm", ("dynamo.vllm", "dynamo.mocker"), {}, port=0, port_flag="", port_variable="DYN_SYSTEM_PORT"),
    Launcher(
        "sglang", ("dynamo.sglang",), {}, port=0, short=_SGLANG_SHORT, port_flag="", port_variable="DYN_SYSTEM_PORT"
    ),
)

_PYTHON = re.compile(r"python([0-9](\.[0-9]+)?)?t?|pypy3?")
_PYTHON_TAKES_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_SWITCH = ("enable-", "disable-", "no-")  # these flags never take a value
_NUMBER = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)([kKmMgGtT])?")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Flags:
    """The flags of one command line, those of its config file included. Names have dashes and no prefix."""

    def __init__(self, values: Mapping[str, Value], positional: Sequence[str] = ()) -> None:
        self._values = dict(values)
        self._positional = tuple(positional)

    def __repr__(self) -> str:
        return f"Flags({len(self._values)} not shown)"

    @property
    def names(self) -> tuple[str, ...]:
        """The flags that were given, without dashes; `no-x` for one that was switched off so."""
        return tuple(self._values)

    def only(self, names: Iterable[str]) -> Flags:
        """The flags that `names` can ask for, and nothing else of the command line."""
        heads = {name.partition(".")[0] for name in names}
        kept = {name: value for name, value in self._values.items() if name.removeprefix("no-") in heads}
        return Flags(kept, self._positional if "model" in heads else ())

    def get(self, name: str, /) -> Value:
        """The value of a flag, or None. True and False for switches, `--no-NAME` included.

        `a.b` looks into the JSON value of flag `a`; `model` is also the first positional argument.
        """
        head, *path = name.split(".")
        value = self._values.get(head)
        if value is None and f"no-{head}" in self._values:
            value = False
        if value is None and name == "model" and self._positional:
            value = self._positional[0]
        for key in path:
            value = _as_json(value).get(key)
        return value

    def text(self, name: str, /) -> str:
        """A flag as text, empty when it was not given or has no single value."""
        value = self.get(name)
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if isinstance(value, str | int | float) else ""

    def number(self, name: str, /) -> float | None:
        """A flag as a number (1 and 0 for switches; "8k" is 8000, "8K" 8192), or None when it is none."""
        value = self.get(name)
        if isinstance(value, bool | int | float):
            return _finite(value)
        match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            return {"true": 1.0, "false": 0.0}.get(str(value).strip().lower())
        digits, suffix = match.groups()
        return _finite(float(digits) * (_DECIMAL | _BINARY).get(suffix, 1))


def words(raw: bytes) -> tuple[str, ...]:
    """Arguments from the bytes of /proc/PID/cmdline. A single string is a title that was set: it is split."""
    parts = raw.rstrip(b"\0 ").split(b"\0")
    arguments = tuple(part.decode("utf-8", "replace") for part in parts)
    if len(arguments) > 1 or " " not in arguments[0]:
        return arguments
    try:
        return tuple(shlex.split(arguments[0]))
    except ValueError:  # an unbalanced quote: the title was cut, or never quoted
        return tuple(arguments[0].split())


def launched_engine(arguments: Sequence[str]) -> tuple[Launcher, tuple[str, ...]] | None:
    """Which engine this command line serves, and the arguments that are the engine's; None for anything else.

    A shell, an editor or `docker run` that merely names an engine is not one.
    """
    if not arguments:
        return None
    rest = list(arguments)
    if _PYTHON.fullmatch(PurePosixPath(rest[0]).name):
        rest = list(_after_python_options(rest[1:]))
    if not rest:
        return None
    if rest[0] == "-m":
        return _by_module(rest[1:])
    return _by_script(rest)


def parse(launcher: Launcher, arguments: Sequence[str], config: bytes | None = None) -> Flags:
    """The engine's flags. `config` is the content of the file that `--config` names; flags go before it."""
    given, positional = _given(launcher, arguments)
    return Flags({**_from_config(config or b""), **given}, positional)


def _after_python_options(arguments: Sequence[str]) -> Iterator[str]:
    rest = iter(arguments)
    for argument in rest:
        if argument in _PYTHON_TAKES_VALUE:
            next(rest, None)
        elif argument == "-m" or not argument.startswith("-"):
            yield argument
            yield from rest


def _by_module(arguments: Sequence[str]) -> tuple[Launcher, tuple[str, ...]] | None:
    for launcher in LAUNCHERS:
        if arguments and arguments[0] in launcher.modules:
            return launcher, tuple(arguments[1:])
    return None


def _by_script(arguments: Sequence[str]) -> tuple[Launcher, tuple[str, ...]] | None:
    script = PurePosixPath(arguments[0])
    for launcher in LAUNCHERS:
        if any(_is_file_of(script, module) for module in launcher.modules):
            return launcher, tuple(arguments[1:])
        if launcher.commands.get(script.name) == (arguments[1] if len(arguments) > 1 else ""):
            return launcher, tuple(arguments[2:])
    return None


def _is_file_of(script: PurePosixPath, module: str) -> bool:
    parts = (*module.split(".")[:-1], module.split(".")[-1] + ".py")
    return script.parts[-len(parts) :] == parts


def _given(launcher: Launcher, arguments: Sequence[str]) -> tuple[dict[str, Value], list[str]]:
    """Flags and positional arguments. What follows a flag's value may be its second (`--api-key A B`)."""
    values: dict[str, Value] = {}
    positional: list[str] = []
    name, wanting = "", False  # the flag that may have values now, and whether it has none yet
    for argument in arguments:
        if _is_flag(argument):
            name, equals, value = argument.partition("=")
            name = flag_name(launcher, name)
            _put(values, name, value if equals else True)
            wanting = not (equals or name.startswith(_SWITCH) or name in switches(launcher.system))
            name = name if wanting else ""
        elif wanting:
            _put(values, name, argument)
            wanting = False
        elif not name:
            positional.append(argument)
    return values, positional


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and len(argument) > 1 and not _NUMBER.fullmatch(argument)


def flag_name(launcher: Launcher, flag: str) -> str:
    """The name that a flag is read under: `-tp` is `tensor-parallel-size`, `--max_num_seqs` is `max-num-seqs`.

    What follows a dot is a key of the flag's JSON and is kept.
    """
    head, dot, path = flag.lstrip("-").partition(".")
    head = head.replace("_", "-")
    head = launcher.short.get(head, head)
    return spellings(launcher.system).get(head, head) + dot + path


def _put(values: dict[str, Value], name: str, value: Value) -> None:
    """The last one wins: `--no-x` after `--x`, and `--a.b 1` inside the JSON of `--a`."""
    head, *path = name.split(".")
    if not path:
        values.pop(name.removeprefix("no-"), None)
        values.pop(f"no-{name}", None)
        values[name] = value
        return
    into = values[head] = _as_json(values.get(head))
    for key in path[:-1]:
        inner = into.get(key)
        into[key] = into = inner if isinstance(inner, dict) else {}
    into[path[-1]] = value


def _as_json(value: Value) -> dict[str, Any]:
    """The object that a flag's value is, or an empty one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _from_config(content: bytes) -> dict[str, Value]:
    """The flags in a YAML file; what is no mapping, too large or malicious says nothing."""
    if len(content) > MAX_CONFIG_BYTES:
        return {}
    try:
        loaded = yaml.load(content, _PlainLoader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    if not isinstance(loaded, dict):
        return {}
    return {str(name).replace("_", "-"): value for name, value in loaded.items()}


@check_scalars
class _PlainLoader(yaml.SafeLoader):
    """Without aliases: a few lines of merge keys could otherwise keep us busy for ever."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _finite(value: float) -> float | None:
    return float(value) if abs(value) < 1e18 else None  # neither inf nor NaN is
