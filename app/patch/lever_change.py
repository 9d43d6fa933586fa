"""What a lever's setting changes on an engine's command line: flags to set, to switch on, to merge into, to remove."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvitals.agent.command_line import LAUNCHERS, flag_name
from kvitals.app.escaping import plain
from kvitals.rules.finding import LeverSetting

Action = Literal["set", "switch", "merge", "remove"]

REMOVE, ON = "remove it", "on"
_FLAG = re.compile(r"--[A-Za-z0-9][A-Za-z0-9._-]*")
_PAIR = re.compile(r"([a-z_]\w*): (\S+)")
_FAMILIES = {"speculative-algorithm": "speculative-"}
"""Flags that mean nothing without the flag that is removed, by their common beginning."""


class PatchError(Exception):
    """The change cannot be written; the message says why and what to do."""


@dataclass(frozen=True)
class FlagEdit:
    """One flag. value: what it is set to; of `merge` the JSON object that is merged into today's. family: the beginning
    of further flags that are removed with it."""

    flag: str  # as it is written, with dashes
    action: Action
    value: str = ""
    family: str = ""

    @property
    def merged(self) -> dict[str, Any]:
        """The object of a `merge`."""
        return dict(json.loads(self.value))


def flag_changes(setting: LeverSetting, value: str | None = None) -> list[FlagEdit]:
    """The changes of a setting. value: what the operator sets in place of the setting's own.

    Raises PatchError where the setting has no value that a command line takes.
    """
    words = setting.flag.replace(" with ", " ").split()
    if not words or not all(word.startswith("--") for word in words[:1]):
        raise PatchError(f"the setting `{setting.flag}` is not a command-line flag; change it as the lever describes")
    if any(word.startswith("--extra_") for word in words) or "_" in words[0]:
        raise PatchError(f"`{setting.flag}` is a key of a configuration file, not a flag; change that file by hand")
    changes: list[FlagEdit] = []
    for word in words:
        if word.startswith("--"):
            changes.append(FlagEdit(word, "switch"))
        else:
            changes[-1] = replace(changes[-1], action="set", value=word)
    changes[-1] = _with_value(changes[-1], setting, setting.to if value is None else value)
    for change in changes:
        _refuse_odd(change)
    return changes


def _refuse_odd(change: FlagEdit) -> None:
    """Refuse what no flag or value of an engine has. Raises PatchError.

    Shells, systemd and Kubernetes expand `$`, each in its own way. Characters that are not printed hide what a reviewer
    approves.
    """
    if not _FLAG.fullmatch(change.flag):
        raise PatchError(f"`{plain.line(change.flag)}` is not the name of a flag; change the file by hand")
    if "$" in change.value or not change.value.isprintable():
        raise PatchError(f"the value of {change.flag} has `$` or non-printable characters; change the file by hand")
    if change.action == "set" and (number := _as_number(change.value)) is not None and not math.isfinite(number):
        raise PatchError(f"the value of {change.flag} is not a finite number; give another value with --set")


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _with_value(change: FlagEdit, setting: LeverSetting, text: str) -> FlagEdit:
    if text == ON:
        return change
    if text == REMOVE:
        name = change.flag.removeprefix("--")
        return replace(change, action="remove", family=_FAMILIES.get(name, ""))
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1]
    if (merged := _merged_object(text)) is not None:
        return replace(change, action="merge", value=compact(merged))
    if is_json(text):
        return replace(change, action="set", value=compact(json.loads(text)))
    if not text or any(character.isspace() for character in text) or text[:1] in "{[":
        described = f"`{setting.flag}`: {text}" if text else f"`{setting.flag}` has no value"
        raise PatchError(f"{described}. The value depends on your service: give it with --set VALUE")
    return replace(change, action="set", value=text)


def _merged_object(text: str) -> dict[str, Any] | None:
    """The object of a value such as `key: value, key: value` or `"key": value in its JSON`; None for other values."""
    if text.endswith(" in its JSON"):
        inner = "{" + text.removesuffix(" in its JSON") + "}"
        return json.loads(inner) if is_json(inner) else None
    pairs = [_PAIR.fullmatch(part) for part in text.split(", ")]
    if not all(pairs):
        return None
    return {pair[1]: _scalar(pair[2]) for pair in pairs if pair}


def _scalar(text: str) -> Any:
    return json.loads(text) if is_json(text) else text


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def compact(value: Any) -> str:
    """JSON without blanks, which needs no quotes in most places."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def canonical_name(flag: str, system: str) -> str:
    """`-tp`, `--tp-size` and `--tensor_parallel_size` are `tensor-parallel-size`. The path of `--a.b` is kept."""
    launcher = next(one for one in LAUNCHERS if one.system == system)
    return flag_name(launcher, flag.partition("=")[0])


def opposite_name(name: str) -> str:
    """The flag that takes a switch back: `no-x` of `x`, and the other way round."""
    return name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
