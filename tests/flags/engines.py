"""Where the flags of each engine stand in its sources."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from kvitals.rules.engine_flags import FlagState
from tests.flags.sources import Sources, added, of_annotations, of_fields

VLLM_FILES = (
    "engine/arg_utils.py",
    "config.py",
    "config/*.py",
    "entrypoints/openai/cli_args.py",
    "entrypoints/common/cli_args.py",
    "entrypoints/launchers/cli_args.py",
    "entrypoints/cli/*.py",
    "scripts.py",
    "utils.py",
    "utils/*.py",
)
VLLM_PARSERS = ("EngineArgs", "AsyncEngineArgs", "ServeSubcommand", "BaseFrontendArgs", "FrontendArgs")
VLLM_OBJECTS = {
    "--kv-transfer-config": "KVTransferConfig",
    "--kv-events-config": "KVEventsConfig",
    "--speculative-config": "SpeculativeConfig",
    "--eplb-config": "EPLBConfig",
}
"""Flags that take a JSON object, and the class whose fields are its keys."""

SGLANG_FILES = ("sglang/srt/server_args.py", "sglang/srt/arg_groups/*.py", "sglang/srt/arg_groups/fields/*.py")


def vllm_flags(root: Path) -> dict[str, FlagState]:
    """The flags of `vllm serve`, from the folder `vllm` of a release. Raises ValueError where too few are found."""
    sources = Sources(root)
    sources.add(*VLLM_FILES)
    states: list[FlagState] = []
    for name in VLLM_PARSERS:
        node = sources.classes.get(name)
        if node is not None:
            states += added(sources, node, _kwargs(node))
            if _makes_flags_of_fields(node) or (name == "FrontendArgs" and "BaseFrontendArgs" in sources.classes):
                states += of_fields(sources, name)
    if "make_arg_parser" in sources.functions:
        node_ = sources.functions["make_arg_parser"]
        states += added(sources, node_, _kwargs(node_))
    states += _serve_of_scripts(sources)
    states = [_positive(state) for state in states]
    return _checked("vllm", [*states, *_objects(sources, {state.flag for state in states})])


def sglang_flags(root: Path) -> dict[str, FlagState]:
    """The flags of `sglang serve`, from the unpacked wheel of a release. Raises ValueError where too few are found."""
    sources = Sources(root)
    sources.add(*SGLANG_FILES)
    states: list[FlagState] = []
    for path, tree in sources.trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and (node.name == "ServerArgs" or path.parent.name == "fields"):
                states += of_annotations(sources, node.name)
    states += added(sources, sources.classes["ServerArgs"])
    return _checked("sglang", states)


READERS: dict[str, Callable[[Path], dict[str, FlagState]]] = {"vllm": vllm_flags, "sglang": sglang_flags}


def _kwargs(node: ast.AST) -> dict[str, str]:
    """`model_kwargs = get_kwargs(ModelConfig)`: the variable and its class."""
    found: dict[str, str] = {}
    for item in ast.walk(node):
        if (
            isinstance(item, ast.Assign)
            and isinstance(item.targets[0], ast.Name)
            and isinstance(item.value, ast.Call)
            and ast.unparse(item.value.func).endswith("get_kwargs")
            and item.value.args
        ):
            found[item.targets[0].id] = ast.unparse(item.value.args[0])
    return found


def _makes_flags_of_fields(node: ast.ClassDef) -> bool:
    """Whether a class adds an argument for each of its fields: `add_argument(f"--{key}")`."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "add_argument"
        and any(isinstance(a, ast.JoinedStr) and ast.unparse(a).strip("f'\"").startswith("--") for a in call.args)
        for call in ast.walk(node)
    )


def _serve_of_scripts(sources: Sources) -> Iterator[FlagState]:
    """Flags of `vllm serve` in vllm/scripts.py, where releases before 0.8 have that command."""
    if "main" in sources.functions:
        for node in ast.walk(sources.functions["main"]):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "serve_parser.add_argument":
                yield from added(sources, node)


def _objects(sources: Sources, flags: Iterable[str]) -> Iterator[FlagState]:
    for flag in flags:
        for state in of_fields(sources, VLLM_OBJECTS.get(flag, "")):
            if not state.flag.startswith("---"):
                key = state.flag.removeprefix("--").replace("-", "_")
                yield replace(state, flag=f"{flag}.{key}", kind="value", aliases=())


def _positive(state: FlagState) -> FlagState:
    """A switch that is added as `--x` with the alias `--no-x` is one negatable flag."""
    no = "--no-" + state.flag.removeprefix("--")
    if no not in state.aliases:
        return state
    return replace(state, kind="negatable", aliases=tuple(a for a in state.aliases if a != no))


def _checked(system: str, states: Iterable[FlagState]) -> dict[str, FlagState]:
    known: dict[str, FlagState] = {}
    for state in states:
        known.setdefault(state.flag, state)
    if len(known) < 80:
        raise ValueError(f"only {len(known)} flags found in the sources of {system}: its files have moved")
    return known
