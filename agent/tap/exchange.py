"""One request's bookkeeping: what is noted while it passes, and the part that becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvitals.agent.requests.observation import RequestPart, identity
from kvitals.agent.tap.context import Context
from kvitals.agent.tap.http1 import RequestHead, Response
from kvitals.agent.tap.response_reader import Events, Whole

MEASURED = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/messages",
    "/embeddings",
    "/generate",
    "/rerank",
    "/score",
    "/classify",
    "/pooling",
    "/audio/transcriptions",
    "/audio/translations",
)
"""Ends of the paths to which requests for work are posted, the longer of two first; all else passes without a part."""


@dataclass(frozen=True)
class Clock:
    """An instant on both clocks."""

    wall: float  # seconds since the epoch
    steady: float  # seconds of a clock that nobody sets


@dataclass(frozen=True)
class TapPlace:
    """Where the tap stands."""

    engine: str = ""  # the upstream as parts name it; empty before a router, which may send anywhere
    role: str = ""


def measured_as(head: RequestHead) -> str:
    """The name under which requests like this are measured; empty for those that are not."""
    if head.method != b"POST":
        return ""
    path = head.path.decode("latin-1").rstrip("/")
    return next((name for name in MEASURED if path.endswith(name)), "")


class Observation:
    """What is seen of one request. All times are of the steady clock."""

    def __init__(self, name: str, context: Context, place: TapPlace, began: Clock) -> None:
        self.context = context
        self._name = name
        self._place = place
        self._began = began
        self._connected: float | None = None
        self._status: int | None = None
        self._answer: Events | Whole | None = None

    @property
    def unread(self) -> str:
        """Why an answer's content was not read; empty where it was, or where there was none."""
        return "" if self._answer is None or not self._answer.said.unread else "malformed"

    def connected(self, now: float) -> None:
        """The request's head went to the upstream."""
        self._connected = now

    def answered(self, head: Response) -> str:
        """The response began. Returns why its content will not be read; empty where it will."""
        self._status = head.status
        if [one for one in head.members(b"content-encoding") if one != b"identity"]:
            return "encoded"
        kind = b"".join(head.values(b"content-type")[:1]).partition(b";")[0].strip().lower()
        if kind == b"text/event-stream":
            self._answer = Events()
        elif kind == b"application/json":
            self._answer = Whole()
        return ""

    def content(self, pieces: Iterable[tuple[bytes, float]]) -> None:
        """More of the response's content: what came, and when."""
        if self._answer is not None:
            for piece, now in pieces:
                self._answer.feed(piece, now)

    def ended(
        self, now: float, *, left: bool = False, missed: bool = False, error: str = "", status: int | None = None
    ) -> RequestPart:
        """The request as a part. left: the client went away; missed: and was never given the end. error: why there was
        no whole response. status: the tap's own, where the upstream gave none."""
        if isinstance(self._answer, Whole) and not left and not error:
            self._answer.end()
        events = self._answer if isinstance(self._answer, Events) else None
        said = self._answer.said if self._answer is not None else None
        told = said is not None and said.ended and not missed
        aborted = left and not told  # who has read the end may go before the last byte
        context, began = self.context, self._began.steady
        end = self._began.wall + (now - began)
        ids = (
            identity("trace", context.trace),
            identity("request", context.request_id),
            identity("response", said.id if said else ""),
        )
        return RequestPart(
            observer="tap",
            system="kvitals",
            seen=end,
            ids=tuple(one for one in ids if one),
            span=context.span,
            parent=context.parent,
            name=self._name,
            start=self._began.wall,
            end=end,
            engine=self._place.engine,
            role=self._place.role,
            tenant=context.tenant,
            session=context.session,
            model=said.model if said else "",
            stream=events is not None if self._answer is not None else None,
            phases={"gateway": self._connected - began} if self._connected is not None else {},
            ttft=events.first_output - began if events and events.first_output is not None else None,
            itl=events.gaps.mean if events else None,
            itl_max=events.gaps.largest if events and events.gaps.count else None,
            itl_p99=events.gaps.p99 if events else None,
            prompt_tokens=said.prompt_tokens if said else None,
            cached_tokens=said.cached_tokens if said else None,
            output_tokens=said.output_tokens if said else None,
            status=self._status if self._status is not None else status,
            finish="abort" if aborted else said.finish if said else "",
            error=error or (said.error if said else ""),
            aborted=aborted,
        )
