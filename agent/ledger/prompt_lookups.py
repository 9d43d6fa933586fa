"""Look-ups of prompts, as the stores that follow them tell them.

Nobody says what was looked up and found. But what a request stores first begins where its hits end: what lies before it
was found, and the blocks themselves were missed. What is stored where an open chain ends is that request's next chunk
or a block filled by decoding, or else the first store of another request whose hits end there, such as the next turn
of a conversation. Steps, numbers of blocks and time tell these apart most often, a request's record for certain
(`kvitals.agent.ledger.join`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from kvitals.agent.ledger.block_table import UNKNOWN, BlockRun, Blocks, EngineStep
from kvitals.agent.ledger.event import BlocksStored as StoredEvent
from kvitals.agent.ledger.parties import Party
from kvitals.kvcache.accesses import Source

OPEN_SECONDS = 60.0
"""A chain to which nothing was added for so long is closed: what is stored behind it is another request's."""

REPORTED_SECONDS = 5.0
"""How long after a reused prefix was reported its request's first store may come."""

FIRST_PACE = 30.0
"""Seconds between two blocks of one request that decodes, at most, before any were seen."""

EARLY, LATE = 0.5, 2.5
"""A block that a request fills by decoding comes so many times the usual pace after the one before."""

PACES = 16
"""Times between two blocks behind each other that the usual pace is the median of."""

FULL = 0.75
"""A batch that stored this share of the most that one stored was full, so that a prompt may have had to wait in it."""

NEAR_STEPS = 2
"""Steps with events from one chunk of a prompt to the next, at most: two where an engine has two batches in work."""

NEAR_SECONDS = 3.0
"""Seconds from one chunk to the next, at most: an engine without other work has no other steps between two turns."""

MAX_OPEN = 4_096
MAX_MARKS = 256
"""Stores of one access whose times are kept."""


NO_MARKS = array("d")
"""Of all accesses without a later store, as most are; it is never written to."""

NO_REFAULTS: Mapping[EngineStep, int] = MappingProxyType({})


class Style(Enum):
    """When an engine stores what it decodes."""

    BLOCKS = "each block when it is full"  # vLLM
    ENDS = "all of it when the request ends"  # SGLang


class Kind(Enum):
    """What a store is."""

    START = "the first of a request"
    CHUNK = "a later block of its prompt"
    DECODE = "of what it generated"


@dataclass(slots=True, eq=False)
class Access:
    """A request's look-up and what it stored."""

    at: float  # when its first store was told
    hits: int  # blocks found; UNKNOWN where it is not known what lies before its own
    run: BlockRun | None  # the run that ends where its blocks end
    party: Party
    source: Source
    told: tuple[str, str, str]  # tenant, session and LoRA as the event says
    parent: int | None  # the block before its first store
    tip: int  # the last block that it stored, or of the prefix that was reported
    prompt: int  # blocks from the root to where its prompt's stores end, as far as one can tell
    end: int  # and to where all its stores end
    last: float = 0.0  # when it stored last
    batch: int = 0  # the batch that it stored in last
    decoding: bool = False
    single: bool = False  # what it stored last was one block
    is_over: bool = False  # its request has ended
    marks: array[float] = field(default_factory=lambda: NO_MARKS)  # of each later store: when, and blocks before it
    refaults: Mapping[EngineStep, int] = field(
        default_factory=lambda: NO_REFAULTS
    )  # blocks, by the step that removed them


