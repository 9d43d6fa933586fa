"""Trying a change: observe, apply, compare block by block, stop as soon as it is decided or harms, go back or stay."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from kvitals.agent.requests.record import RequestRecord
from kvitals.app.errors import NoEngineError
from kvitals.app.pipeline import Setup
from kvitals.app.prove.actuator import CommandRun
from kvitals.app.prove.guard_rails import CHECK_SECONDS, GuardRails, GuardWatch, guard_rails, window_seconds
from kvitals.app.prove.journal import journal_file, prove_directory
from kvitals.app.prove.replica import Replica, load_sentence, watch
from kvitals.app.prove.request_mix import RequestMix, read_requests
from kvitals.app.prove.supervised import SupervisedChange, SupervisorGoneError, supervised_change
from kvitals.app.prove.supervisor import Assignment
from kvitals.diagnoser import change_effect
from kvitals.diagnoser.change_effect import BeforeAfter, ConfigurationChange, Values
from kvitals.diagnoser.change_proof import (
    ALPHA,
    VERSION,
    EndState,
    Proof,
    ProofEffect,
    ProofVerdict,
    SignalTrial,
    conclusion,
    decide,
    signals_to_test,
)
from kvitals.diagnoser.entities import entity_title
from kvitals.rules.finding import Entity, Finding, LeverAdvice, PredictedValue, Triage
from kvitals.rules.model import Lever
from kvitals.series.json_text import encode_json

BLOCKS_BEFORE = 12
LONGEST_BEFORE = 2
"""Times the time before the change that is asked for, where blocks depend on one another or a signal is late."""
LEAST_BLOCK_SECONDS = 3.0
DOWN_SECONDS = 10.0
"""An engine that does not answer for so long after the change is down."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class TrialRequest:
    """What is to be tried. code: of the finding whose lever it is; empty: the first cause, where its lever is pulled.
    before, most: seconds that are observed before the change, and after it at most. limit: seconds for each command,
    and for the engine to answer after it. agent: the URL of an agent whose request records show whether the load is the
    same; empty: counters alone do."""

    url: str
    apply: tuple[str, ...]
    rollback: tuple[str, ...]
    peers: tuple[str, ...] = ()
    code: str = ""
    before: float = 120.0
    most: float = 600.0
    limit: float = 300.0
    agent: str = ""

    @property
    def block(self) -> float:
        """Seconds of a block."""
        return max(self.before / BLOCKS_BEFORE, LEAST_BLOCK_SECONDS)

    @property
    def longest(self) -> float:
        """Seconds that a trial lasts at most."""
        return LONGEST_BEFORE * self.before + self.most + 3 * self.limit


@dataclass
class _Side:
    """The blocks of one side of the change: signals of the replica, over those of its peers where it has some."""

    start: float
    blocks: list[dict[str, float]] = field(default_factory=list)
    whole: Values = field(default_factory=dict)

    def values(self, signal: str) -> list[float]:
        return [block[signal] for block in self.blocks if signal in block]


@dataclass(frozen=True)
class _Ending:
    """How the comparison ended. keep: whether the change stays."""

    verdict: ProofVerdict
    reason: str = ""
    guard_rail: str = ""

    @property
    def keep(self) -> bool:
        return self.verdict == "worked"


