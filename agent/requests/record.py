"""One request, from all that was said of it."""

from __future__ import annotations

from typing import Literal

import msgspec

PhaseSource = Literal["measured", "derived", "unknown"]

Outcome = Literal["success", "aborted", "refused", "too_long", "invalid", "error"]
"""How a request ended: refused is turned away for lack of room, too_long is beyond a limit on its length, invalid was
otherwise the client's own fault."""

OUTCOMES: tuple[Outcome, ...] = ("success", "aborted", "refused", "too_long", "invalid", "error")

REFUSED = (429, 503)
TOO_LARGE = 413
CLIENT_CLOSED = 499
"""The status that proxies log for a client that closed its connection before the answer."""
CONTEXT_LENGTH = "context_length_exceeded"
"""OpenAI's code for a request that does not fit the model's context."""

TOO_LONG = frozenset((CONTEXT_LENGTH, "ContextWindowExceededError"))
"""Errors, without their module, that say so."""

UNATTRIBUTED = "unattributed"


class RequestPhase(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A stretch of a request's time."""

    name: str  # of kvitals.agent.requests.observation.PHASES, or "unattributed"
    seconds: float | None  # None: unknown
    source: PhaseSource
    start: float | None = None  # where it is known
    why: str = ""  # how it was derived, or why it is unknown


class SpanRef(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A span that a record was made from."""

    observer: str
    span: str
    trace: str = ""  # empty: the record's
    parent: str = ""  # the span around it


def is_refusal(status: int | None) -> bool:
    """Whether an HTTP status says that the request was answered with an error. 499 says that its client had left."""
    return status is not None and status >= 400 and status != CLIENT_CLOSED


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A request as a whole. Times are seconds since the epoch; None is unknown, never 0."""

    id: str  # its request id, else what else it is called; a client may use one twice
    start: float  # by the clock of the outermost observer, as far as any was told
    end: float
    complete: bool  # nothing that belongs to it is missing, as far as can be told
    trace: str = ""  # W3C trace id
    engines: dict[str, str] = {}  # role (prefill, decode, unified) -> engine label
    tenant: str = ""  # its pseudonym; empty: unknown
    session: str = ""
    model: str = ""
    lora: str = ""
    phases: tuple[RequestPhase, ...] = ()  # in order of time; they add up to e2e
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
    spans: tuple[SpanRef, ...] = ()  # of its observers, the outermost first; without stages
    sources: dict[str, str] = {}  # field -> observer that it was taken from, and who says otherwise

    @property
    def outcome(self) -> Outcome:
        """How it ended. A client that leaves once it has read that it is refused has aborted nothing."""
        status, finish, error = self.status or 0, self.finish, self.error
        if (self.aborted or finish == "abort") and not is_refusal(status):
            return "aborted"
        if status < 400 and not error:
            return "error" if finish == "error" else "success"
        if status in REFUSED:
            return "refused"
        if status == TOO_LARGE or error.rpartition(".")[2] in TOO_LONG:
            return "too_long"
        return "invalid" if 400 <= status < 500 else "error"

    def seconds(self, phase: str) -> float | None:
        """How long a phase took; None where it is unknown or was none."""
        return next((one.seconds for one in self.phases if one.name == phase), None)
