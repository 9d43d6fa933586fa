"""The whole way of a message: kept, acknowledged, diagnosed, told."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import structlog

from kvitals.agent.paths import state_directory
from kvitals.app.notify.finding_match import DiagnosisRequest
from kvitals.app.notify.incident_tracker import (
    Diagnose,
    Rules,
    SettledMessage,
    asked_about_rules,
    asked_again,
    close_if_over,
    look_again,
    settle,
)
from kvitals.app.notify.incoming import IncomingError, Message, read
from kvitals.app.notify.notice import Notice
from kvitals.app.notify.notice_builder import Diagnosis
from kvitals.app.notify.notice_requests import wants
from kvitals.app.notify.order import Card, EntityKey, Line, card, entity_key
from kvitals.app.notify.queue import MessageOutcome, Spool, SpoolError, WaitingMessage
from kvitals.app.notify.sending import Sender
from kvitals.config import MuteTable, NotifyTable

MAX_SECONDS = 120.0
"""Of one diagnosis."""
FIRST_SECONDS = 15.0
"""After a message came: then its alerts are handed on without a diagnosis, which follows when it is there."""
MAX_DIAGNOSES = 16
"""That are asked for at the same time. Those of one pool wait for one look; `fleet_looks` bounds the looks."""
MAX_MESSAGES = 64
"""That are dealt with at the same time; most of them wait for their diagnosis."""
MAX_LOOKS = 64
"""At incidents without a cause at the same time, likewise."""
FORGET_SECONDS = 3 * 86400.0
"""An incident that no message spoke of for so long is forgotten: somebody stopped telling."""
CLOSE_SECONDS = 2.0
"""For what is being sent when it is to end."""
LOOK_SECONDS = 60.0
LARGE_BODY = 64 * 1024
"""Bytes of a message beyond which it is parsed in a thread."""
OVER_SECONDS, MOST_DOUBLINGS = 120.0, 4
"""After an alert of an incident was resolved and others were left, it is looked at whether it is over; each time after
twice as long, so often."""
AGAIN_SECONDS = (10.0, 20.0, 35.0, 60.0, 120.0, 300.0)
"""After an incident was told without a cause it is looked at again: alerts can be sooner than what proves a cause."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


def directory(table: NotifyTable) -> Path:
    """Where what waits is kept."""
    return table.directory or state_directory() / "notify"


@dataclass(frozen=True)
class TargetFacts:
    """How one target fares, since the start. ok: whether it took the last notice; None before the first."""

    waiting: int
    sent: int
    retried: int
    dead: int
    ok: bool | None
    last_sent: float | None
    last_error: str


@dataclass(frozen=True)
class Facts:
    """How it all fares."""

    messages: int  # taken since the start
    undiagnosed: int
    incidents: int
    counts: Mapping[str, int]
    targets: Mapping[str, TargetFacts]


