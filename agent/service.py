"""One node's telemetry: targets, senses and the window that they fill.

`read` does all I/O and yields records in their capture form; `feed` takes records, from `read` or from a
recording, and does none. So a recorded incident takes the path of a live one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent import discovery
from agent.config import Config, ConfigError, Slo, Target, normal_url, read_targets
from agent.discovery import DiscoveryError, Finder
from agent.families import CONFIGURATION, VERSION
from agent.records import FactsRecord, ProbeRecord, Record, ScrapeRecord
from agent.senses import scrape
from agent.senses.probe import probe
from agent.senses.scrape import ScrapeSense
from rules.engine_map import load_map, systems
from series.capture import Record as Captured
from series.window import Window

MAX_SERIES = 200_000
LOOPBACK = ("127.0.0.1", "::1", "localhost")

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> Captured:
    """A record as a capture keeps it."""
    sense = type(record).__struct_config__.tag
    return Captured(record.t, str(sense), record.target, _encoder.encode(record))


def decode(captured: Captured) -> Record | None:
    """A record of a capture; None for one of a sense that this version does not know, or that is damaged."""
    try:
        return _decoder.decode(captured.payload)
    except msgspec.DecodeError:
        return None


class _Recorded(msgspec.Struct):
    """A target in a recording's header."""

    url: str
    name: str = ""
    labels: dict[str, str] = {}


