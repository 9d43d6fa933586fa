"""Read `kvitals.toml`, the environment and targets files. What is wrong is told as a whole, not one by one."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from kvitals.config.checks import MAX_WORD, MOST_LISTED, ConfigError, Seconds, first_of, nearest, normal_url, place_list
from kvitals.config.judging import MuteTable, ObjectiveTable, SloTable, SomeSlo
from kvitals.config.listening import KvEventsTable, Otlp, RequestLog, TapTable, TenantsTable
from kvitals.config.notify import NotifyTable
from kvitals.config.servers import OtlpOutTable, PrometheusTable, Remote
from kvitals.config.targets import ROLES, TARGET_LABELS, Kubernetes, TargetTable
from kvitals.config.toml_tables import AgentTable, Config, HistoryTable, NodeLabels, ReviewTable
from kvitals.series.bounds import unbounded_numbers
from kvitals.series.files import read_regular
from kvitals.series.parse_errors import describe_parse_error

MAX_FILE_BYTES = 1 << 20
MAX_KEY_PARTS = 64
"""Keys here have three. `tomllib` takes time with the square of the parts: 100,000 take more than 30 s."""
_KEY_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_.-]){_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART}){{{MAX_KEY_PARTS}}}")
FROM_ENVIRONMENT = {
    "KVITALS_LISTEN": ("agent", "listen"),
    "KVITALS_INTERVAL": ("agent", "interval"),
    "KVITALS_WINDOW": ("agent", "window"),
    "KVITALS_CLUSTER": ("labels", "cluster"),
    "KVITALS_NODE": ("labels", "node"),
}
"""Variables and the keys that they come before."""

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|)")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
TABLES: dict[str, type[Struct]] = {
    "agent": AgentTable,
    "remote": Remote,
    "labels": NodeLabels,
    "slo": SloTable,
    "kubernetes": Kubernetes,
    "tenants": TenantsTable,
    "otlp": Otlp,
    "otlp_out": OtlpOutTable,
    "kv_events": KvEventsTable,
    "history": HistoryTable,
    "tap": TapTable,
    "prometheus": PrometheusTable,
    "review": ReviewTable,
    "notify": NotifyTable,
}
"""Tables that there may be one of, by their names in the file and in a Config."""

MAX_OBJECTIVES = 200
MAX_TARGETS = 1000
MAX_REQUEST_LOGS = 16
LISTS: dict[str, tuple[str, type[Struct], int | None]] = {
    "objective": ("objectives", ObjectiveTable, MAX_OBJECTIVES),
    "target": ("targets", TargetTable, MAX_TARGETS),
    "request_log": ("request_logs", RequestLog, MAX_REQUEST_LOGS),
    "mute": ("mutes", MuteTable, None),
}
"""Tables that there may be several of: the name in the file -> the name in a Config, what each is, how many."""

T = TypeVar("T", bound=Struct)


def load(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Config:
    """The configuration from the first file there is, with what the environment overrides.

    Raises ConfigError with every problem that was found.
    """
    file = path or find(env)
    data = _parse(file) if file else {}
    config = build(_on_its_node(_overlaid(data, env), env), file)
    return msgspec.structs.replace(config, targets=(*config.targets, *_targets_of(config, env)))


def build(data: Mapping[str, Any], file: Path | None = None) -> Config:
    """A configuration from parsed TOML. Raises ConfigError."""
    return _Reader(file).config(data)


def find(env: Mapping[str, str] = os.environ) -> Path | None:
    """The configuration file; the one that $KVITALS_CONFIG names is taken without looking."""
    if env.get("KVITALS_CONFIG"):
        return Path(env["KVITALS_CONFIG"])
    xdg = env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/"), ".config")
    places = (Path("kvitals.toml"), Path(xdg, "kvitals", "kvitals.toml"), Path("/etc/kvitals/kvitals.toml"))
    return next((place for place in places if place.is_file()), None)


def read_targets(path: Path) -> tuple[TargetTable, ...]:
    """The targets of a targets file: a URL a line (# begins a comment), or Prometheus' file_sd as JSON.

    Of file_sd's labels those that targets here may have are taken over, a `role` only where it is one of ours, and
    __scheme__ and __metrics_path__. Raises ConfigError.
    """
    text = _read(path)
    try:
        if text.lstrip().startswith(("[", "{")):
            return tuple(_from_groups(json.loads(text)))
        return tuple(_from_lines(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {describe_parse_error(text, error)}") from error


def check_codes(config: Config, known: Mapping[str, Mapping[str, bool]]) -> list[str]:
    """What in [params] and [[mute]] names nothing that there is, or cannot be meant. known: rule code -> parameter ->
    whether a share is compared with it."""
    return [f"{config.file or 'configuration'}: {problem}" for problem in first_of([*_unknown_codes(config, known)])]


def _unknown_codes(config: Config, known: Mapping[str, Mapping[str, bool]]) -> Iterator[str]:
    for mute in config.mutes:
        if mute.rule not in known:
            yield f"[[mute]] rule {mute.rule[:MAX_WORD]!r} does not exist{nearest(mute.rule, known)}"
    for code, values in config.params.items():
        if code not in known:
            yield f"[params.{code}]: this rule does not exist{nearest(code, known)}"
            continue
        for name, value in values.items():
            if name not in known[code]:
                yield f"[params.{code}] has no parameter {name!r}{nearest(name, known[code])}"
            elif known[code][name] and not 0 <= value <= 1:
                yield f"[params.{code}] {name} = {value:g}: a share is from 0 to 1; 95 % is written as 0.95"


class _Reader:
    """Builds a Config and gathers what is wrong on the way."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._folder = file.parent if file else Path()
        self._problems: list[str] = []

    def config(self, data: Mapping[str, Any]) -> Config:
        self._unknown("", data, (*TABLES, *LISTS, "params"))
        made: dict[str, Any] = {
            name: self._table(f"[{name}]", _listed(data[name]), kind) for name, kind in TABLES.items() if name in data
        }
        for name, (plural, kind, most) in LISTS.items():
            made[plural] = self._list(name, data.get(name, []), kind, most)
        made["params"] = self._params(data.get("params", {}))
        if self._problems:
            raise self._error()
        return Config(**made, file=self._file)

    def _error(self) -> ConfigError:
        return ConfigError("\n".join(f"{self._file or 'configuration'}: {p}" for p in first_of(self._problems)))

    def _check_same(self, name: str, made: Sequence[Struct | None]) -> None:
        """Note which entries of a list have one identity, by their places: nothing tells their numbers apart."""
        places: dict[tuple[object, ...], list[int]] = {}
        for number, item in enumerate(made, 1):
            if isinstance(item, RequestLog):
                places.setdefault((item.name,), []).append(number)
            elif isinstance(item, TargetTable) and item.name:
                places.setdefault((item.name, frozenset(item.labels.items())), []).append(number)
        also = " and the same labels" if name == "target" else ""
        for (shown, *_), numbers in places.items():
            if len(numbers) > 1:
                self._problems.append(
                    f"[[{name}]] {place_list(numbers)} have the same name {shown!r}{also}: give each its own name"
                )

    def _list(self, name: str, value: Any, kind: type[T], most: int | None) -> tuple[T, ...]:
        if not isinstance(value, list):
            self._problems.append(f"[[{name}]] is a list: write it with two brackets")
            return ()
        if most is not None and len(value) > most:
            self._problems.append(f"[[{name}]] {most} entries are allowed, these are {len(value)}")
            return ()
        made = [self._table(f"[[{name}]] {n}", item, kind) for n, item in enumerate(value, 1)]
        self._check_same(name, made)
        return tuple(item for item in made if item is not None)

    def _table(self, where: str, value: Any, kind: type[T]) -> T | None:
        if not isinstance(value, dict):
            self._problems.append(f"{where} must be a table")
            return None
        whole = self._unknown(where, value, _fields(kind))
        kept = {key: _at_midnight(inner) for key, inner in value.items() if key in _fields(kind)}
        if isinstance(kept.get("slo"), dict) and self._table(f"{where}.slo", kept["slo"], SomeSlo) is None:
            del kept["slo"]
            whole = False
        faulty = [name for name, inner in _inner_tables(kind).items() if not self._inner(where, name, kept, inner)]
        faulty += [key for key in kept if key not in faulty and self._unbounded(f"{where}.{key}", kept[key])]
        rest = {key: inner for key, inner in kept.items() if key not in faulty}
        return self._converted(where, rest, kind, whole and not faulty)

    def _inner(self, where: str, name: str, value: Mapping[str, Any], kind: type[Struct]) -> bool:
        """Note a list of tables in a table that is none, and keys in it that are not allowed; whether all is right."""
        several, title = value.get(name, []), f"[[{where.strip('[]')}.{name}]]"
        if not isinstance(several, list):
            self._problems.append(f"{title} is a list: write it with two brackets")
            return False
        tables = [(n, one) for n, one in enumerate(several, 1) if isinstance(one, dict)]
        right = [self._unknown(f"{title} {n}", one, _fields(kind)) for n, one in tables]
        return all(right)

    def _unbounded(self, where: str, value: Any) -> bool:
        """Note the numbers that no key can have; whether there are any."""
        found = [f"{place}: {problem}" for place, problem in unbounded_numbers(value, where)]
        self._problems += found
        return bool(found)

    def _converted(self, where: str, value: dict[str, Any], kind: type[T], whole: bool) -> T | None:
        """A table's keys as its type; None where one has a problem, or not the `whole` table is here. Each problem is
        noted: the table is read again without the key that has it."""
        while True:
            try:
                made = msgspec.convert(value, kind, dec_hook=self._hook)
                return made if whole else None
            except msgspec.ValidationError as error:
                message, _, path = str(error).partition(" - at `$")
                key = _first_key(path) or _named_key(message)
                if key in value or whole:  # what a table without its faulty keys lacks is no problem of the file
                    self._problems.append(f"{where}{_dotted(path)}: {_plain(message)}")
                whole = False
                if key not in value:
                    return None
                del value[key]

    def _unknown(self, where: str, value: Mapping[str, Any], allowed: Collection[str]) -> bool:
        """Note the keys that are not allowed; whether there are none."""
        unknown = [key for key in value if key not in allowed]
        for key in unknown:
            if len(self._problems) < MOST_LISTED:  # a hint takes time
                hint = nearest(key, allowed) or f"; there are {', '.join(allowed)}"
                self._problems.append(f"{where} unknown key {key[:MAX_WORD]!r}{hint}".lstrip())
            else:
                self._problems.append("unknown key")
        return not unknown

    def _hook(self, kind: type, value: Any) -> Any:
        if kind is Seconds:
            return _seconds(value)
        if isinstance(value, str) and value:
            return self._folder / Path(value).expanduser()
        raise ValueError("must be the path of a file")

    def _params(self, value: Any) -> dict[str, dict[str, float]]:
        if self._unbounded("[params]", value):
            return {}
        try:
            return msgspec.convert(value, dict[str, dict[str, float]])
        except msgspec.ValidationError:
            self._problems.append("[params] must hold tables of numbers, such as [params.KVC05]")
            return {}


def _read(file: Path) -> str:
    try:
        return read_regular(file, MAX_FILE_BYTES).decode("utf-8-sig")  # editors on Windows write a mark first
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _parse(file: Path) -> dict[str, Any]:
    text = _read(file)
    if long := _LONG_KEY.search(text):
        line = text.count("\n", 0, long.start()) + 1
        raise ConfigError(
            f"{file}: line {line}: a key may have at most {MAX_KEY_PARTS} parts with dots between; shorten it"
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {describe_parse_error(text, error)}") from error


def _overlaid(data: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """`data` with what the environment says. Raises ConfigError that names the variable."""
    merged = dict(data)
    for variable, (table, key) in FROM_ENVIRONMENT.items():
        if not env.get(variable) or not isinstance(merged.get(table, {}), dict):
            continue
        try:
            build({table: {key: env[variable]}})
        except ConfigError as error:
            raise ConfigError(f"{variable}: {str(error).partition(']')[2].lstrip('.: ')}") from None
        merged[table] = {**merged.get(table, {}), key: env[variable]}
    return merged


def _on_its_node(data: dict[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """`data` with the name of the node in [kubernetes], and with it as the label `node` where that is not said: in a
    pod the host's name is the pod's. Raises ConfigError where the name is nowhere."""
    table, labels = data.get("kubernetes"), data.get("labels", {})
    if not isinstance(table, dict) or not isinstance(labels, dict):
        return data
    node = table.get("node") or env.get("KVITALS_NODE") or env.get("NODE_NAME")
    if not node:
        raise ConfigError(
            "[kubernetes] the name of the node is unknown: set the variable NODE_NAME from spec.nodeName in the "
            "pod's template (valueFrom, fieldRef), or write node = ..."
        )
    return data | {"kubernetes": {**table, "node": node}, "labels": {"node": node, **labels}}


def _targets_of(config: Config, env: Mapping[str, str]) -> list[TargetTable]:
    """The targets that the environment adds."""
    known = {target.url for target in config.targets}
    try:
        urls = [normal_url(text) for text in re.split(r"[\s,]+", env.get("KVITALS_TARGETS", "")) if text]
    except ValueError as error:
        raise ConfigError(f"KVITALS_TARGETS: {error}") from error
    return [TargetTable(url=url) for url in dict.fromkeys(urls) if url not in known]


def _from_lines(text: str) -> Iterator[TargetTable]:
    """A URL a line. Raises ValueError."""
    for number, line in enumerate(text.splitlines(), 1):
        url = line.partition("#")[0].strip()
        if not url:
            continue
        try:
            yield TargetTable(url=url)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def _from_groups(groups: Any) -> Iterator[TargetTable]:
    """Prometheus' file_sd: [{"targets": ["host:port"], "labels": {...}}]. Raises ValueError."""
    if not isinstance(groups, list):
        raise ValueError('must be a list, [{"targets": ["host:port", ...]}]')
    for group in groups:
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise ValueError('each entry must be {"targets": ["host:port", ...], "labels": {...}}')
        labels = group.get("labels") or {}
        if not isinstance(labels, dict):
            raise ValueError("labels must be an object")
        kept = {name: str(value) for name, value in labels.items() if name in TARGET_LABELS}
        if kept.get("role") not in ROLES:  # such a file is often shared with others, who mean something else by it
            kept.pop("role", None)
        path = str(labels.get("__metrics_path__", ""))
        for address in group["targets"]:
            if "://" in str(address):
                raise ValueError(f"{address!r} must be HOST:PORT; set its scheme with the label __scheme__")
            url = normal_url(f"{labels.get('__scheme__', 'http')}://{address}")
            yield TargetTable(url=url + path, labels=kept)


def _inner_tables(kind: type[Struct]) -> dict[str, type[Struct]]:
    """The lists of tables in a table, by key: what each is."""
    found = {}
    for one in msgspec.structs.fields(kind):
        inner = next(iter(get_args(one.type)), None) if get_origin(one.type) is tuple else None
        if isinstance(inner, type) and issubclass(inner, Struct):
            found[one.name] = inner
    return found


def _listed(table: Any) -> Any:
    """A table in which one text counts as a list of one, where a list of files may be named."""
    if isinstance(table, dict) and isinstance(table.get("targets_file"), str):
        return {**table, "targets_file": [table["targets_file"]]}
    return table


def _seconds(value: Any) -> Seconds:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Seconds(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a duration, such as 5, "5s" or "30m"')
    return Seconds(float(match[1]) * _UNITS[match[2]])


def _fields(kind: type[Struct]) -> list[str]:
    return [item.encode_name for item in msgspec.structs.fields(kind)]


def _at_midnight(value: Any) -> Any:
    """A TOML date is its midnight in UTC."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def _first_key(path: str) -> str:
    """`a` of `.a[...].b`; empty where the problem is one of the whole table."""
    return re.split(r"[.\[]", path.removeprefix(".").rstrip("`"))[0]


def _named_key(message: str) -> str:
    """The key that the message of a table's own check begins with, where it begins with one."""
    return re.split(r"\W", message, maxsplit=1)[0]


def _dotted(path: str) -> str:
    """A path as msgspec writes it, without its marks for places in lists and tables."""
    return path.rstrip("`").replace("[...]", "")


_WORDS = {
    "float": "a number", "int": "a whole number", "str": "text", "bool": "true or false", "null": "nothing",
    "array": "a list", "object": "a table", "datetime": "a time", "Seconds": "a duration", "Path": "a path",
}  # fmt: skip


def _plain(message: str) -> str:
    """msgspec's message in TOML's words."""
    message = re.sub(r"Object missing required field `(\w+)`", r"the key '\1' is missing", message)
    words = re.sub(r"`(\w+)( \| null)?`", lambda match: _WORDS.get(match[1], match[1]), message)
    return words[:1].lower() + words[1:]
