"""The thread that listens to publishers of KV events over ZeroMQ, and the queue in which their batches wait.

    ears = Ears(names)
    ears.listen_to(sources)          # from now on to these and no others
    ears.read()                      # what came since the last look, for each of them
    ears.close()

The thread reads messages as they come, asks for those that are missing, and turns them into redacted batches when
there are a megabyte of them, else `read` does: so token ids go soon, and little is done for each message.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
import zmq
from zmq.utils.monitor import recv_monitor_message

from kvitals.agent.collectors.kv_events_sources import PublisherSource
from kvitals.agent.collectors.kv_events_stream import EventStream, Message
from kvitals.agent.collectors.kv_events_wire import TenantPseudonyms, UnbrokenBatches, Wire
from kvitals.agent.ledger.event import BlockEventBatch, BlocksCleared

log = structlog.get_logger(__name__)

MAX_MESSAGE_BYTES = 16 << 20
"""Of one frame. A step that reports a prompt of a million tokens has 5 MB."""

MAX_SOURCES = 256
MAX_READY_BLOCKS = 250_000
"""Blocks in batches of one publisher that wait for the next look, about 60 bytes each. Beyond, the oldest leave."""

MAX_READY_BATCHES = 50_000
SETTLE_BYTES = 1 << 20
QUEUED_MESSAGES = 1000  # in a socket
QUEUED_REPLAYED = 20_000  # a publisher drops what a socket has no room for, and keeps 10,000 unless told otherwise
BURST = 1000
"""Messages of one socket before others have their turn."""

WAKE_MS = 200
PAUSE_SECONDS = 0.05
"""After each turn: so that an engine's steps, a hundred a second, are taken several at a time."""

SHARE = 0.2
"""Of one core, for this thread: the interpreter runs one thread at a time, and a flood of messages would take half of
its time from the event loop. After a long turn the pause is longer; messages that a socket has no room for meanwhile
are lost, and counted as a hole."""

MAX_PAUSE_SECONDS = 2.0

ARRANGE_SECONDS = 0.5
"""How often it is looked which addresses are to be opened, and said how each fares."""

FRAMES = 3
SEQUENCE_BYTES = 8
END = b"\xff" * SEQUENCE_BYTES
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5000, 15_000
RECONNECT_MS, MAX_RECONNECT_MS = 100, 5000
BIND_RETRY_SECONDS = 10.0
REOPEN_SECONDS = 3.0
"""After a connection broke and did not come back. ZeroMQ connects again where a peer goes, and not where it breaks the
protocol, as a message that is too large does."""


_UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DOWN = zmq.EVENT_DISCONNECTED
_STRANGERS = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass
class BatchRun:
    """Batches that follow each other, and what was before them."""

    lost: int = 0
    restarted: bool = False
    late: bool = False
    replayed: int = 0
    batches: list[BlockEventBatch] = field(default_factory=list)
    blocks: int = 0


@dataclass
class PublisherBatches:
    """What came from one publisher since the last look."""

    source: PublisherSource
    chunks: list[BatchRun]
    dropped: dict[str, int]
    connections: int  # of its socket
    since: float | None  # when that was opened; None: it is not yet
    last_at: float | None  # when the last message came
    obstacle: str = ""  # why it can not be listened to: a key of kvitals.agent.collectors.kv_events.REASONS
    seconds: float = 0.0  # that reading messages took


