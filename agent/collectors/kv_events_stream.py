"""One publisher's messages in order: gaps, what replays bring, restarts. No sockets and no clock of its own.

stream = Stream(replays=True)
stream.connected(t)                     # asks for what was published before
stream.live(sequence, payload, t)       # a message that came by itself
stream.replay                           # what is to be asked for; None: nothing
stream.replayed(sequence, payload, t)   # a message of the replay
stream.ended(t)                         # and its end
stream.take()                           # what came, as runs without a hole
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MAX_WAITING_BYTES = 8 << 20
"""Of messages that came by themselves while a replay is under way."""

REPLAY_SECONDS = 20.0
"""A replay that takes longer is given up."""

SILENT_SECONDS = 5.0
"""So is one of which nothing comes, or that can not be asked for."""

RETRY_SECONDS = 60.0
"""After a replay was given up none is asked for, so long."""

MAX_ATTEMPTS = 3
"""Times that a replay is asked for that has holes itself: a publisher drops what its socket has no room for."""

MIXED_RESTARTS = 4
MIXED_SECONDS = 30.0
"""So many restarts in so short a time are two publishers on one address: nothing is taken for as long again."""

MAX_LOST = 100_000_000
"""Messages that one gap may have; a thousand a second take 28 hours. A wider gap is another publisher's number or an
invented one: it counts as a restart, so that no message can make the count of lost ones useless."""

Message = tuple[int, bytes]


@dataclass
class MessageRun:
    """Messages that follow each other, and what was before them."""

    lost: int = 0  # messages that nobody brought
    restarted: bool = False  # the publisher began anew
    late: bool = False  # it had published before, and that was not to be had
    replayed: int = 0  # of these messages
    messages: list[Message] = field(default_factory=list)


@dataclass
class EventReplay:
    """A replay that is wanted or under way."""

    start: int  # the sequence from which on it is asked for
    since: float
    attempt: int = 1
    sent: float | None = None  # when it was asked for
    heard: float = 0.0
    came: bool = False


class EventStream:
    """For one thread at a time."""

    def __init__(self, *, replays: bool) -> None:
        """replays: missed messages can be asked for."""
        self._replays = replays
        self._no_replay_before = 0.0
        self._last: int | None = None  # sequence of the last message taken; -1: none was published yet
        self._last_hash = 0  # of its payload
        self._live: int | None = None  # the largest one that came by itself
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._runs = [MessageRun()]
        self._is_cut = False  # the connection broke, and nothing came since
        self._restarts: deque[float] = deque(maxlen=MIXED_RESTARTS)
        self._mixed_until = 0.0
        self.replay: EventReplay | None = None
        self.held = 0  # bytes of messages to be taken
        self.ignored = 0  # messages of mixed publishers, since somebody set it back

    def is_mixed(self, t: float) -> bool:
        """Whether two publishers seem to be on one address."""
        return t < self._mixed_until

    def connected(self, t: float) -> None:
        """The publisher is there. What it published meanwhile is asked for, and whether it is the same one."""
        if self.replay is None and self._may_ask(t) and (self._last is None or self._is_cut):
            self._ask(t)

    def cut(self, t: float) -> None:
        """The connection broke. What waits is of before, and a replay from now on may be another publisher's."""
        self._stop_asking()
        self._release(t, asks=False)
        self._is_cut = True

    def live(self, sequence: int, payload: bytes, t: float) -> None:
        """Take a message that came by itself."""
        if self._live is not None and sequence <= self._live:
            self._restart(t)
        if self.is_mixed(t):
            self.ignored += 1
            return
        self._live = sequence
        self._enter(sequence, payload, t)

    def replayed(self, sequence: int, payload: bytes, t: float) -> None:
        """Take a message of the replay that was asked for."""
        replay = self.replay
        if replay is None:
            return
        replay.heard = t
        first, replay.came = not replay.came, True
        if first and not self._joins(sequence, payload, t):
            return
        last = self._last if self._last is not None else -1
        if sequence <= last:
            return
        if sequence > last + 1 and not first and replay.attempt < MAX_ATTEMPTS:
            self._ask(t, replay.attempt + 1)  # it has a hole itself
            return
        if sequence > last + 1:
            self._skip(sequence - last - 1)
        self._runs[-1].replayed += 1
        self._append(sequence, payload)

    def ended(self, t: float) -> None:
        """The replay has come to its end."""
        replay, self.replay = self.replay, None
        if replay is None:
            return
        if not replay.came:
            if self._last is None:
                self._last = -1  # nothing was published yet, unless what waits tells otherwise
            elif self._last >= 0 and self._is_cut:
                self._restart(t)  # it does not have the last message that there was
                self._ask(t)
                return
        self._is_cut = False
        self._release(t)

    def tick(self, t: float) -> None:
        """Give up a replay that does not come."""
        replay = self.replay
        if replay is None:
            return
        if replay.sent is None:
            is_over = bool(self._waiting) and t - replay.since > SILENT_SECONDS
        else:
            is_over = t - max(replay.sent, replay.heard) > SILENT_SECONDS or t - replay.sent > REPLAY_SECONDS
        if is_over:
            self.give_up(t)

    def give_up(self, t: float) -> None:
        """Take no more of the replay that is under way, and ask for none for a while."""
        self._stop_asking()
        self._no_replay_before = t + RETRY_SECONDS
        self._release(t)

    def take(self) -> list[MessageRun]:
        """What came since it was taken last."""
        runs, self._runs = self._runs, [MessageRun()]
        self.held = 0
        return [run for run in runs if run.messages or run.lost or run.restarted or run.late]

    def _enter(self, sequence: int, payload: bytes, t: float, *, asks: bool = True) -> None:
        """Take a message where it belongs, or let it wait for those before it."""
        if self.replay is not None:
            self._wait(sequence, payload, t)
        elif sequence > (0 if self._last is None else self._last + 1):
            if asks and self._may_ask(t):
                self._ask(t)
                self._wait(sequence, payload, t)
            else:
                self._leap(sequence)
                self._append(sequence, payload)
        elif self._last is None or sequence > self._last:
            self._append(sequence, payload)

    def _leap(self, sequence: int) -> None:
        """Go on behind messages that nobody brings."""
        if self._last is None or self._last < 0:
            self._next_run(late=True)
        elif self._is_cut:  # nobody can tell whether it is the same publisher, so nothing of before counts
            self._next_run(restarted=True, late=True)
        else:
            self._skip(sequence - self._last - 1)

    def _skip(self, lost: int) -> None:
        """Go on behind a gap within one connection."""
        if lost > MAX_LOST:
            self._next_run(restarted=True, late=True)
        else:
            self._next_run(lost=lost)

    def _joins(self, sequence: int, payload: bytes, t: float) -> bool:
        """Look at the first message of a replay. False where it is of another publisher, which is asked anew."""
        if self._last is None or self._last < 0:
            if sequence > 0:
                self._next_run(late=True)
            self._last = sequence - 1
        elif sequence == self._last and hash(payload) != self._last_hash:
            self._restart(t)
            self._ask(t)
            return False
        elif sequence > self._last and self._is_cut:
            self._next_run(restarted=True, late=True)
            self._last = sequence - 1
        return True

    def _restart(self, t: float) -> None:
        """The publisher began anew."""
        self._restarts.append(t)
        self._next_run(restarted=True)
        self._last = self._live = self.replay = None
        self._waiting.clear()
        self._waiting_bytes = 0
        if len(self._restarts) == MIXED_RESTARTS and t - self._restarts[0] < MIXED_SECONDS:
            self._mixed_until = t + MIXED_SECONDS
            self._restarts.clear()

    def _may_ask(self, t: float) -> bool:
        return self._replays and t >= self._no_replay_before

    def _ask(self, t: float, attempt: int = 1) -> None:
        """Ask from the last message on, that it can be told whether it is still the same publisher's."""
        self.replay = EventReplay(max(self._last or 0, 0), t, attempt)

    def _stop_asking(self) -> None:
        if self.replay is not None and self._is_cut and self._last is not None:
            self._next_run(restarted=True)  # whether it is still the same publisher was not answered
            self._last = None
        self.replay = None

    def _release(self, t: float, *, asks: bool = True) -> None:
        """Take what waited for a replay. What it did not bring is not asked for again; asks: what came after may be."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        is_joined = False
        for sequence, payload in waiting:
            self._enter(sequence, payload, t, asks=asks and is_joined)
            is_joined = is_joined or self._last == sequence

    def _wait(self, sequence: int, payload: bytes, t: float) -> None:
        self._waiting.append((sequence, payload))
        self._waiting_bytes += len(payload)
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self.give_up(t)

    def _next_run(self, *, lost: int = 0, restarted: bool = False, late: bool = False) -> None:
        if self._runs[-1].messages:
            self._runs.append(MessageRun())
        run = self._runs[-1]
        run.lost, run.late = (lost, late) if restarted else (run.lost + lost, run.late or late)
        run.restarted = run.restarted or restarted

    def _append(self, sequence: int, payload: bytes) -> None:
        self._runs[-1].messages.append((sequence, payload))
        self._last, self._last_hash = sequence, hash(payload)
        self.held += len(payload)
        if self.replay is None:
            self._is_cut = False
