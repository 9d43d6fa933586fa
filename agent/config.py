"""The configuration of the agent: `kvitals.toml`, checked as a whole when it is read.

    [agent]
    listen = "127.0.0.1:9477"       # ":9477" for all interfaces
    interval = "5s"                 # between scrapes; a plain number is seconds
    window = "30m"                  # how much is kept in memory
    timeout = "3s"                  # of one scrape
    discover = true                 # look for engines among the processes of this node
    targets_file = "engines.txt"    # one URL a line, or the JSON of Prometheus' file_sd
    rules = ["rules.d"]             # directories with rules of your own
    hosts = ["kvitals.internal"]    # further names by which browsers may call the API

    [labels]
    cluster = "eu-1"
    node = "gpu-7"                  # the host's name by default

    [slo]
    ttft_p99_seconds = 2.0
    itl_p99_seconds = 0.2

    [[target]]
    url = "http://127.0.0.1:8000"
    name = "chat-a"                 # the `engine` label; host:port by default
    labels = {pool = "chat", role = "decode", hardware = "H200"}
    facts = {slots = 256}           # what the engine does not tell
    slo = {ttft_p99_seconds = 0.5}
    bearer_file = "/run/secrets/token"

    [[mute]]
    rule = "KVC05"
    entity = {engine = "chat-a"}    # every entity without it
    until = 2026-12-01T00:00:00Z
    reason = "known, ticket 4711"

    [params.KVC05]
    refault_share = 0.3

The file is the first of: the path that was given, $KVITALS_CONFIG, ./kvitals.toml,
$XDG_CONFIG_HOME/kvitals/kvitals.toml, /etc/kvitals/kvitals.toml; without one the defaults hold. Paths in it
are relative to it. The environment comes before the file: KVITALS_LISTEN, KVITALS_INTERVAL, KVITALS_WINDOW,
KVITALS_CLUSTER, KVITALS_NODE, and KVITALS_TARGETS, URLs with commas or spaces between, which adds targets.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import socket
import tomllib
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

MAX_FILE_BYTES = 1 << 20
TARGET_LABELS = ("cluster", "node", "pool", "role", "hardware")
ENTITY_LABELS = ("cluster", "node", "pool", "engine")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CODE = re.compile(r"[A-Z]{3}\d{2}")
_HOST = re.compile(r"[\w.:%-]+")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,200}")

T = TypeVar("T", bound=Struct)


class ConfigError(Exception):
    """The configuration cannot be used. One problem a line: file, key, what is wrong and what is allowed."""


class Seconds(float):
    """A duration, written as a number of seconds or as text with a unit."""


class Agent(Struct, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:9477"
    interval: Seconds = Seconds(5)
    window: Seconds = Seconds(1800)
    timeout: Seconds = Seconds(3)
    discover: bool = True
    targets_file: Path | None = None
    rules: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _address(self.listen)
        _between("interval", self.interval, 0.2, 300)
        _between("window", self.window, 60, 24 * 3600)
        _between("timeout", self.timeout, 0.1, 60)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind to; the empty host is all interfaces."""
        return _address(self.listen)


class NodeLabels(Struct, frozen=True, kw_only=True):
    """Labels that everything from this agent carries."""

    cluster: str = ""
    node: str = field(default_factory=socket.gethostname)

    def __post_init__(self) -> None:
        for name, value in (("cluster", self.cluster), ("node", self.node)):
            if value and not _TEXT.fullmatch(value):
                raise ValueError(f"{name} must be one line of at most 200 characters")


class Slo(Struct, frozen=True, kw_only=True):
    """What is fast enough, in seconds."""

    ttft_p99_seconds: float = 2.0
    itl_p99_seconds: float = 0.2

    def __post_init__(self) -> None:
        _between("ttft_p99_seconds", self.ttft_p99_seconds, 0.001, 3600)
        _between("itl_p99_seconds", self.itl_p99_seconds, 0.0001, 60)


