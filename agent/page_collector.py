"""The collector of metrics pages: what engines and exporters report of themselves, and the objectives of engines."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial

from kvitals.agent import objectives
from kvitals.agent.collector import NodeCollector
from kvitals.agent.collectors.boundary import REASONS, CollectorError, CollectorRun, Name
from kvitals.agent.families import VERSION
from kvitals.agent.ingest_share import OVER_SHARE, IngestShares
from kvitals.agent.node_context import NodeContext
from kvitals.agent.records import FactsRecord, ProbeRecord, Record, ScrapeRecord
from kvitals.series.slices import Steps
from kvitals.series.types import Labels

SCRAPE = "scrape"
SCRAPE_REQUESTS = 6
"""How many requests of one scrape may each take the target's timeout, until the collector counts as hung."""

PageRecord = ScrapeRecord | FactsRecord | ProbeRecord


class PageCollector(NodeCollector[PageRecord]):
    """Scrapes every target; one whose pages are costly less often."""

    records = (ScrapeRecord, FactsRecord, ProbeRecord)

    def __init__(self, context: NodeContext, restarted: Callable[[str, str], None]) -> None:
        """restarted: is called with a target's key and version when its engine reports a version, as at its start."""
        self._context = context
        self._scraper = context.scraper
        self._restarted = restarted
        self._shares = IngestShares()

    def reads(self, held: Container[str]) -> dict[Name, CollectorRun]:
        """A scrape of every target that is due, and those that still go on: their records are taken."""
        runs: dict[Name, CollectorRun] = {}
        for key, target in self._context.targets.scraped.items():
            if not self._context.collectors.runs((SCRAPE, key)):
                if key in held or not self._shares.is_due(key, self._context.config.agent.interval):
                    continue
                self._shares.scraped(key)
            runs[SCRAPE, key] = CollectorRun(partial(self._read, key), SCRAPE_REQUESTS * target.timeout)
        return runs

    async def _read(self, key: str) -> list[Record]:
        records: list[Record] = [*await self._scraper.read(key)]
        version = next(
            (r.info.get("version") for r in records if isinstance(r, FactsRecord) and r.source == VERSION), ""
        )
        if version:
            self._restarted(key, version)
        return records

    def ingest(self, record: PageRecord) -> Steps[None]:
        """Put a page or facts into the window; nothing of a target that is not watched."""
        if record.target not in self._scraper.keys:
            return
        if isinstance(record, ProbeRecord):
            self._write_probe(record)
            return
        if isinstance(record, ScrapeRecord):
            self._write_objectives(record.target)
        yield from self._scraper.feed_steps(record)
        if isinstance(record, ScrapeRecord):
            self._name_engines(record.target)

    def ingested(self, key: str, seconds: float) -> None:
        """A page of a target took `seconds` of CPU time to ingest."""
        if key in self._context.targets.scraped:
            self._shares.ingested(key, seconds)
            self._context.collectors.ingested((SCRAPE, key), seconds)

    def report_shares(self) -> None:
        """Count scrapes that are left out as failed: their target's pages cost more than its share."""
        for key in self._context.targets.scraped:
            if self._shares.is_over(key, self._context.config.agent.interval):
                self._context.collectors.failed((SCRAPE, key), CollectorError(OVER_SHARE, REASONS[OVER_SHARE]))

    def serves_any(self, key: str, engines: Container[str]) -> bool:
        """Whether one of these engines is on a target's page."""
        return any(name in engines for name in self._scraper.translator(key).status.engines)

    def model(self, key: str) -> str:
        """A model that a target serves; empty until a page was read."""
        reading = self._scraper.translator(key).reading
        return next(iter(reading.models.values()), "") if reading else ""

    def forget(self, key: str) -> None:
        self._context.engines.gone(key)
        self._context.collectors.forget(key)
        self._shares.forget(key)

    async def close(self) -> None:
        await self._scraper.close()

    def _name_engines(self, key: str) -> None:
        """How observers of requests may call the engines of a target."""
        target, translator = self._context.targets.tables[key], self._scraper.translator(key)
        identity, strings = translator.identity, translator.strings()
        engines = {
            engine: (identity.labels, strings.get(engine, {}).get("role", "")) for engine in translator.status.engines
        }
        self._context.engines.named(key, target.url, self._scraper.engine_of(key, ""), engines)

    def _write_objectives(self, key: str) -> None:
        """The objectives of a target's engines, as families beside theirs. The model is not known until a page was
        read, so the objectives of a model count from the second page on."""
        translator, own = self._scraper.translator(key), self._context.targets.tables[key].slo
        series: dict[Labels, float] = {}
        for engine, strings in translator.strings().items():
            if strings.get("kind") == "exporter":
                continue
            model, role = strings.get("model", ""), strings.get("role", "")
            for stated in objectives.of_engine(self._context.config, own, model, role, self._context.slo_sources):
                labels = {"slo": stated.name, "source": stated.source}
                labels |= {"class": stated.class_} if stated.class_ else {}
                series[translator.identity.series("kvitals_slo_seconds", engine, **labels)] = stated.seconds
        translator.status.say("objectives", series)

    def _write_probe(self, record: ProbeRecord) -> None:
        translator = self._scraper.translator(record.target)
        series: dict[Labels, float] = {}
        for engine in () if record.refused else translator.status.engines:
            series[translator.identity.series("kvitals_probe_success", engine)] = float(record.answered)
            series[translator.identity.series("kvitals_probe_seconds", engine)] = record.seconds
        translator.status.say("probe", series)
