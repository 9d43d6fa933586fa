"""Each lever of vLLM and SGLang in each form of file: the diff applies, the file parses, the setting is there once."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvitals.agent.command_line import launched_engine, parse
from kvitals.app.patch.file_forms import engine_commands
from kvitals.app.patch.lever_change import FlagEdit, PatchError, canonical_name, flag_changes
from kvitals.app.patch.proposal import unified_diff
from kvitals.app.patch.source_text import apply_edits
from kvitals.rules.finding import LeverSetting
from kvitals.rules.loader import load
from tests.unit.patch.forms import FORMS

PRESENT = ("absent", "spaced", "equals", "underscored", "twice", "opposite")
"""How the flag stands in the file before the change."""


@cache
def settings(system: str) -> list[tuple[str, LeverSetting]]:
    """Each setting of each lever that is a flag of a command line, with 3 where the value is calculated."""
    return [
        (f"{lever.name}-{index}", LeverSetting(one.flag, "", one.value or "3", True, ""))
        for lever in load().levers.values()
        for index, one in enumerate(lever.settings)
        if one.system == system and one.by == "flag"
    ]


def changes_of(setting: LeverSetting) -> list[FlagEdit]:
    """The changes, with a value of the operator's where the lever only describes it. Raises PatchError."""
    try:
        return flag_changes(setting)
    except PatchError as error:
        if "--set VALUE" not in str(error):
            raise
    return flag_changes(setting, "5")


def today(change: FlagEdit, present: str) -> list[str]:
    """The flag as the file has it before the change."""
    name, before = change.flag, '{"old":1}' if change.value[:1] == "{" else "old"
    valued = change.action != "switch" and name not in ("--enforce-eager",) and "disable-" not in name
    if change.action == "merge" and present in ("absent", "opposite"):
        return [name, before]  # keys alone may be no whole value
    if present == "absent":
        return []
    if present == "opposite":
        return [name.replace("--", "--no-", 1)] if change.action == "switch" else []
    written = name.replace("-", "_").replace("__", "--", 1) if present == "underscored" else name
    if not valued:
        return [written]
    if present == "equals":
        return [f"{written}={before}"]
    return [written, before] * (2 if present == "twice" else 1)


def cases(system: str, form: str) -> Iterator[tuple[str, list[FlagEdit], list[str]]]:
    """Each setting with the flag absent and in one other way; over the forms, in all of them. In one form all ways."""
    turn = list(FORMS).index(form)
    for number, (name, setting) in enumerate(settings(system)):
        changes = changes_of(setting)
        other = PRESENT[1 + (number + turn) % (len(PRESENT) - 1)]
        for present in PRESENT if form == "one_line" else ("absent", other):
            yield f"{name}-{present}", changes, [word for change in changes for word in today(change, present)]


def words_of(form: str, content: str) -> list[str]:
    """The engine's words, read by a parser of the form and not by what is tested."""
    if form in ("shell", "one_line"):
        line = content.replace("\\\n", " ").strip().splitlines()[-1].partition(" >")[0]
        return shlex.split(line.removeprefix("exec "))
    if form == "unit":
        text = content.replace("\\\n", " ")
        last = [line for line in text.splitlines() if line.startswith("ExecStart=") and line != "ExecStart="][-1]
        return shlex.split(last.removeprefix("ExecStart=/usr/bin/env ").replace("%%", "%"))
    document = yaml.safe_load(content)
    if form.startswith("compose"):
        command = document["services"]["engine"]["command"]
        assert document["services"]["engine"]["restart"] == "always"
        return shlex.split(command) if isinstance(command, str) else command
    if form == "dynamo_graph":
        container = document["spec"]["services"]["Worker"]["extraPodSpec"]["mainContainer"]
    elif form == "llm_d_values":
        container = document["decode"]["containers"][0]
        container["command"] = ["vllm", "serve", "org/model"]
    elif form == "production_stack":
        return chart_words(document["servingEngineSpec"]["modelSpec"][0]["vllmConfig"])
    else:
        container = document["spec"]["template"]["spec" if form != "inference_service" else "containers"]
        container = container[0] if isinstance(container, list) else container["containers"][0]
    words = [*container.get("command", []), *container.get("args", [])]
    assert all(isinstance(word, str) for word in words), words
    if form in ("deployment_shell", "deployment_quoted_shell"):
        return shlex.split(words[2].replace("\\\n", " ").partition("exec ")[2] or words[2])
    if form == "image_only":
        return [
            *(["vllm", "serve"] if "vllm" in container["image"] else ["python3", "-m", "sglang.launch_server"]),
            *words,
        ]
    return words


def chart_words(config: dict[str, Any]) -> list[str]:
    """What the chart's template makes of its values."""
    words = ["vllm", "serve", "org/model"]
    if "enableChunkedPrefill" in config:
        words.append("--enable-chunked-prefill" if config["enableChunkedPrefill"] else "--no-enable-chunked-prefill")
    if config.get("enablePrefixCaching"):
        words.append("--enable-prefix-caching")
    keys = {"maxModelLen": "max-model-len", "tensorParallelSize": "tensor-parallel-size", "maxNumSeqs": "max-num-seqs",
            "gpuMemoryUtilization": "gpu_memory_utilization", "maxLoras": "max_loras"}  # fmt: skip
    for key, flag in keys.items():
        if key in config:
            words += [f"--{flag}", str(config[key])]
    return [*words, *config.get("extraArgs", [])]


def comments(content: str) -> list[str]:
    return [line.partition("#")[2] for line in content.splitlines() if "#" in line]


def check(words: list[str], system: str, changes: list[FlagEdit]) -> None:
    """The engine is still started, and each flag is there once with its value."""
    launched = launched_engine(words)
    assert launched is not None, words
    launcher, arguments = launched
    flags = parse(launcher, arguments)
    names = [canonical_name(word, system) for word in arguments if word.startswith("--")]
    for change in changes:
        name = canonical_name(change.flag, system)
        if change.action == "remove":
            assert names.count(name) == 0, words
            continue
        assert names.count(name) == 1, words
        assert f"no-{name}" not in names
        if change.action == "switch":
            assert flags.get(name) is True
        elif change.action == "merge":
            value = json.loads(flags.text(name))
            assert {key: value.get(key) for key in change.merged} == change.merged
        else:
            assert flags.text(name) == change.value


@pytest.mark.parametrize(("form", "system"), [(f, s) for f, (_, _, systems) in FORMS.items() for s in systems])
def test_every_lever_is_written_in_every_form(form: str, system: str, tmp_path: Path) -> None:
    make, ending, _ = FORMS[form]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    diffs, made = "", {}
    for name, changes, before in cases(system, form):
        path, content = f"{name}{ending}", make(system, before)
        (command,) = [one for one in engine_commands(path, content) if one.system == system]
        after = apply_edits(content, command.edits(changes))
        check(words_of(form, after), system, changes)
        again = next(one for one in engine_commands(path, after) if one.name == command.name)
        assert again.has(changes)
        assert again.edits(changes) == [], "a second run finds nothing to change"
        assert comments(content) == comments(after)
        (tmp_path / path).write_text(content)
        made[path] = after
        diffs += unified_diff(path, content, after)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diffs.encode(), check=True)
    assert {path: (tmp_path / path).read_text() for path in made} == made
