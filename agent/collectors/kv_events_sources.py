"""Where an engine publishes its KV events, and whether one binds there or connects.

An engine says so at `GET /kv_event_sources` (vLLM from 0.31), in `GET /server_info` (SGLang) or on its command line.
What it says comes from outside, so it decides no more than a port: we connect to loopback or to the target's own host,
bind on loopback, and take anything else only from the configuration. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from kvitals.config.hosts import is_loopback
from kvitals.series.ascii_numbers import is_digits
from kvitals.series.undecodable import UNDECODABLE

MAX_RANKS = 64
"""Publishers of one target."""

MAX_ENDPOINT = 255
FIRST_PORT = 1024  # that we bind
WILDCARDS = ("*", "0.0.0.0", "::")  # noqa: S104 (read, not bound)

_TCP = re.compile(r"tcp://(?P<host>\*|\[[0-9a-fA-F:.%\w]+\]|[\w.-]+|::):(?P<port>[0-9]{1,5})")
_IPC = re.compile(r"ipc://[^\x00-\x1f\x7f]+")


class PublisherReport(msgspec.Struct, frozen=True):
    """What an engine says of one rank's publisher, in its own words."""

    rank: int
    endpoint: str
    replay: str = ""
    topic: str | None = ""  # None: not known, so any
    binds: bool | None = None  # whether the engine binds there; None: by the form of the endpoint, as `by_form` has it
    by_form: str = "vllm"  # whose rule that is


class PublisherSource(msgspec.Struct, frozen=True):
    """One publisher as it is listened to."""

    target: str  # the target's key
    endpoint: str  # tcp://HOST:PORT or ipc://PATH
    rank: str = ""  # of several; empty where the engine has one
    bind: bool = False  # the engine connects to us
    replay: str = ""  # to connect to; empty: it has none
    topic: str | None = ""  # None: any


@dataclass(frozen=True)
class Refusal:
    """Why a publisher can not be listened to: a key of `kvitals.agent.collectors.kv_events.REASONS`, and what to do."""

    rank: str
    reason: str
    message: str


@dataclass(frozen=True)
class PublisherTarget:
    """A target, and what may be reached for it."""

    target: str  # its key
    host: str  # of its URL
    is_here: bool  # that host is this machine
    allowed: frozenset[str] = frozenset()  # other hosts by the configuration, and own addresses that may be bound


class FlagReader(Protocol):
    """The flags of a command line, as `kvitals.agent.command_line.Flags` has them."""

    def number(self, name: str, /) -> float | None: ...

    def text(self, name: str, /) -> str: ...


def of_vllm(answer: bytes) -> tuple[PublisherReport, ...]:
    """From the answer of /kv_event_sources: the resolved configuration of each rank. Empty for anything else."""
    try:
        ranks = msgspec.json.decode(answer, type=dict[str, _VllmConfig])
        told = [
            PublisherReport(int(rank), one.endpoint, one.replay_endpoint or "", one.topic)
            for rank, one in ranks.items()
            if one.publisher == "zmq" and is_digits(rank)
        ]
    except (*UNDECODABLE, ValueError):
        return ()
    return tuple(sorted(told, key=lambda one: one.rank))[:MAX_RANKS]


def of_sglang(answer: bytes) -> tuple[PublisherReport, ...]:
    """From the answer of /server_info. Empty where it tells of no publisher."""
    try:
        found = msgspec.json.decode(answer, type=_SglangInfo).kv_events
    except UNDECODABLE:
        return ()
    if found is None or found.publisher != "zmq":
        return ()
    replay = found.replay_endpoint_port_base
    base = PublisherReport(
        0,
        f"tcp://{found.endpoint_host}:{found.endpoint_port_base}",
        "" if replay is None else f"tcp://{found.endpoint_host}:{replay}",
        found.topic,
        by_form="sglang",
    )
    return _of_ranks(base, found.dp_size)


