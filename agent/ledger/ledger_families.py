"""The ledgers of a node as families in the window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvitals.agent.counter_writer import CounterRows
from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.ledger.event import GPU
from kvitals.agent.ledger.tally import Tally
from kvitals.agent.ledger.tenants import LedgerTenants
from kvitals.agent.ledger.watched import WatchedEngine
from kvitals.agent.requests.request_families import Histogram
from kvitals.agent.series_keys import Key, LabelSet, LabelsOf, entity_series
from kvitals.series.window import Window

GROUP, GAUGES = "ledger", "ledger_gauges"
EVENTS_SOURCE = "kv events"
"""The source of the fact that an engine publishes KV events: they arrived, whatever its command line shows."""

Said = dict[Key, float]


class LedgerFamilies:
    """Writes rows, one each second of the records' clock at most."""

    def __init__(self, window: Window, labels: Mapping[str, str], labels_of: LabelsOf) -> None:
        """`labels` are this node's; `labels_of` tells those of an engine that is watched."""
        self._counters = CounterRows(window, GROUP)
        self._gauges = GaugeRows(window, GAUGES)
        self._named = entity_series(labels, labels_of)

    def due(self, t: float) -> bool:
        """Whether it is time for a row."""
        return self._counters.due(t)

    def end(self, label: str, value: str) -> None:
        """End the counters with a label."""
        self._counters.end((label, value))

    def row(self, t: float, engines: Iterable[WatchedEngine], tenants: LedgerTenants, node: Said, gauges: Said) -> None:
        """Write a row. node, gauges: counters and gauges of the node that others made."""
        counts: Said = dict(node)
        gauges = dict(gauges)
        for engine in engines:
            if engine.changed:
                engine.changed = False
                _counters(engine, counts)
            _gauges(engine, gauges)
        _tenants(tenants, counts, gauges)
        for index, value in tenants.fairness(t).items():
            gauges["kvitals_cache_fairness", (("index", index),)] = value
        self._counters.write(t, counts, {}, self._named)
        self._gauges.write(t, {self._named(key): value for key, value in gauges.items()})


def _counters(engine: WatchedEngine, said: Said) -> None:
    mine = (("engine", engine.name),)
    ledger = engine.ledger
    for medium, tally in ledger.tallies.items():
        _tally(tally, (*mine, ("medium", medium)), said)
    gpu = ledger.tallies.get(GPU)
    if gpu is not None:
        said["kvitals_cache_refaulted_below_tokens_total", mine] = float(gpu.refaulted_below_tokens)
        said["kvitals_cache_dead_token_seconds_total", mine] = gpu.dead_token_seconds
    said["kvitals_cache_lookup_tokens_total", mine] = float(engine.lookup_tokens)
    said["kvitals_cache_hit_tokens_total", mine] = float(engine.hit_tokens)
    said["kvitals_cache_decode_tokens_total", mine] = float(ledger.decoded_tokens)
    for family, label, counts in (
        ("kvitals_cache_accesses_total", "source", engine.sources),
        ("kvitals_cache_cleared_blocks_total", "reason", ledger.cleared),
        ("kvitals_cache_unobserved_total", "reason", ledger.unobserved),
        ("kvitals_cache_ledger_dropped_total", "reason", ledger.all_dropped(engine.blame.early)),
    ):
        for value, count in counts.items():
            said[family, (*mine, (label, value))] = float(count)
    for purpose, seconds in engine.token_seconds.items():
        said["kvitals_cache_resident_token_seconds_total", (*mine, ("purpose", purpose))] = seconds
    for (victim, by), tokens in engine.blame.cells.items():
        said["kvitals_cache_blame_tokens_total", (*mine, ("tenant", victim), ("by", by))] = tokens


def _tally(tally: Tally, mine: LabelSet, said: Said) -> None:
    said["kvitals_cache_stored_blocks_total", mine] = float(tally.stored)
    said["kvitals_cache_stored_tokens_total", mine] = float(tally.stored_tokens)
    for used, reuse in ((False, "never"), (True, "some")):
        labels = (*mine, ("reuse", reuse))
        said["kvitals_cache_removed_blocks_total", labels] = float(tally.removed[used])
        said["kvitals_cache_removed_tokens_total", labels] = float(tally.removed_tokens[used])
    said["kvitals_cache_refaulted_blocks_total", mine] = float(tally.refaulted)
    said["kvitals_cache_refaulted_tokens_total", mine] = float(tally.refaulted_tokens)
    _histogram(tally.idle, "kvitals_cache_eviction_idle_seconds", mine, said)
    _histogram(tally.refaults, "kvitals_cache_refault_seconds", mine, said)


def _histogram(histogram: Histogram, family: str, labels: LabelSet, said: Said) -> None:
    for (name, le), value in zip(histogram.names(family), histogram.samples(), strict=True):
        said[name, (*labels, ("le", le)) if le else labels] = value


def _gauges(engine: WatchedEngine, said: Said) -> None:
    mine = (("engine", engine.name),)
    ledger = engine.ledger
    for medium in ledger.tallies:
        tables = [table for (where, _), table in ledger.tables.items() if where == medium]
        labels = (*mine, ("medium", medium))
        live = sum(table.live for table in tables)
        said["kvitals_cache_live_blocks", labels] = float(live)
        said["kvitals_cache_live_tokens", labels] = float(live * ledger.block_tokens)
        said["kvitals_cache_copied_blocks", labels] = float(sum(table.copies for table in tables))
    said["kvitals_engine_fact", (*mine, ("fact", "kv_events"), ("source", EVENTS_SOURCE))] = 1.0
    said["kvitals_cache_ghost_blocks", mine] = float(sum(table.ghosts for table in ledger.tables.values()))
    said["kvitals_cache_ledger_bytes", mine] = float(engine.bytes)
    for family, value in (
        ("kvitals_cache_fill_ratio", engine.fill),
        ("kvitals_cache_confidence_ratio", ledger.share),
        ("kvitals_cache_observed_ratio", engine.observed),
        ("kvitals_cache_blame_known_ratio", engine.blame.known),
        ("kvitals_cache_blame_error_ratio", engine.blame.error),
    ):
        if value is not None:
            said[family, mine] = value
    for purpose, tokens in engine.residency.purposes.items():
        said["kvitals_cache_resident_tokens", (*mine, ("purpose", purpose))] = float(tokens)
    for known, tokens in engine.residency.known.items():
        said["kvitals_cache_owner_tokens", (*mine, ("known", known))] = float(tokens)


def _tenants(tenants: LedgerTenants, counts: Said, gauges: Said) -> None:
    for name, sums in tenants.sums.items():
        mine = (("tenant", name),)
        counts["kvitals_cache_tenant_lookup_tokens_total", mine] = sums.lookup
        counts["kvitals_cache_tenant_hit_tokens_total", mine] = sums.hits
        counts["kvitals_cache_tenant_refaulted_tokens_total", mine] = sums.refaulted
        counts["kvitals_cache_tenant_token_seconds_total", mine] = sums.token_seconds
        gauges["kvitals_cache_tenant_resident_tokens", mine] = sums.resident
        if sums.attainable:
            counts["kvitals_cache_tenant_attainable_tokens_total", mine] = sums.attainable
