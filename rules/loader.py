"""Read the knowledge: every YAML file below `rules/`, checked as a whole.

What is wrong is said with file and line and what would be right. The files that ship are converted to their types
at each start. `shipped_problems` checks them as a whole: for `kvitals.dashboards.generate`, `kvitals rules lint` and a
test. A user's own directory may hold broken files: each is named and left out, and everything else goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from kvitals.rules.compiled_signal import STAND_INS, compile_signal
from kvitals.rules.condition import Condition, parse_condition
from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES, Family, Lever, Overrides, Rule, Signal
from kvitals.rules.model import SIGNAL_PREFIX as SIGNAL_PREFIX
from kvitals.rules.origins import PAGE, origins
from kvitals.rules.shipped import YAML_LOADER, value_of
from kvitals.rules.versions import in_range
from kvitals.rules.yaml_scalars import check_scalars
from kvitals.series.bounds import unbounded_numbers
from kvitals.series.files import read_regular
from kvitals.series.promql import Expr, PromQLError, expand, names, parse, selectors

ROOT = Path(__file__).parent
MAX_FILE_BYTES = 256 * 1024
MAX_DEPTH = 20
RULE_FOLDERS = ("codes", "levers", "signals", "params", "cases")
"""What a directory of rules has at least one of."""

HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")
PLACEHOLDER = re.compile(r"\{(\$?[a-z][a-z0-9_]*)\}")
_COMPARISON = re.compile(r"kvitals:(\w+)\s*[<>]=?\s*\$(\w+)(?!\s*\*)")
"""A signal and the parameter that it is compared with."""


@check_scalars
class _Loader(YAML_LOADER):  # type: ignore[misc, valid-type]  # libyaml's, or PyYAML's own
    """The safe loader for files that anybody wrote."""


T = TypeVar("T")
K = TypeVar("K", Family, Signal)


@dataclass(frozen=True)
class KnowledgeProblem:
    """What is wrong with a file of knowledge, where, and what is allowed there. line: 0 is the file as a whole."""

    file: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


class KnowledgeError(Exception):
    """The knowledge that ships is broken, so there is nothing to go on with."""


@dataclass
class Knowledge:
    """Everything that is known, by name. `problems` are the files that were left out."""

    families: dict[str, Family] = field(default_factory=dict)
    signals: dict[str, Signal] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)
    levers: dict[str, Lever] = field(default_factory=dict)
    problems: list[KnowledgeProblem] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)  # rule code or lever name -> its file

    def condition(self, rule: Rule, params: Mapping[str, float] | None = None) -> Condition:
        """The rule's `when` with its parameters filled in; `params` override the defaults."""
        return parse_condition(expand(rule.when, parameters(rule, params)))

    def proof(self, rule: Rule, params: Mapping[str, float] | None = None) -> Expr | None:
        """What has a value where the figures prove what a rule says; None of a rule whose condition is proof."""
        return expression(expand(rule.proven_when, parameters(rule, params))) if rule.proven_when else None

    def needs(self, rule: Rule) -> list[str]:
        """The signals that decide a rule's outcome: those that its `when` names."""
        return list(_signals_in(expand(rule.when, parameters(rule))))

    def parameters_by_rule(self) -> dict[str, dict[str, bool]]:
        """Rule code -> parameter -> whether a share is compared with it, so that a value above 1 is a mistake."""
        return {
            code: {name: name in {*self._compared_with_shares(rule)} for name in rule.params}
            for code, rule in self.rules.items()
        }

    def _compared_with_shares(self, rule: Rule) -> Iterator[str]:
        for name, parameter in _COMPARISON.findall(rule.when):
            signal = self.signals.get(name)
            if signal is not None and signal.unit == "ratio" and "_per_" not in name:  # such may be above 1
                yield parameter