def of_flags(system: str, flags: FlagReader) -> tuple[PublisherReport, ...]:
    """From a command line. Empty where it switches no events on."""
    ports = flags.text("zmq-kv-events-ports")
    if ports:
        return _of_mocker(ports, flags)
    publisher = flags.text("kv-events-config.publisher")
    if system == "sglang":
        is_on = publisher == "zmq"
    else:
        is_on = bool(flags.number("kv-events-config.enable_kv_cache_events")) and publisher in ("", "zmq")
    if not is_on:
        return ()
    bind = flags.text("kv-events-config.bind")
    base = PublisherReport(
        0,
        flags.text("kv-events-config.endpoint") or "tcp://*:5557",
        flags.text("kv-events-config.replay_endpoint"),
        flags.text("kv-events-config.topic"),
        bind == "true" if bind in ("true", "false") else None,
        by_form=system,
    )
    return _of_ranks(base, flags.number("data-parallel-size") or 1)


def _of_mocker(ports: str, flags: FlagReader) -> tuple[PublisherReport, ...]:
    """Dynamo's mocker: a port for each of its workers."""
    replays = flags.text("zmq-replay-ports").split(",")
    told: list[PublisherReport] = []
    for number, port in enumerate(ports.split(",")):
        replay = replays[number].strip() if number < len(replays) else ""
        base = PublisherReport(0, f"tcp://*:{port.strip()}", f"tcp://*:{replay}" if replay else "", None)
        for one in _of_ranks(base, flags.number("data-parallel-size") or 1):
            told.append(_ranked(one, len(told)))
    return tuple(told[:MAX_RANKS])


def _ranked(told: PublisherReport, rank: int) -> PublisherReport:
    """The same publisher under another rank."""
    return msgspec.structs.replace(told, rank=rank)


def _of_ranks(base: PublisherReport, ranks: float) -> tuple[PublisherReport, ...]:
    """Every rank's publisher: the ports follow each other."""
    count = min(max(int(ranks), 1), MAX_RANKS) if ranks == ranks else 1
    return tuple(
        msgspec.structs.replace(
            base, rank=rank, endpoint=_shifted(base.endpoint, rank), replay=_shifted(base.replay, rank)
        )
        for rank in range(count)
    )


def _shifted(endpoint: str, rank: int) -> str:
    match = _TCP.fullmatch(endpoint)
    if match is None or rank == 0 or match["port"] == "0":
        return endpoint
    return f"tcp://{match['host']}:{int(match['port']) + rank}"


def resolve(
    told: Iterable[PublisherReport], place: PublisherTarget, *, trusted: bool = False
) -> tuple[list[PublisherSource], list[Refusal]]:
    """How to listen to a target's publishers. trusted: a command line or the configuration said so, which may name
    paths of sockets."""
    sources: list[PublisherSource] = []
    refusals: list[Refusal] = []
    some = list(told)
    for one in some:
        rank = str(one.rank) if len(some) > 1 else ""
        try:
            sources.append(_resolved(one, place, rank, trusted))
        except _RefusedError as error:
            refusals.append(Refusal(rank, error.reason, str(error)))
    return sources, refusals


