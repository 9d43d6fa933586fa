"""A request's record, as it is sent as a trace."""

from __future__ import annotations

from typing import Any

from kvitals.agent.requests.record import RequestPhase, RequestRecord, SpanRef

TRACE, TAP, CLIENT, ENGINE = "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", "1" * 16, "2" * 16
START = 1_700_000_000.0


def record(number: int = 0, **more: Any) -> RequestRecord:
    """A request through the tap to one vLLM."""
    told: dict[str, Any] = {
        "id": f"req-{number}",
        "trace": f"{TRACE[:-4]}{number:04x}",
        "start": START,
        "end": START + 2.0,
        "complete": True,
        "engines": {"unified": "10.0.0.1:8000/0"},
        "tenant": "t-aaaaaaaaaa",
        "model": "m",
        "phases": (
            RequestPhase("gateway", 0.004, "derived", START, "outside"),
            RequestPhase("queue", 0.5, "measured", START + 0.003),
            RequestPhase("transfer", None, "unknown", None, "nobody told"),
            RequestPhase("prefill", 0.25, "measured", START + 0.503),
            RequestPhase("decode", 1.2, "measured", START + 0.753),
            RequestPhase("unattributed", 0.046, "derived"),
        ),
        "ttft": 0.76,
        "e2e": 2.0,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 7,
        "status": 200,
        "finish": "stop",
        "observers": ("kvitals", "vllm"),
        "spans": (SpanRef("tap", TAP, "", CLIENT), SpanRef("engine", ENGINE, "", TAP)),
    }
    return RequestRecord(**(told | more))
