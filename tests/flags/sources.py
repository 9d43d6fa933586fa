"""The flags that an engine's server accepts, read from the Python sources of one release.

Nothing of the release is imported or run: the calls of `add_argument` and the fields of the configuration classes are
read from the syntax tree. A default that the source calculates is empty, and so are choices that it calculates.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

from kvitals.rules.engine_flags import FlagState

UNKNOWN = object()
"""The value of an expression that cannot be read without running it."""

MAX_CHOICES = 300
"""Characters of a list of choices; a longer list is left out, since it only names plugins."""

_ANNOTATED = ("A", "Annotated")
_SWITCH_ACTIONS = ("store_true", "store_false")
_RETIRED = re.compile(r"deprecat", re.I)


@dataclass
class Sources:
    """The classes, functions and constants of some files. Names are unique enough: the first file counts."""

    root: Path
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    trees: dict[Path, ast.Module] = field(default_factory=dict)

    def add(self, *patterns: str) -> None:
        for pattern in patterns:
            for path in sorted(self.root.glob(pattern)):
                if path not in self.trees:
                    self._take(path, ast.parse(path.read_text(encoding="utf-8")))

    def _take(self, path: Path, tree: ast.Module) -> None:
        self.trees[path] = tree
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            elif isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.constants.setdefault(node.target.id, node.value)

    def fields(self, name: str) -> dict[str, ast.AnnAssign]:
        """The annotated fields of a class and of its bases, those of bases first."""
        node = self.classes.get(name)
        if node is None:
            return {}
        own: dict[str, ast.AnnAssign] = {}
        for base in node.bases:
            own |= self.fields(ast.unparse(base).split(".")[-1])
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                own[item.target.id] = item
        return own

    def value(self, node: ast.expr | None) -> object:
        """The value of an expression, UNKNOWN where it is calculated."""
        if node is None:
            return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            pass
        if isinstance(node, ast.Name) and node.id in self.constants:
            return self.value(self.constants[node.id])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self.default(node.value.id, node.attr)
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.BinOp):
            return self._calculated(node)
        return UNKNOWN

    def default(self, owner: str, name: str) -> object:
        found = self.fields(owner).get(name)
        return UNKNOWN if found is None else self.value(found.value)

    def _called(self, node: ast.Call) -> object:
        """`field(default=...)`, `Field(...)`, `SkipValidation(...)`, `list(CONSTANT)` and the like."""
        name = ast.unparse(node.func).split(".")[-1]
        keywords = {k.arg: k.value for k in node.keywords}
        if name in ("field", "Field"):
            factory = ast.unparse(keywords["default_factory"]) if "default_factory" in keywords else ""
            if factory in ("list", "dict", "set"):
                return {"list": [], "dict": {}, "set": set()}[factory]
            return self.value(keywords.get("default", node.args[0] if node.args else None))
        if name == "_declared_default" and node.args:
            return self.default_of_any(str(self.value(node.args[0])))
        if name in ("get_field", "SkipValidation", "list", "tuple", "sorted", "str", "int", "float"):
            return self.value(node.args[-1]) if node.args else []
        return UNKNOWN

    def _calculated(self, node: ast.BinOp) -> object:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, int) and isinstance(right, int) and isinstance(node.op, ast.Mult | ast.LShift):
            return left * right if isinstance(node.op, ast.Mult) else left << min(right, 64)
        if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
            return left + right
        return UNKNOWN

    def default_of_any(self, name: str) -> object:
        values = (self.default(owner, name) for owner in self.classes)
        return next((value for value in values if value is not UNKNOWN), UNKNOWN)

    def literals(self, annotation: ast.expr | None) -> list[object]:
        """The values of a `Literal[...]` within an annotation, through aliases of it."""
        found: list[object] = []
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Name) and node.id in self.constants:
                alias = self.constants[node.id]
                found += self.literals(alias) if isinstance(alias, ast.Subscript | ast.BinOp) else []
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] == "Literal":
                items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                found += [value for item in items if (value := self.value(item)) is not UNKNOWN]
        return found


def text(value: object) -> str:
    """A default as it is written in the table; empty where it is not known."""
    if value is UNKNOWN or value is Ellipsis:
        return ""
    if value == "":
        return "empty"
    if isinstance(value, dict):
        return "" if value else "{}"
    if isinstance(value, list | tuple | set):
        return ",".join(str(v) for v in value) if value else "[]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    return str(value) if isinstance(value, str | int | float) else ""


def choices(values: Sequence[object]) -> tuple[str, ...]:
    """Choices as they are written in the table; none where the list is too long to be of use."""
    words = tuple(dict.fromkeys(str(v) for v in values if v is not None))
    return words if len(" ".join(words)) <= MAX_CHOICES and not any(" " in w for w in words) else ()


def added(sources: Sources, node: ast.AST, kwargs: dict[str, str] | None = None) -> Iterator[FlagState]:
    """The flags of the `add_argument` calls below a node. `kwargs`: variable -> class whose fields are its keys."""
    for call in ast.walk(node):
        if _adds_argument(call):
            names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            flags = [name for name in names if name.startswith("-")]
            if flags:
                yield _of_call(sources, call, flags, kwargs or {})
        elif isinstance(call, ast.For) and isinstance(call.iter, ast.List):
            yield from _of_loop(sources, call, call.iter)


def _of_loop(sources: Sources, loop: ast.For, listed: ast.List) -> Iterator[FlagState]:
    """`for flag, type in [("--a", str), ...]: parser.add_argument(flag, ...)`."""
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    names = [sources.value(item.elts[0] if isinstance(item, ast.Tuple) else item) for item in listed.elts]
    for call in ast.walk(loop):
        if _adds_argument(call) and call.args and ast.unparse(call.args[0]) == ast.unparse(first):
            for name in names:
                if isinstance(name, str) and name.startswith("--"):
                    yield _of_call(sources, call, [name], {})


def _adds_argument(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"


def _of_call(sources: Sources, call: ast.Call, flags: list[str], kwargs: dict[str, str]) -> FlagState:
    keywords = {k.arg: k.value for k in call.keywords if k.arg}
    longs = [flag for flag in flags if flag.startswith("--")] or flags
    state = FlagState(longs[0].replace("_", "-"), aliases=tuple(f.replace("_", "-") for f in flags if f != longs[0]))
    unpacked = [k.value for k in call.keywords if k.arg is None]
    for node in unpacked:
        if isinstance(node, ast.Dict):  # **{**model_kwargs["x"], "default": None}
            unpacked += [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
            keywords |= {str(sources.value(k)): v for k, v in zip(node.keys, node.values, strict=True) if k is not None}
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            owner, key = kwargs.get(node.value.id, ""), sources.value(node.slice)
            if owner and isinstance(key, str):
                state = _with_field(sources, state, owner, key)
    action = ast.unparse(keywords["action"]).strip("'\"") if "action" in keywords else ""
    short = action.split(".")[-1]
    if short in _SWITCH_ACTIONS or (short.startswith("Deprecated") and "True" in short):
        state = replace(state, kind="switch")
    if short == "store_true" or (state.kind == "switch" and short.startswith("Deprecated")):
        state = replace(state, default="off")
    elif not unpacked and "default" not in keywords:
        state = replace(state, default="none")
    if short == "BooleanOptionalAction":
        state = replace(state, kind="negatable")
    if "default" in keywords and (known := text(sources.value(keywords["default"]))):
        state = replace(state, default=known)
    if "choices" in keywords and isinstance(listed := sources.value(keywords["choices"]), list | tuple):
        state = replace(state, choices=choices(listed))
    return replace(state, deprecated=state.deprecated or _deprecated(sources, keywords, short))


def _deprecated(sources: Sources, keywords: dict[str | None, ast.expr], action: str) -> str:
    """What replaces a flag, `yes` where nothing is named, `refused` where the engine does not start; else empty."""
    words = ast.unparse(keywords["help"]) if "help" in keywords else ""
    if not (action.startswith("Deprecated") or sources.value(keywords.get("deprecated")) is True):
        head = words.strip("\"'(fF[ ")[:40]
        if not _RETIRED.match(head):
            return ""
    if action == "DeprecatedAction" and "error_message" in keywords:
        return "refused"
    new = sources.value(keywords.get("new_flag"))
    named = re.search(r"(?:use|instead of|replaced by|in favor of)[ `:]*(--[a-z][\w-]*)", words, re.I)
    return new if isinstance(new, str) else named[1].replace("_", "-") if named else "yes"


def _with_field(sources: Sources, state: FlagState, owner: str, key: str) -> FlagState:
    """A flag made from a field of a configuration class."""
    found = sources.fields(owner).get(key)
    if found is None:
        return state
    boolean = _is_boolean(found.annotation)
    return replace(
        state,
        kind="negatable" if boolean else "value",
        default=text(sources.value(found.value)),
        choices=choices(sources.literals(found.annotation)),
    )


def _is_boolean(annotation: ast.expr) -> bool:
    words = set(re.findall(r"\w+", ast.unparse(annotation)))
    return "bool" in words and "str" not in words


def of_fields(sources: Sources, owner: str) -> Iterator[FlagState]:
    """A flag for each field of a class, as `add_cli_args` of such a class makes them."""
    for name in sources.fields(owner):
        yield _with_field(sources, FlagState("--" + name.replace("_", "-")), owner, name)


def of_annotations(sources: Sources, owner: str) -> Iterator[FlagState]:
    """A flag for each field that is annotated `A[type, help]` or `A[type, Arg(...)]`."""
    for name, item in sources.fields(owner).items():
        note = item.annotation
        if not (isinstance(note, ast.Subscript) and ast.unparse(note.value) in _ANNOTATED):
            continue
        parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
        meta = next((p for p in parts[1:] if isinstance(p, ast.Call) and ast.unparse(p.func).endswith("Arg")), None)
        if meta is None and not any(isinstance(p, ast.Constant | ast.JoinedStr | ast.BinOp) for p in parts[1:]):
            continue
        keywords: dict[str | None, ast.expr] = {} if meta is None else {k.arg: k.value for k in meta.keywords}
        if sources.value(keywords.get("no_cli")) is True:
            continue
        yield _annotated(sources, name, parts[0], item.value, keywords)


def _annotated(
    sources: Sources, name: str, type_: ast.expr, value: ast.expr | None, keywords: dict[str | None, ast.expr]
) -> FlagState:
    named, aliases = sources.value(keywords.get("cli_name")), sources.value(keywords.get("aliases"))
    action = ast.unparse(keywords["action"]) if "action" in keywords else ""
    boolean = _is_boolean(type_) and not action
    listed = sources.value(keywords.get("choices"))
    return FlagState(
        named if isinstance(named, str) else "--" + name.replace("_", "-"),
        aliases=tuple(aliases) if isinstance(aliases, list | tuple) else (),
        kind="negatable" if action.endswith("BooleanOptionalAction") else "switch" if boolean else "value",
        default=text(sources.value(value)),
        choices=choices(listed if isinstance(listed, list | tuple) else sources.literals(type_)),
        deprecated=_deprecated(sources, keywords, action.split(".")[-1]),
    )
