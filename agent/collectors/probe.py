"""The probe: one request for one token, sent only because the user asked for it.

It tells an engine that works from one whose gauges only look busy. The request is a constant; nothing of the
answer is kept but that there was one.
"""

from __future__ import annotations

import time

from kvitals.agent.records import ProbeRecord

PROBE_TIMEOUT_SECONDS = 8.0
_MAX_ANSWER_BYTES = 1 << 20


async def probe(key: str, root: str, model: str, patience: float = PROBE_TIMEOUT_SECONDS) -> ProbeRecord:
    """Ask the engine at `root` for one token of `model`. Never raises: no answer is an answer too."""
    import aiohttp

    from kvitals.agent.bounded_client import BoundedConnector

    t, started, status = time.time(), time.perf_counter(), 0
    body = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
    try:
        async with (
            aiohttp.ClientSession(
                connector=BoundedConnector(_MAX_ANSWER_BYTES), timeout=aiohttp.ClientTimeout(total=patience)
            ) as session,
            session.post(f"{root}/v1/completions", json=body, allow_redirects=False) as response,
        ):
            await response.content.read(_MAX_ANSWER_BYTES)
            status = response.status
            answered = status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        answered = False
    return ProbeRecord(t=t, target=key, answered=answered, seconds=time.perf_counter() - started, status=status)
