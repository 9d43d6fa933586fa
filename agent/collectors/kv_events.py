"""The sense of KV events: what engines say of each block of their KV cache, as they store and remove it.

    sense = KvEventsSense(tenants)
    sense.listen_to(sources, refusals)
    records = sense.read(t, served)     # what came since the last look, and how each publisher fares

A record never has a hole or a restart inside, so whoever follows the blocks knows where to begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kvitals.agent.collectors.kv_events_publisher import BatchRun, PublisherBatches
from kvitals.agent.collectors.kv_events_sources import PublisherSource, Refusal
from kvitals.agent.collectors.kv_events_wire import TenantPseudonyms
from kvitals.agent.ledger.event import BlockEventBatch, BlocksCleared, KvEventsRecord

RECORD_BLOCKS = 5_000
"""Blocks in one record, about 60 KB: the ledger takes them in some milliseconds."""

MIN_SERVED_TOKENS = 8192
"""Prompt tokens after which an engine that publishes must have published something."""

GRACE_SECONDS = 5.0
"""Within which a connection comes about."""

REASONS = {
    "ok": "",
    "lost": "{lost} messages were lost{replay}.",
    "late": "Content that was published before kvitals listened is unknown{replay}. It becomes known as the "
    "engine replaces blocks.",
    "connecting": "kvitals has just begun to listen at {endpoint}.",
    "not_connected": (
        "Nobody answers at {endpoint}. Is the engine started with --kv-events-config, and does its endpoint "
        "contain a *, as in tcp://*:5557? Without a *, vLLM connects to the address, and kvitals must bind it."
    ),
    "nobody_came": (
        "kvitals listens at {endpoint}, and no engine has connected. Is this the endpoint in its --kv-events-config?"
        " With a * in the endpoint (tcp://*:5557) the engine binds it, and kvitals must connect."
    ),
    "silent": (
        "The engine computes prompts but publishes nothing at {endpoint}. Is its prefix cache enabled? Is {topic} "
        "its topic?"
    ),
    "stranger": (
        "The program that answers at {endpoint} does not publish KV events. If another program already receives "
        "the engine's events there, give the engine an endpoint with a *, such as tcp://*:5557: then several "
        "programs can connect."
    ),
    "shared": (
        "Two publishers use the endpoint {endpoint} and the same topic, so kvitals cannot distinguish them. Give "
        "each engine"
        ' its own "topic" or its own port.'
    ),
    "mixed": (
        "Several publishers send to {endpoint}: their sequence numbers are mixed up. Give each"
        ' engine its own "topic" or its own port.'
    ),
    "bad_endpoint": "{endpoint} cannot be listened to: {detail}",
    "files": (
        "The limit of open files is reached: kvitals closed {endpoint} and will open it again in 10 s. Raise "
        "the limit of the process (LimitNOFILE), and check which clients open connections."
    ),
    "memory": (
        "The agent is near its memory limit: kvitals closed {endpoint} and will open it again in 10 s. Raise the limit"
        " ([agent] memory_limit, and the limit of its service or pod), or check who sends to this address."
    ),
    "not_allowed": "{detail}",
    "elsewhere": "{detail}",
    "inproc": "{detail}",
    "stopped": "Listening ended because of a fault in kvitals and starts again after 10 s. The log names the fault. "
    "Please report this.",
}
"""Why a publisher is not listened to, or not all is known of it."""

_FAILED = (
    "stranger",
    "shared",
    "mixed",
    "bad_endpoint",
    "files",
    "memory",
    "not_allowed",
    "elsewhere",
    "inproc",
    "stopped",
)
_PARTIAL = ("lost", "late")

DROPPED = {
    "malformed": "an invalid message; its content is lost",
    "over_limit": "a message with more events or block hashes than the limit; its changes are lost",
    "unknown_event": "an event of a kind that this kvitals version does not know",
    "other_topic": "a message with another topic, such as the topic of an engine that is not a target",
    "mixed": "a message from one of several publishers that kvitals cannot distinguish",
    "overflow": "a message that waited too long to be ingested",
    "connections": "a connection that was closed because the address or the peer had reached its limit",
    "replay_limit": "a replay with more bytes than the limit; its rest is lost",
    "internal": "a message that was not ingested because of a fault of kvitals",
}
"""Why a message, or an event, was not taken."""


class KvEventsSense:
    """Listens in a thread of its own."""

    def __init__(self, names: TenantPseudonyms, is_full: Callable[[], bool] = lambda: False) -> None:
        """is_full: whether the process is near its memory limit."""
        from kvitals.agent.collectors.kv_events_sockets import Ears  # a recording needs no ZeroMQ

        self._ears = Ears(names, is_full=is_full)
        self._sources: tuple[PublisherSource, ...] = ()
        self._refusals: tuple[tuple[str, Refusal], ...] = ()
        self._served: dict[PublisherSource, float] = {}  # prompt tokens of its target when it was first connected
        self.unheard: frozenset[str] = frozenset()
        """Targets of which nothing came yet though somebody is connected."""

    def listen_to(self, sources: Sequence[PublisherSource], refusals: Sequence[tuple[str, Refusal]]) -> None:
        """Listen to these from now on. refusals: targets whose publishers can not be listened to, and why."""
        self._sources, self._refusals = tuple(sources), tuple(refusals)
        self._served = {source: tokens for source, tokens in self._served.items() if source in self._sources}
        self._ears.listen_to(sources)

    def read(self, t: float, served: Mapping[str, float]) -> list[KvEventsRecord]:
        """What came since the last look. served: prompt tokens of each target so far. Blocks: call it in a thread."""
        heard = self._ears.read()
        records = [record for one in heard for record in self._records(t, one, served)]
        self.unheard = frozenset(one.source.target for one in heard if one.connections and one.last_at is None)
        for target, refusal in self._refusals:
            message = REASONS[refusal.reason].format(endpoint="", detail=refusal.message)
            records.append(
                KvEventsRecord(
                    t=t, target=target, rank=refusal.rank, state="failed", reason=refusal.reason, message=message
                )
            )
        return records

    def close(self) -> None:
        """Let go of all addresses."""
        self._ears.close()

    def _records(self, t: float, heard: PublisherBatches, served: Mapping[str, float]) -> Iterator[KvEventsRecord]:
        source = heard.source
        lost = sum(chunk.lost for chunk in heard.chunks)
        reason = self._reason(t, heard, lost, served.get(source.target))
        state = (
            "failed"
            if reason in _FAILED
            else "partial"
            if reason in _PARTIAL
            else "ok"
            if reason == "ok"
            else "unknown"
        )
        message = REASONS[reason].format(
            endpoint=source.endpoint,
            topic=repr(source.topic),
            lost=lost,
            replay=""
            if source.replay
            else ": give the engine a replay_endpoint, so that kvitals can request missed events",
            detail="the address is wrong, or does not belong to this machine",
        )
        dropped, seconds = heard.dropped, heard.seconds
        for chunk in heard.chunks or [BatchRun()]:
            for number, batches in enumerate(_split(chunk.batches)):
                first = number == 0
                yield KvEventsRecord(
                    t=t,
                    target=source.target,
                    rank=source.rank,
                    batches=batches,
                    lost=chunk.lost if first else 0,
                    restarted=chunk.restarted and first,
                    late=chunk.late and first,
                    replayed=chunk.replayed if first else 0,
                    dropped=dropped,
                    state=state,
                    reason=reason,
                    message=message,
                    seconds=seconds,
                )
                dropped, seconds = {}, 0.0

    def _reason(self, t: float, heard: PublisherBatches, lost: int, served: float | None) -> str:
        if heard.obstacle:
            return heard.obstacle
        if not heard.connections and not heard.chunks:
            if heard.since is None or t - heard.since < GRACE_SECONDS:
                return "connecting"
            return "nobody_came" if heard.source.bind else "not_connected"
        if heard.last_at is None and not heard.chunks and served is not None:
            since = self._served.setdefault(heard.source, served)
            if served - since > MIN_SERVED_TOKENS:
                return "silent"
        if lost:
            return "lost"
        return "late" if any(chunk.late for chunk in heard.chunks) else "ok"


def _split(batches: Sequence[BlockEventBatch]) -> Iterator[tuple[BlockEventBatch, ...]]:
    """Batches in portions for records; one empty portion where there are none."""
    some: list[BlockEventBatch] = []
    blocks = 0
    for batch in batches:
        some.append(batch)
        blocks += sum(len(event.hashes) for event in batch.events if not isinstance(event, BlocksCleared)) + 1
        if blocks >= RECORD_BLOCKS:
            yield tuple(some)
            some, blocks = [], 0
    if some or not batches:
        yield tuple(some)
