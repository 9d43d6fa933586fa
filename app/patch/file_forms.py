"""The engines that a file starts: Kubernetes and compose YAML, values of charts, systemd units, shell scripts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

import yaml

from kvitals.app.patch.argument_sites import ArgumentSite, ListSite, ShellSite
from kvitals.app.patch.chart_values import ChartModel, chart_models
from kvitals.app.patch.engine_command import EngineCommand, engine_start
from kvitals.app.patch.lever_change import FlagEdit, PatchError
from kvitals.app.patch.source_text import (
    SourceText,
    TextEdit,
    doubled_text,
    raw_text,
    scalar_text,
    shell_commands,
    word_text,
)
from kvitals.app.patch.yaml_nodes import entries, key_of, scalar_items, text_of

MAX_BYTES = 1 << 20
UNIT_ENDINGS = (".service", ".conf")
YAML_ENDINGS = (".yaml", ".yml")

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "/bin/sh"})
_SCRIPT_OPTION = re.compile(r"-[a-z]*c")
_EXPANSION = re.compile(r"\$(?:\{(\w+)[^}]*\}|\((\w+)\)|(\w+))")
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_IMAGE_VARIABLES = ("VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "VLLM_ARGS", "SGLANG_ARGS")
"""Variables that entry points of images append to the command line."""
_ENTRY_POINTS = {"vllm-openai": "vllm", "vllm": "vllm", "sglang": "sglang", "llm-d": "vllm"}
_OWN_COMMANDS = {"vllmServe": "vllm", "imageDefault": "vllm"}
"""`modelCommand` of the chart llm-d-modelservice: what the chart or the image puts before `args`."""


class PatchableCommand(Protocol):
    """What a change is written into."""

    @property
    def name(self) -> str: ...

    @property
    def system(self) -> str: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def edits(self, changes: Sequence[FlagEdit]) -> list[TextEdit]: ...

    def has(self, changes: Sequence[FlagEdit]) -> bool: ...

    def state(self, flag: str) -> str | None: ...

    def renamed(self, name: str) -> PatchableCommand: ...


def engine_commands(path: str, content: str) -> list[PatchableCommand]:
    """The engines that a file starts, in its order. Raises PatchError for a file that cannot be read as its kind."""
    if len(content.encode()) > MAX_BYTES:
        raise PatchError(f"{path} is larger than {MAX_BYTES >> 20} MiB; give the file that starts the engine")
    if path.endswith(YAML_ENDINGS):
        return _numbered(list(_of_yaml(path, content)))
    if path.endswith(UNIT_ENDINGS):
        return _numbered(list(_of_unit(content)))
    return _numbered(list(_of_script(content)))


def _numbered(commands: Sequence[PatchableCommand]) -> list[PatchableCommand]:
    """The commands under names that differ: several of one name, such as those in one script, are NAME/1, NAME/2."""
    total, seen = Counter(one.name for one in commands), Counter[str]()
    named: list[PatchableCommand] = []
    for one in commands:
        seen[one.name] += 1
        named.append(one if total[one.name] == 1 else one.renamed(f"{one.name}/{seen[one.name]}"))
    return named


def _of_yaml(path: str, content: str) -> Iterator[PatchableCommand]:
    if "{{" in content and re.search(r"^\s*\{\{-?", content, re.MULTILINE):
        raise PatchError(f"{path} is a template; give the values file of the chart, or the rendered manifest")
    try:
        documents = [node for node in yaml.compose_all(content, Loader=yaml.SafeLoader) if node is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise PatchError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}") from error
    for document in documents:
        models: list[ChartModel] = list(chart_models(content, document))
        yield from models
        if not models:
            kind = text_of(entries(document).get("kind"))
            for name, mapping in _containers(document, "", set()):
                yield from _of_container(content, name, mapping, kind)


def _containers(node: yaml.Node, key: str, seen: set[int]) -> Iterator[tuple[str, yaml.MappingNode]]:
    """Each mapping with a command or arguments, and its name: `name`, else the key above it."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _containers(item, key, seen)
    elif isinstance(node, yaml.MappingNode):
        known = entries(node)
        if {"command", "args", "entrypoint"} & known.keys():
            yield text_of(known.get("name")) or key, node
        for name, value in node.value:
            yield from _containers(value, key_of(name), seen)


