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
import resource
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvitals.agent.collectors.kv_events_publisher import PublisherBatches, PublisherStream
from kvitals.agent.collectors.kv_events_sources import PublisherSource
from kvitals.agent.collectors.kv_events_wire import TenantPseudonyms
from kvitals.agent.collectors.zmq_sockets import (
    FRAMES,
    OUT_OF_FILES,
    bounded_socket,
    close_both,
    is_out_of_files,
    next_message,
    peer_of,
    shut_down,
)
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.log_limit import LogLimit
from kvitals.agent.logger import Logger

log = Logger()

MAX_SOURCES = 256
FILES_PER_SOURCE = 8
"""Open files of one publisher that is connected and replays: queues, monitors and connections."""

SETTLE_BYTES = 1 << 20
QUEUED_MESSAGES = 8
"""Of one connection, until the thread's next turn. Beyond, they wait at the publisher: ZeroMQ counts messages and not
bytes, so many of the largest size must not be held."""

QUEUED_REPLAYED = 20_000
"""Of one replay. A publisher drops what a socket has no room for, and keeps 10,000 by default."""

MAX_REPLAYED_BYTES = 32 << 20
"""Of one replay; the rest of a larger one is lost. ZeroMQ's queue is emptied every `DRAIN_SECONDS` and closed beyond
this, so it holds what arrives meanwhile and not 20,000 of the largest messages."""

MESSAGE_BYTES = 100
"""What a message takes besides its content."""

DRAIN_SECONDS = 0.02
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

SEQUENCE_BYTES = 8
END = b"\xff" * SEQUENCE_BYTES
ROW = LISTENERS["kv_events"]
"""For each address that engines connect to. Further connections are closed as soon as they are accepted."""

SHUT = {
    "files": "the limit of open files is reached",
    "memory": "the agent is near its memory limit",
}
"""Why an address is closed for a while."""

SHUT_SECONDS = 10.0
"""After the limit of open files was reached at an address, or the process is near its memory limit. Until then nothing
listens there: ZeroMQ's own thread would try to accept without a pause, or keep messages of any number of frames."""

BIND_RETRY_SECONDS = 10.0
FAULT_RETRY_SECONDS = 10.0
"""After a fault of ours ended the listening to all addresses."""

REOPEN_SECONDS = 3.0
"""After a connection broke and did not come back. ZeroMQ connects again where a peer goes, and not where it breaks the
protocol, as a message that is too large does."""


_UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DOWN = zmq.EVENT_DISCONNECTED
_STRANGERS = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_ACCEPTED, _NOT_ACCEPTED = zmq.EVENT_ACCEPTED, zmq.EVENT_ACCEPT_FAILED
_warning = LogLimit(log.warning)


