"""The ledger of one engine: events and requests' records in, tables and look-ups out."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, nextafter

from kvitals.agent.ledger.block_table import BlockRun, Blocks, EngineStep, Room
from kvitals.agent.ledger.event import GPU, BlockEventBatch, BlocksCleared, BlocksRemoved, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.join import MAX_PENDING, BlockClaim, WaitingAccesses, block_claim, strays
from kvitals.agent.ledger.ledger_confidence import Confidence
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.parties import Party
from kvitals.agent.ledger.prompt_lookups import NO_REFAULTS, Access, Kind, Reader, Style
from kvitals.agent.ledger.tally import Tally
from kvitals.agent.requests.record import RequestRecord
from kvitals.kvcache.accesses import Source
from kvitals.series.slices import Steps, complete

RECORD_SECONDS = 150.0
"""How long after its last store an access waits for its request's record, where records are to be expected."""

QUIET_SECONDS = 10.0
"""How long after its last store an access is taken for done, where no records come."""

LONG_SECONDS = 60.0
"""And how long after its first one at the latest."""

AFTER_SECONDS = 2.0
"""How long after a request's end its record is held against accesses: its events may come a little later."""

MAX_CLOCK_SECONDS = 3_600.0
"""An engine whose clock is further from ours than this is not believed: its events have our time."""

EVENTS_AT_ONCE, REMOVED_AT_ONCE = 16, 32
"""Events, and removed blocks, between which others have their turn: some milliseconds."""

WALKED_AT_ONCE = 10_000
"""And blocks, with the runs and blocks of the chains that are followed for them."""

MAX_WALKED = 1_000_000
"""What one batch may cost besides its own blocks (`Room.walked`), about 0.2 s. Each look-up follows its chain to the
root, so a batch of 131,072 blocks that lie behind each other would take minutes. What is left of it is a hole."""

MAX_SESSIONS = 8_192
MAX_RECORDS = 8_192
MAX_TABLES = 32
GHOST_POOLS = 2
"""Ghosts are remembered up to so many times as many as the pool has blocks."""

DEFAULT_GHOSTS = 16_384
"""And so many at least."""


@dataclass(frozen=True, slots=True)
class SettledLookup:
    """A look-up that is settled. All but `prompt` and `output` is in blocks."""

    at: float
    blocks: int  # whole ones of the prompt
    hits: int
    chain: list[int] | None  # their hashes; None where they are not known any more
    tokens: int  # of a block
    prompt: int  # tokens of the prompt; of its whole blocks where no record tells
    output: int | None  # tokens generated
    party: Party
    source: Source
    confidence: float  # that it is this party's
    request: str = ""  # id of the request, where its record is known
    refaults: Mapping[EngineStep, int] = field(default_factory=lambda: NO_REFAULTS)