def parameters(rule: Rule, overrides: Mapping[str, float] | None = None) -> dict[str, str]:
    """What `$name` stands for in a rule's expressions."""
    values = {name: param.default for name, param in rule.params.items()} | dict(overrides or {})
    scope = ", ".join(SCOPES[rule.scope])
    return {"scope": scope, **{name: f"{value:.12g}" for name, value in values.items()}}


def signal_names(expr: Expr) -> list[str]:
    """The signals that an expression names, without their prefix, from left to right and once each."""
    found = [use.selector.name for use in selectors(expr)]
    return list(dict.fromkeys(n.removeprefix(SIGNAL_PREFIX) for n in found if n.startswith(SIGNAL_PREFIX)))


@lru_cache(maxsize=1024)
def _signals_in(text: str) -> tuple[str, ...]:
    """The signals that a text names. Raises PromQLError."""
    return tuple(signal_names(parse(text)))


def family_of(metric: str, families: Mapping[str, Family]) -> str | None:
    """The family that a series name belongs to: histograms are named by their parts."""
    if metric in families:
        return None if families[metric].type == "histogram" else metric
    for part in HISTOGRAM_PARTS:
        base = metric.removesuffix(part)
        if base != metric and base in families and families[base].type == "histogram":
            return base
    return None


def load(extra: Sequence[Path] = ()) -> Knowledge:
    """Load the knowledge that ships, then what is in the `extra` directories: rules, levers, signals, parameters.

    Parameters of any rule may be given anew, the last directory counts; a code, a lever or a signal that there is may
    not. Raises KnowledgeError when what ships is broken. A problem in `extra` is recorded in `problems`.
    """
    shipped = _shipped(ROOT)
    knowledge = Knowledge(
        dict(shipped.families),
        dict(shipped.signals),
        dict(shipped.rules),
        dict(shipped.levers),
        [],
        dict(shipped.files),
    )
    for directory in extra:
        if directory.is_dir() and not any((directory / part).is_dir() for part in RULE_FOLDERS):
            why = f"no directory of rules: it has none of {', '.join(RULE_FOLDERS)}"
            knowledge.problems.append(KnowledgeProblem(directory, 0, why))
        elif directory.is_dir():
            _load_directory(knowledge, directory)
            _override(knowledge, directory)
        else:
            knowledge.problems.append(
                KnowledgeProblem(directory, 0, f"{'not a' if directory.exists() else 'no such'} directory")
            )
    return knowledge


@cache
def _shipped(root: Path) -> Knowledge:
    """What ships, read once in a process, without the checks of `shipped_problems`. Raises KnowledgeError."""
    knowledge = Knowledge()
    _load_directory(knowledge, root, checked=False)
    if knowledge.problems:
        raise KnowledgeError("\n".join(str(p) for p in knowledge.problems))
    return knowledge


def shipped_problems(root: Path = ROOT) -> list[KnowledgeProblem]:
    """What is wrong with the files that ship, by the checks of a user's own files. Empty: nothing."""
    knowledge = Knowledge()
    _load_directory(knowledge, root)
    return knowledge.problems


def read_as(path: Path, type_: type[T]) -> T | KnowledgeProblem:
    """Read a file of another kind of knowledge, as safely: its content as a type, or what is wrong with it."""
    try:
        file = read_yaml(path)
    except OSError as error:
        return KnowledgeProblem(path, 0, f"cannot be read: {error.strerror}")
    return file if isinstance(file, KnowledgeProblem) else convert(file, file.data, type_)


def _load_directory(knowledge: Knowledge, root: Path, *, checked: bool = True) -> None:
    """Read the files of one directory. checked=False leaves out what needs their expressions: half of the time."""
    for path in sorted((root / "signals").glob("*.yaml")):
        _load_subject(knowledge, path, checked=checked)
    levers = _load_all(
        knowledge, root / "levers", Lever, knowledge.levers, lambda lever: lever.name, lambda lever: lever.name, checked
    )
    if checked:
        _check_levers(knowledge, levers)
    rules = _load_all(
        knowledge, root / "codes", Rule, knowledge.rules, lambda rule: rule.code, lambda rule: rule.slug, checked
    )
    if checked:
        _check_rules(knowledge, rules)