class _Replayer:
    """Asks one publisher for what is missing. A DEALER, since an engine answers with many messages."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], publisher: PublisherStream, poller: zmq.Poller) -> None:
        self._context = context
        self._publisher = publisher
        self._poller = poller
        self._for: object = None  # the replay that the socket is for
        self._bytes = 0  # that came of it
        self.socket: zmq.Socket[bytes] | None = None

    def turn(self, t: float) -> None:
        """Ask where something is to be asked, and let go where nothing is any more. The publisher's lock is held."""
        wanted = self._publisher.stream.replay
        if wanted is not self._for:
            self.close()
            self._for, self._bytes = wanted, 0
        if wanted is None or wanted.sent is not None:
            return
        if self.socket is None:
            self.socket = bounded_socket(self._context, zmq.DEALER, QUEUED_REPLAYED)
            self.socket.setsockopt(zmq.IMMEDIATE, 1)
            self.socket.connect(self._publisher.source.replay)
            self._poller.register(self.socket, zmq.POLLIN)
        with contextlib.suppress(zmq.Again):  # not connected yet
            self.socket.send_multipart([b"", wanted.start.to_bytes(SEQUENCE_BYTES, "big")], zmq.NOBLOCK)
            wanted.sent = wanted.heard = t

    def receive(self, t: float) -> None:
        """Take all that came of the replay. vLLM before 0.26 answers without the topic. The lock is held."""
        stream = self._publisher.stream
        while stream.replay is self._for and self.socket is not None:
            frames = next_message(self.socket)
            if frames is None:
                return
            self._bytes += sum(map(len, frames)) + MESSAGE_BYTES
            if self._bytes > MAX_REPLAYED_BYTES:
                self._publisher.drop("replay_limit")
                stream.give_up(t)
            elif len(frames) not in (FRAMES, FRAMES + 1) or frames[0] or len(frames[-2]) != SEQUENCE_BYTES:
                self._publisher.drop("malformed")
            elif frames[-2] == END:
                stream.ended(t)
            else:
                stream.replayed(int.from_bytes(frames[-2], "big"), frames[-1], t)
        self.close()  # the replay is over: what else comes of it is not held

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
        self.publishers: dict[bytes | None, tuple[PublisherStream, _Replayer]] = {}  # by topic; None: any
        self.connections = 0
        self.is_busy = False  # the last turn took so many messages that the next one is due at once
        self.since: float | None = None  # when it was opened
        self.obstacle = ""
        self._open_at = 0.0
        self._is_bound = False
        self._accepted: dict[int, str] = {}  # connections by their descriptor -> whose share they count against
        self._strangers = 0  # handshakes that failed and whose end was not reported yet
        self._reopen_at: float | None = None
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None

    def open(self, t: float) -> None:
        """Bind or connect, where that is not done yet."""
        if self.socket is not None or t < self._open_at:
            return
        self._open_at = t + BIND_RETRY_SECONDS
        socket = bounded_socket(self._context, zmq.SUB, QUEUED_MESSAGES)
        try:
            monitor = socket.get_monitor_socket(_UP | _DOWN | _STRANGERS | _ACCEPTED | _NOT_ACCEPTED)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        try:
            self._attach(socket)
        except zmq.ZMQError as error:
            _warning("cannot open the address of a KV event publisher", endpoint=self.endpoint, error=str(error))
            self.obstacle = "files" if is_out_of_files(error) else "bad_endpoint"
            close_both(socket, monitor)
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

    def keep(self, by_topic: Mapping[bytes | None, PublisherStream], t: float) -> None:
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
        """Count connections that came and went. happened: the monitor has events."""
        for _ in range(BURST):
            if not happened or self.monitor is None or not self.monitor.poll(0):
                break
            message = recv_monitor_message(self.monitor)
            event, value = message["event"], message["value"]
            if event & _ACCEPTED:
                self._admit(value)
            elif event & _NOT_ACCEPTED:
                if value in OUT_OF_FILES:
                    self.shut(t, "files")
            elif event & _STRANGERS:
                self._strangers += 1
            else:
                self._connection_changed(t, is_up=bool(event & _UP), descriptor=value)
        if self._reopen_at is not None and t >= self._reopen_at:
            self._close_socket()
            self._reopen_at, self._open_at = None, t

    def shut(self, t: float, obstacle: str) -> None:
        """A limit of the process is reached, `files` or `memory`: close the address with its connections, and open it
        again later."""
        self._close_socket()
        self._reopen_at, self._open_at, self.obstacle = None, t + SHUT_SECONDS, obstacle
        for publisher, replayer in self.publishers.values():
            with publisher.lock:
                publisher.stream.cut(t)
                replayer.close()
        _warning(f"KV events are not received: {SHUT[obstacle]}", endpoint=self.endpoint, retry_seconds=SHUT_SECONDS)

    def _admit(self, descriptor: int) -> None:
        """Count an accepted connection in, or end it where there are too many, or too many of its peer. ZeroMQ has no
        limit, and takes messages from each connection in turn: who has most of them has most of the turns."""
        peer = peer_of(descriptor, self.endpoint)
        of_peer = sum(one == peer for one in self._accepted.values())
        if len(self._accepted) < ROW.connections and of_peer < ROW.per_peer:
            self._accepted[descriptor] = peer
            return
        shut_down(descriptor, self.endpoint)
        for publisher, _ in self.publishers.values():
            with publisher.lock:
                publisher.drop("connections")
            break
        _warning(
            "too many connections for KV events",
            endpoint=self.endpoint,
            limit=ROW.connections,
            limit_per_peer=ROW.per_peer,
            of_peer=of_peer,
        )

    def _connection_changed(self, t: float, *, is_up: bool, descriptor: int) -> None:
        """A publisher completed its handshake, or a connection ended. descriptor: of the connection that ended."""
        if is_up:
            self.connections += 1
            self.obstacle, self._reopen_at = "", None
        else:
            self._accepted.pop(descriptor, None)
            is_stranger = self._strangers > 0
            self._strangers = max(self._strangers - 1, 0)
            if is_stranger and self._is_bound:
                return  # no publisher's: the streams of those that are connected go on
            if not self.connections and not self._is_bound:
                self.obstacle = "stranger"  # it answered, and in no way that a publisher does
            self.connections = max(self.connections - 1, 0)
            self._reopen_at = None if self.connections or self._is_bound else t + REOPEN_SECONDS
        for publisher, _ in self.publishers.values():
            with publisher.lock:
                publisher.stream.connected(t) if is_up else publisher.stream.cut(t)

    def receive(self, t: float) -> None:
        """Take the messages that wait, up to `BURST`."""
        for number in range(BURST):
            frames = next_message(self.socket) if self.socket is not None else None
            if frames is None:
                return
            self.is_busy = number >= QUEUED_MESSAGES // 2
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
            close_both(self.socket, self.monitor, self.endpoint if self._is_bound else "")
            self.socket = self.monitor = None
        self.connections = self._strangers = 0
        self._accepted.clear()

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

    def __init__(
        self,
        names: TenantPseudonyms,
        clock: Callable[[], float] = time.time,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """is_full: whether the process is near its memory limit; asked in each turn."""
        self._names = names
        self._clock = clock
        self._is_full = is_full
        self._lock = threading.Lock()  # over what both sides know: which sources, their publishers and listeners
        self._wanted: tuple[PublisherSource, ...] = ()
        self._publishers: dict[PublisherSource, PublisherStream] = {}
        self._states: dict[PublisherSource, tuple[int, float | None, str]] = {}
        self._is_down = False  # a fault ended the listening, which begins again
        self._stop = threading.Event()
        self._is_changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def listen_to(self, sources: Iterable[PublisherSource]) -> None:
        """Listen to these and no others. Those that stay go on. What is beyond `max_sources()` is left out."""
        with self._lock:
            self._wanted = tuple(dict.fromkeys(sources))[: max_sources()]
            known = {source: self._publishers.get(source) for source in self._wanted}
            self._publishers = {s: p or PublisherStream(s, self._names) for s, p in known.items()}
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
            if self._is_down or not self._thread.is_alive():
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
        while not self._stop.is_set():
            try:
                self._listen()
            except Exception:  # nothing of the agent may end with this, and a fault must not end the listening for good
                log.exception("listening to KV events ended; it begins again")
                self._is_down = True
                self._stop.wait(FAULT_RETRY_SECONDS)

    def _listen(self) -> None:
        """Until the thread is to end."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.setsockopt(zmq.BLOCKY, 0)
        poller = zmq.Poller()
        listeners: dict[tuple[str, bool], _Listener] = {}
        arrange_at = used = 0.0
        try:
            while not self._rests(listeners.values(), self._pause(listeners.values(), used)):
                if self._is_changed.is_set() or time.monotonic() >= arrange_at:
                    self._is_changed.clear()
                    self._arrange(context, poller, listeners)
                    arrange_at = time.monotonic() + ARRANGE_SECONDS
                ready = dict(poller.poll(WAKE_MS))
                began = time.thread_time()
                if self._is_full():
                    for listener in listeners.values():
                        listener.shut(self._clock(), "memory")
                    continue
                for listener in listeners.values():
                    self._turn(listener, ready)
                used = time.thread_time() - began
                self._is_down = False
        finally:
            for listener in listeners.values():
                listener.close()
            context.destroy(linger=0)

    @staticmethod
    def _pause(listeners: Iterable[_Listener], used: float) -> float:
        """Seconds until the next turn. used: CPU seconds of the last one, of which this thread has a share."""
        least = 0.0 if any(one.is_busy for one in listeners) else PAUSE_SECONDS
        return min(max(least, used / SHARE - used), MAX_PAUSE_SECONDS)

    def _rests(self, listeners: Iterable[_Listener], seconds: float) -> bool:
        """Pause. What comes of replays is taken meanwhile and not read yet: ZeroMQ would hold it without a bound in
        bytes. Whether the thread is to end."""
        until = time.monotonic() + seconds
        asking = [each for one in listeners for each in one.publishers.values() if each[1].socket is not None]
        while not self._stop.wait(min(max(until - time.monotonic(), 0.0), DRAIN_SECONDS if asking else seconds)):
            if time.monotonic() >= until:
                return False
            for publisher, replayer in asking:
                with publisher.lock:
                    replayer.receive(self._clock())
        return True

    def _turn(self, listener: _Listener, ready: dict[zmq.Socket[bytes], int]) -> None:
        """Serve one address. Where no file can be opened for it, the others go on."""
        t = self._clock()
        listener.is_busy = False
        try:
            self._serve(listener, ready, t)
        except zmq.ZMQError as error:
            if not is_out_of_files(error):
                raise
            listener.shut(t, "files")

    def _serve(self, listener: _Listener, ready: dict[zmq.Socket[bytes], int], t: float) -> None:
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
        wanted: dict[tuple[str, bool], dict[bytes | None, PublisherStream]] = {}
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
            try:
                listener.open(t)
            except zmq.ZMQError as error:
                if not is_out_of_files(error):
                    raise
                listener.shut(t, "files")
        states = {
            source: (0, None, "shared") if source in shared else listeners[source.endpoint, source.bind].state
            for source in publishers
        }
        with self._lock:
            self._states = states


def max_sources() -> int:
    """Publishers that are listened to: at most those for which half of this process's open files are enough."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_SOURCES if soft == resource.RLIM_INFINITY else max(min(MAX_SOURCES, soft // 2 // FILES_PER_SOURCE), 1)