class Notifier:
    """From `open` to `close`: takes messages, and hands on what they come to."""

    def __init__(
        self,
        table: NotifyTable,
        diagnose: Diagnose,
        clock: Callable[[], float] = time.time,
        mutes: Callable[[], Sequence[MuteTable]] = tuple,
    ) -> None:
        """mutes: those of the configuration as it is now."""
        self.counts: Counter[str] = Counter()  # messages, alerts, told, folded, muted, failed
        self._table = table
        self._diagnose = diagnose
        self._clock = clock
        self._mutes = mutes
        self._spool = Spool(directory(table))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="notify")
        self._some = asyncio.Event()
        self._sending: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []
        self._targets = dict(table.targets)
        self._senders: dict[str, Sender] = {}
        self._memory = max(FORGET_SECONDS, 2 * table.repeat)
        self._forgot = float("-inf")
        self._looks: dict[str, tuple[float, int]] = {}  # incidents without a cause: since when, and how often looked at
        self._waning: dict[str, tuple[float, int]] = {}  # incidents that may be over: since when, how often looked at
        self._line = Line()
        self._tasks: set[asyncio.Task[None]] = set()  # one for each message that is dealt with
        self._looking: dict[str, asyncio.Task[None]] = {}  # by incident
        self._under_way: dict[tuple[object, ...], asyncio.Task[Diagnosis]] = {}  # by what is asked
        self._diagnoses = asyncio.Semaphore(MAX_DIAGNOSES)
        # Each is held while incidents of an entity change, and there as long as somebody holds it or waits for it.
        self._entities: WeakValueDictionary[EntityKey, asyncio.Lock] = WeakValueDictionary()

    async def open(self) -> None:
        """Begin with what was left by the last run. Raises SpoolError."""
        await self._in_thread(self._spool.open)
        await self._in_thread(self._bury_strangers)
        self._waning = {name: (since, 0) for name, since in (await self._in_thread(self._spool.waning)).items()}
        for name, target in self._targets.items():
            sender = Sender(name, target, self._spool, self._thread, self._table.give_up, self._clock)
            self._senders[name] = sender
            self._sending.append(asyncio.create_task(sender.run(), name=f"notify {name}"))
        self._working.append(asyncio.create_task(self._work(), name="notify"))

    async def close(self) -> None:
        """End; what waits is there when it begins again."""
        for sender in self._senders.values():
            sender.stop()
        if self._sending:
            await asyncio.wait(self._sending, timeout=CLOSE_SECONDS)
        tasks = [*self._sending, *self._working, *self._tasks, *self._looking.values(), *self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._in_thread(self._spool.close)
        self._thread.shutdown()

    async def take(self, body: bytes) -> None:
        """Keep a message; on the disk when this returns. Raises IncomingError for what is none, SpoolError where there
        is no room."""
        message = await self._read(body)
        received = self._clock()
        page = any(alert.severity == "page" for alert in message.alerts)
        await self._in_thread(lambda: self._spool.put(body, received, page=page))
        self.counts["messages"] += 1
        self.counts["alerts"] += len(message.alerts)
        self._some.set()

    async def _read(self, body: bytes) -> Message:
        """The message in a body; a large one is parsed in a thread, since 1 MB takes 0.1 s. Raises IncomingError."""
        return await self._in_thread(lambda: read(body)) if len(body) > LARGE_BODY else read(body)

    async def facts(self) -> Facts:
        """What waits and how the targets fare. Raises SpoolError."""
        undiagnosed, incidents, waiting = await self._in_thread(self._spool.counts)
        targets = {
            name: TargetFacts(
                waiting=waiting.get(name, (0, ""))[0],
                sent=sender.counts["sent"],
                retried=sender.counts["retried"],
                dead=sender.counts["dead"],
                ok=sender.ok,
                last_sent=sender.last_sent,
                last_error=sender.last_error or waiting.get(name, (0, ""))[1],
            )
            for name, sender in self._senders.items()
        }
        return Facts(self.counts["messages"], undiagnosed, incidents, dict(self.counts), targets)

    async def _work(self) -> None:
        """Begin with what waits, the most urgent first, and look again at what has no cause yet."""
        while True:
            self._some.clear()
            try:
                self._line.add(await self._in_thread(self._fresh))
                while len(self._tasks) < MAX_MESSAGES and (card := self._line.next()) is not None:
                    self._begin(card)
                next_look = min(await self._look_again(), self._look_whether_over())
                if self._clock() - self._forgot > FORGET_SECONDS / 10:
                    self._forgot = self._clock()
                    await self._in_thread(lambda: self._spool.forget(self._clock() - self._memory))
            except SpoolError as error:
                _log.warning("the queue of messages cannot be read or written; retrying", why=str(error))
                await asyncio.sleep(LOOK_SECONDS)
                continue
            except Exception:  # what nobody expected ends nothing
                _log.error("kvitals cannot process an incident", trace=traceback.format_exc(limit=-5))
                await asyncio.sleep(LOOK_SECONDS)
                continue
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`, which loses a cancellation that comes along with what it waits for (Python 3.11).
                async with asyncio.timeout(min(next_look, LOOK_SECONDS)):
                    await self._some.wait()

    def _fresh(self) -> list[Card]:
        """The messages that came since the last time. Raises SpoolError."""
        waiting = (self._spool.message(number) for number in self._spool.since(self._line.last))
        return [_card(one) for one in waiting if one is not None]

    def _begin(self, card: Card) -> None:
        task = asyncio.create_task(self._deal_with(card), name=f"message {card.id}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._some.set()

    async def _deal_with(self, card: Card) -> None:
        """One message, of whose entities no other is dealt with meanwhile."""
        try:
            async with self._exclusive(card.entities):
                waiting = await self._in_thread(lambda: self._spool.message(card.id))
                if waiting is not None:
                    await self._done(waiting.id, await self._outcome(waiting, card))
        except SpoolError as error:
            _log.warning("the queue of messages cannot be read or written; retrying", why=str(error))
        except Exception:  # what nobody expected ends nothing
            _log.error("kvitals cannot process a message; it tries again", trace=traceback.format_exc(limit=-5))
        else:
            self._line.done(card)
            return
        await asyncio.sleep(LOOK_SECONDS)
        self._line.again(card)

    @contextlib.asynccontextmanager
    async def _exclusive(self, entities: Iterable[EntityKey]) -> AsyncIterator[None]:
        """While nobody else changes the incidents of these entities. Locks are taken in one order, so none waits in a
        circle."""
        async with contextlib.AsyncExitStack() as stack:
            for entity in sorted(entities):
                await stack.enter_async_context(self._entities.setdefault(entity, asyncio.Lock()))
            yield

    async def _look_again(self) -> float:
        """Begin to look at incidents whose cause is not known, when it is time. Seconds until it is again."""
        now = self._clock()
        self._looks = {n: self._looks.get(n, (now, 0)) for n in await self._in_thread(self._spool.undiagnosed)}
        soonest = LOOK_SECONDS
        for name, (since, looks) in self._looks.items():
            if looks >= len(AGAIN_SECONDS) or name in self._looking:
                continue
            wait = since + AGAIN_SECONDS[looks] - now
            if wait > 0:
                soonest = min(soonest, wait)
            elif len(self._looking) < MAX_LOOKS:  # one that ends wakes the next
                self._looks[name] = (since, looks + 1)
                self._looking[name] = asyncio.create_task(self._look_at(name), name=f"look at {name}")
                soonest = 0.0
        return soonest

    def _look_whether_over(self) -> float:
        """Begin to look at incidents that may be over, when it is time. Seconds until it is again."""
        now, soonest = self._clock(), LOOK_SECONDS
        for name, (since, looks) in list(self._waning.items()):
            wait = since + OVER_SECONDS * 2 ** min(looks, MOST_DOUBLINGS) - now
            if wait > 0 or name in self._looking:
                soonest = min(soonest, max(wait, 0.1))
            elif len(self._looking) < MAX_LOOKS:
                self._waning[name] = (now, looks + 1)
                self._looking[name] = asyncio.create_task(self._look_at_waning(name), name=f"look at {name}")
        return soonest

    async def _look_at_waning(self, name: str) -> None:
        """A later diagnosis of an incident of which some alerts are resolved: it ends where no other is true."""
        try:
            incident = await self._in_thread(lambda: self._spool.incident(name))
            if incident is None or not incident.may_be_over:
                self._waning.pop(name, None)
                return
            found = await self._diagnosis(asked_about_rules(incident, self._clock()))
            async with self._exclusive([entity_key(incident.entity)]):
                now = await self._in_thread(lambda: self._spool.incident(name))
                if now is not None and now.open == incident.open:
                    await self._done(None, self._counted(close_if_over(now, found, self._clock())))
        except SpoolError as error:
            _log.warning("kvitals cannot write an incident; it tries again", why=str(error))
        finally:
            del self._looking[name]
            self._some.set()

    async def _look_at(self, name: str) -> None:
        """A later diagnosis of an incident, which is told where the incident still goes on without a cause."""
        try:
            incident = await self._in_thread(lambda: self._spool.incident(name))
            if incident is None:
                return
            found = await self._diagnosis(asked_again(incident, self._clock()))
            async with self._exclusive([entity_key(incident.entity)]):
                now = await self._in_thread(lambda: self._spool.incident(name))
                if now is not None and not now.code:
                    here = await self._in_thread(lambda: self._spool.incidents([entity_key(incident.entity)]))
                    others = [one for one in here if one.id != name]
                    await self._done(None, self._counted(look_again(now, found, self._clock(), others)))
                    if found.partial:
                        self._go_on_looking(name)
        except SpoolError as error:
            _log.warning("kvitals cannot write an incident; it tries again", why=str(error))
        finally:
            del self._looking[name]
            self._some.set()

    def _go_on_looking(self, name: str) -> None:
        """Once more after the longest wait, where something is known that leaves open why: until it is known as well or
        the incident ends."""
        if self._looks.get(name, (0.0, 0))[1] >= len(AGAIN_SECONDS):
            self._looks[name] = (self._clock(), len(AGAIN_SECONDS) - 1)

    async def _done(self, message: int | None, outcome: MessageOutcome) -> None:
        await self._in_thread(lambda: self._spool.done(message, outcome, self._clock()))
        for sender in self._senders.values():
            sender.look()

    async def _outcome(self, waiting: WaitingMessage, card: Card) -> MessageOutcome:
        known = await self._in_thread(lambda: self._spool.incidents(card.entities))
        rules = Rules(self._table.repeat, self._table.page, self._mutes())
        try:
            diagnose = partial(self._diagnosis_until, until=card.came + FIRST_SECONDS)
            settled = await settle(await self._read(waiting.body), waiting.received, known, diagnose, rules)
        except Exception as error:  # it must not hold up what comes after it, nor be lost
            why = repr(error)
            _log.error(
                "kvitals cannot process a message and moved it to the dead letters",
                trace=traceback.format_exc(limit=-5),
            )
            await self._in_thread(lambda: self._spool.bury_message(waiting, why, self._clock()))
            self.counts["failed"] += 1
            return MessageOutcome()
        return self._counted(settled)

    def _counted(self, settled: SettledMessage) -> MessageOutcome:
        self.counts["told"] += len(settled.notices)
        self.counts["folded"] += settled.folded
        self.counts["muted"] += settled.muted
        for name in settled.over:
            self._waning.pop(name, None)
        for name, incident in settled.incidents.items():
            if incident.may_be_over:
                self._waning.setdefault(name, (incident.waning, 0))
        return MessageOutcome(list(settled.incidents.values()), settled.over, self._for_targets(settled.notices))

    async def _diagnosis_until(self, about: DiagnosisRequest, *, until: float) -> Diagnosis:
        """The diagnosis, if it comes in time; it goes on meanwhile, for the next look."""
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await asyncio.shield(self._task(about))
        except TimeoutError:
            return Diagnosis(f"not diagnosed within {FIRST_SECONDS:.0f} s; another message follows if a cause is found")

    async def _diagnosis(self, about: DiagnosisRequest) -> Diagnosis:
        return await asyncio.shield(self._task(about))

    def _task(self, about: DiagnosisRequest) -> asyncio.Task[Diagnosis]:
        """The diagnosis that is under way for the same alerts, or a new one."""
        key = (entity_key(dict(about.entity)), about.codes, about.symptomatic)
        if key not in self._under_way:
            task = self._under_way[key] = asyncio.create_task(self._diagnosed(about), name="diagnosis")
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return self._under_way[key]

    async def _diagnosed(self, about: DiagnosisRequest) -> Diagnosis:
        """The diagnosis; without one the alerts are handed on all the same."""
        try:
            async with self._diagnoses, asyncio.timeout(MAX_SECONDS):
                return await self._diagnose(about)
        except TimeoutError:
            return Diagnosis(f"not judged within {MAX_SECONDS:.0f} s")
        except Exception:
            _log.error("a diagnosis failed", trace=traceback.format_exc(limit=-5))
            return Diagnosis("not diagnosed: the diagnosis failed; see kvitals' log for the reason")

    def _for_targets(self, notices: Sequence[Notice]) -> list[tuple[str, Notice]]:
        return [(name, notice) for notice in notices for name, target in self._targets.items() if wants(target, notice)]

    def _bury_strangers(self) -> None:
        for delivery in self._spool.strangers(self._targets, self._clock()):
            self._spool.bury(delivery, "its target is no longer configured", self._clock())

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _card(waiting: WaitingMessage) -> Card:
    """The place of a message in the line; one that can not be read has no entity, and is buried when its turn comes."""
    try:
        return card(waiting.id, read(waiting.body))
    except IncomingError:
        return Card(waiting.id, 0, frozenset())