class _RefusedError(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _resolved(told: PublisherReport, place: PublisherTarget, rank: str, trusted: bool) -> PublisherSource:
    source = PublisherSource(place.target, "", rank, topic=told.topic)
    if told.endpoint.startswith("inproc://"):
        raise _RefusedError("inproc", f"{_shown(told.endpoint)} is inside the engine's process: give it tcp://*:PORT")
    if _IPC.fullmatch(told.endpoint) and len(told.endpoint) <= MAX_ENDPOINT:
        if not (trusted and place.is_here):
            raise _RefusedError(
                "not_allowed",
                f"{_shown(told.endpoint)} is a path: only a command line on this node or [[kv_events.source]] "
                f"may name a path",
            )
        return _placed(source, told.endpoint, False, _replay(told, place))
    host, port = _host_and_port(told.endpoint)
    binds = told.binds if told.binds is not None else _binds(told)
    if binds:
        return _placed(source, f"tcp://{_reached(host, place)}:{port}", False, _replay(told, place))
    return _where_it_connects(source, told, host, port, place)


def _where_it_connects(
    source: PublisherSource, told: PublisherReport, host: str, port: int, place: PublisherTarget
) -> PublisherSource:
    """An engine with a concrete address connects to it, so that we bind there."""
    host = "127.0.0.1" if host in (*WILDCARDS, "localhost") else host  # a name can not be bound
    replay = _replay(told, place)
    if is_loopback(host):
        if port < FIRST_PORT:
            raise _RefusedError("bad_endpoint", f"port {port} is reserved for the system: use {FIRST_PORT} or higher")
        if not place.is_here:
            raise _RefusedError(
                "elsewhere",
                f"the engine connects to {_shown(told.endpoint)} on its own machine: set its endpoint to "
                f"tcp://*:{port}, or run an agent there",
            )
        return _placed(source, f"tcp://{_bracketed(host)}:{port}", True, replay)
    if host in place.allowed:
        return _placed(source, f"tcp://{_bracketed(host)}:{port}", True, replay)
    if host == place.host or place.is_here:
        # Bound to its own address, as vLLM says it of tcp://*:0; else nobody answers, and that is said.
        return _placed(source, f"tcp://{_bracketed(_reached(host, place))}:{port}", False, replay)
    raise _RefusedError(
        "not_allowed",
        f"the engine publishes to {_shown(told.endpoint)} on another machine: run an agent there, or see [kv_events]",
    )


def _placed(source: PublisherSource, endpoint: str, bind: bool, replay: str) -> PublisherSource:
    """A source with where it is."""
    return msgspec.structs.replace(source, endpoint=endpoint, bind=bind, replay=replay)


def _replay(told: PublisherReport, place: PublisherTarget) -> str:
    """Where missed batches are asked for; the engine always binds there. Empty where it is not to be had."""
    if not told.replay:
        return ""
    try:
        host, port = _host_and_port(told.replay)
        return f"tcp://{_bracketed(_reached(host, place))}:{port}"
    except _RefusedError:
        return ""


def _reached(host: str, place: PublisherTarget) -> str:
    """The host to connect to for an engine that bound `host`. Raises _RefusedError."""
    if host in WILDCARDS:
        return _bracketed(place.host)
    if host == place.host or host in place.allowed or (place.is_here and is_loopback(host)):
        return _bracketed(host)
    raise _RefusedError(
        "not_allowed",
        f"{_shown(host)} is neither loopback nor the target's host: allow it with [kv_events] hosts",
    )


def _host_and_port(endpoint: str) -> tuple[str, int]:
    match = _TCP.fullmatch(endpoint) if len(endpoint) <= MAX_ENDPOINT else None
    port = int(match["port"]) if match else 0
    if match is None or not 0 < port < 65536:
        raise _RefusedError("bad_endpoint", f"kvitals cannot listen at {_shown(endpoint)}: use tcp://*:PORT")
    return match["host"].strip("[]"), port


def _binds(told: PublisherReport) -> bool:
    """Whether an engine binds its endpoint, by its form. SGLang does so for 0.0.0.0 too."""
    marks = ("*", "::", "0.0.0.0") if told.by_form == "sglang" else ("*", "::")  # noqa: S104
    return any(mark in told.endpoint for mark in marks)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _shown(text: str) -> str:
    return repr(text[:100])


class _VllmConfig(msgspec.Struct):
    publisher: str = ""
    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str = ""


class _SglangKvEvents(msgspec.Struct):
    publisher: str = ""
    endpoint_host: str = ""
    endpoint_port_base: int = 0
    replay_endpoint_port_base: int | None = None
    topic: str = ""
    dp_size: int = 1


class _SglangInfo(msgspec.Struct):
    kv_events: _SglangKvEvents | None = None