class Target(Struct, frozen=True, kw_only=True):
    """An engine to watch."""

    url: str  # without a path, /metrics is meant
    name: str = ""
    labels: dict[str, str] = {}
    facts: dict[str, float] = {}
    slo: Slo | None = None  # where one of it is given; the rest is then as in [slo]
    bearer_file: Path | None = None
    timeout: Seconds | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))
        if self.name and not _TEXT.fullmatch(self.name):
            raise ValueError("name must be one line of at most 200 characters")
        for label, text in self.labels.items():
            _one_of("labels", label, TARGET_LABELS)
            if not _TEXT.fullmatch(text):
                raise ValueError(f"labels.{label} must be one line of 1 to 200 characters")
        for fact, value in self.facts.items():
            if not _NAME.fullmatch(fact):
                raise ValueError(f"facts.{fact}: names of facts have lower case letters, digits and _")
            if not math.isfinite(value):
                raise ValueError(f"facts.{fact} must be a number, not {value}")
        if self.timeout is not None:
            _between("timeout", self.timeout, 0.1, 60)


class Mute(Struct, frozen=True, kw_only=True):
    """A rule that is not to be reported, for an entity or everywhere, until a time or for good."""

    rule: str
    reason: str
    entity: dict[str, str] = {}
    until: datetime | None = None

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.rule):
            raise ValueError(f"rule {self.rule!r} must be a code such as KVC05")
        if not self.reason.strip():
            raise ValueError("reason must say why, for those who find the mute later")
        if self.until is not None and self.until.tzinfo is None:
            raise ValueError("until needs a time zone, such as 2026-12-01T00:00:00Z")
        for label in self.entity:
            _one_of("entity", label, ENTITY_LABELS)

    def covers(self, rule: str, entity: Mapping[str, str], t: float) -> bool:
        """Whether it mutes a rule for an entity's labels at `t`, seconds since the epoch."""
        if rule != self.rule or (self.until is not None and t >= self.until.timestamp()):
            return False
        return all(entity.get(label, "") == value for label, value in self.entity.items())


class Config(Struct, frozen=True, kw_only=True):
    agent: Agent = field(default_factory=Agent)
    labels: NodeLabels = field(default_factory=NodeLabels)
    slo: Slo = field(default_factory=Slo)
    targets: tuple[Target, ...] = ()
    mutes: tuple[Mute, ...] = ()
    params: dict[str, dict[str, float]] = {}  # rule code -> parameter -> value
    file: Path | None = None  # where it was read from


_TABLES = ("agent", "labels", "slo", "target", "mute", "params")
_FROM_ENVIRONMENT = {
    "KVITALS_LISTEN": ("agent", "listen"),
    "KVITALS_INTERVAL": ("agent", "interval"),
    "KVITALS_WINDOW": ("agent", "window"),
    "KVITALS_CLUSTER": ("labels", "cluster"),
    "KVITALS_NODE": ("labels", "node"),
}