class Node:
    """What is watched on one node. `slo_sources`: objective -> where it was set, for those not from the file."""

    def __init__(self, config: Config, slo_sources: Mapping[str, str] | None = None) -> None:
        self.config = config
        self.window = Window(config.agent.window, MAX_SERIES)
        self._slo_sources = dict(slo_sources or {})
        self._sense = ScrapeSense(self.window)
        self._finder = Finder({system: load_map(system) for system in systems()})
        self._targets: dict[str, Target] = {}  # by key
        self._pending: list[Record] = []  # facts to hand out with the next read
        self._explicit = False  # the user named the targets, so none is looked for

    @property
    def targets(self) -> list[str]:
        """The URLs that are watched."""
        return [target.url for target in self._targets.values()]

    @property
    def meta(self) -> dict[str, Any]:
        """What a recording must know of the targets besides their records."""
        return {"targets": [{"url": t.url, "name": t.name, "labels": t.labels} for t in self._targets.values()]}

    async def open(self, urls: Sequence[str] = ()) -> list[str]:
        """Watch the URLs, else the configured targets, else the engines on this node. Returns what to tell the user.

        Raises ConfigError where there is nothing to watch.
        """
        said: list[str] = []
        self._explicit = bool(urls)
        for target in await self._chosen(urls, said):
            self._add(target, self._own_labels(target))
        if not self._targets:
            raise ConfigError(
                "no engine found on this node. Name one: kvitals triage http://HOST:PORT, or [[target]] in kvitals.toml"
                + "".join(f"\n{line}" for line in said)
            )
        for key in self._targets:
            said += await self._learn(key, "")
        return said

    async def refresh(self) -> list[str]:
        """Look again for targets: engines that appeared are watched from now on, those that a targets file no longer
        names are not. An engine that went away stays, as one that is down. Returns what to tell the user."""
        if self._explicit:
            return []
        said: list[str] = []
        found = list(await self._chosen((), []))
        known = {target.url for target in self._targets.values()}
        for target in found:
            if target.url not in known:
                key = self._add(target, self._own_labels(target))
                said += [f"{target.url}: new, watched from now on", *await self._learn(key, "")]
        if self.config.agent.targets_file:
            named = {target.url for target in found}
            for key in [key for key, target in self._targets.items() if target.url not in named]:
                said.append(f"{self._targets.pop(key).url}: no longer named, forgotten")
                self._sense.remove(key)
        return said

    async def close(self) -> None:
        await self._sense.close()

    def expect(self, meta: Mapping[str, Any]) -> None:
        """Watch the targets of a recording, as its header names them. Raises ConfigError.

        A recording comes from anywhere, so nothing but address, name and labels is taken from it: no token file.
        """
        try:
            for found in msgspec.convert(meta.get("targets", []), list[_Recorded]):
                self._add(Target(url=found.url, name=found.name, labels=found.labels), {})
        except ValueError as error:
            raise ConfigError(f"the recording names a target that can not be one: {error}") from error

    async def read(self) -> list[Captured]:
        """Look at every target once, all at the same time."""
        found = await asyncio.gather(*(self._read(key) for key in self._targets))
        records, self._pending = [*self._pending, *(r for records in found for r in records)], []
        return [encode(record) for record in records]

    async def probe(self) -> list[Captured]:
        """Send each target a one-token request."""
        keys = [(key, self._model(key)) for key in self._targets]
        return [encode(r) for r in await asyncio.gather(*(probe(k, _root(k), m) for k, m in keys if m))]

    def feed(self, captured: Captured) -> None:
        """Take one record into the window."""
        record = decode(captured)
        if record is None or record.target not in self._sense.keys:
            return
        if isinstance(record, ProbeRecord):
            self._say_probe(record)
            return
        if isinstance(record, ScrapeRecord):
            self._say_objectives(record.target)
        self._sense.feed(record)

    def complaints(self) -> list[str]:
        """For each target whose last scrape failed: its URL, why, and what to do."""
        last = {t.url: self._sense.translator(key).status.last for key, t in self._targets.items()}
        return [f"{url}: {outcome.message}" for url, outcome in last.items() if not outcome.ok]

    async def _chosen(self, urls: Sequence[str], said: list[str]) -> Sequence[Target]:
        if urls:
            configured = {t.url: t for t in self.config.targets}
            try:
                return [configured.get(u) or Target(url=u) for u in map(normal_url, urls)]
            except ValueError as error:
                raise ConfigError(str(error)) from error
        targets = list(self.config.targets)
        if self.config.agent.targets_file:
            targets += read_targets(self.config.agent.targets_file)
        if targets or not self.config.agent.discover:
            return targets
        found = await asyncio.to_thread(self._finder.scan)
        said += found.notes
        return [Target(url=t.url) for t in found.targets]

    def _own_labels(self, target: Target) -> dict[str, str]:
        """The labels that everything of this node carries; an engine elsewhere is not of this node."""
        here = urlsplit(target.url).hostname in LOOPBACK
        labels = {"cluster": self.config.labels.cluster, "node": self.config.labels.node if here else ""}
        return {name: value for name, value in labels.items() if value}

    def _add(self, target: Target, own: Mapping[str, str]) -> str:
        """Watch a target; returns its key. Raises ConfigError."""
        labels = {**own, **target.labels}
        timeout = float(target.timeout or self.config.agent.timeout)
        try:
            token = target.bearer_file.read_text().strip() if target.bearer_file else ""
            key = self._sense.add(
                scrape.Target(url=target.url, name=target.name, labels=labels, timeout=timeout, token=token)
            )
        except (ValueError, OSError) as error:
            raise ConfigError(f"{target.url}: {error}") from error
        self._targets[key] = target
        return key

    async def _read(self, key: str) -> list[Record]:
        records: list[Record] = [*await self._sense.read(key)]
        version = next(
            (r.info.get("version") for r in records if isinstance(r, FactsRecord) and r.source == VERSION), ""
        )
        if version:
            await self._learn(key, version)
        return records

    async def _learn(self, key: str, version: str) -> list[str]:
        """Facts that neither page nor endpoints tell: from the configuration and the process's command line."""
        target = self._targets[key]
        now = time.time()
        if target.facts:
            self._pending.append(FactsRecord(t=now, target=key, source=CONFIGURATION, facts=target.facts))
        try:
            process = await asyncio.to_thread(self._finder.behind, target.url)
        except DiscoveryError as error:
            return [f"{target.url}: flags not read: {error}"]
        facts, info = process.learn(version)
        self._pending.append(FactsRecord(t=now, target=key, source=discovery.SOURCE, facts=facts, info=info))
        return []

    def _model(self, key: str) -> str:
        reading = self._sense.translator(key).reading
        return next(iter(reading.models.values()), "") if reading else ""

    def _say_objectives(self, key: str) -> None:
        """The objectives of a target's engines, as families beside theirs."""
        status, identity = self._sense.translator(key).status, self._sense.translator(key).identity
        slo = self._targets[key].slo or self.config.slo
        series = {
            identity.series("kvitals_slo_seconds", engine, slo=name, source=source): value
            for engine in status.engines
            for name, value, source in objectives(slo, self._slo_sources)
        }
        status.say("objectives", series)

    def _say_probe(self, record: ProbeRecord) -> None:
        translator = self._sense.translator(record.target)
        said = {}
        for engine in translator.status.engines:
            said[translator.identity.series("kvitals_probe_success", engine)] = float(record.answered)
            said[translator.identity.series("kvitals_probe_seconds", engine)] = record.seconds
        translator.status.say("probe", said)


def objectives(slo: Slo, sources: Mapping[str, str]) -> list[tuple[str, float, str]]:
    """Each objective as (name, seconds, where it was set)."""
    default = Slo()
    found = []
    for name in ("ttft_p99", "itl_p99"):
        value = getattr(slo, f"{name}_seconds")
        known = "default" if value == getattr(default, f"{name}_seconds") else CONFIGURATION
        found.append((name, value, sources.get(name, known)))
    return found


def _root(key: str) -> str:
    parts = urlsplit(key)
    return f"{parts.scheme}://{parts.netloc}"
