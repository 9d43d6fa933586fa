"""What tenants ask, token by token, and what a cache could have made of it. Nothing here does I/O.

Prompts are lists of token ids, so their lengths and what they share are exact. A prompt is

    [salt] + [system prompt of the tenant] + [the session so far] + [question]

Everything is drawn from seeded generators: the same seed asks the same things in the same order.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

TOKEN_IDS: Final = range(10, 4000)
"""Ordinary tokens of the lab's model; the special ones lie below."""


@dataclass(frozen=True)
class Tenant:
    """One customer of the engine: what its prompts look like and how often it sends them.

    It sends closed-loop (`clients` that each wait for their answer and think), open-loop (`rate` requests a
    second, Poisson) or in bursts (`burst` requests at once every `every` seconds); the ways may be mixed.
    """

    name: str
    clients: int = 0
    think_s: float = 0.0
    """Mean pause of a client between two requests, exponentially distributed."""
    rate: float = 0.0
    burst: int = 0
    every_s: float = 5.0
    prefix: int = 0
    """Tokens in a system prompt, shared by all requests that use it."""
    prefixes: int = 1
    """How many system prompts the tenant has; each session takes one at random."""
    question: int = 32
    """Tokens that are new in each request."""
    answer: int = 16
    """Tokens the engine is made to generate."""
    salt: int = 0
    """Random tokens in front of everything, as a timestamp at the head of a prompt would be."""
    turns: int = 1
    """Requests in a session; each carries the whole conversation before it."""
    adapters: int = 0
    """Each request is for one of so many adapters, drawn at random: models called a0, a1, ..."""
    temperature: float = 0.0
    priority: int = 0
    """Where an engine schedules by priority, lower ones come first."""
    stops: bool = False
    """Answers end by themselves, as with a stop word, and not at the limit on their length."""
    leaves: float = 0.0
    """Share of the requests whose client hangs up ..."""
    leaves_after: int = 1
    """... after so many pieces of output."""
    patience_s: float = 0.0
    """A client that has no first token by then hangs up; 0: it waits."""
    retries: int = 0
    """How often it then sends the same once more, at once."""
    ramp_s: float = 0.0
    """Clients begin one after another over so many seconds, and an open loop gets to its rate; 0: at once."""
    pulse_s: float = 0.0
    """It sends for so many seconds, pauses for as many, and so on; 0: it always sends."""


@dataclass(frozen=True)
class Ask:
    """One request as it will be sent."""

    tenant: Tenant
    prompt: list[int]
    session: Session
    model: str = "tiny"
    leaves_after: int = 0
    """The client hangs up after so many pieces of output; 0: it stays."""


@dataclass
class Session:
    """A conversation: it keeps its system prompt, and its history grows by each question and answer."""

    system: list[int]
    history: list[int] = field(default_factory=list)
    turns_had: int = 0

    def remember(self, question: Sequence[int], answer: Sequence[int]) -> None:
        self.history += [*question, *answer]


class Prompts:
    """Writes a tenant's prompts. System prompts depend on the tenant alone, so they outlive a phase."""

    def __init__(self, tenant: Tenant, seed: str) -> None:
        self.tenant = tenant
        self._draw = random.Random(f"{seed}/{tenant.name}")
        draws = [random.Random(f"system/{tenant.name}/{number}") for number in range(tenant.prefixes)]
        self._systems = [tokens(draw, tenant.prefix) for draw in draws]

    def session(self) -> Session:
        return Session(self._draw.choice(self._systems))

    def every_system(self) -> list[Ask]:
        """One request for each system prompt, to warm a cache with."""
        return [self.ask(Session(system)) for system in self._systems]

    def ask(self, session: Session) -> Ask:
        session.turns_had += 1
        salt = tokens(self._draw, self.tenant.salt)
        question = tokens(self._draw, self.tenant.question)
        prompt = [*salt, *session.system, *session.history, *question]
        return Ask(self.tenant, prompt, session, self._model(), self._leaves_after())

    def _model(self) -> str:
        """Nothing is drawn where nothing is to be drawn: a seed asks what it always asked."""
        return f"a{self._draw.randrange(self.tenant.adapters)}" if self.tenant.adapters else "tiny"

    def _leaves_after(self) -> int:
        return self.tenant.leaves_after if self.tenant.leaves and self._draw.random() < self.tenant.leaves else 0

    def next_session(self, session: Session) -> Session:
        """The session to go on with: the same one until it has had all its turns."""
        return session if session.turns_had < self.tenant.turns else self.session()


def tokens(draw: random.Random, count: int) -> list[int]:
    return draw.choices(TOKEN_IDS, k=count)


def poisson(rate: float, draw: random.Random) -> Iterator[float]:
    """Endless waiting times, in seconds, between arrivals that come at `rate` a second on average."""
    while True:
        yield draw.expovariate(rate)


class InfiniteCache:
    """What a prefix cache without a size limit would have had: the attainable hits of a request stream.

    It counts as vLLM does: whole blocks from the first one on, and never the whole prompt, since at least
    one token must be computed to sample from.
    """

    def __init__(self, block_size: int = 32) -> None:
        self._block_size = block_size
        self._known: set[int] = set()

    def attainable(self, prompt: Sequence[int]) -> int:
        """Tokens of this prompt that were there before it."""
        usable = (len(prompt) - 1) // self._block_size
        chain = itertools.islice(self._chain(prompt), max(usable, 0))
        known = sum(1 for _ in itertools.takewhile(self._known.__contains__, chain))
        return known * self._block_size

    def add(self, prompt: Sequence[int]) -> None:
        self._known.update(self._chain(prompt))

    def _chain(self, prompt: Sequence[int]) -> Iterator[int]:
        """A key for each whole block that stands for the block and for everything before it."""
        parent = 0
        for start in range(0, len(prompt) - self._block_size + 1, self._block_size):
            parent = hash((parent, *prompt[start : start + self._block_size]))
            yield parent


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