class _Publisher:
    """One publisher's stream, and its batches. `lock` guards all of it."""

    def __init__(self, source: PublisherSource, names: TenantPseudonyms) -> None:
        self.source = source
        self.stream = EventStream(replays=bool(source.replay))
        self.lock = threading.Lock()
        self.dropped: dict[str, int] = {}
        self.last_at: float | None = None
        self._wire = Wire(names)
        self._ready: deque[BatchRun] = deque()
        self._blocks = self._batches = 0
        self._seconds = 0.0

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def settle(self) -> None:
        """Turn the messages that there are into batches."""
        began = time.thread_time()
        for run in self.stream.take():
            chunk = BatchRun(run.lost, run.restarted, run.late, run.replayed)
            for number, piece in enumerate(self._read(run.messages)):
                if number:
                    chunk = BatchRun()
                chunk.lost += piece.hole
                chunk.batches = piece.batches
                chunk.blocks = sum(map(_blocks, piece.batches))
                self._keep(chunk)
        for reason, count in self._wire.dropped.items():
            self.drop(reason, count)
        self._wire.dropped.clear()
        self._seconds += time.thread_time() - began

    def _read(self, messages: list[Message]) -> list[UnbrokenBatches]:
        try:
            return self._wire.read(messages)
        except Exception:  # one publisher's messages must not take the others down
            log.exception("KV events not taken over", endpoint=self.source.endpoint)
            self.drop("internal", len(messages))
            return [UnbrokenBatches(hole=len(messages))]

    def hand_out(self) -> tuple[list[BatchRun], dict[str, int], float]:
        """What waits, what was dropped, and how long reading took, since the last time."""
        self.settle()
        if self.stream.ignored:
            self.drop("mixed", self.stream.ignored)
            self.stream.ignored = 0
        given = list(self._ready), self.dropped, self._seconds
        self._ready, self.dropped, self._blocks, self._batches, self._seconds = deque(), {}, 0, 0, 0.0
        return given

    def _keep(self, chunk: BatchRun) -> None:
        self._ready.append(chunk)
        self._blocks += chunk.blocks
        self._batches += len(chunk.batches)
        while len(self._ready) > 1 and (self._blocks > MAX_READY_BLOCKS or self._batches > MAX_READY_BATCHES):
            oldest, heir = self._ready.popleft(), self._ready[0]
            self._blocks -= oldest.blocks
            self._batches -= len(oldest.batches)
            self.drop("overflow", len(oldest.batches))
            if not heir.restarted:
                heir.restarted, heir.late = oldest.restarted, oldest.late or heir.late
                heir.lost += oldest.lost + len(oldest.batches)


class _Replayer:
    """Asks one publisher for what is missing. A DEALER, since an engine answers with many messages."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], publisher: _Publisher, poller: zmq.Poller) -> None:
        self._context = context
        self._publisher = publisher
        self._poller = poller
        self._for: object = None  # the replay that the socket is for
        self.socket: zmq.Socket[bytes] | None = None

    def turn(self, t: float) -> None:
        """Ask where something is to be asked, and let go where nothing is any more. The publisher's lock is held."""
        wanted = self._publisher.stream.replay
        if wanted is not self._for:
            self.close()
            self._for = wanted
        if wanted is None or wanted.sent is not None:
            return
        if self.socket is None:
            self.socket = _socket(self._context, zmq.DEALER, QUEUED_REPLAYED)
            self.socket.setsockopt(zmq.IMMEDIATE, 1)
            self.socket.connect(self._publisher.source.replay)
            self._poller.register(self.socket, zmq.POLLIN)
        with contextlib.suppress(zmq.Again):  # not connected yet
            self.socket.send_multipart([b"", wanted.start.to_bytes(SEQUENCE_BYTES, "big")], zmq.NOBLOCK)
            wanted.sent = wanted.heard = t

    def receive(self, t: float) -> None:
        """Take what came of the replay. vLLM before 0.26 answers without the topic. The lock is held."""
        stream = self._publisher.stream
        for _ in range(BURST):
            frames = _frames(self.socket) if self.socket is not None else None
            if frames is None or stream.replay is not self._for:
                return
            if len(frames) not in (FRAMES, FRAMES + 1) or frames[0] or len(frames[-2]) != SEQUENCE_BYTES:
                self._publisher.drop("malformed")
            elif frames[-2] == END:
                stream.ended(t)
            else:
                stream.replayed(int.from_bytes(frames[-2], "big"), frames[-1], t)

    def close(self) -> None:
        if self.socket is not None:
            self._poller.unregister(self.socket)
            self.socket.close(linger=0)
            self.socket = None