def _check_rules(knowledge: Knowledge, files: Sequence[YamlFile]) -> None:
    broken = [
        (file.value.code, KnowledgeProblem(file.path, line, message))
        for file in files
        for line, message in check_rule(file.value, knowledge, file)
    ]
    for code, problem in broken:  # after all are checked: a broken rule does not break those that name it
        knowledge.problems.append(problem)
        knowledge.rules.pop(code, None)


def _override(knowledge: Knowledge, root: Path) -> None:
    """Take over the parameters of `params/CODE.yaml`; a file with something wrong is left out as a whole."""
    for path in sorted((root / "params").glob("*.yaml")):
        file = read_yaml(path)
        if isinstance(file, KnowledgeProblem):
            knowledge.problems.append(file)
            continue
        found = convert(file, file.data, Overrides)
        problems = [found] if isinstance(found, KnowledgeProblem) else list(_check_overrides(found, knowledge, file))
        knowledge.problems += problems
        if not problems and isinstance(found, Overrides):
            rule = knowledge.rules[found.code]
            knowledge.rules[found.code] = msgspec.structs.replace(rule, params={**rule.params, **found.params})


def _check_overrides(found: Overrides, knowledge: Knowledge, file: YamlFile) -> Iterator[KnowledgeProblem]:
    rule = knowledge.rules.get(found.code)
    if file.path.stem != found.code:
        yield KnowledgeProblem(
            file.path, 1, f"the file is named {file.path.name}, but its content needs the name {found.code}.yaml"
        )
    if rule is None:
        yield KnowledgeProblem(file.path, file.line("code"), f"no rule {found.code} exists for these parameters")
        return
    for name in found.params:
        if name not in rule.params:
            has = ", ".join(rule.params) or "none"
            yield KnowledgeProblem(
                file.path, file.line("params", name), f"{found.code} has no parameter `{name}` (it has: {has})"
            )


def _check_levers(knowledge: Knowledge, files: Sequence[YamlFile]) -> None:
    broken = [(f, problem) for f in files for problem in check_lever(f.value, knowledge, f)]
    for file, (line, message) in broken:
        knowledge.problems.append(KnowledgeProblem(file.path, line, message))
        knowledge.levers.pop(file.value.name, None)


@dataclass
class YamlFile:
    """A parsed YAML file that still knows its lines."""

    path: Path
    data: Any
    node: yaml.Node
    value: Any = None

    def line(self, *keys: str | int) -> int:
        """The line of a nested key, or of the deepest part of it that exists."""
        node: yaml.Node = self.node
        for key in keys:
            child = _child(node, key)
            if child is None:
                break
            node = child
        return int(node.start_mark.line) + 1

    def line_of(self, path: str) -> int:
        """The line of a msgspec error path: `$.params[...].default`."""
        keys = [int(i) if i else k for k, i in re.findall(r"\.([A-Za-z_]\w*)|\[(\d+)\]", path)]
        return self.line(*keys)


