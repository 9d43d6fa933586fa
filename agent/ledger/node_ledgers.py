"""The ledgers of a node: KV events and requests' records in, families, look-ups and reports out. Does no I/O and has no
clock of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.cascade_tracker import Cascades
from kvitals.agent.ledger.engine import QUIET_SECONDS, RECORD_SECONDS
from kvitals.agent.ledger.event import KvEventsRecord
from kvitals.agent.ledger.facts import EngineFacts
from kvitals.agent.ledger.ledger_families import LedgerFamilies, Said
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.ledger.report import report
from kvitals.agent.ledger.residency import duplicates
from kvitals.agent.ledger.reuse_curves import CAPACITIES, POOLED, Name, Reuse
from kvitals.agent.ledger.tenants import NOT_ONE, LedgerTenants
from kvitals.agent.ledger.watched import WatchedEngine
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.series_keys import LabelsOf
from kvitals.kvcache.accesses import Accesses, concatenate
from kvitals.kvcache.reuse import Curve
from kvitals.series.slices import Steps, complete
from kvitals.series.window import Window

MAX_ENGINES = 64
REFERENCES = 1_000_000
"""Block references of look-ups that are kept, of all engines together: 8 MB where there are so many."""

MIN_REFERENCES = 31_250
SURVEY_SECONDS = 15.0
CURVE_SECONDS = 60.0
EXPECTED_SECONDS = 600.0
"""Records of requests are expected while something was heard of requests within so long."""

CURVE_TENANTS = 8
ENDS = ("sglang",)
"""Systems that store what a request generated at its end."""


class LedgerSide:
    """What is known of the caches of a node's engines."""

    def __init__(
        self,
        window: Window,
        labels: Mapping[str, str],
        labels_of: LabelsOf,
        top: int,
        references: int = REFERENCES,
    ) -> None:
        """`labels` are this node's, `labels_of` those of an engine that is watched; `top`: tenants that have series of
        their own; `references`: block references that are kept to be replayed."""
        self.engines: dict[str, WatchedEngine] = {}
        self.tenants = LedgerTenants(top)
        self.cascades = Cascades(window)
        self._facts = EngineFacts(window)
        self._families = LedgerFamilies(window, labels, labels_of)
        self._labels_of = labels_of
        self._owners, self._room = Owners(), Room()
        self._reuse = Reuse(MAX_ENGINES + 1 + CURVE_TENANTS)
        self._references = references
        self._heard = float("-inf")
        self._surveyed: float | None = None
        self._drawn = float("-inf")
        self._duplicates = 0
        self._curves: dict[Name, Curve] = {}
        self._node: Said = {}
        self._refused = 0

    def feed(self, record: KvEventsRecord, engine: str, system: str = "") -> None:
        """What an engine said. engine: its label; system: vllm, sglang ..., empty where that is not known."""
        complete(self.feed_steps(record, engine, system))

    def feed_steps(self, record: KvEventsRecord, engine: str, system: str = "") -> Steps[None]:
        """The same in steps."""
        watched = self.engines.get(engine)
        if watched is None:
            if not record.batches or not engine:
                return
            if len(self.engines) >= MAX_ENGINES:
                self._refused += 1
                return
            share = max(self._references // (len(self.engines) + 1), MIN_REFERENCES)
            style = Style.ENDS if system in ENDS else Style.BLOCKS
            watched = WatchedEngine(engine, record.target, self._room, self._owners, style, share)
            watched.ledger.set_pool(self._facts.pool(engine, record.t))
            self.engines[engine] = watched
        yield from watched.ledger.feed_steps(record)
        watched.changed = True

    def heard(self, t: float) -> None:
        """Something was said of requests, so that their records are to be expected."""
        self._heard = max(self._heard, t)

    def request(self, record: RequestRecord) -> None:
        """A request as its record tells it."""
        for engine in record.engines.values():
            watched = self.engines.get(engine)
            if watched is not None:
                watched.ledger.request(record)
                self.cascades.request(engine, record)

    def gone(self, target: str) -> None:
        """A target is watched no more."""
        for name in [name for name, watched in self.engines.items() if watched.target == target]:
            for table in self.engines.pop(name).ledger.tables.values():
                table.clear()
            self._families.end("engine", name)
            self.cascades.gone(name)
            self._forget_curve(("engine", name))

    def advance(self, t: float) -> None:
        """It is `t` now, seconds since the epoch: settle what can be settled, and write a row where it is time."""
        complete(self.advance_steps(t))

    def advance_steps(self, t: float) -> Steps[None]:
        """The same in steps."""
        if not self.engines or not self._families.due(t):
            return
        expects = abs(t - self._heard) < EXPECTED_SECONDS  # what several senses say is not in order to the second
        for watched in self.engines.values():
            yield from watched.ledger.advance_steps(t, expects)
            yield None
        yield from self._settle(t)
        if self._surveyed is None or not 0 <= t - self._surveyed < SURVEY_SECONDS:
            yield from self._survey(t)
            yield None
            patience = RECORD_SECONDS if expects else QUIET_SECONDS
            yield from self._reuse.advance_steps(t, patience, self._pools(), self._named())
            if not 0 <= t - self._drawn < CURVE_SECONDS:
                yield from self._draw(t)
        self._row(t)

    def flush(self, t: float) -> None:
        """Nothing more is to come: settle everything."""
        for watched in self.engines.values():
            watched.ledger.flush()
        complete(self._settle(t))
        if self.engines:
            complete(self._survey(t))
            self._reuse.flush(self._pools(), self._named())
            complete(self._draw(t))
            self._row(t)

    def accesses(self) -> Accesses | None:
        """The latest look-ups of all engines with blocks of the same size, the one that most references have."""
        found = [accesses for watched in self.engines.values() if (accesses := watched.accesses()) is not None]
        sizes: dict[int, int] = {}
        for accesses in found:
            sizes[accesses.block_size] = sizes.get(accesses.block_size, 0) + accesses.references
        if not sizes:
            return None
        size = max(sizes, key=sizes.__getitem__)
        return concatenate([accesses for accesses in found if accesses.block_size == size])

    def report(self) -> dict[str, Any]:
        """What is known, for people and programs that ask (docs/ledger.md)."""
        return report(self.engines.values(), self.tenants, self._curves, self._duplicates)

    def _settle(self, t: float) -> Steps[None]:
        """What is made of the look-ups that are settled now."""
        for watched in self.engines.values():
            for look in watched.take_settled():
                tenant = yield from self.tenants.add_steps(look)
                self._reuse.add(look, watched.name, tenant)
                self.cascades.look(watched.name, look)
                watched.changed = True
                yield None
            yield from watched.blame.settle_steps(t)
            watched.blame.review(t)
            yield None
        for tenant in self.tenants.review(t):
            self._families.end("tenant", tenant)
            self._forget_curve(("tenant", tenant))
        self.cascades.advance(t, self.engines)

    def _survey(self, t: float) -> Steps[None]:
        seconds = t - self._surveyed if self._surveyed is not None and t > self._surveyed else 0.0
        self._surveyed = t
        resident: dict[str, int] = {}
        alike: dict[tuple[str, int], list[WatchedEngine]] = {}
        for watched in self.engines.values():
            yield from watched.survey(t, seconds, self._facts)
            watched.changed = True
            for tenant, tokens in watched.residency.tenants.items():
                resident[tenant] = resident.get(tenant, 0) + tokens
            model = (self._labels_of(watched.name) or {}).get("model", "")
            alike.setdefault((model, watched.ledger.block_tokens), []).append(watched)
        self.tenants.reside(resident, seconds)
        self._duplicates = sum(
            duplicates([watched.ledger.main for watched in group]) * tokens
            for (_, tokens), group in alike.items()
            if len(group) > 1
        )

    def _forget_curve(self, name: Name) -> None:
        self._reuse.gone(name)
        self._curves.pop(name, None)

    def _draw(self, t: float) -> Steps[None]:
        """Make the curves anew."""
        self._drawn = t
        curves: dict[Name, Curve] = {}
        for name in self._reuse.names:
            if (curve := self._reuse.curve(name)) is not None:
                curves[name] = curve
            yield None
        self._curves = curves

    def _row(self, t: float) -> None:
        gauges: Said = {("kvitals_cache_duplicate_tokens", ()): float(self._duplicates)}
        pools = self._pools()
        for (kind, name), curve in self._curves.items():
            pool = pools.get(name, 0) if kind == "engine" else max(pools.values(), default=0)
            _say_curve(kind, name, curve, sum(pools.values()) if (kind, name) == POOLED else pool, gauges)
        node: Said = {}
        for reason, count in (
            ("engine_limit", self._refused),
            ("curve_limit", self._reuse.left_out),
            ("curve_block_size", self._reuse.other_size),
        ):
            if count:
                node["kvitals_cache_ledger_dropped_total", (("reason", reason),)] = float(count)
        self.cascades.say(t, node, gauges)
        self._families.row(t, self.engines.values(), self.tenants, node, gauges)

    def _pools(self) -> dict[str, int]:
        return {name: watched.ledger.pool for name, watched in self.engines.items() if watched.ledger.pool}

    def _named(self) -> list[str]:
        """The tenants with most look-ups, who have curves."""
        sums = {name: held for name, held in self.tenants.sums.items() if name not in NOT_ONE}
        return sorted(sums, key=lambda name: sums[name].lookup, reverse=True)[:CURVE_TENANTS]


def _say_curve(kind: str, name: str, curve: Curve, pool: int, said: Said) -> None:
    mine = ((kind, name),) if name else ()
    family = {"engine": "kvitals_reuse", "tenant": "kvitals_reuse_tenant", "node": "kvitals_reuse_node"}[kind]
    worst = 0.0
    for times in CAPACITIES:
        if (there := curve.at(times * pool)) is not None:
            said[f"{family}_hit_ratio", (*mine, ("capacity", f"{times:g}"))] = there[0]
            worst = max(worst, there[1])
    said[f"{family}_references", mine] = curve.references
    said[f"{family}_error_ratio", mine] = worst
