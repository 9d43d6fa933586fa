"""The configuration as a whole, and the agent's own tables. A value that makes no sense is refused when it is made."""

from __future__ import annotations

import socket
from pathlib import Path

from msgspec import Struct, field

from kvitals.config.checks import TEXT, Seconds, check_prefixes, check_seconds, first_of, host_and_port, is_pattern
from kvitals.config.judging import MuteTable, ObjectiveTable, SloTable
from kvitals.config.listening import KvEventsTable, Otlp, RequestLog, TapTable, TenantsTable
from kvitals.config.notify import NotifyTable
from kvitals.config.servers import OtlpOutTable, PrometheusTable, Remote
from kvitals.config.targets import Kubernetes, TargetTable

MAX_PRICES = 200
MAX_WINDOW_SECONDS = 24 * 3600.0


class AgentTable(Struct, frozen=True, kw_only=True):
    """The agent itself."""

    listen: str = "127.0.0.1:9477"
    interval: Seconds = Seconds(5)
    window: Seconds = Seconds(1800)
    timeout: Seconds = Seconds(3)
    discover: bool = True
    targets_file: tuple[Path, ...] = ()  # the last part of each may be a pattern
    prefixes: dict[str, str] = {}
    rules: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    memory_limit: int | None = None  # MB; None: 80 % of the cgroup's limit, else 1024
    probe_silent_replicas: bool = False  # send one token to a replica that serves nothing while its peers do
    parts_token_file: Path | None = None  # a token with which parts of requests are taken from other machines

    def __post_init__(self) -> None:
        host_and_port(self.listen)
        check_seconds("interval", self.interval, 0.2, 300)
        check_seconds("window", self.window, 60, MAX_WINDOW_SECONDS)
        check_seconds("timeout", self.timeout, 0.1, 60)
        if self.memory_limit is not None and not 128 <= self.memory_limit <= 1 << 20:
            raise ValueError(f"memory_limit must be from 128 to {1 << 20} (MB), not {self.memory_limit}")
        check_prefixes(self.prefixes)
        for path in self.targets_file:
            if any(is_pattern(part) for part in path.parts[:-1]):
                raise ValueError(f"targets_file {path}: only the last part of a path may be a pattern")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind to; the empty host is all interfaces."""
        return host_and_port(self.listen)


class NodeLabels(Struct, frozen=True, kw_only=True):
    """Labels that everything from this agent carries."""

    cluster: str = ""
    node: str = field(default_factory=socket.gethostname)

    def __post_init__(self) -> None:
        for name, value in (("cluster", self.cluster), ("node", self.node)):
            if value and not TEXT.fullmatch(value):
                raise ValueError(f"{name} must be one line of at most 200 characters")


class HistoryTable(Struct, frozen=True, kw_only=True):
    """What is kept on disk of what was seen."""

    enabled: bool = True
    directory: Path | None = None  # where the agent keeps what outlives a restart, where it is not said
    full: Seconds = Seconds(24 * 3600)  # with every row
    keep: Seconds = Seconds(30 * 24 * 3600)  # in all, after `full` with a row a minute
    max_bytes: int = 4 << 30
    min_free_bytes: int = 1 << 30  # of the disk: with less left nothing is written

    def __post_init__(self) -> None:
        check_seconds("full", self.full, 3600, 14 * 24 * 3600)
        check_seconds("keep", self.keep, self.full, 400 * 24 * 3600)
        if not 64 << 20 <= self.max_bytes <= 1 << 44:
            raise ValueError(f"max_bytes must be from {64 << 20} to {1 << 44}, not {self.max_bytes}")
        if not 0 <= self.min_free_bytes <= 1 << 44:
            raise ValueError(f"min_free_bytes must be from 0 to {1 << 44}, not {self.min_free_bytes}")


class ReviewTable(Struct, frozen=True, kw_only=True):
    """What `kvitals review` reckons with. Options come before it."""

    usd_per_gpu_hour: float | None = None  # of every GPU that `prices` does not name
    prices: dict[str, float] = {}  # of hardware, a pool or a model, by a part of its name
    gpus_per_engine: float = 1.0  # of an engine that does not tell how many it has

    def __post_init__(self) -> None:
        wrong = [f"prices.{name} = {price:g}" for name, price in self.prices.items() if not 0 <= price < 1e6]
        if wrong:
            raise ValueError(
                f"{', '.join(first_of(wrong))}: a price is US dollars per hour for one GPU, from 0 to a million"
            )
        if self.usd_per_gpu_hour is not None and not 0 <= self.usd_per_gpu_hour < 1e6:
            raise ValueError(f"usd_per_gpu_hour must be from 0 to a million, not {self.usd_per_gpu_hour:g}")
        if len(self.prices) > MAX_PRICES or not all(TEXT.fullmatch(name) for name in self.prices):
            raise ValueError(f"prices may name at most {MAX_PRICES} kinds, each one line of 1 to 200 characters")
        if not 0 < self.gpus_per_engine <= 1024:
            raise ValueError(f"gpus_per_engine must be above 0 and at most 1024, not {self.gpus_per_engine:g}")


class Config(Struct, frozen=True, kw_only=True):
    """A configuration as a whole."""

    agent: AgentTable = field(default_factory=AgentTable)
    remote: Remote | None = None
    labels: NodeLabels = field(default_factory=NodeLabels)
    slo: SloTable = field(default_factory=SloTable)
    objectives: tuple[ObjectiveTable, ...] = ()  # later ones come before earlier ones
    targets: tuple[TargetTable, ...] = ()
    kubernetes: Kubernetes | None = None
    tenants: TenantsTable = field(default_factory=TenantsTable)
    request_logs: tuple[RequestLog, ...] = ()
    otlp: Otlp | None = None
    otlp_out: OtlpOutTable | None = None
    kv_events: KvEventsTable = field(default_factory=KvEventsTable)
    history: HistoryTable = field(default_factory=HistoryTable)
    tap: TapTable = field(default_factory=TapTable)
    prometheus: PrometheusTable | None = None
    review: ReviewTable = ReviewTable()
    notify: NotifyTable | None = None
    mutes: tuple[MuteTable, ...] = ()
    params: dict[str, dict[str, float]] = {}  # rule code -> parameter -> value
    file: Path | None = None  # where it was read from