class EngineLedger:
    """What is known of one engine's cache. `take` is given each look-up when it is settled."""

    def __init__(self, room: Room, owners: Owners, style: Style, take: Callable[[SettledLookup], None]) -> None:
        self.tables: dict[tuple[str, int], Blocks] = {}  # by medium and group
        self.tallies: dict[str, Tally] = {}  # by medium
        self.confidence = Confidence()
        self.block_tokens = 0  # 0: not known yet
        self.decoded_tokens = 0
        self.cleared: dict[str, int] = {}  # reason -> blocks
        self.unobserved: dict[str, int] = {}  # reason -> requests
        self.dropped: dict[str, int] = {}
        self._room, self._owners, self._take = room, owners, take
        self._main = Blocks(room)
        self._main_group: int | None = None
        self._reader = Reader(self._main, style)
        self._waiting = WaitingAccesses()
        self._records: deque[RequestRecord] = deque()
        self._sessions: OrderedDict[str, BlockRun] = OrderedDict()  # session -> where its last chain ends
        self._now = -inf  # by the engine's clock
        self._walk_end = 0  # `walked` of the room up to which a batch may go
        self._pool: int | None = None

    @property
    def main(self) -> Blocks:
        """The blocks of the device, of the group in which look-ups are read."""
        return self._main

    @property
    def pool(self) -> int | None:
        """Blocks that the device has; None where nobody says."""
        return self._pool

    @property
    def share(self) -> float | None:
        """The confidence."""
        return self.confidence.share(self._pool)

    @property
    def bytes(self) -> int:
        """About what it takes in memory."""
        waiting = 700 * (len(self._waiting) + self._reader.open)
        return sum(blocks.bytes for blocks in self.tables.values()) + waiting + 300 * len(self._sessions)

    def all_dropped(self, charges: int) -> dict[str, int]:
        """What there was no room for or could not be placed, by reason. charges: of blame, made early for that."""
        found = dict(self.dropped)
        for table in self.tables.values():
            for reason, blocks in table.dropped.items():
                found[reason] = found.get(reason, 0) + blocks
        limits = {"chain_limit": self._reader.unkept, "charge_limit": charges}
        return found | {reason: count for reason, count in limits.items() if count}

    def set_pool(self, blocks: int | None) -> None:
        """How many blocks the device has."""
        self._pool = blocks if blocks and blocks > 0 else None
        limit = max(GHOST_POOLS * (self._pool or 0), DEFAULT_GHOSTS)
        for (medium, _), table in self.tables.items():
            table.ghost_limit = limit if medium == GPU else DEFAULT_GHOSTS

    def feed(self, record: KvEventsRecord) -> None:
        """What one publisher said since the last time."""
        complete(self.feed_steps(record))

    def feed_steps(self, record: KvEventsRecord) -> Steps[None]:
        """The same in steps."""
        if record.restarted:
            yield from self._forget_steps("restart")
            self.confidence.fresh()
        if record.lost or record.late or any(record.dropped.values()):
            self._hole()
        for batch in record.batches:
            yield from self._feed_batch_steps(batch, record.t)
            yield None
        yield from self._heal_steps()

    def request(self, record: RequestRecord) -> None:
        """A request of this engine, as a record tells it."""
        self._records.append(record)
        if len(self._records) > MAX_RECORDS:
            self._join(self._records.popleft())

    def advance(self, t: float, expects: bool) -> None:
        """It is `t` now: give out what is settled by then. expects: records of requests are to be expected."""
        complete(self.advance_steps(t, expects))

    def advance_steps(self, t: float, expects: bool) -> Steps[None]:
        """The same in steps."""
        due = [record for record in self._records if record.end + AFTER_SECONDS <= t]
        if due:
            self._records = deque(record for record in self._records if record.end + AFTER_SECONDS > t)
            for record in sorted(due, key=_first_token):
                self._join(record)
                yield None
        patience = RECORD_SECONDS if expects else QUIET_SECONDS
        for access in self._waiting.all():
            if access.last < t - patience or (not expects and access.at < t - LONG_SECONDS):
                self._settle(access)
                yield None

    def flush(self) -> None:
        """Nothing more is to come."""
        while self._records:
            self._join(self._records.popleft())
        for access in self._waiting.all():
            self._settle(access)

    def _feed_batch_steps(self, batch: BlockEventBatch, t: float) -> Steps[None]:
        at = batch.at if abs(batch.at - t) < MAX_CLOCK_SECONDS else t
        self._now = at = max(at, self._now)
        self._reader.begin(at)
        step, self._walk_end = EngineStep(at), self._room.walked + MAX_WALKED
        removed: list[int] = []
        medium, group = GPU, 0
        turn_end, blocks = 0, 0
        for number, event in enumerate(batch.events):
            if number % EVENTS_AT_ONCE == 0 or self._room.walked + blocks > turn_end:
                yield None
                turn_end, blocks = self._room.walked + WALKED_AT_ONCE, 0
            blocks += 0 if isinstance(event, BlocksCleared) else len(event.hashes)
            if self._walks_too_far(len(batch.events) - number):
                break
            if isinstance(event, BlocksRemoved):
                if removed and (event.group != group or event.medium != medium):
                    yield from self._remove_steps(removed, medium, group, step)
                    removed = []
                medium, group = event.medium, event.group
                removed += event.hashes
                continue
            if removed:
                yield from self._remove_steps(removed, medium, group, step)
                removed = []
            if isinstance(event, BlocksStored):
                if event.hashes:
                    self._store(event, step)
            else:
                yield from self._forget_steps("reset")
                self.confidence.fresh()
        if removed:
            yield from self._remove_steps(removed, medium, group, step)

    def _walks_too_far(self, left: int) -> bool:
        """Whether a batch has cost what it may. left: what of it is dropped then."""
        if self._room.walked <= self._walk_end:
            return False
        self.dropped["walk_limit"] = self.dropped.get("walk_limit", 0) + left
        self._hole()
        return True

    def _remove_steps(self, hashes: list[int], medium: str, group: int, step: EngineStep) -> Steps[None]:
        table, tally = self._table(medium, group), self._tally(medium)
        if table is None:
            return
        if self._reader.style is Style.ENDS:
            hashes.reverse()  # it tells the beginning of what it removes first
        for first in range(0, len(hashes), REMOVED_AT_ONCE):
            if self._walks_too_far(len(hashes) - first):
                return
            for removal in table.remove(hashes[first : first + REMOVED_AT_ONCE], step):
                tally.remove(removal, self.block_tokens)
            yield None

    def _store(self, event: BlocksStored, step: EngineStep) -> None:
        table = self._table(event.medium, event.group)
        if table is None:
            return
        if table is self._main:
            if event.tokens > 0:
                self.block_tokens = event.tokens
            self._look(event, step)
            return
        said = table.store(event.hashes, event.parent, step.at, False)
        self._tally(event.medium).store(said, event.tokens or self.block_tokens)
        if said.refaults:
            self._tally(event.medium).refault(said.refaults, step.at, event.tokens or self.block_tokens, 0)

    def _look(self, event: BlocksStored, step: EngineStep) -> None:
        """A store on the device, which tells of a look-up."""
        at, reader, main = step.at, self._reader, self._main
        if event.parent is None and main.holds(event.hashes):
            access = reader.report(event, at, self._owners.told(event))
            if access is not None:
                self._wait(access)
            return
        kind, open_access = reader.kind(event, at)
        said = main.store(event.hashes, event.parent, at, kind is not Kind.START)
        run = said.run
        if run is None:
            self._hole()  # there was no room, or it contradicts itself
            return
        tally = self._tally(GPU)
        tally.store(said, self.block_tokens)
        self.confidence.stored(said.taken)
        if kind is Kind.START or open_access is None:
            access = reader.start(event, at, said.base, said.depth, run, self._owners.told(event))
            self._wait(access)
        else:
            access = open_access
            reader.go_on(access, kind, event, at, run)
        party = access.party
        if len(event.hashes) > len(said.refaults):
            step.store(party, len(event.hashes) - len(said.refaults))
        if said.refaults:
            self._again(event, step, access, kind, said.refaults)
        if kind is Kind.DECODE:
            self.decoded_tokens += len(event.hashes) * self.block_tokens

    def _again(
        self, event: BlocksStored, step: EngineStep, access: Access, kind: Kind, refaults: list[EngineStep]
    ) -> None:
        """Blocks came back that these steps had removed."""
        by_step = Counter(refaults)
        for removing, blocks in by_step.items():
            step.store_again(access.party, removing, blocks)
        if kind is not Kind.DECODE:  # what decoding filled, no look-up had missed
            below = self._held_below(event.hashes) if len(self.tables) > 1 else 0
            self._tally(GPU).refault(refaults, step.at, self.block_tokens, below)
            access.refaults = dict(Counter(access.refaults) + by_step)

    def _held_below(self, hashes: tuple[int, ...]) -> int:
        """How many of these blocks a lower tier has."""
        lower = [table for (medium, _), table in self.tables.items() if medium != GPU]
        return sum(any(table.holds((block,)) for table in lower) for block in hashes)

    def _wait(self, access: Access) -> None:
        if access.told[1] and access.run is not None:
            self._remember(access.told[1], access.run)
        self._waiting.add(access)
        if len(self._waiting) > MAX_PENDING:
            oldest = self._waiting.oldest()
            if oldest is not None:
                self._settle(oldest)
                self.dropped["pending_limit"] = self.dropped.get("pending_limit", 0) + 1

    def _join(self, record: RequestRecord) -> None:
        """Find the look-up of a request."""
        if record.session and record.tenant:
            self._owners.learn(record.session, record.tenant)
        wanted = block_claim(record, self.block_tokens) if self.block_tokens else None
        if wanted is None:
            self._miss("no_prompt")
            return
        match = self._waiting.match(wanted, record.session, lambda access: self._affinity(access, record))
        found = self._waiting.within(wanted) if match is None or (wanted.is_exact and not wanted.hits) else None
        if match is not None and (found is None or not wanted.nearer(found, match.access)):
            self._over(match.access, wanted)
            self._settle(match.access, record, wanted, match.confidence)
            return
        if found is not None:
            later = self._reader.split(*found)
            self._wait(later)
            self._over(later, wanted)
            self._settle(later, record, wanted, 1.0)
            return
        self._stored_nothing(record, wanted)

    def _affinity(self, access: Access, record: RequestRecord) -> int:
        """How much what an access found has to do with a request's session and tenant, as far as these are known. What
        goes on from a session's last blocks is that session's, and a prefix that one tenant alone used is that one's.
        """
        path = self._main.path(access.run)
        if record.session and self._sessions.get(record.session) in path:
            return 3
        owners = {run.tenant for run in path if run.tenant}
        return 2 if record.tenant in owners else 0 if owners else 1

    def _stored_nothing(self, record: RequestRecord, wanted: BlockClaim) -> None:
        """A request of which no store is known: what its session looked up before begins as its prompt does."""
        run = self._sessions.get(record.session) if record.session else None
        if wanted.blocks not in wanted.hits:
            self._miss("other_blocks")
            return
        chain = self._main.chain(run, wanted.blocks) if run is not None else None
        if chain is None or len(chain) < wanted.blocks:
            self._miss("no_chain")
            return
        party = Party(record.tenant, record.session, record.lora)
        party.settle()
        self._give(record.start, wanted.blocks, wanted.blocks, chain, party, "inferred", record, 1.0, NO_REFAULTS)

    def _over(self, access: Access, wanted: BlockClaim) -> None:
        """Its request has ended: what seemed to be its stores after that are another's."""
        while (behind := self._waiting.behind(access, wanted)) is not None:
            self._waiting.remove(behind)
            self._reader.merge(access, behind)
        access.is_over = True
        mark = strays(access, wanted)
        if mark is not None:
            self._wait(self._reader.split(access, mark))

    def _settle(
        self,
        access: Access,
        record: RequestRecord | None = None,
        wanted: BlockClaim | None = None,
        confidence: float = 1.0,
    ) -> None:
        self._waiting.remove(access)
        party, run = access.party, access.run
        if record is not None:
            party.settle(record.tenant, record.session)
        else:
            party.settle()
        blocks = wanted.blocks if wanted is not None else access.prompt
        if access.hits < 0 or blocks < 0:
            self._miss("unknown_parent")
            return
        self._own(run, party)
        if party.session and run is not None:
            self._remember(party.session, run)
        chain = self._main.chain(run, blocks)
        source = access.source if record is None or access.source == "report mode" else "parent chain"
        self._give(
            access.at, blocks, min(access.hits, blocks), chain, party, source, record, confidence, access.refaults
        )

    def _give(
        self,
        at: float,
        blocks: int,
        hits: int,
        chain: list[int] | None,
        party: Party,
        source: Source,
        record: RequestRecord | None,
        confidence: float,
        refaults: Mapping[EngineStep, int],
    ) -> None:
        told = record.prompt_tokens if record is not None else None
        if chain is None or len(chain) != blocks:
            self.dropped["chain_forgotten"] = self.dropped.get("chain_forgotten", 0) + 1
            chain = None
        self._take(
            SettledLookup(
                at=at,
                blocks=blocks,
                hits=hits,
                chain=chain,
                tokens=self.block_tokens,
                prompt=told if told is not None else blocks * self.block_tokens,
                output=record.output_tokens if record is not None else None,
                party=party,
                source=source,
                confidence=confidence,
                request=record.id if record is not None else "",
                refaults=refaults,
            )
        )

    def _own(self, run: BlockRun | None, party: Party) -> None:
        """A party stored or found these blocks."""
        if not party.tenant:
            return
        for found in self._main.path(run):
            if found.tenant is None:
                found.tenant, found.how = party.tenant, party.how
            elif found.tenant != party.tenant:
                found.tenant = ""

    def _remember(self, session: str, run: BlockRun) -> None:
        self._sessions[session] = run
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def _hole(self) -> None:
        """Something was not seen: what was known before may be so no more."""
        self.confidence.hole()
        for table in self.tables.values():
            table.doubt = nextafter(self._now, inf)

    def _heal_steps(self) -> Steps[None]:
        """After as many blocks were stored anew as the pool has, what was not heard of since the hole is gone."""
        if not self.confidence.is_whole and self.share == 1.0:
            for (medium, _), table in self.tables.items():
                if medium == GPU:
                    yield from table.purge_steps(table.doubt)
            self.confidence.fresh()

    def _forget_steps(self, reason: str) -> Steps[None]:
        """All blocks are gone."""
        for number, access in enumerate(self._waiting.all()):
            if number % EVENTS_AT_ONCE == 0:
                yield None
            self._settle(access)
        self._reader.clear()
        self._sessions.clear()
        for table in self.tables.values():
            self.cleared[reason] = self.cleared.get(reason, 0) + table.clear()

    def _miss(self, reason: str) -> None:
        self.unobserved[reason] = self.unobserved.get(reason, 0) + 1

    def _table(self, medium: str, group: int) -> Blocks | None:
        """The blocks of a medium and group. Look-ups are read in the first group of the device that was heard of."""
        table = self.tables.get((medium, group))
        if table is None and len(self.tables) < MAX_TABLES:
            if medium == GPU and self._main_group is None:
                self._main_group, table = group, self._main
            else:
                table = Blocks(self._room)
            self.tables[medium, group] = table
            self.set_pool(self._pool)
        return table

    def _tally(self, medium: str) -> Tally:
        tally = self.tallies.get(medium)
        if tally is None:
            tally = self.tallies[medium] = Tally()
        return tally


def _first_token(record: RequestRecord) -> float:
    return record.start + record.ttft if record.ttft is not None else record.end