@dataclass(frozen=True)
class _Part:
    """Words that stand together, before it is known where an engine begins. source: where they are of a shell text."""

    site: ArgumentSite
    text: SourceText | None = None


def _of_container(content: str, name: str, node: yaml.MappingNode, kind: str) -> list[EngineCommand]:
    known = entries(node)
    order = ("command", "args") if "args" in known or kind else ("entrypoint", "command")
    leading = _part(content, known.get(order[0]))  # what replaces the entry point of the image
    parts = [part for part in (leading, _part(content, known.get(order[1]))) if part is not None]
    variables = _variables(content, known)
    for part in parts:  # a shell's script first: the words before it name the shell
        if found := _in_script(content, name, part, parts, variables):
            return found
    values = [value for part in parts for value in part.site.values]
    started = engine_start(values) or (None if leading else _by_image(known, kind, parts))
    if started is None or not values:
        return []
    system, begin = started
    arguments = []
    for part in parts:
        arguments.append((part.site, max(begin, 0)))
        begin -= len(part.site.values)
    return [_command(content, name, system, arguments, variables)]


def _part(content: str, node: yaml.Node | None) -> _Part | None:
    if isinstance(node, yaml.SequenceNode):
        items = scalar_items(node)
        return _Part(ListSite(content, node, items)) if items else None
    if isinstance(node, yaml.ScalarNode) and node.value:
        source = scalar_text(content, node)
        words = [word for command in shell_commands(source, script=False) for word in command]
        return _Part(ShellSite(content, source, words), source) if words else None
    return None


def _in_script(
    content: str, name: str, part: _Part, parts: Sequence[_Part], variables: Mapping[str, SourceText]
) -> list[EngineCommand]:
    """The engines in the script of `sh -c SCRIPT`, where the shell may stand in one list and the script in another."""
    values = [value for one in parts for value in one.site.values]
    if PurePosixPath(values[0]).name not in _SHELLS or not any(map(_SCRIPT_OPTION.fullmatch, values[1:3])):
        return []
    for index, value in enumerate(part.site.values):
        if " " not in value and "\n" not in value:
            continue
        if isinstance(part.site, ListSite):
            source = scalar_text(content, part.site.items[index], flow=bool(part.site.node.flow_style))
        else:
            assert part.text is not None
            assert isinstance(part.site, ShellSite)
            source = word_text(part.text, part.site.words[index])
        if commands := list(_of_shell(content, source, name, variables, script=True)):
            return commands
    return []


def _of_shell(
    content: str, source: SourceText, name: str, variables: Mapping[str, SourceText], *, script: bool
) -> Iterator[EngineCommand]:
    """The engines that a shell text starts, those within `sh -c` included."""
    known = dict(variables)
    for words in shell_commands(source, script=script):
        values = [word.value for word in words]
        for word in words if script else ():
            if (match := _ASSIGNMENT.fullmatch(word.value)) is not None and len(words) <= 2:
                skip = len(match[1]) + 1
                known[match[1]] = SourceText(
                    match[2],
                    [source.starts[i] for i in word.indices[skip:]],
                    [source.ends[i] for i in word.indices[skip:]],
                    source.escape,
                    False,
                )
        if (started := engine_start(values)) is not None:
            system, begin = started
            site = ShellSite(content, source, words)
            yield _command(content, name, system, [(site, begin)], known)
            continue
        for index, value in enumerate(values):
            if index and " " in value and _SCRIPT_OPTION.fullmatch(values[index - 1]):
                yield from _of_shell(content, word_text(source, words[index]), name, known, script=True)