class Trial:
    """One change on one engine."""

    def __init__(self, request: TrialRequest, setup: Setup, tell: Tell) -> None:
        """tell: called with each step, for people."""
        self._request = request
        self._setup = setup
        self._tell = tell
        urls = (request.url, *request.peers)
        self._replicas = [Replica(setup, url, request.longest) for url in urls]
        self._begun = time.time()
        self._before = _Side(self._begun)
        self._after = _Side(0.0)
        self._rails = GuardRails((), False)
        self._guard_window = 0.0
        self._triage: Triage | None = None
        self._change: ConfigurationChange | None = None
        self._levers: list[Lever] = []
        self._tests: list[SignalTrial] = []
        self._applied: float | None = None
        self._decided: float | None = None
        self._checked = self._answered = 0.0  # the last check of the guard rails, and the last answer, after the change
        self._mix = RequestMix()

    async def run(self, lock: int) -> Proof:
        """Try the change. lock: the descriptor of `lock_trials`.

        Raises NoEngineError, CommandError where there is nothing to compare; then nothing was changed.
        """
        request = self._request
        async with contextlib.AsyncExitStack() as stack:
            for replica in self._replicas:
                await stack.enter_async_context(replica)
            await self._observe_before()
            engine = self._replica.entity.get("engine", request.url)
            journal = str(journal_file(prove_directory()))
            assignment = Assignment(request.apply, request.rollback, request.limit, journal, engine)
            try:
                async with supervised_change(assignment, lock) as change:
                    ending = await self._try(change)
                    state = await self._end(change, ending)
            except SupervisorGoneError as error:
                ending = _Ending("undecided", str(error))
                async with supervised_change(assignment, lock) as change:
                    state = await self._end(change, ending)
        return self._proof(ending, state)

    @property
    def _replica(self) -> Replica:
        return self._replicas[0]

    async def _observe_before(self) -> None:
        """Observe the load as it is, until there is enough to compare with. Raises NoEngineError, CommandError."""
        request = self._request
        await watch(self._replicas)
        for replica in self._replicas:
            if replica.problem:
                raise NoEngineError(f"{replica.url} cannot be read: {replica.problem}")
        self._say(f"before the change: observing {request.before:.0f} s in blocks of {request.block:.0f} s")
        checks: list[dict[str, float]] = []
        end = time.monotonic() + LONGEST_BEFORE * request.before
        while time.monotonic() < end:
            await self._block(self._before)
            checks.append(self._replica.of_engine(self._replica.values(self._replica.last, self._check_window())))
            if len(self._before.blocks) >= BLOCKS_BEFORE and all(one.ready for one in self._signal_trials()):
                break
            if len(self._before.blocks) == BLOCKS_BEFORE:
                self._say("blocks before the change depend on each other, or a signal is late: observing longer")
        self._before.whole = self._replica.values(self._replica.last, self._replica.last - self._before.start)
        self._rails = guard_rails(self._replica.objectives(), checks)
        self._guard_window = self._check_window()
        self._triage = self._replica.triage(min(60.0, request.before))
        before, problem = await self._requests(self._before.start)
        self._mix = RequestMix(before, (), problem)
        self._say(f"guard rails: {'; '.join(self._rails.sentences)}")

    def _check_window(self) -> float:
        """Seconds of a check of the guard rails, by the rate of requests in the last block."""
        last = self._before.blocks[-1] if self._before.blocks and not self._request.peers else {}
        return window_seconds(last.get(change_effect.THROUGHPUT, 2.0))

    async def _block(self, side: _Side) -> None:
        """Observe one block."""
        begun = time.monotonic()
        while time.monotonic() - begun < self._request.block:
            await watch(self._replicas)
        self._add_block(side, time.monotonic() - begun)

    def _add_block(self, side: _Side, seconds: float) -> None:
        own = self._replica.of_engine(self._replica.values(self._replica.last, seconds))
        peers = [one.of_engine(one.values(one.last, seconds)) for one in self._replicas[1:]]
        side.blocks.append(_relative(own, peers) if peers else own)

    async def _try(self, change: SupervisedChange) -> _Ending:
        """Apply the change and compare."""
        self._applied = time.time()
        self._say(f"applying: {shlex.join(self._request.apply)}")
        done = await self._while_watching(change.apply())
        if not done.succeeded:
            return _Ending("undecided", f"kvitals could not apply the change: {done.sentence}")
        if early := await self._settle():
            return early
        self._recognise()
        return await self._compare(change)

    async def _while_watching(self, act: Awaitable[CommandRun]) -> CommandRun:
        """Go on reading pages while something else happens."""
        task = asyncio.ensure_future(act)
        while not task.done():
            await watch(self._replicas)
        return await task

    async def _settle(self) -> _Ending | None:
        """Wait until the engine answers, has load, and had it for a while; returns None then, else how the trial ends.
        An engine that does not answer is worse. Nothing is known of one that has no requests."""
        limit = time.monotonic() + self._request.limit
        answers = False
        process: float | None = None
        busy_since: float | None = None
        while busy_since is not None or time.monotonic() < limit:
            answers, started = await watch(self._replicas), self._replica.started()
            if not answers or _is_other(process, started):
                process, busy_since = started, None
                continue
            process = started
            if busy_since is None and self._replica.is_busy():
                busy_since = time.monotonic()
                self._say(f"the engine answers; waiting {change_effect.SETTLE_SECONDS:.0f} s until caches are filled")
            if busy_since is not None and time.monotonic() - busy_since >= change_effect.SETTLE_SECONDS:
                return None
        late = f"{self._request.limit:.0f} s after the change"
        if answers:
            return _Ending("undecided", f"the engine has no requests {late}")
        broken = f"the engine does not answer {late}"
        return _Ending("worse", broken, broken)

    def _recognise(self) -> None:
        """Which setting changed, which levers that pulled, and what was predicted of them."""
        known, at, replica = self._setup.knowledge, self._applied or 0.0, self._replica
        self._change = replica.change_since(self._before.start)
        predicted: list[PredictedValue] = []
        if self._change is not None:
            sides = BeforeAfter(lambda text: replica.number(text, at), lambda text: replica.number(text, replica.last))
            pulled = {one.name: one for one in change_effect.pulled_levers(self._change, known, sides)}
            advised = [one for one in self._advice() if one.lever in pulled]
            chosen = [pulled[one.lever] for one in advised] or list(pulled.values())
            self._levers = list({one.name: one for one in chosen}.values())
            predicted = [p for one in advised if _is_set(one, self._change) for p in one.predicted]
            self._say(f"changed: {', '.join(map(str, self._change.settings))}")
        self._tests = self._signal_trials(predicted)
        for one in self._tests:
            one.end_before()

    def _signal_trials(self, predicted: Sequence[PredictedValue] = ()) -> list[SignalTrial]:
        """A test for each signal, with the blocks before."""
        tested = signals_to_test(self._levers, predicted, self._setup.knowledge.signals)
        tested = [one for one in tested if self._before.values(one.name)] or tested
        return [SignalTrial(one, ALPHA / len(tested), self._before.values(one.name)) for one in tested]

    def _advice(self) -> list[LeverAdvice]:
        document = self._triage
        assert document is not None
        findings: Sequence[Finding] = (*document.causes, *document.symptoms, *document.telemetry, *document.notes)
        code = self._request.code
        return [advice for one in findings if not code or one.code == code for advice in one.levers]

    async def _compare(self, change: SupervisedChange) -> _Ending:
        """Read block after block, until it is decided, a guard rail breaks, or the time is over."""
        self._after.start = self._replica.last
        self._checked = self._answered = time.monotonic()
        process, guards = self._replica.started(), GuardWatch(self._rails)
        end = time.monotonic() + self._request.most
        while True:
            if broken := await self._guarded_block(change, guards, process):
                self._measure()
                return _Ending("worse", f"a guard rail broke, {broken}", broken)
            for one in self._tests:
                one.read(self._after.values(one.tested.name))
            self._measure()
            effects, last = self._effects(), time.monotonic() >= end
            unlike = self._unlike()
            if not unlike and decide(effects, "", last):
                unlike = await self._unlike_requests()
            if decided := decide(effects, unlike, last):
                return _Ending(*decided)
            self._say(f"after the change: {len(self._after.blocks)} blocks; {_progress(effects)}")

    async def _guarded_block(self, change: SupervisedChange, guards: GuardWatch, process: float | None) -> str:
        """Observe one block after the change; the guard rail that broke, empty where none did."""
        begun = time.monotonic()
        while (now := time.monotonic()) - begun < self._request.block:
            if await watch(self._replicas):
                self._answered = time.monotonic()
            if now - self._answered > DOWN_SECONDS:
                return f"the engine does not answer for {DOWN_SECONDS:.0f} s"
            if _is_other(process, self._replica.started()):
                return "the engine restarted"
            if not change.alive:
                raise SupervisorGoneError("the supervising process ended")
            if now - self._checked >= CHECK_SECONDS:
                self._checked = now
                if broken := guards.check(self._now()):
                    return broken
        self._add_block(self._after, time.monotonic() - begun)
        return ""

    def _now(self) -> dict[str, float]:
        """The signals of a check: over the guard rails' window, of the time after the change alone."""
        replica = self._replica
        seconds = min(self._guard_window, replica.last - self._after.start)
        return replica.of_engine(replica.values(replica.last, max(seconds, CHECK_SECONDS)))

    def _measure(self) -> None:
        """The signals over the whole time after the change."""
        replica = self._replica
        self._after.whole = replica.values(replica.last, replica.last - self._after.start)

    def _effects(self) -> list[ProofEffect]:
        replica = self._replica
        before, after = (replica.of_engine(side.whole) for side in (self._before, self._after))
        return [one.effect(before.get(one.tested.name), after.get(one.tested.name)) for one in self._tests]

    def _unlike(self) -> str:
        return change_effect.unlike(self._replica.entity, self._before.whole, self._after.whole)

    async def _requests(self, start: float) -> tuple[Sequence[RequestRecord], str]:
        """The requests since then by the records of an agent, where one was named, and why there are none."""
        if not self._request.agent:
            return (), ""
        engine = self._replica.entity.get("engine", "")
        return await asyncio.to_thread(read_requests, self._request.agent, engine, start, time.time())

    async def _unlike_requests(self) -> str:
        """Why the requests cannot be compared; empty where they can, or where no agent has records of them."""
        after, problem = await self._requests(self._after.start)
        self._mix = RequestMix(self._mix.before, after, self._mix.problem or problem)
        return self._mix.unlike

    async def _end(self, change: SupervisedChange, ending: _Ending) -> EndState:
        """Stay or go back."""
        self._decided = time.time()
        if ending.keep:
            await change.leave()
            return "kept"
        self._say(f"{ending.reason or ending.verdict}. Going back: {shlex.join(self._request.rollback)}")
        done = await self._while_watching(change.rollback())
        if not done.succeeded:
            self._say(f"THE ROLLBACK FAILED, {done.sentence}. Run it: {shlex.join(self._request.rollback)}")
            return "rollback failed"
        limit = time.monotonic() + self._request.limit
        while not await watch(self._replicas):
            if time.monotonic() > limit:
                self._say("the rollback succeeded, but the engine does not answer")
                return "rollback failed"
        return "rolled back"

    def _proof(self, ending: _Ending, state: EndState) -> Proof:
        request, replica = self._request, self._replica
        effects = self._effects()
        before, after = (replica.of_engine(side.whole) for side in (self._before, self._after))
        labels = dict(replica.entity)
        return Proof(
            version=VERSION,
            entity=Entity("engine", labels, entity_title("engine", replica.entity)),
            url=request.url,
            peers=list(request.peers),
            finding=request.code,
            levers=[one.title for one in self._levers],
            changed=[str(one) for one in self._change.settings] if self._change else [],
            begun=self._begun,
            applied=self._applied,
            measured=self._after.start or None,
            decided=self._decided,
            ended=time.time(),
            verdict=ending.verdict,
            conclusion=conclusion(ending.verdict, ending.reason, effects),
            state=state,
            guard_rail=ending.guard_rail,
            guard_rails=self._rails.sentences,
            load=load_sentence(before, after) + (f", compared {self._mix.sentence}" if request.agent else ""),
            block_seconds=request.block,
            confidence=1 - ALPHA,
            effects=effects,
            apply=shlex.join(request.apply),
            rollback=shlex.join(request.rollback),
        )

    def _say(self, line: str) -> None:
        self._tell(f"{datetime.now(UTC):%H:%M:%S} {line}")


def _is_other(process: float | None, started: float | None) -> bool:
    """Whether the engine's process is another one. A page that could not be read has no start time."""
    return process is not None and started is not None and process != started


def _relative(own: Mapping[str, float], peers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """A block of the replica over the mean of its peers' blocks; signals that a peer does not have are left out."""
    found = {}
    for name, value in own.items():
        beside = [peer[name] for peer in peers if name in peer]
        if len(beside) == len(peers) and sum(beside) > 0:
            found[name] = value / (sum(beside) / len(beside))
    return found


def _is_set(advice: LeverAdvice, change: ConfigurationChange) -> bool:
    """Whether what was set is what had been advised, so that the prediction is of it."""
    return advice.setting is not None and any(one.after == advice.setting.to for one in change.settings)


def _progress(effects: Sequence[ProofEffect]) -> str:
    return ", ".join(f"{one.title} {one.verdict}" for one in effects if one.decides)


def encode_proof(proof: Proof) -> str:
    """The document as JSON."""
    return msgspec.json.format(encode_json(proof), indent=2).decode()