def _child(node: yaml.Node, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((v for k, v in node.value if k.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        child: yaml.Node = node.value[key]
        return child
    return None


def read_yaml(path: Path, *, bounded: bool = True) -> YamlFile | KnowledgeProblem:
    """Read a file into mappings and lists that still know their lines, or what is wrong with it.

    bounded=False is for files that ship, which have no aliases and little nesting.
    """
    try:
        content = read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        return KnowledgeProblem(path, 0, f"cannot be read: {error.strerror}")
    try:
        text = content.decode()
        if bounded and (problem := _beyond_bounds(path, text)):
            return problem
        yaml_loader = _Loader(text)
        node = yaml_loader.get_single_node()
        if bounded:
            data = None if node is None else yaml_loader.construct_document(node)
        else:
            data = value_of(yaml_loader, node)
    except UnicodeDecodeError:
        return KnowledgeProblem(path, 0, "not UTF-8 text")
    except yaml.MarkedYAMLError as error:
        return KnowledgeProblem(path, _line(error.problem_mark), f"not valid YAML: {error.problem}")
    except yaml.YAMLError as error:
        return KnowledgeProblem(path, 0, f"not valid YAML: {error}")
    if not isinstance(data, dict) or node is None:
        return KnowledgeProblem(path, 1, "expected a mapping of keys to values")
    file = YamlFile(path, data, node)
    for place, out_of_bounds in unbounded_numbers(data):
        return KnowledgeProblem(path, file.line_of(f"$.{place}"), f"{place}: {out_of_bounds}")
    return file


def _beyond_bounds(path: Path, text: str) -> KnowledgeProblem | None:
    """The first alias, or nesting beyond MAX_DEPTH, before anything is built. Raises yaml.YAMLError."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return KnowledgeProblem(path, _line(event.start_mark), "YAML aliases (*name) are not allowed")
        if depth > MAX_DEPTH:
            return KnowledgeProblem(path, _line(event.start_mark), f"nested deeper than {MAX_DEPTH} levels")
    return None


def _line(mark: Any) -> int:
    return 0 if mark is None else int(mark.line) + 1


def convert(file: YamlFile, data: Any, type_: type[T], *keys: str) -> T | KnowledgeProblem:
    try:
        return msgspec.convert(data, type_, strict=True)
    except msgspec.ValidationError as error:
        message = str(error)
        text, _, where = message.partition(" - at `")
        line = file.line(*keys) if not where else YamlFile(file.path, data, _node(file, keys)).line_of(where)
        return KnowledgeProblem(file.path, line, f"{text}{_allowed(type_, text)}")


def _node(file: YamlFile, keys: Sequence[str]) -> yaml.Node:
    node = file.node
    for key in keys:
        node = _child(node, key) or node
    return node


def _allowed(type_: type, message: str) -> str:
    if "unknown field" in message or "missing required" in message:
        fields = ", ".join(f.encode_name for f in msgspec.structs.fields(type_))
        return f" (allowed: {fields})"
    return ""


def _load_all(
    knowledge: Knowledge,
    directory: Path,
    type_: type[T],
    into: dict[str, T],
    key: Callable[[T], str],
    stem: Callable[[T], str],
    checked: bool,
) -> list[YamlFile]:
    """Read the files of a directory that hold one rule or lever each; returns those that were not left out."""
    paths = sorted(directory.glob("*.yaml"))
    read = (_load_one(knowledge, path, type_, into, key, stem, checked) for path in paths)
    return [file for file in read if file is not None]


def _load_one(
    knowledge: Knowledge,
    path: Path,
    type_: type[T],
    into: dict[str, T],
    key: Callable[[T], str],
    stem: Callable[[T], str],
    checked: bool,
) -> YamlFile | None:
    """Read one file that holds one rule or lever; returns it unless it had to be left out."""
    file = read_yaml(path, bounded=checked)
    if isinstance(file, KnowledgeProblem):
        knowledge.problems.append(file)
        return None
    value = convert(file, file.data, type_)
    if isinstance(value, KnowledgeProblem):
        knowledge.problems.append(value)
        return None
    problem = ""
    if path.stem != stem(value):
        problem = f"the file is named {path.name}, but its content needs the name {stem(value)}.yaml"
    elif key(value) in into:
        problem = f"{key(value)} is already defined in {knowledge.files[key(value)]}; codes are never reused"
    if problem:
        knowledge.problems.append(KnowledgeProblem(path, 1, problem))
        return None
    into[key(value)] = value
    knowledge.files[key(value)] = path
    file.value = value
    return file


def _load_subject(knowledge: Knowledge, path: Path, *, checked: bool) -> None:
    """Read one subject: its `families` and `signals`, and where they come from."""
    file = read_yaml(path, bounded=checked)
    if isinstance(file, KnowledgeProblem):
        knowledge.problems.append(file)
        return
    for key in file.data.keys() - {"families", "signals", "origin"}:
        problem = KnowledgeProblem(path, file.line(key), f"unknown key `{key}` (allowed: families, signals, origin)")
        knowledge.problems.append(problem)
    origin = file.data.get("origin", PAGE)
    if not isinstance(origin, str) or origin not in origins():
        allowed = ", ".join(sorted(origins()))
        knowledge.problems.append(
            KnowledgeProblem(path, file.line("origin"), f"unknown origin `{origin}` (allowed: {allowed})")
        )
        return
    _collect(knowledge, file, "families", Family, knowledge.families, _check_family, origin)
    check = check_signal if checked else _unchecked
    _collect(knowledge, file, "signals", Signal, knowledge.signals, check, origin)


def _collect(
    knowledge: Knowledge,
    file: YamlFile,
    section: str,
    type_: type[K],
    into: dict[str, K],
    check: Callable[[str, K], str | None],
    origin: str,
) -> None:
    named = file.data.get(section) or {}
    if not isinstance(named, dict):
        knowledge.problems.append(
            KnowledgeProblem(file.path, file.line(section), f"`{section}` must be a mapping by name")
        )
        return
    for name, data in named.items():
        value = convert(file, data, type_, section, name)
        if not isinstance(value, KnowledgeProblem):
            value = value if value.origin else msgspec.structs.replace(value, origin=origin)
            message = f"`{name}` is defined twice" if name in into else check(name, value)
            if message is None:
                into[name] = value
                continue
            value = KnowledgeProblem(file.path, file.line(section, name), message)
        knowledge.problems.append(value)


def _check_family(name: str, family: Family) -> str | None:
    known = origins()
    return None if family.origin in known else f"`{name}`: unknown origin `{family.origin}`"


def _unchecked(_name: str, _signal: Signal) -> None:
    """The check of a signal that ships."""


def check_signal(name: str, signal: Signal) -> str | None:
    """What is wrong with a signal's origin or its expressions, or None."""
    if signal.origin and signal.origin not in origins():
        return f"signal `{name}`: unknown origin `{signal.origin}`"
    try:
        compile_signal(signal, STAND_INS, expression)  # as whoever evaluates it does, so that it is parsed once
    except PromQLError:
        try:
            compile_signal(signal)  # for a message with durations that a reader knows
        except PromQLError as error:
            return f"signal `{name}`: {error}"
    return None


def check_lever(lever: Lever, knowledge: Knowledge, file: YamlFile) -> Iterator[tuple[int, str]]:
    """Everything wrong with a lever beyond its types, as (line, message)."""
    values = {"scope": ", ".join(SCOPES["engine"])}
    for key, text in [("in_force", lever.in_force), ("possible", lever.possible), ("proven_when", lever.proven_when)]:
        if text:
            yield from _check_expr(values, knowledge, text, file.line(key))
    if bool(lever.proven_when) != bool(lever.unproven_title):
        yield file.line("proven_when"), "proven_when and unproven_title need each other"
    for label, text in lever.who.items():
        yield from _check_expr(values, knowledge, text, file.line("who", label))
    for i, setting in enumerate(lever.settings):
        for key, text in [("when", setting.when), ("now", setting.now), ("to", setting.to)]:
            if text:
                yield from _check_expr(values, knowledge, text, file.line("settings", i, key))
        try:
            in_range("0", setting.versions)
        except ValueError as error:
            yield file.line("settings", i, "versions"), str(error)
    for i, one in enumerate(lever.predicts):
        signal = knowledge.signals.get(one.signal)
        if signal is None:
            yield file.line("predicts", i, "signal"), f"no signal `{one.signal}` in signals/"
            continue
        known = {"scope": ", ".join(SCOPES[signal.scope]), "now": "1", "to": "2"}
        for key, query in [("to", one.to), ("before", one.before), ("error", one.error)]:
            if query:
                yield from _check_expr(known, knowledge, query, file.line("predicts", i, key))
    for name in lever.contradicts:
        if name not in knowledge.levers:
            yield file.line("contradicts"), f"contradicts: no lever `{name}` in levers/"


def check_rule(rule: Rule, knowledge: Knowledge, file: YamlFile) -> Iterator[tuple[int, str]]:
    """Everything wrong with a rule beyond its types, as (line, message)."""
    for key, text in [("when", rule.when), ("clear", rule.clear)]:
        if text:
            yield from _check_expr(parameters(rule), knowledge, text, file.line(key), condition=True)
    for i, query in enumerate(rule.evidence):
        yield from _check_expr(parameters(rule), knowledge, query.query, file.line("evidence", i, "query"))
    for label, text in rule.who.items():
        yield from _check_expr(parameters(rule), knowledge, text, file.line("who", label))
    for i, use in enumerate(rule.levers):
        if use.lever not in knowledge.levers:
            yield file.line("levers", i), f"no lever `{use.lever}` in levers/"
        if use.when:
            yield from _check_expr(parameters(rule), knowledge, use.when, file.line("levers", i, "when"))
        yield from _check_placeholders(rule, knowledge, use.why, file.line("levers", i, "why"), use.lever)
    yield from _check_placeholders(rule, knowledge, rule.conclusion, file.line("conclusion"))
    if len({bool(rule.proven_when), bool(rule.unproven_title), bool(rule.unproven_why)}) > 1:
        yield file.line("proven_when"), "proven_when, unproven_title and unproven_why need each other"
    if rule.unproven_for != "0s" and not rule.proven_when:
        yield file.line("unproven_for"), "unproven_for needs proven_when"
    for key in ("explains_when", "explains_latency_unless", "explains_causes_when", "proven_when"):
        if text := getattr(rule, key):
            yield from _check_expr(parameters(rule), knowledge, text, file.line(key))
    for key, codes in [
        ("explains", rule.explains),
        ("excluded_by", rule.excluded_by),
        ("harm", rule.harm),
        ("follows", rule.follows),
    ]:
        for code in codes:
            if code not in knowledge.rules:
                yield file.line(key), f"{key}: no rule {code} in codes/"
    for name in rule.uses:
        if name not in knowledge.signals:
            yield file.line("uses"), f"no signal `{name}` in signals/"
    if rule.certainty != "high" and not rule.certainty_why:
        yield file.line("certainty"), "certainty below high needs `certainty_why`"


def _check_expr(
    values: Mapping[str, str], knowledge: Knowledge, text: str, line: int, *, condition: bool = False
) -> Iterator[tuple[int, str]]:
    values = {**values, "window": "1m", "resolution": "5s"}
    try:
        expr = parse(expand(text, values))
        if condition:
            parse_condition(expand(text, values))
    except PromQLError as error:
        yield line, str(error)
        return
    for name in sorted(names(expr)):
        if name.startswith(SIGNAL_PREFIX):
            if name.removeprefix(SIGNAL_PREFIX) not in knowledge.signals:
                yield line, f"no signal `{name.removeprefix(SIGNAL_PREFIX)}` in signals/"
        elif family_of(name, knowledge.families) is None:
            yield line, f"`{name}` is neither a signal ({SIGNAL_PREFIX}...) nor a family in signals/"


def _check_placeholders(
    rule: Rule, knowledge: Knowledge, text: str, line: int, lever: str = ""
) -> Iterator[tuple[int, str]]:
    """lever: the one that the text is about."""
    who = {*rule.who, *(knowledge.levers[lever].who if lever in knowledge.levers else ())}
    for name in PLACEHOLDER.findall(text):
        known = name[1:] in rule.params if name.startswith("$") else name in knowledge.signals or name in who
        if not known:
            yield line, f"`{{{name}}}` in the text is neither a signal nor a parameter of this rule"
