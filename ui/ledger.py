"""The block ledger's look-ups, to be replayed: of a recording or of a running agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import aiohttp

from agent.ledger.packed import MAX_BYTES, PackedError, unpack
from kvcache.accesses import Accesses
from ui.answers import TooLargeError, body_of
from ui.cache import CacheError, replayed
from ui.cache import of_agent as cache_of_agent

AGENT_TIMEOUT_SECONDS = 20.0


class LedgerError(Exception):
    """There is nothing to replay; the message says what to do."""


@dataclass(frozen=True)
class Known:
    """Look-ups, and the blocks of the largest engine where that is known."""

    accesses: Accesses
    pool: int | None


def of_recording(path: Path) -> Known:
    """Keep the ledger of a recording anew, to its end. Raises CaptureError, ConfigError, LedgerError."""
    ledger, _ = replayed(path)
    if ledger is None:
        raise LedgerError(
            f"{path} has no KV events. Engines publish them with --kv-events-config (see `kvitals check`);"
            " then record it anew."
        )
    accesses = ledger.accesses()
    if accesses is None or not len(accesses):
        raise LedgerError(f"{path}: its KV events tell of no look-up; record for longer, or while requests come")
    return Known(accesses, max((w.ledger.pool for w in ledger.engines.values() if w.ledger.pool), default=None))


async def of_agent(url: str) -> Known:
    """Ask a running agent for its latest look-ups. Raises LedgerError."""
    try:
        known = await cache_of_agent(url)
        if known is None:
            raise LedgerError(f"no agent answers at {url}: start one with `kvitals run`")
        accesses = unpack(await _packed(url))
    except (CacheError, PackedError, TooLargeError) as error:
        raise LedgerError(f"{url}: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise LedgerError(f"the agent at {url} stopped answering ({type(error).__name__}): ask again") from error
    pools = [pool for engine in known.cache.get("engines", []) if isinstance(pool := engine.get("pool_blocks"), int)]
    return Known(accesses, max(pools, default=None))


async def _packed(url: str) -> bytes:
    address = f"{url.rstrip('/')}/api/v1/accesses"
    timeout = aiohttp.ClientTimeout(total=AGENT_TIMEOUT_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(address, allow_redirects=False) as response,
    ):
        if response.status == 404:
            raise LedgerError(
                f"{url} knows of no look-up yet: it takes engines that publish KV events, see `kvitals check`"
            )
        if response.status != 200:
            raise LedgerError(f"{address} answers {response.status}: is it a kvitals agent, and a new one?")
        return await body_of(response, MAX_BYTES)