class Reader:
    """Makes accesses from the stores of one engine, in the order in which they are told."""

    def __init__(self, blocks: Blocks, style: Style) -> None:
        self.style = style
        self.unkept = 0  # chains that were closed for lack of room
        self._blocks = blocks
        self._tips: dict[int, Access] = {}  # the last block of each open chain
        self._open: OrderedDict[Access, None] = OrderedDict()  # the one that stored last is last
        self._pace = 0.0  # seconds in which a request fills a block by decoding; 0: not known
        self._gaps: deque[float] = deque(maxlen=PACES)
        self._gaps_new = 0
        self._batch = 0
        self._stored = [0] * (NEAR_STEPS + 1)  # blocks of prompts in the last batches
        self._most = 0.0  # blocks of prompts in one batch, at most, of late

    @property
    def open(self) -> int:
        """Chains that may go on."""
        return len(self._open)

    def begin(self, at: float) -> None:
        """Another batch begins."""
        self._most = max(self._most * 0.9999, self._stored[self._batch % len(self._stored)])
        self._batch += 1
        self._stored[self._batch % len(self._stored)] = 0
        while self._open:
            access = next(iter(self._open))
            if access.last >= at - OPEN_SECONDS and len(self._open) <= MAX_OPEN:
                break
            self.unkept += access.last >= at - OPEN_SECONDS
            self._close(access)

    def clear(self) -> None:
        """Nothing is open any more."""
        self._tips.clear()
        self._open.clear()

    def report(self, event: StoredEvent, at: float, party: Party) -> Access | None:
        """A prefix that is all there is told again: a request found it. None where that was said already."""
        tip = event.hashes[-1]
        told = (event.tenant, event.session, event.lora)
        before = self._tips.get(tip)
        if before is not None and before.told == told and _only_reported(before, at):
            before.last = at  # it could not be scheduled then, and looked again
            return None
        run = self._blocks.ending(tip)
        hits = run.end if run is not None else UNKNOWN
        access = Access(at, hits, run, party, "report mode", told, tip, tip, hits, hits)
        self._touch(run, at)
        self._keep(access, at)
        return access

    def kind(self, event: StoredEvent, at: float) -> tuple[Kind, Access | None]:
        """What a store is, and the open chain that it begins at the end of."""
        access = self._tips.get(event.parent) if event.parent is not None else None
        if access is None or access.told != (event.tenant, event.session, event.lora):
            return Kind.START, None
        if access.is_over:
            return Kind.START, access
        if _only_reported(access, at):
            return Kind.CHUNK, access
        may_be_chunk = self._may_be_chunk(access, at)
        if self.style is Style.ENDS:
            return Kind.CHUNK if may_be_chunk else Kind.START if access.decoding else Kind.DECODE, access
        if access.batch == self._batch:
            return Kind.START, access  # an engine stores once a step for a request
        if len(event.hashes) > 1:
            return Kind.CHUNK if may_be_chunk else Kind.START, access
        return Kind.DECODE if self._may_decode(access, at) else Kind.START, access

    def _may_be_chunk(self, access: Access, at: float) -> bool:
        """Whether a prompt may go on: its last chunk was in a full batch, and just now."""
        if access.decoding or self._batch - access.batch > NEAR_STEPS or at - access.last > NEAR_SECONDS:
            return False
        stored = self._stored[access.batch % len(self._stored)]
        return stored >= FULL * self._most or access.batch == self._batch

    def _may_decode(self, access: Access, at: float) -> bool:
        """Whether it is about time for another block of what a request generates."""
        gap = at - access.last
        if access.single and gap <= FIRST_PACE:
            self._learn(gap)
        if not self._pace:
            return gap <= FIRST_PACE
        return (EARLY * self._pace if access.decoding else 0.0) <= gap <= LATE * self._pace

    def _learn(self, gap: float) -> None:
        """The time between two single blocks behind each other, most of which are of one request that decodes."""
        self._gaps.append(gap)
        self._gaps_new += 1
        if self._gaps_new >= PACES // 4:
            self._gaps_new = 0
            self._pace = sorted(self._gaps)[len(self._gaps) // 2]

    def start(
        self, event: StoredEvent, at: float, base: BlockRun | None, hits: int, run: BlockRun, party: Party
    ) -> Access:
        """The first store of a request. base: the run that ends where its hits end."""
        told = (event.tenant, event.session, event.lora)
        source: Source = "inferred" if event.parent in self._tips else "parent chain"
        prompt = hits + len(event.hashes) if hits >= 0 else UNKNOWN
        access = Access(at, hits, run, party, source, told, event.parent, event.hashes[-1], prompt, prompt)
        access.single = len(event.hashes) == 1
        self._stored[self._batch % len(self._stored)] += len(event.hashes)
        self._touch(base, at)
        self._keep(access, at)
        return access

    def go_on(self, access: Access, kind: Kind, event: StoredEvent, at: float, run: BlockRun) -> None:
        """A later store of a request."""
        blocks = len(event.hashes)
        access.single = blocks == 1
        if kind is Kind.DECODE:
            access.decoding = True
        else:
            self._stored[self._batch % len(self._stored)] += blocks
            access.prompt += blocks if access.prompt >= 0 else 0
        if access.end >= 0:
            if not access.marks:
                access.marks = array("d", (at, access.end))
            elif len(access.marks) < 2 * MAX_MARKS:
                access.marks.extend((at, access.end))
            access.end += blocks
        if self._tips.get(access.tip) is access:
            del self._tips[access.tip]
        access.run, access.tip = run, event.hashes[-1]
        self._keep(access, at)

    def split(self, access: Access, mark: int) -> Access:
        """Take an access's stores from a mark on for another request's, whose hits end there. Returns that one's."""
        marks, i = access.marks, 2 * mark
        at, hits = marks[i], int(marks[i + 1])
        prompt = int(marks[i + 3]) if i + 3 < len(marks) else access.end
        party = Party(access.told[0], access.told[1], access.told[2])
        before = self._blocks.chain(access.run, hits)
        parent = before[-1] if before else None
        later = Access(at, hits, access.run, party, "inferred", access.told, parent, access.tip, prompt, access.end)
        later.last, later.batch, later.decoding = access.last, access.batch, True
        later.marks = marks[i + 2 :]
        del marks[i:]
        access.prompt, access.end = min(access.prompt, hits), hits
        if parent is not None:
            access.run = self._blocks.ending(parent)
        if self._tips.get(access.tip) is access:
            self._tips[access.tip] = later
            del self._open[access]
            self._open[later] = None
        if parent is not None:
            access.tip = parent
        return later

    def merge(self, access: Access, later: Access) -> None:
        """What seemed to be another request's stores are this one's that go on."""
        access.marks = access.marks + array("d", (later.at, later.hits)) + later.marks
        access.run, access.tip, access.last, access.decoding = later.run, later.tip, later.last, True
        access.end = later.end
        if self._tips.get(later.tip) is later:
            self._tips[later.tip] = access
            del self._open[later]
            self._open[access] = None

    def _touch(self, run: BlockRun | None, at: float) -> None:
        for found in self._blocks.path(run):
            found.last = at
            found.uses += 1

    def _keep(self, access: Access, at: float) -> None:
        access.last, access.batch = at, self._batch
        self._tips[access.tip] = access
        self._open[access] = None
        self._open.move_to_end(access)

    def _close(self, access: Access) -> None:
        del self._open[access]
        if self._tips.get(access.tip) is access:
            del self._tips[access.tip]


def _only_reported(access: Access, at: float) -> bool:
    """Whether its prefix was told a moment ago and nothing was stored for it since."""
    return access.source == "report mode" and access.prompt == access.hits and at - access.last <= REPORTED_SECONDS