def _command(
    content: str,
    name: str,
    system: str,
    arguments: Sequence[tuple[ArgumentSite, int]],
    variables: Mapping[str, SourceText],
) -> EngineCommand:
    """The command with the values of the variables that it names; a variable that is not known is noted."""
    sites = list(arguments)
    notes = []
    named = list(_IMAGE_VARIABLES)
    for site, begin in arguments:
        for value in site.values[begin:]:
            for match in _EXPANSION.finditer(value):
                variable = match[1] or match[2] or match[3]
                if value == match[0] and variable not in variables:
                    notes.append(f"kvitals does not know `{match[0]}`; it may set the flag too, so check its value")
                named.append(variable)
            if value == "$@":
                notes.append("`$@` passes further arguments, which may set the flag too")
    for variable in dict.fromkeys(named):
        source = variables.get(variable)
        if source is not None and source.text.lstrip().startswith("-"):
            words = [word for command in shell_commands(source, script=False) for word in command]
            sites.append((ShellSite(content, source, words), 0))
    return EngineCommand(name, system, sites, arguments[-1][0], notes)


def _variables(content: str, known: Mapping[str, yaml.Node]) -> dict[str, SourceText]:
    """The environment of a container or a service whose values are in the file."""
    found: dict[str, SourceText] = {}
    node = known.get("env") or known.get("environment")
    if isinstance(node, yaml.MappingNode):
        for name, value in entries(node).items():
            if isinstance(value, yaml.ScalarNode) and value.value:
                found[name] = scalar_text(content, value)
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        if isinstance(item, yaml.MappingNode):
            pair = entries(item)
            content_node = pair.get("value")
            if isinstance(content_node, yaml.ScalarNode) and content_node.value:
                found[text_of(pair.get("name"))] = scalar_text(content, content_node)
        elif isinstance(item, yaml.ScalarNode) and "=" in item.value and item.value.partition("=")[2]:
            source = scalar_text(content, item)
            name = item.value.partition("=")[0]
            skip = len(name) + 1
            found[name] = SourceText(source.text[skip:], source.starts[skip:], source.ends[skip:], source.escape, False)
    return found


def _by_image(known: Mapping[str, yaml.Node], kind: str, parts: Sequence[_Part]) -> tuple[str, int] | None:
    """The engine of a container whose image brings the command, so that all of its words are arguments."""
    command = text_of(known.get("modelCommand"))
    if command in _OWN_COMMANDS:
        return _OWN_COMMANDS[command], 0
    if not parts:
        return None
    if kind in ("LLMInferenceService", "LLMInferenceServiceConfig") and text_of(known.get("name")) in ("", "main"):
        return "vllm", 0
    image = text_of(known.get("image")).partition("@")[0].rpartition("/")[2].partition(":")[0]
    for beginning, system in _ENTRY_POINTS.items():
        if image.startswith(beginning):
            return system, 0
    return None


_EXEC_START = re.compile(r"^ExecStart=[-@:+!|]*(?P<command>(?:[^\n\\]|\\\n|\\.)*)", re.MULTILINE)
_ENVIRONMENT = re.compile(r"^Environment=(?P<pairs>(?:[^\n\\]|\\\n|\\.)*)", re.MULTILINE)


def _of_unit(content: str) -> Iterator[EngineCommand]:
    """The engine of a systemd unit or drop-in: its last ExecStart, since an empty one takes the earlier ones back."""
    variables: dict[str, SourceText] = {}
    for match in _ENVIRONMENT.finditer(content):
        source = doubled_text(content, *match.span("pairs"), "%")
        for word in (word for command in shell_commands(source, script=False) for word in command):
            name, equals, value = word.value.partition("=")
            if equals and value:
                indices = word.indices[len(name) + 1 :]
                places = [source.starts[i] for i in indices], [source.ends[i] for i in indices]
                variables[name] = SourceText(value, *places, source.escape, False)
    started = [match for match in _EXEC_START.finditer(content) if match["command"].strip()]
    if started:
        source = doubled_text(content, *started[-1].span("command"), "%")
        yield from _of_shell(content, source, "ExecStart", variables, script=False)


def _of_script(content: str) -> Iterator[EngineCommand]:
    source = raw_text(content, 0, len(content), lines=True)
    for number, command in enumerate(_of_shell(content, source, "command", {}, script=True), 1):
        yield command.renamed(f"command {number}")
