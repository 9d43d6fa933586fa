"""The senses of requests: spans over OTLP, request logs, and parts that others send, such as the tap."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from kvitals.agent.collectors.request_log import RequestLogs
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.tenants import TenantNames, open_tenants
from kvitals.config import Config

if TYPE_CHECKING:
    from kvitals.agent.collectors.otlp import OtlpSense

log = structlog.get_logger(__name__)

MAX_SENT = 40_000
"""Parts that were sent and wait for the next look."""


class RequestSenses:
    """Reads what observers of requests say. On one event loop."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float] = time.time,
        refuses: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`directory` is where the places of logs are kept; `refuses`: whether there is no room for a kind of data."""
        self._refuses = refuses
        self._directory = directory
        self._clock = clock
        self._config = Config()
        self._tenants: TenantNames | None = None
        self._otlp: OtlpSense | None = None
        self._logs: RequestLogs | None = None
        self._sent: list[PartsRecord] = []
        self._sent_parts = 0

    async def open(self, config: Config) -> list[str]:
        """Listen and follow what the configuration names. Returns what to tell the user. Raises ConfigError."""
        said = self.configure(config)
        if config.otlp is not None and self._tenants is not None:
            from kvitals.agent.collectors.otlp import OtlpSense  # takes memory, so it is loaded where it is used

            self._otlp = OtlpSense(
                config.otlp, self._tenants, config.tenants.attributes, is_full=lambda: self._refuses("otlp")
            )
            said += await self._otlp.open()
        return said

    def configure(self, config: Config) -> list[str]:
        """Take another configuration: whose requests are, and the logs. What is listened on stays as it is. Returns
        what to tell the user. Raises ConfigError, and then nothing changed."""
        tenants, said = self._tenants, list[str]()
        if tenants is None and (config.otlp is not None or config.request_logs or config.tenants.classes):
            tenants, said = open_tenants(config.tenants)
        if tenants is not None:
            logs = RequestLogs(tenants, self._directory) if self._logs is None else self._logs
            logs.configure(config.request_logs)
            tenants.configure(config.tenants)
            if self._otlp is not None:
                self._otlp.configure(config.tenants.attributes)
            self._tenants, self._logs = tenants, logs
        self._config = config
        return said

    def tenants(self) -> TenantNames:
        """What makes pseudonyms, opened where it is not yet. Raises ConfigError."""
        if self._tenants is None:
            self._tenants, said = open_tenants(self._config.tenants)
            for line in said:
                log.warning("key of pseudonyms", said=line)
        return self._tenants

    @property
    def collectors(self) -> dict[str, Callable[[], Awaitable[Sequence[PartsRecord]]]]:
        """What reads each source of parts that is configured, by the name of its collector."""
        found: dict[str, Callable[[], Awaitable[Sequence[PartsRecord]]]] = {"parts": self._read_sent}
        if self._otlp is not None:
            found["otlp"] = self._read_otlp
        if self._logs is not None:
            found["request_logs"] = self._logs.read
        return found

    async def _read_otlp(self) -> list[PartsRecord]:
        return self._otlp.read(self._clock()) if self._otlp is not None else []

    async def _read_sent(self) -> list[PartsRecord]:
        sent, self._sent, self._sent_parts = self._sent, [], 0
        return sent

    def take(self, record: PartsRecord) -> bool:
        """Keep parts that were sent for the next look. False where there is no room."""
        if self._refuses("parts") or self._sent_parts + len(record.parts) > MAX_SENT or len(self._sent) >= MAX_SENT:
            return False
        self._sent.append(msgspec.structs.replace(record, t=self._clock()))
        self._sent_parts += len(record.parts)
        return True

    def resolve(self, tenant: str) -> str | None:
        """The name behind a pseudonym, where it was seen here of late."""
        return self._tenants.resolve(tenant) if self._tenants is not None else None

    def class_of(self, tenant: str) -> str:
        """The class of a tenant, by what stands for it; empty where it has none."""
        return self._tenants.class_of(tenant) if self._tenants is not None else ""

    async def close(self) -> None:
        """Let go of ports and files."""
        if self._otlp is not None:
            await self._otlp.close()
        if self._logs is not None:
            self._logs.close()
        self._otlp = self._logs = None
