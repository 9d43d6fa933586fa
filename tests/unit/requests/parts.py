"""Parts of requests as observers give them, for tests. Their shapes are those of vLLM's, SGLang's and the tap's."""

from __future__ import annotations

from typing import Any

from kvitals.agent.requests.assembly import Assembly
from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.stitch import LIMITS, Stitcher, StitchLimits

E2E = 0.446
PHASES = {"queue": 0.0001, "prefill": 0.2084, "decode": 0.2139}


def ids(n: int, trace: int | None = None) -> tuple[str, ...]:
    """What vLLM's span and the tap's part of request `n` share."""
    return (
        f"trace:{n if trace is None else trace:032x}",
        f"request:req-{n}",
        f"response:chatcmpl-req-{n}",
    )


def llm(n: int, t: float, *, trace: int | None = None, span: str = "", parent: str = "", **more: Any) -> RequestPart:
    """vLLM's `llm_request` of request `n`, that ended at `t`."""
    told: dict[str, Any] = {
        "ids": ids(n, trace),
        "start": t - E2E,
        "engine": "10.0.0.1:8000",
        "phases": PHASES,
        "ttft": 0.2319,
        "prompt_tokens": 137,
        "output_tokens": 16,
        "system": "vllm",
    } | more
    return RequestPart(
        observer="engine",
        seen=t,
        span=span or f"e{n:015x}",
        parent=parent,
        name="llm_request",
        end=t,
        **told,
    )


def tap(n: int, t: float, *, trace: int | None = None, **more: Any) -> RequestPart:
    """The tap's part of request `n`, that ended at `t`."""
    told: dict[str, Any] = {
        "ids": ids(n, trace),
        "start": t - E2E - 0.004,
        "engine": "10.0.0.1:8000",
        "phases": {"gateway": 0.0003},
        "ttft": 0.2339,
        "itl": 0.0143,
        "itl_max": 0.02,
        "prompt_tokens": 137,
        "cached_tokens": 64,
        "output_tokens": 16,
        "status": 200,
        "finish": "stop",
        "tenant": "t-aaaaaaaaaa",
        "model": "m",
        "span": f"a{n:015x}",
        "system": "kvitals",
    } | more
    return RequestPart(observer="tap", seen=t, name="/chat/completions", end=t, **told)


def stage(name: str, start: float, seconds: float, phase: str = "", **more: Any) -> RequestPart:
    """A stage span of SGLang."""
    told: dict[str, Any] = {"system": "sglang", "phases": {phase: seconds} if phase else {}} | more
    return RequestPart(observer="stage", seen=start + seconds, name=name, start=start, end=start + seconds, **told)


class Engines:
    """Engines that are known by what observers call them."""

    def __init__(self, roles: dict[str, str] | None = None) -> None:
        self.roles = roles or {}

    def label(self, name: str) -> str:
        return name

    def role(self, name: str) -> str:
        return self.roles.get(name, "")


class Stitched:
    """A stitcher and what it gave."""

    def __init__(
        self, limits: StitchLimits = LIMITS, roles: dict[str, str] | None = None, waited: bool | None = None
    ) -> None:
        self.engines = Engines(roles)
        self.assembly = Assembly(self.engines, lambda name, start, end: waited)
        self.given: list[tuple[list[RequestPart], bool]] = []
        self.stitcher = Stitcher(lambda parts, whole: self.given.append((parts, whole)), self.engines.role, limits)

    def add(self, t: float, *parts: RequestPart) -> None:
        self.stitcher.add(t, parts)

    def records(self, until: float | None = None) -> list[RequestRecord]:
        """The records by `until`; None: all."""
        if until is None:
            self.stitcher.flush()
        else:
            self.stitcher.advance(until)
        return [self.assembly.record(parts, whole) for parts, whole in self.given]


def one(*parts: RequestPart, roles: dict[str, str] | None = None, waited: bool | None = None) -> RequestRecord:
    """The record of parts that must be of one request."""
    stitched = Stitched(roles=roles, waited=waited)
    stitched.add(max(part.seen for part in parts), *parts)
    (record,) = stitched.records()
    return record
