"""The change of files that pulls a lever of a finding, as a unified diff with its description."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvitals.app.escaping import markdown, plain
from kvitals.app.patch.file_forms import PatchableCommand, engine_commands
from kvitals.app.patch.lever_change import FlagEdit, PatchError, flag_changes
from kvitals.app.patch.pull_request import MAX_LINE, ReviewNotes, description
from kvitals.app.patch.source_text import apply_edits
from kvitals.app.patch.value_check import check_value, default_of, same_value
from kvitals.rules.finding import Finding, LeverAdvice, LeverSetting, Triage

_CONTEXT_LINES = 3


@dataclass(frozen=True)
class PatchRequest:
    """What is asked for. finding: an id or a code, empty: the first with a lever that can be written. lever: its name,
    empty: the first. value: in place of the lever's own. container: where a file starts several engines. flags: of each
    lever that is known here; None: the document was made here, so that its settings are those."""

    finding: str = ""
    lever: str = ""
    value: str | None = None
    container: str = ""
    flags: Mapping[str, frozenset[str]] | None = None


@dataclass(frozen=True)
class PatchProposal:
    """diff: of all files, empty where they have the setting already. setting: as on a command line. warnings: where a
    file and the running engine disagree."""

    finding: Finding
    lever: LeverAdvice
    setting: str
    diff: str
    description: str
    warnings: Sequence[str]


def propose(document: Triage, request: PatchRequest, files: Mapping[str, str]) -> PatchProposal:
    """The proposal for files, path -> content. Raises PatchError."""
    finding, lever, changes = _chosen(document, request)
    system, version = _engine(document, finding)
    notes: list[str] = []
    noted = any(one.id == finding.id for one in document.notes)
    warnings = [f"{finding.code} is only noted, and no problem now. {document.verdict.rstrip('.')}"] if noted else []
    first = next(iter(document.causes), finding)
    if not request.finding and first.code != finding.code:
        warnings.append(f"this is for {finding.code}: no lever of {first.code}, the first cause, changes a file")
    before: list[str] = []
    diffs: list[str] = []
    for path, content in files.items():
        if not path.isprintable():
            raise PatchError(f"{plain.line(path)}: a diff cannot name this file; rename it without control characters")
        commands = _of_system(path, engine_commands(path, content), system, request.container)
        if lever.setting is not None:
            warnings += _disagreement(path, commands[0], changes[-1], lever.setting, version)
        before.append(f"{_code(path)} then has {_state(commands[0], changes)}")
        after, said = _changed(path, content, commands, changes)
        diffs.append(unified_diff(path, content, after))
        notes += [f"{path}: {note}" for note in said]
    setting = " ".join(_written(change) for change in changes)
    review = ReviewNotes(notes, warnings, "; ".join(before) or _running(lever, changes))
    text = description(document, finding, lever, setting, review)
    return PatchProposal(finding, lever, setting, "".join(diffs), text, warnings)


def _disagreement(
    path: str, command: PatchableCommand, change: FlagEdit, setting: LeverSetting, version: str
) -> list[str]:
    """A warning where the file's value of the lever's flag is not that of the running engine, as far as it is known."""
    if not setting.now or change.action not in ("set", "switch"):
        return []
    value = command.state(change.flag)
    default = default_of(change.flag, command.system, version)
    if change.action == "switch":
        off = command.state(f"--no-{change.flag.removeprefix('--')}") is not None
        in_force = "on" if value is not None else "off" if off else default
        return [_warning(path, f"has {change.flag} {in_force}", setting)] if in_force not in ("", setting.now) else []
    if value is None:
        known = same_value(default, setting.now)
        return [] if known else [_warning(path, f"does not set {change.flag}", setting, ", unless that is its default")]
    return [] if same_value(value, setting.now) else [_warning(path, f"has {change.flag} {value}", setting)]


def _warning(path: str, has: str, setting: LeverSetting, unless: str = "") -> str:
    return (
        f"{path} {has}, but the running engine reports {setting.now}: the file and the engine differ{unless}. Check"
        " that this file starts the engine"
    )


def _state(command: PatchableCommand, changes: Sequence[FlagEdit]) -> str:
    """What the file has today of the changed flags."""
    return " and ".join(
        f"no {_code(change.flag)}" if value is None else _code(f"{change.flag} {value}".strip())
        for change in changes
        for value in (command.state(change.flag),)
    )


def _running(lever: LeverAdvice, changes: Sequence[FlagEdit]) -> str:
    """Today's value at the running engine, where no file is given; empty where it is not known."""
    now = lever.setting.now if lever.setting is not None else ""
    return f"today's value of {_code(changes[-1].flag)} is {_code(now)}" if now else ""


