"""What a collector's reads yield: facts of the world at an instant, in wire form.

Records are what a recording keeps and a replay ingests, so they hold what came in and nothing derived from it.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

import msgspec

from kvitals.agent.ledger.event import KvEventsRecord
from kvitals.agent.requests.observation import PartsRecord
from kvitals.series.recordings import Record as Recorded
from kvitals.series.undecodable import UNDECODABLE

OK = "ok"


class ScrapeRecord(msgspec.Struct, frozen=True, kw_only=True, tag="scrape"):
    """One attempt to read a target's metrics page."""

    t: float  # when the request was sent, seconds since the epoch
    target: str  # the target's key
    reason: str = OK  # what the attempt came to: a key of kvitals.agent.collectors.scrape.MESSAGES
    message: str = ""  # the same for a person, with what to do; empty when ok
    status: int = 0  # HTTP status; 0 where there was no answer
    content_type: str = ""
    body: bytes = b""  # decompressed; empty unless ok
    duration: float = 0.0  # seconds

    @property
    def ok(self) -> bool:
        """Whether a body came in. Whether it is a metrics page shows when it is parsed."""
        return self.reason == OK


class FactsRecord(msgspec.Struct, frozen=True, kw_only=True, tag="facts"):
    """What one source knows of a target's configuration. A later record replaces the source's earlier one."""

    t: float
    target: str
    source: str  # in words: "version endpoint", "models endpoint", "metrics page", "command line", "configuration"
    facts: dict[str, float] = {}  # names as in kvitals_engine_fact
    info: dict[str, str] = {}  # names as in kvitals_engine_info's labels