class _Listener:
    """One address, and the publishers there: several where engines connect to us, told apart by their topics."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, endpoint: str, bind: bool) -> None:
        self._context, self._poller = context, poller
        self.endpoint, self._bind = endpoint, bind
        self.publishers: dict[bytes | None, tuple[_Publisher, _Replayer]] = {}  # by topic; None: any
        self.connections = 0
        self.since: float | None = None  # when it was opened
        self.obstacle = ""
        self._open_at = 0.0
        self._is_bound = False
        self._reopen_at: float | None = None
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None

    def open(self, t: float) -> None:
        """Bind or connect, where that is not done yet."""
        if self.socket is not None or t < self._open_at:
            return
        self._open_at = t + BIND_RETRY_SECONDS
        socket = _socket(self._context, zmq.SUB, QUEUED_MESSAGES)
        monitor = socket.get_monitor_socket(_UP | _DOWN)
        try:
            self._attach(socket)
        except zmq.ZMQError as error:
            log.warning("publisher of KV events can not be reached", endpoint=self.endpoint, error=str(error))
            self.obstacle = "bad_endpoint"
            _close_both(socket, monitor)
            return
        self.socket, self.monitor, self.since = socket, monitor, t
        for topic in self.publishers:
            socket.setsockopt(zmq.SUBSCRIBE, topic or b"")
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)

    @property
    def state(self) -> tuple[int, float | None, str]:
        """Connections, since when it is open, and what is in the way."""
        return self.connections, self.since, self.obstacle

    def keep(self, by_topic: Mapping[bytes | None, _Publisher], t: float) -> None:
        """These are its publishers."""
        for topic in [one for one, (publisher, _) in self.publishers.items() if by_topic.get(one) is not publisher]:
            self.publishers.pop(topic)[1].close()
            if self.socket is not None:
                self.socket.setsockopt(zmq.UNSUBSCRIBE, topic or b"")
        for topic, publisher in by_topic.items():
            if topic in self.publishers:
                continue
            self.publishers[topic] = publisher, _Replayer(self._context, publisher, self._poller)
            if self.socket is not None:
                self.socket.setsockopt(zmq.SUBSCRIBE, topic or b"")
            if self.connections:
                with publisher.lock:
                    publisher.stream.connected(t)

    def watch(self, t: float, *, happened: bool) -> None:
        """Connections that came and went, where something happened."""
        while happened and self.monitor is not None and self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event & _UP:
                self.connections += 1
                self.obstacle, self._reopen_at = "", None
            else:
                if not self.connections and not self._is_bound:
                    self.obstacle = "stranger"  # it answered, and in no way that a publisher does
                self.connections = max(self.connections - 1, 0)
                self._reopen_at = None if self.connections or self._is_bound else t + REOPEN_SECONDS
            for publisher, _ in self.publishers.values():
                with publisher.lock:
                    publisher.stream.connected(t) if event & _UP else publisher.stream.cut(t)
        if self._reopen_at is not None and t >= self._reopen_at:
            self._close_socket()
            self._reopen_at, self._open_at = None, t

    def receive(self, t: float) -> None:
        """Take what came."""
        for _ in range(BURST):
            frames = _frames(self.socket) if self.socket is not None else None
            if frames is None:
                return
            found = self.publishers.get(frames[0]) or self.publishers.get(None)
            if found is None:
                found = next(iter(self.publishers.values()), None)
                if found is not None:
                    found[0].drop("other_topic")
                continue
            publisher, _ = found
            with publisher.lock:
                if len(frames) != FRAMES or len(frames[1]) != SEQUENCE_BYTES or frames[1] == END:
                    publisher.drop("malformed")
                    continue
                publisher.last_at = t
                publisher.stream.live(int.from_bytes(frames[1], "big"), frames[2], t)
                if publisher.stream.held > SETTLE_BYTES:
                    publisher.settle()

    def close(self) -> None:
        for _, replayer in self.publishers.values():
            replayer.close()
        self._close_socket()

    def _close_socket(self) -> None:
        if self.socket is not None and self.monitor is not None:
            self._poller.unregister(self.monitor)
            self._poller.unregister(self.socket)
            _close_both(self.socket, self.monitor)
            self.socket = self.monitor = None

    def _attach(self, socket: zmq.Socket[bytes]) -> None:
        """Raises ZMQError."""
        if self._bind:
            try:
                socket.bind(self.endpoint)
                self._is_bound = True
                return
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        # Where somebody has the address it may be the engine: an address that it was told to take is not told from
        # one that it connects to.
        socket.connect(self.endpoint)
        self._is_bound = False


class Ears:
    """The thread. Made on any thread; `close` ends it."""

    def __init__(self, names: TenantPseudonyms, clock: Callable[[], float] = time.time) -> None:
        self._names = names
        self._clock = clock
        self._lock = threading.Lock()  # over what both sides know: which sources, their publishers and listeners
        self._wanted: tuple[PublisherSource, ...] = ()
        self._publishers: dict[PublisherSource, _Publisher] = {}
        self._states: dict[PublisherSource, tuple[int, float | None, str]] = {}
        self._stop = threading.Event()
        self._is_changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def listen_to(self, sources: Iterable[PublisherSource]) -> None:
        """Listen to these and no others. Those that stay go on. What is beyond `MAX_SOURCES` is left out."""
        with self._lock:
            self._wanted = tuple(dict.fromkeys(sources))[:MAX_SOURCES]
            known = {source: self._publishers.get(source) for source in self._wanted}
            self._publishers = {s: p or _Publisher(s, self._names) for s, p in known.items()}
        self._is_changed.set()

    def read(self) -> list[PublisherBatches]:
        """What came since the last look. It may take as long as reading the messages does: call it in a thread."""
        with self._lock:
            publishers = list(self._publishers.values())
            states = dict(self._states)
        heard: list[PublisherBatches] = []
        for publisher in publishers:
            with publisher.lock:
                chunks, dropped, seconds = publisher.hand_out()
                is_mixed = publisher.stream.is_mixed(self._clock())
            connections, since, obstacle = states.get(publisher.source, (0, None, ""))
            if not self._thread.is_alive():
                obstacle = "stopped"
            heard.append(
                PublisherBatches(
                    publisher.source,
                    chunks,
                    dropped,
                    connections,
                    since,
                    publisher.last_at,
                    obstacle or ("mixed" if is_mixed else ""),
                    seconds,
                )
            )
        return heard

    def close(self) -> None:
        """End the thread and let go of all addresses."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.setsockopt(zmq.BLOCKY, 0)
        poller = zmq.Poller()
        listeners: dict[tuple[str, bool], _Listener] = {}
        arrange_at = used = 0.0
        try:
            while not self._stop.wait(min(max(PAUSE_SECONDS, used / SHARE - used), MAX_PAUSE_SECONDS)):
                if self._is_changed.is_set() or time.monotonic() >= arrange_at:
                    self._is_changed.clear()
                    self._arrange(context, poller, listeners)
                    arrange_at = time.monotonic() + ARRANGE_SECONDS
                ready = dict(poller.poll(WAKE_MS))
                began = time.thread_time()
                for listener in listeners.values():
                    self._turn(listener, ready)
                used = time.thread_time() - began
        except Exception:  # nothing of the agent may end with this
            log.exception("listening to KV events ended")
        finally:
            for listener in listeners.values():
                listener.close()
            context.destroy(linger=0)

    def _turn(self, listener: _Listener, ready: dict[zmq.Socket[bytes], int]) -> None:
        t = self._clock()
        listener.watch(t, happened=listener.monitor in ready)
        if listener.socket in ready:
            listener.receive(t)
        for publisher, replayer in listener.publishers.values():
            with publisher.lock:
                publisher.stream.tick(t)
                replayer.turn(t)
                if replayer.socket in ready:
                    replayer.receive(t)
                if publisher.stream.held > SETTLE_BYTES:
                    publisher.settle()

    def _arrange(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        poller: zmq.Poller,
        listeners: dict[tuple[str, bool], _Listener],
    ) -> None:
        """Open what is wanted, close what is not, and say how each fares."""
        t = self._clock()
        with self._lock:
            publishers = dict(self._publishers)
        wanted: dict[tuple[str, bool], dict[bytes | None, _Publisher]] = {}
        shared: set[PublisherSource] = set()
        for source, publisher in publishers.items():
            topic = None if source.topic is None else source.topic.encode()
            at = wanted.setdefault((source.endpoint, source.bind), {})
            if topic in at or (at and (topic is None or None in at)):
                shared.add(source)
            else:
                at[topic] = publisher
        for key in listeners.keys() - wanted.keys():
            listeners.pop(key).close()
        for (endpoint, bind), by_topic in wanted.items():
            listener = listeners.get((endpoint, bind))
            if listener is None:
                listener = listeners[endpoint, bind] = _Listener(context, poller, endpoint, bind)
            listener.keep(by_topic, t)
            listener.open(t)
        states = {
            source: (0, None, "shared") if source in shared else listeners[source.endpoint, source.bind].state
            for source in publishers
        }
        with self._lock:
            self._states = states


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, queued: int) -> zmq.Socket[bytes]:
    """A socket with limits. It notices a peer that is gone without a word, and connects again by itself."""
    socket = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.RCVHWM, queued),
        (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, MAX_RECONNECT_MS),
        (zmq.IPV6, 1),
    ):
        socket.setsockopt(option, value)
    return socket


def _close_both(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    socket.disable_monitor()
    monitor.close(linger=0)
    socket.close(linger=0)


def _frames(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    """The next message, without the parts that none of ours has; None where there is none."""
    try:
        frames = [socket.recv(zmq.NOBLOCK)]
    except zmq.Again:
        return None
    while socket.getsockopt(zmq.RCVMORE):
        part = socket.recv(zmq.NOBLOCK)
        if len(frames) <= FRAMES + 1:
            frames.append(part)
    return frames


def _blocks(batch: BlockEventBatch) -> int:
    return sum(len(event.hashes) for event in batch.events if not isinstance(event, BlocksCleared))
