"""One request, from all that was said of it."""

from __future__ import annotations

from typing import Literal

import msgspec

PhaseSource = Literal["measured", "derived", "unknown"]


class Phase(msgspec.Struct, frozen=True):
    """A stretch of a request's time."""

    name: str  # of agent.requests.part.PHASES, or "unattributed"
    seconds: float | None  # None: unknown
    source: PhaseSource
    start: float | None = None  # where it is known
    why: str = ""  # how it was derived, or why it is unknown


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request as a whole. Times are seconds since the epoch; None is unknown, never 0."""

    id: str
    trace: str = ""  # W3C trace id
    start: float
    end: float
    complete: bool  # nothing that belongs to it is missing, as far as can be told
    engines: dict[str, str] = {}  # role (prefill, decode, unified) -> engine label
    tenant: str = ""  # its pseudonym; empty: unknown
    session: str = ""
    model: str = ""
    lora: str = ""
    phases: tuple[Phase, ...] = ()  # in order of time; they add up to e2e
    ttft: float | None = None
    e2e: float | None = None
    itl: float | None = None
    itl_max: float | None = None
    itl_p99: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    external_tokens: int | None = None
    output_tokens: int | None = None
    status: int | None = None
    finish: str = ""
    error: str = ""
    aborted: bool = False
    observers: tuple[str, ...] = ()  # systems that said something of it
    sources: dict[str, str] = {}  # field -> observer that it was taken from