def load(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Config:
    """The configuration from the first file there is, with what the environment overrides.

    Raises ConfigError with every problem that was found.
    """
    file = path or _find(env)
    data = _parse(file) if file else {}
    config = build(_overlaid(data, env), file)
    return msgspec.structs.replace(config, targets=(*config.targets, *_targets_of(config, env)))


def build(data: Mapping[str, Any], file: Path | None = None) -> Config:
    """A configuration from parsed TOML. Raises ConfigError."""
    return _Reader(file).config(data)


def normal_url(text: str) -> str:
    """`text` with a scheme and without a trailing slash. Raises ValueError, saying what is wrong."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}") from None
    host_is_good = _HOST.fullmatch(parts.hostname or "")
    if parts.scheme not in ("http", "https") or not host_is_good or port == 0 or re.search(r"\s", url):
        raise ValueError(f"{text!r} is no URL of an engine, such as http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"the URL of {parts.hostname} holds a password: use bearer_file")
    if parts.query or parts.fragment:
        raise ValueError(f"{text!r} must end with the path, without ? and #")
    return url.rstrip("/")


def read_targets(path: Path) -> tuple[Target, ...]:
    """The targets of a `targets_file`: a URL a line (# begins a comment), or Prometheus' file_sd as JSON.

    Of file_sd's labels those that targets here may have are taken over, and __scheme__ and __metrics_path__.
    Raises ConfigError.
    """
    text = _read(path)
    try:
        if text.lstrip().startswith("["):
            return tuple(_from_groups(json.loads(text)))
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return tuple(Target(url=normal_url(line)) for line in lines if line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error


def check_codes(config: Config, known: Mapping[str, Collection[str]]) -> list[str]:
    """What in [params] and [[mute]] names nothing that there is. `known`: rule code -> its parameters."""
    return [f"{config.file or 'configuration'}: {problem}" for problem in _unknown_codes(config, known)]


def _unknown_codes(config: Config, known: Mapping[str, Collection[str]]) -> Iterator[str]:
    for mute in config.mutes:
        if mute.rule not in known:
            yield f"[[mute]] rule {mute.rule!r} is no rule{_nearest(mute.rule, known)}"
    for code, values in config.params.items():
        if code not in known:
            yield f"[params.{code}] is no rule{_nearest(code, known)}"
            continue
        for name in values:
            if name not in known[code]:
                yield f"[params.{code}] has no parameter {name!r}{_nearest(name, known[code])}"


class _Reader:
    """Builds a Config and gathers what is wrong on the way."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._folder = file.parent if file else Path()
        self._default_slo: Any = {}
        self._problems: list[str] = []

    def config(self, data: Mapping[str, Any]) -> Config:
        self._unknown("", data, _TABLES)
        agent = self._table("[agent]", data.get("agent", {}), Agent)
        labels = self._table("[labels]", data.get("labels", {}), NodeLabels)
        slo = self._table("[slo]", data.get("slo", {}), Slo)
        self._default_slo = data.get("slo", {})
        targets = self._list("target", data.get("target", []), Target)
        mutes = self._list("mute", data.get("mute", []), Mute)
        params = self._params(data.get("params", {}))
        if self._problems or agent is None or labels is None or slo is None:
            raise ConfigError("\n".join(f"{self._file or 'configuration'}: {p}" for p in self._problems))
        return Config(agent=agent, labels=labels, slo=slo, targets=targets, mutes=mutes, params=params, file=self._file)

    def _list(self, name: str, value: Any, kind: type[T]) -> tuple[T, ...]:
        if not isinstance(value, list):
            self._problems.append(f"[[{name}]] is a list: write it with two brackets")
            return ()
        made = [self._table(f"[[{name}]] {n}", item, kind) for n, item in enumerate(value, 1)]
        return tuple(item for item in made if item is not None)

    def _table(self, where: str, value: Any, kind: type[T]) -> T | None:
        if not isinstance(value, dict):
            self._problems.append(f"{where} must be a table")
            return None
        if not self._unknown(where, value, _fields(kind)):
            return None
        if kind is Target and isinstance(value.get("slo"), dict):
            if not self._unknown(f"{where}.slo", value["slo"], _fields(Slo)):
                return None
            value = {**value, "slo": {**self._default_slo, **value["slo"]}}
        try:
            return msgspec.convert({k: _at_midnight(v) for k, v in value.items()}, kind, dec_hook=self._hook)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            self._problems.append(f"{where}{_dotted(path)}: {_plain(message)}")
            return None

    def _unknown(self, where: str, value: Mapping[str, Any], allowed: Collection[str]) -> bool:
        """Note the keys that are not allowed; whether there are none."""
        unknown = [key for key in value if key not in allowed]
        for key in unknown:
            hint = _nearest(key, allowed) or f"; there are {', '.join(allowed)}"
            self._problems.append(f"{where} unknown key {key!r}{hint}".lstrip())
        return not unknown

    def _hook(self, kind: type, value: Any) -> Any:
        if kind is Seconds:
            return _seconds(value)
        if isinstance(value, str) and value:
            return self._folder / Path(value).expanduser()
        raise ValueError("must be the path of a file")

    def _params(self, value: Any) -> dict[str, dict[str, float]]:
        try:
            params = msgspec.convert(value, dict[str, dict[str, float]])
        except msgspec.ValidationError:
            self._problems.append("[params] must hold tables of numbers, such as [params.KVC05]")
            return {}
        for code, values in params.items():
            self._problems += [f"[params.{code}].{k}: not a number" for k, v in values.items() if v != v]
        return params


def _find(env: Mapping[str, str]) -> Path | None:
    """The configuration file; the one that $KVITALS_CONFIG names is taken without looking."""
    if env.get("KVITALS_CONFIG"):
        return Path(env["KVITALS_CONFIG"])
    xdg = env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/"), ".config")
    places = (Path("kvitals.toml"), Path(xdg, "kvitals", "kvitals.toml"), Path("/etc/kvitals/kvitals.toml"))
    return next((place for place in places if place.is_file()), None)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{file}: larger than {MAX_FILE_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error


def _overlaid(data: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """`data` with what the environment says. Raises ConfigError that names the variable."""
    merged = dict(data)
    for variable, (table, key) in _FROM_ENVIRONMENT.items():
        if not env.get(variable) or not isinstance(merged.get(table, {}), dict):
            continue
        try:
            build({table: {key: env[variable]}})
        except ConfigError as error:
            raise ConfigError(f"{variable}: {str(error).partition(']')[2].lstrip('.: ')}") from None
        merged[table] = {**merged.get(table, {}), key: env[variable]}
    return merged


def _targets_of(config: Config, env: Mapping[str, str]) -> list[Target]:
    """The targets that the environment adds."""
    known = {target.url for target in config.targets}
    try:
        urls = [normal_url(text) for text in re.split(r"[\s,]+", env.get("KVITALS_TARGETS", "")) if text]
    except ValueError as error:
        raise ConfigError(f"KVITALS_TARGETS: {error}") from error
    return [Target(url=url) for url in dict.fromkeys(urls) if url not in known]


def _from_groups(groups: Any) -> Iterator[Target]:
    """Prometheus' file_sd: [{"targets": ["host:port"], "labels": {...}}]. Raises ValueError."""
    for group in groups:
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise ValueError('each entry must be {"targets": ["host:port", ...], "labels": {...}}')
        labels = group.get("labels") or {}
        if not isinstance(labels, dict):
            raise ValueError("labels must be an object")
        kept = {name: str(value) for name, value in labels.items() if name in TARGET_LABELS}
        path = str(labels.get("__metrics_path__", ""))
        for address in group["targets"]:
            url = normal_url(f"{labels.get('__scheme__', 'http')}://{address}")
            yield Target(url=url + path, labels=kept)


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535 or (":" in bare and bare == host):
        raise ValueError(f"listen must be HOST:PORT, such as 127.0.0.1:9477, not {listen!r}")
    return bare, int(port)


def _seconds(value: Any) -> Seconds:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Seconds(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a duration, such as 5, "5s" or "30m"')
    return Seconds(float(match[1]) * _UNITS[match[2]])


def _between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least:g} to {most:g} seconds, not {value:g}")


def _one_of(name: str, value: str, allowed: Collection[str]) -> None:
    if value not in allowed:
        hint = _nearest(value, allowed)
        raise ValueError(f"{name} may have {', '.join(allowed)}, not {value!r}{hint}")


def _nearest(word: str, allowed: Collection[str]) -> str:
    close = difflib.get_close_matches(word, list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _fields(kind: type[Struct]) -> list[str]:
    return [item.encode_name for item in msgspec.structs.fields(kind)]


def _at_midnight(value: Any) -> Any:
    """A TOML date is its midnight in UTC."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def _dotted(path: str) -> str:
    """A path as msgspec writes it, without its marks for places in lists and tables."""
    return path.rstrip("`").replace("[...]", "")


_WORDS = {
    "float": "a number", "int": "a whole number", "str": "text", "bool": "true or false", "null": "nothing",
    "array": "a list", "object": "a table", "datetime": "a time", "Seconds": "a duration", "Path": "a path",
}  # fmt: skip


def _plain(message: str) -> str:
    """msgspec's message in TOML's words."""
    message = re.sub(r"Object missing required field `(\w+)`", r"there must be a key '\1'", message)
    words = re.sub(r"`(\w+)( \| null)?`", lambda match: _WORDS.get(match[1], match[1]), message)
    return words[:1].lower() + words[1:]
