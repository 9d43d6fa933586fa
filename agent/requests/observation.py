"""What one observer said of one request.

Every sense of requests (OTLP spans, request logs, the tap) yields parts, and a capture keeps them. A part is redacted
where it is made: it has no text, no token ids, no keys, and a tenant or session only as its pseudonym. Times are
seconds since the epoch, durations seconds, counts tokens. None is unknown, and unknown is never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Observer = Literal["gateway", "router", "proxy", "tap", "engine", "stage"]
"""Where a part was seen. A stage is one step within an engine or proxy, such as a KV transfer, in a part of its own."""

PHASES = ("gateway", "queue", "kv_wait", "prefill", "transfer", "decode")
"""What a request's time is made of; what no observer accounts for is "unattributed"."""

OUTER = ("gateway", "router", "proxy", "tap")
"""Observers around an engine."""

MAX_ID = 200
MAX_IDS = 16
MAX_TIME = 1e11  # seconds since the epoch


class RequestPart(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One observation of one request by one observer. Without cycles, so the collector need not look at it."""

    observer: Observer
    system: str  # who said it: vllm, sglang, dynamo, llm-d, litellm, envoy, nginx, kvitals ...
    seen: float  # when it reached kvitals
    ids: tuple[str, ...] = ()  # KIND:VALUE, see `identity`; parts that share one are of one request
    span: str = ""  # id of the span, where it was one
    parent: str = ""  # id of the span around it
    name: str = ""  # of the span or stage
    start: float | None = None
    end: float | None = None
    engine: str = ""  # the engine's address or instance as the observer names it
    role: str = ""  # prefill, decode or unified
    tenant: str = ""
    session: str = ""
    model: str = ""
    lora: str = ""
    stream: bool | None = None
    phases: dict[str, float] = {}  # of `PHASES`, as measured by the observer
    ttft: float | None = None
    itl: float | None = None  # mean gap between output chunks
    itl_max: float | None = None
    itl_p99: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, found in a cache
    external_tokens: int | None = None  # of the prompt, supplied by another engine or tier
    output_tokens: int | None = None
    status: int | None = None  # HTTP
    finish: str = ""  # stop, length, abort, error ...
    error: str = ""  # a class or code, never a message with content
    aborted: bool = False  # the client left before the end


class PartsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="parts"):
    """Parts that came in together, and how their source fares. Without parts it only tells the latter."""

    t: float
    target: str = ""  # it is of no target
    source: str  # otlp, tap, or the name of a request log
    parts: tuple[RequestPart, ...]
    dropped: dict[str, int] = {}  # reason -> parts or lines that were not taken
    waiting: int = 0  # parts of this source that are still to be handed out
    state: str = "ok"  # ok, partial, unknown or failed
    reason: str = "ok"  # why it is not ok: a key of the sense's own reasons
    message: str = ""  # the same for a person, with what to do


def is_bounded(part: RequestPart) -> bool:
    """Whether its texts are short, its ids and phases few and its times are some, as those of our own senses are."""
    times = (part.seen, part.start or 0.0, part.end or 0.0)
    if not all(0.0 <= t < MAX_TIME for t in times):
        return False
    texts = (
        *(
            part.system,
            part.span,
            part.parent,
            part.name,
            part.engine,
            part.role,
            part.tenant,
            part.session,
            part.model,
        ),
        *(part.lora, part.finish, part.error),
    )
    ids = len(part.ids) <= MAX_IDS and all(len(one) <= MAX_ID + 10 and ":" in one for one in part.ids)
    return ids and len(part.phases) <= len(PHASES) and all(len(text) <= MAX_ID for text in texts)


def identity(kind: Literal["trace", "request", "room", "remote", "response"], value: str) -> str:
    """An id by which parts find each other, empty for an empty value.

    trace: a W3C trace id in hex. request: an X-Request-Id, less what engines put around it (`chatcmpl-`, `cmpl-`, a
    prompt's index). response: the id in the response. room: SGLang's bootstrap room. remote: the request id of the
    prefill side that a decode side was given.
    """
    return f"{kind}:{value[:MAX_ID]}" if value else ""