def unified_diff(path: str, before: str, after: str) -> str:
    """The difference as `git apply` takes it; empty where there is none. Lines end with LF alone, as for git: form
    feeds, U+0085 and U+2028 are characters of a line."""
    lines = difflib.unified_diff(
        _lines(before),
        _lines(after),
        f"a/{path}",
        f"b/{path}",
        n=_CONTEXT_LINES,
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _chosen(document: Triage, request: PatchRequest) -> tuple[Finding, LeverAdvice, list[FlagEdit]]:
    """The finding, its lever and the changes: the first that can be written. Raises PatchError with the reasons."""
    reasons: list[str] = []
    for finding in _candidates(document, request.finding):
        for lever in finding.levers:
            if request.lever and lever.lever != request.lever:
                continue
            if lever.setting is None:
                why = lever.setting_note or "the lever is applied outside of the engine"
                reasons.append(f"{finding.code} {lever.lever}: not an engine setting ({why})")
                continue
            try:
                if request.flags is not None and lever.setting.flag not in request.flags.get(lever.lever, ()):
                    raise PatchError(f"the document names a flag that this lever does not have here ({_flag(lever)})")
                changes = flag_changes(lever.setting, request.value)
                if request.flags is not None:
                    check_value(changes[-1], lever, *_engine(document, finding))
            except PatchError as error:
                reasons.append(f"{finding.code} {lever.lever}: {error}")
                continue
            if request.value is not None:  # a refused value ends the search: it is not meant for another lever
                check_value(changes[-1], lever, *_engine(document, finding))
            return finding, _predicted_for(lever, request.value), changes
    if reasons:
        raise PatchError("no lever can be written as a change to a file:\n  " + "\n  ".join(dict.fromkeys(reasons)))
    wanted = f"no lever {request.lever} in" if request.lever else "no lever for"
    raise PatchError(f"{wanted} {request.finding or 'this document'}: {document.verdict}")


def _candidates(document: Triage, name: str) -> Iterator[Finding]:
    problems = (*document.leading_causes, *document.causes, *document.telemetry, *document.symptoms)
    if not name and not problems and document.notes:
        codes = ", ".join(dict.fromkeys(one.code for one in document.notes))
        raise PatchError(f"nothing to change: {document.verdict} For what is only noted, name its code: {codes}")
    every = {one.id: one for one in (*problems, *(document.notes if name else ()))}.values()
    if not name:
        yield from every
        return
    found = [one for one in every if name in (one.id, one.code)]
    if not found:
        codes = ", ".join(dict.fromkeys(one.code for one in every)) or "none"
        raise PatchError(f"{name} did not fire; findings of this document: {codes}")
    yield from found


def _predicted_for(lever: LeverAdvice, value: str | None) -> LeverAdvice:
    """The lever with the predictions that hold for a value: they are calculated for the setting's own."""
    setting = lever.setting
    if value is None or setting is None or same_value(value, setting.to):
        return lever
    return msgspec.structs.replace(lever, predicted=[])


def _engine(document: Triage, finding: Finding) -> tuple[str, str]:
    """The system, such as vllm, and the version of the finding's engines; empty where they differ or are not known."""
    engine = finding.entity.labels.get("engine")
    engines = [one for one in document.coverage.engines if engine in (None, one.get("engine"))]
    systems, versions = ({one.get(key, "") for one in engines} for key in ("system", "version"))
    return systems.pop() if len(systems) == 1 else "", versions.pop() if len(versions) == 1 else ""


def _of_system(
    path: str, commands: Sequence[PatchableCommand], system: str, container: str
) -> Sequence[PatchableCommand]:
    """The command that is meant. Raises PatchError where there is none, or several."""
    fitting = [one for one in commands if not system or one.system == system]
    if container:
        fitting = [one for one in fitting if one.name == container]
    if len(fitting) == 1:
        return fitting
    if not fitting:
        others = ", ".join(f"{one.name} ({one.system})" for one in commands)
        start = f"; it starts {others}" if others else ""
        named = f" named {container}" if container else ""
        raise PatchError(f"{path} starts no {system or 'known'} engine{named}{start}. Give the file that starts it")
    names = ", ".join(one.name for one in fitting)
    raise PatchError(f"{path} starts several engines: {names}. Choose one with --container NAME")


def _changed(
    path: str, content: str, commands: Sequence[PatchableCommand], changes: Sequence[FlagEdit]
) -> tuple[str, list[str]]:
    """The content with the changes, read again and found right, and what a reviewer must look at."""
    after = content
    (command,) = commands
    try:
        after = apply_edits(content, command.edits(changes))
        again = [one for one in engine_commands(path, after) if one.name == command.name]
        right = len(again) == 1 and again[0].has(changes)
    except PatchError as error:
        raise PatchError(f"{path}: {error}") from error
    if not right:
        raise PatchError(
            f"{path}: kvitals cannot write the change here safely; set {' '.join(map(_written, changes))} by hand"
        )
    return after, list(command.notes)


def _written(change: FlagEdit) -> str:
    if change.action == "remove":
        return f"(remove {change.flag})"
    return change.flag if change.action == "switch" else f"{change.flag} {change.value}"


def _code(text: str) -> str:
    return markdown.code(plain.clip(text, MAX_LINE))


def _flag(lever: LeverAdvice) -> str:
    return plain.line(lever.setting.flag if lever.setting is not None else "")