class ProbeRecord(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """What came of a one-token request."""

    t: float
    target: str
    answered: bool
    seconds: float
    status: int = 0  # of the HTTP answer; 0: there was none, or the recording is older than this field

    @property
    def refused(self) -> bool:
        """Whether the request itself was refused, as one without a key is: that says nothing of the engine."""
        return 400 <= self.status < 500


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One process of an engine at an instant. None is unknown."""

    target: str
    pid: int
    start_time: int  # clock ticks since boot
    part: str  # one of kvitals.agent.process_titles.PARTS
    rank: str = ""
    state: str = OK  # ok, gone, replaced (another process has the pid), hidden (we may not read it)
    run_state: str = ""  # of the main thread, as /proc/PID/stat has it (R, S, D, T, t, Z ...); empty is unknown
    user: float = 0.0  # CPU seconds
    system: float = 0.0
    threads: int = 0
    resident: float = 0.0  # bytes, shared ones included
    swapped: float | None = None  # bytes
    fds: int | None = None
    main_running: float | None = None  # seconds of its main thread on a CPU
    main_waiting: float | None = None  # seconds of its main thread ready to run, without a CPU
    voluntary: int | None = None  # context switches of its main thread
    involuntary: int | None = None
    cpus_allowed: int | None = None
    cgroups: tuple[str, ...] = ()  # keys of its cgroups: one of version 2, one per hierarchy of version 1


class CgroupSample(msgspec.Struct, frozen=True, kw_only=True):
    """One cgroup at an instant. None is unknown; infinity is no limit."""

    key: str  # its path, after "cpu:" and the like where the hierarchy is one of version 1
    parent: str = ""  # key of the cgroup above it; empty at the top of what we may see
    cores: float | None = None  # CPU quota over period
    cpu_seconds: float | None = None
    periods: float | None = None  # of the quota
    throttled_periods: float | None = None
    throttled_seconds: float | None = None
    memory: float | None = None  # bytes, page cache included
    memory_max: float | None = None
    memory_high: float | None = None
    memory_events: dict[str, int] = {}  # high, max, oom, oom_kill
    tasks: float | None = None
    tasks_max: float | None = None
    pressure: dict[str, float] = {}  # "cpu some" -> seconds; only of a cgroup that has an engine's process


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True):
    """A port of an RDMA device at an instant."""

    active: bool
    rate: float | None = None  # bytes a second, as negotiated
    sent: float | None = None  # bytes
    received: float | None = None  # bytes
    faults: dict[str, float] = {}  # link, dropped, resent, congestion: events


class NodeSample(msgspec.Struct, frozen=True, kw_only=True):
    """A node at an instant. What could not be read is left out."""

    cpus: int = 0  # online; 0 is unknown
    cpu: dict[str, float] = {}  # mode -> seconds
    load: dict[str, float] = {}  # 1m, 5m, 15m
    memory: dict[str, float] = {}  # total, available, swap_total, swap_free, hugepages_total, hugepages_free: bytes
    paging: dict[str, float] = {}  # swapped_in, swapped_out: bytes; oom_kills
    pressure: dict[str, float] = {}  # "memory full" -> seconds
    filesystems: dict[str, list[float]] = {}  # path -> bytes in all, bytes that are free for others than root
    disks: dict[str, list[float]] = {}  # device -> bytes read, bytes written, seconds busy
    interfaces: dict[str, list[float]] = {}  # name -> bytes, drops, errors received; the same sent
    tcp: dict[str, float] = {}  # sent, retransmitted: segments; listen_overflows: connections
    rdma: dict[str, RdmaPort] = {}  # by device/port


class HostRecord(msgspec.Struct, frozen=True, kw_only=True, tag="host"):
    """One look at the node and at the processes of its engines."""

    t: float
    target: str = ""
    clock: float = 0.0  # seconds of a clock that nobody sets
    duration: float = 0.0  # seconds that the look took
    state: str = OK  # ok, partial, not_applicable, failed
    reason: str = ""  # why it is not ok: a key of kvitals.agent.collectors.host.REASONS
    node: NodeSample = NodeSample()
    processes: tuple[ProcessSample, ...] = ()
    cgroups: tuple[CgroupSample, ...] = ()


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that computes on a GPU."""

    pid: int  # as NVML gave it: of the host, or of the agent's own PID namespace with newer drivers
    memory: float | None = None  # bytes; None where the driver does not tell


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU or MIG instance said."""

    gpu: str  # UUID, of a MIG instance UUID/GI
    index: int  # of the whole GPU
    hardware: str = ""
    mig_profile: str = ""
    share: float = 1.0  # of the whole GPU that this is
    up: bool = True  # it answered; else it is lost or needs a reset
    values: dict[str, float] = {}  # by the names of kvitals.agent.collectors.nvml.VALUES, in base units
    processes: list[GpuProcess] | None = None  # None: not told; of a GPU in MIG mode its instances have them


class GpuXid(msgspec.Struct, frozen=True, kw_only=True):
    """An XID error that the driver reported."""

    gpu: str  # UUID of the whole GPU
    xid: int


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True, tag="gpu"):
    """One look at the GPUs of this node."""

    t: float
    target: str = ""  # it is of the node and of no target
    state: str = OK  # ok, not_applicable, unknown or failed
    reason: str = OK  # a key of kvitals.agent.collectors.gpu.REASONS
    message: str = ""  # the same for a person, with what to do; empty when ok
    driver: str = ""  # its version
    gpus: list[GpuReading] = []
    xids: list[GpuXid] = []  # since the look before
    duration: float = 0.0  # seconds


class EngineLogRecord(msgspec.Struct, frozen=True, kw_only=True, tag="engine_log"):
    """What new lines of an engine's log state, as numbers. It has no text of the log."""

    t: float
    target: str
    state: str = OK  # ok, partial, unknown, failed
    reason: str = OK  # a key of kvitals.agent.collectors.engine_log.REASONS
    message: str = ""
    restarted: bool = False  # the engine started: earlier phases and values are obsolete
    startup: dict[str, float] = {}  # phase -> seconds, of the last start; empty where no line stated one
    values: dict[str, float] = {}  # by the names of kvitals.rules.engine_log_map.LogValue
    events: dict[str, int] = {}  # in these lines; 0 for an event that the engine reports from now on
    lines: int = 0
    matched: int = 0  # lines that stated something


class PendingPodsRecord(msgspec.Struct, frozen=True, kw_only=True, tag="pending_pods"):
    """The pods of the cluster that find no node."""

    t: float
    target: str = ""  # it is of the cluster and of no target
    unschedulable: dict[str, int] = {}  # by pool; a pool without any is left out
    pools: tuple[str, ...] = ()  # those of the pods that run on this node


ScrapeSenseRecord = ScrapeRecord | FactsRecord
Record = (
    ScrapeSenseRecord
    | ProbeRecord
    | HostRecord
    | GpuRecord
    | PartsRecord
    | KvEventsRecord
    | EngineLogRecord
    | PendingPodsRecord
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> Recorded:
    """A record as a recording keeps it."""
    kind = type(record).__struct_config__.tag
    return Recorded(record.t, str(kind), record.target, _encoder.encode(record))


def decode(recorded: Recorded) -> Record | None:
    """A record of a recording; None for a damaged one, and for one of a type that this version does not know."""
    try:
        record = _decoder.decode(recorded.payload)
    except UNDECODABLE:
        return None
    return record if record.t == recorded.t else None


COLLECTORS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Record))
"""The collectors whose records this version reads."""
MAX_UNDECODABLE = 100
"""Pairs of a collector and a target, of which undecodable records are counted; those of all others count together."""
MAX_NAME = 80
"""Characters of a name in a record that cannot be decoded."""


class RecordDecoder:
    """Decodes the records of a recording, and counts those that it cannot decode."""

    def __init__(self) -> None:
        self.undecodable: Counter[tuple[str, str]] = Counter()
        """By collector and target; empty names: all others."""
        self.since = float("inf")
        """The time of the earliest of them, seconds since the epoch."""

    def decode(self, recorded: Recorded) -> Record | None:
        """As the function does."""
        record = decode(recorded)
        if record is None:
            key = recorded.sense[:MAX_NAME], recorded.target[:MAX_NAME]
            known = key in self.undecodable or len(self.undecodable) < MAX_UNDECODABLE
            self.undecodable[key if known else ("", "")] += 1
            self.since = min(self.since, recorded.t)
        return record

    @property
    def lost_known(self) -> bool:
        """Whether a record of a collector of this version, or perhaps of one, could not be decoded."""
        return any(not sense or sense in COLLECTORS for sense, _ in self.undecodable)
